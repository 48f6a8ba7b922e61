"""Signatures bind domain, sender and bytes; nothing that is not the one signature verifies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.envelop.codec import Envelop, Kind, decode, encode
from aicpnode.envelop.signing import DOMAIN, seal, signing_bytes, verify
from aicpnode.identity import Identity

IDENTITY = Identity(bytes(range(32)))


def commit(sender: bytes = IDENTITY.key) -> Envelop:
    return Envelop(network_id=bytes(32), kind=Kind.COMMIT, sender=sender, height=9, body=(1, b"\x07" * 32))


def test_domain_stands_before_the_exact_bytes() -> None:
    sealed = seal(IDENTITY, commit())
    assert signing_bytes(b"\x98") == b"aicp/envelop/1\x98"
    assert sealed.signature == IDENTITY.sign(DOMAIN + commit().signed_part())


def test_sealing_is_deterministic_and_leaves_the_content() -> None:
    sealed = seal(IDENTITY, commit())
    assert sealed == seal(IDENTITY, commit())
    assert sealed.identity == commit().identity
    assert replace(sealed, signature=b"") == commit()


def test_sealed_envelop_verifies_before_and_after_the_wire() -> None:
    sealed = seal(IDENTITY, commit())
    assert verify(sealed)
    assert verify(decode(encode(sealed, b"attachment"))[0])


def test_unsigned_envelop_does_not_verify() -> None:
    assert not verify(commit())


def test_signature_without_the_domain_does_not_verify() -> None:
    bare = replace(commit(), signature=IDENTITY.sign(commit().signed_part()))
    assert not verify(bare)


@pytest.mark.parametrize(
    "change",
    [
        {"height": 10},
        {"kind": Kind.PREPARE},
        {"network_id": bytes([1]) * 32},
        {"body": (1, b"\x08" * 32)},
        {"sender": Identity(bytes(32)).key},
    ],
    ids=repr,
)
def test_signature_does_not_fit_other_content(change: dict[str, object]) -> None:
    sealed = seal(IDENTITY, commit())
    assert not verify(replace(sealed, **change))  # type: ignore[arg-type]


def test_foreign_sender_cannot_be_sealed() -> None:
    with pytest.raises(AssertionError, match="sender"):
        seal(IDENTITY, commit(sender=bytes(32)))

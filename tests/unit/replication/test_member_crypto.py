"""Real signatures: one content a slot, verified once, bound to the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.envelop import signing
from aicpnode.envelop.codec import decode, encode
from aicpnode.envelop.kinds import parse_vote, vote_envelop
from aicpnode.identity import Identity
from aicpnode.replication import crypto as crypto_module
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.simulation import playbook
from consensus.membership import genesis_state
from consensus.messages import Commit, Operation, OperationKind, Prepare, PrepareCert, certificate_holds
from consensus.types import NIL

NETWORK, OTHER_NETWORK, X = b"\x01" * 32, b"\x02" * 32, b"x" * 32


@pytest.fixture
def identity() -> Identity:
    return Identity.generate()


@pytest.fixture
def crypto(identity: Identity) -> MemberCrypto:
    return MemberCrypto(identity, NETWORK)


def commit(identity: Identity, name: bytes = X, *, height: int = 1, view: int = 0) -> Commit:
    return Commit(height=height, view=view, block_id=name, signer=identity.key)


def test_signed_message_verifies_for_others(identity: Identity, crypto: MemberCrypto) -> None:
    signed = crypto.sign(commit(identity))
    others = MemberCrypto(Identity.generate(), NETWORK)
    assert others.verify(signed)
    assert not others.verify(replace(signed, view=1))
    assert not others.verify(replace(signed, signature=bytes(64)))


def test_signature_of_another_run_does_not_verify(identity: Identity, crypto: MemberCrypto) -> None:
    signed = crypto.sign(commit(identity))
    assert not MemberCrypto(Identity.generate(), OTHER_NETWORK).verify(signed)


def test_same_content_in_a_slot_gives_the_same_bytes(identity: Identity, crypto: MemberCrypto) -> None:
    first = crypto.sign(commit(identity))
    second = crypto.sign(commit(identity))
    assert second is first


def test_second_content_in_a_slot_stops_the_node(identity: Identity, crypto: MemberCrypto) -> None:
    crypto.sign(commit(identity))
    with pytest.raises(AssertionError, match="contradict itself"):
        crypto.sign(commit(identity, NIL))


def test_slots_of_a_previous_run_bind_this_one(identity: Identity, crypto: MemberCrypto) -> None:
    stored = parse_vote(*decode(encode(vote_envelop(crypto.sign(commit(identity)), NETWORK))))
    restarted = MemberCrypto(identity, NETWORK)
    restarted.remember_slot(stored)
    assert restarted.sign(commit(identity)).signature == stored.signature
    with pytest.raises(AssertionError):
        restarted.sign(commit(identity, NIL))


def test_slots_are_apart_by_kind_height_and_view(identity: Identity, crypto: MemberCrypto) -> None:
    crypto.sign(commit(identity))
    crypto.sign(commit(identity, NIL, view=1))
    crypto.sign(commit(identity, NIL, height=2))
    crypto.sign(Prepare(height=1, view=0, block_id=NIL, valid_view=-1, signer=identity.key))


def test_slots_of_decided_heights_are_forgotten(identity: Identity, crypto: MemberCrypto) -> None:
    for height in range(1, 50):
        crypto.sign(commit(identity, height=height))
        crypto.forget_slots(height)
    assert len(crypto._slots) == 1


def test_signature_is_verified_once(identity: Identity, crypto: MemberCrypto) -> None:
    signed = crypto.sign(commit(identity))
    other = MemberCrypto(Identity.generate(), NETWORK)
    assert other.verify(signed) and other.verify(signed)
    assert other.verifications == 1


def test_another_signature_of_the_same_content_is_verified_for_itself(identity: Identity, crypto: MemberCrypto) -> None:
    signed = crypto.sign(commit(identity))
    other = MemberCrypto(Identity.generate(), NETWORK)
    other.verify(signed)
    assert not other.verify(replace(signed, signature=signed.signature[:-1] + bytes([signed.signature[-1] ^ 1])))


def test_what_the_network_verified_is_not_verified_again(identity: Identity, crypto: MemberCrypto) -> None:
    envelop = signing.seal(identity, vote_envelop(commit(identity), NETWORK))
    other = MemberCrypto(Identity.generate(), NETWORK)
    other.note_verified(envelop)
    assert other.verify(parse_vote(envelop, b"")) and other.verifications == 0


def test_memory_of_verified_signatures_is_bounded(
    identity: Identity, crypto: MemberCrypto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crypto_module, "VERIFIED_MAX", 8)
    for view in range(30):
        crypto.sign(commit(identity, view=view))
    assert len(crypto._verified) == 8


def test_operation_is_signed_by_its_sequence(identity: Identity, crypto: MemberCrypto) -> None:
    operation = Operation(kind=OperationKind.CONTRIBUTE, signer=identity.key, sequence=4, arguments=(9,))
    signed = crypto.sign_operation(operation)
    assert crypto.verify(signed)
    for changed in (replace(signed, sequence=5), replace(signed, arguments=(10,))):
        assert not crypto.verify(changed)


def test_certificate_is_rebuilt_from_real_signatures() -> None:
    identities = [Identity.generate() for _ in range(4)]
    roster = genesis_state(((i.key, 1, "m") for i in identities), NETWORK, playbook.RULES).roster
    unsigned = [Prepare(height=1, view=2, block_id=X, valid_view=0, signer=i.key) for i in identities[1:]]
    signed = [MemberCrypto(i, NETWORK).sign(p) for i, p in zip(identities[1:], unsigned, strict=True)]
    certificate = PrepareCert(
        height=1, view=2, block_id=X, valid_view=0, votes=tuple((n + 1, p.signature) for n, p in enumerate(signed))
    )
    checker = MemberCrypto(identities[0], NETWORK)
    assert certificate_holds(checker, certificate, roster)
    assert not certificate_holds(checker, replace(certificate, view=1), roster)
    assert not certificate_holds(MemberCrypto(identities[0], OTHER_NETWORK), certificate, roster)


def test_message_of_another_member_is_not_signed(crypto: MemberCrypto) -> None:
    with pytest.raises(AssertionError, match="sender"):
        crypto.sign(Commit(height=1, view=0, block_id=X, signer=bytes(32)))

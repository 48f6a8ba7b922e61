"""The Envelop's bytes: golden vectors, the two forms of a body, and what must not be decoded."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from aicpnode.envelop.codec import (
    CONSENSUS_KINDS,
    MAX_SIGNED_PART_BYTES,
    MAX_WIRE_BYTES,
    Envelop,
    Kind,
    Packable,
    decode,
    encode,
    from_signed_part,
    pack,
)
from aicpnode.envelop.signing import seal, verify
from aicpnode.errors import MalformedError
from aicpnode.identity import Identity

IDENTITY = Identity(bytes(range(32)))
NETWORK = bytes([0xAA]) * 32

PREPARE_SIGNED_PART = (
    "9801c420aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa05c42003a107bff3ce10be1d"
    "70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b800cd012cc09300c420bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbff"
)
PREPARE_SIGNATURE = (
    "7e70fe04d6aaa38810eb8e1c29f2cedf2612b70e76f2c249d18e356daca0abfd6f83398d78e980188e38bb95ed057e0a"
    "bb565e12f06ff8cfe6b523df34abac06"
)
PREPARE_WIRE = (
    "93c4719801c420aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa05c42003a107bff3ce"
    "10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b800cd012cc09300c420bbbbbbbbbbbbbbbbbbbbbbbbbb"
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbffc4407e70fe04d6aaa38810eb8e1c29f2cedf2612b70e76f2c249d18e"
    "356daca0abfd6f83398d78e980188e38bb95ed057e0abb565e12f06ff8cfe6b523df34abac06c40463657274"
)
PREPARE_IDENTITY = "a881ab5a79b6636932740d423f525a6f08ebb071834d67ffbab3d6f61c0c4f7c"
APART_SIGNED_PART = (
    "9901c420aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0dc42003a107bff3ce10be1d"
    "70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b80700c420cccccccccccccccccccccccccccccccccccccccccc"
    "ccccccccccccccccccccccc420ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddcf0000"
    "000200000000"
)


def prepare() -> Envelop:
    body = (0, bytes([0xBB]) * 32, -1)
    return Envelop(network_id=NETWORK, kind=Kind.PREPARE, sender=IDENTITY.key, height=300, body=body)


def apart() -> Envelop:
    return Envelop(
        network_id=NETWORK,
        kind=Kind.CHECKPOINT,
        sender=IDENTITY.key,
        seq=7,
        route=bytes([0xCC]) * 32,
        body_digest=bytes([0xDD]) * 32,
        body_size=1 << 33,
    )


def signed_fields(**changes: Packable) -> bytes:
    """A signed part with single fields replaced; ``tail`` stands for everything after the route."""
    fields: dict[str, Any] = {
        "version": 1,
        "network_id": NETWORK,
        "kind": int(Kind.OPERATION),
        "sender": IDENTITY.key,
        "seq": 1,
        "height": 2,
        "route": None,
        "tail": [(b"body",)],
    }
    tail = {**fields, **changes}.pop("tail")
    return pack([*({**fields, **changes}[name] for name in fields if name != "tail"), *tail])


def wire(signed_part: bytes, signature: bytes = bytes(64), attachment: bytes = b"") -> bytes:
    return pack((signed_part, signature, attachment))


def test_signed_part_and_wire_form_are_the_golden_ones() -> None:
    envelop = seal(IDENTITY, prepare())
    assert envelop.signed_part().hex() == PREPARE_SIGNED_PART
    assert envelop.signature.hex() == PREPARE_SIGNATURE
    assert envelop.identity.hex() == PREPARE_IDENTITY
    assert encode(envelop, b"cert").hex() == PREPARE_WIRE
    assert apart().signed_part().hex() == APART_SIGNED_PART


def test_golden_wire_form_decodes_and_verifies() -> None:
    envelop, attachment = decode(bytes.fromhex(PREPARE_WIRE))
    assert envelop == seal(IDENTITY, prepare())
    assert attachment == b"cert"
    assert verify(envelop)
    assert envelop.kind is Kind.PREPARE
    assert envelop.signed_part().hex() == PREPARE_SIGNED_PART
    assert envelop.identity.hex() == PREPARE_IDENTITY


def test_wire_form_is_canonical_msgpack() -> None:
    envelop = seal(IDENTITY, prepare())
    for size in (0, 1, 255, 256, 65535, 65536, 200_000):
        attachment = bytes(size)
        encoded = encode(envelop, attachment)
        assert encoded == pack((envelop.signed_part(), envelop.signature, attachment))
        assert decode(encoded) == (envelop, attachment)


def test_body_apart_round_trips() -> None:
    sealed = seal(IDENTITY, apart())
    assert decode(encode(sealed)) == (sealed, b"")


@pytest.mark.parametrize("route", [None, bytes(32), ("ring", 4, ("a", b"b")), ("pipeline",)])
def test_routes_round_trip(route: Any) -> None:
    sealed = seal(IDENTITY, Envelop(network_id=NETWORK, kind=Kind.HEAD, sender=IDENTITY.key, route=route, body=()))
    assert decode(encode(sealed))[0].route == route


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": True},
        {"version": b"\x01"},
        {"network_id": bytes(31)},
        {"network_id": "a" * 32},
        {"kind": 0},
        {"kind": 99},
        {"kind": True},
        {"kind": b"\x07"},
        {"kind": (7,)},
        {"sender": bytes(33)},
        {"sender": None},
        {"seq": -1},
        {"seq": 1 << 63},
        {"seq": False},
        {"height": -1},
        {"height": "2"},
        {"route": bytes(31)},
        {"route": "everyone"},
        {"route": 0},
        {"route": ()},
        {"route": (1,)},
        {"route": (b"ring",)},
        {"route": ("",)},
        {"route": ("x" * 33,)},
        {"route": ("ring", *range(64))},
        {"tail": []},
        {"tail": [None]},
        {"tail": [None, 5]},
        {"tail": [bytes(31), 5]},
        {"tail": [bytes(32), None]},
        {"tail": [bytes(32), -1]},
        {"tail": [bytes(32), True]},
        {"tail": [bytes(32), 5, 6]},
    ],
    ids=repr,
)
def test_impossible_fields_are_refused(changes: dict[str, Any]) -> None:
    decode(wire(signed_fields()))
    with pytest.raises(MalformedError):
        decode(wire(signed_fields(**changes)))


@pytest.mark.parametrize("kind", sorted(CONSENSUS_KINDS))
def test_consensus_message_with_seq_or_route_is_refused(kind: Kind) -> None:
    decode(wire(signed_fields(kind=int(kind), seq=0)))
    with pytest.raises(MalformedError, match="seq 0"):
        decode(wire(signed_fields(kind=int(kind), seq=1)))
    with pytest.raises(MalformedError, match="seq 0"):
        decode(wire(signed_fields(kind=int(kind), seq=0, route=bytes(32))))


@pytest.mark.parametrize("signed_part", [b"", b"\x90", b"\x01", b"\xc0", pack((1,) * 7), pack((1,) * 10)])
def test_signed_part_that_is_no_envelop_is_refused(signed_part: bytes) -> None:
    with pytest.raises(MalformedError):
        from_signed_part(signed_part, bytes(64))


def test_signed_part_that_is_not_canonical_is_refused() -> None:
    canonical = signed_fields()
    assert canonical.startswith(b"\x98\x01")
    for other in (b"\x98\xcc\x01" + canonical[2:], b"\xdc\x00\x08" + canonical[1:], canonical + b"\x00"):
        with pytest.raises(MalformedError):
            decode(wire(other))


def test_wire_form_that_is_not_canonical_is_refused() -> None:
    part = signed_fields()
    good = wire(part)
    header = b"\xc4" + bytes([len(part)])
    assert good.startswith(b"\x93" + header)
    variants = [
        b"",
        b"\x93",
        good[:-1],
        good + b"\x00",
        b"\x92" + good[1:],
        b"\x94" + good[1:] + b"\xc0",
        b"\xdc\x00\x03" + good[1:],
        good.replace(header, b"\xc5\x00" + bytes([len(part)]), 1),
        good.replace(header, b"\xc6\x00\x00\x00" + bytes([len(part)]), 1),
        good.replace(header, b"\xd9" + bytes([len(part)]), 1),
        good.replace(header, b"\xc6\xff\xff\xff\xff", 1),
        good[: -2 - 66] + b"\xd9\x40" + bytes(64) + b"\xc4\x00",
        good[:-2] + b"\xc0",
        good[:-2] + b"\xa0",
        good[:-2] + b"\xc5\x00\x00",
    ]
    decode(good)
    for variant in variants:
        with pytest.raises(MalformedError):
            decode(variant)


@pytest.mark.parametrize("length", [0, 63, 65])
def test_signature_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(MalformedError):
        decode(wire(signed_fields(), bytes(length)))


def test_sizes_are_limited_on_both_sides() -> None:
    room = MAX_SIGNED_PART_BYTES - len(signed_fields(tail=[b""]))
    largest = signed_fields(tail=[bytes(room - 1)])
    assert len(largest) == MAX_SIGNED_PART_BYTES
    decode(wire(largest))
    with pytest.raises(MalformedError):
        decode(wire(signed_fields(tail=[bytes(room)])))
    with pytest.raises(ValueError, match="travels apart"):
        replace(prepare(), body=bytes(MAX_SIGNED_PART_BYTES)).signed_part()

    sealed = seal(IDENTITY, prepare())
    with pytest.raises(ValueError, match="at most"):
        encode(sealed, bytes(MAX_WIRE_BYTES))
    with pytest.raises(MalformedError, match="at most"):
        decode(encode(sealed, bytes(1000)), max_bytes=1000)


def test_own_impossible_envelop_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="neither"):
        Envelop(network_id=NETWORK, kind=Kind.HEAD, sender=IDENTITY.key)
    with pytest.raises(ValueError, match="both"):
        replace(apart(), body=b"x")
    with pytest.raises(ValueError, match="body_size"):
        replace(apart(), body_digest=None, body=b"x")


def test_changed_copy_has_its_own_bytes() -> None:
    """The cached signed part of the original must not travel with the copy."""
    original = prepare()
    first = original.signed_part()
    copy = replace(original, height=301)
    assert copy.signed_part() != first
    assert copy.identity != original.identity


def test_envelop_cannot_be_changed_and_can_be_a_key() -> None:
    envelop = prepare()
    with pytest.raises(FrozenInstanceError):
        envelop.height = 5  # type: ignore[misc]
    assert {envelop: 1}[prepare()] == 1

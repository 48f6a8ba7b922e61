"""The Noise handshake against published vectors, against another implementation, and against an attacker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from aicpnode.network.noise import PROTOCOL_NAME, TAG_BYTES, Channel, Handshake, KeyPair, NoiseError

# The vector "Noise_XX_25519_ChaChaPoly_BLAKE2s" of the Cacophony test vectors (github.com/centromere/cacophony).
PROLOGUE = bytes.fromhex("4a6f686e2047616c74")
INITIATOR_STATIC = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1"
INITIATOR_EPHEMERAL = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"
ACCEPTER_STATIC = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893"
ACCEPTER_EPHEMERAL = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"
HASH_AFTER_TWO = "3a24afb2e6dd98616709e1b88261a869a6b567f584d3c573e90002d8757cac33"
"""What these vectors call the handshake hash of XX: that of the first two of its three messages."""
MESSAGES = [
    (
        "4c756477696720766f6e204d69736573",
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79444c756477696720766f6e204d69736573",
    ),
    (
        "4d757272617920526f746862617264",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088437c365eb362a1c991b0557fe8a7fb187d"
        "99346765d93ec63db6c1b01504ebeec55a2298d2dbff80eff034d20595153f63a196a6cead1e11b2bb13e336fa13616dd3e8b0a070c882ed3f"
        "1a78c7c06c93",
    ),
    (
        "462e20412e20486179656b",
        "46c3307de83b014258717d97781c1f50936d8b7d50c0722a1739654d10392d415b670c114f79b9a4f80541570f77ce88802efa4220cff733e7"
        "b5668ba38059ec904b4b8eef9448085faf51",
    ),
    ("4361726c204d656e676572", "d5e83adfaac5dc324a68f1862df54549e56d209fba707205f328b2"),
    (
        "4a65616e2d426170746973746520536179",
        "d102c9029b1f55c788f561ba7737afbccef9c9f1bf2f238167fd40ba9c1c134867",
    ),
    (
        "457567656e2042f6686d20766f6e2042617765726b",
        "cb1ce80960382c6d5d5e740ffb724d1432f0310b200fb6f8424120f506092744baa415e155",
    ),
]
"""(payload, what travels); the first by the initiator, then by turns."""


def key(private: str) -> KeyPair:
    return KeyPair.of(bytes.fromhex(private))


def handshake(*, initiator: bool, prologue: bytes = PROLOGUE) -> Handshake:
    return Handshake(initiator=initiator, static=KeyPair.generate(), prologue=prologue)


def channels() -> tuple[Channel, Channel]:
    one, other = handshake(initiator=True), handshake(initiator=False)
    other.read(one.write())
    one.read(other.write())
    other.read(one.write())
    return one.channel(), other.channel()


def test_published_vector_is_followed_byte_by_byte() -> None:
    sides = [
        Handshake(initiator=True, static=key(INITIATOR_STATIC), prologue=PROLOGUE, ephemeral=key(INITIATOR_EPHEMERAL)),
        Handshake(initiator=False, static=key(ACCEPTER_STATIC), prologue=PROLOGUE, ephemeral=key(ACCEPTER_EPHEMERAL)),
    ]
    for number, (payload, expected) in enumerate(MESSAGES[:3]):
        writer, reader = sides[number % 2], sides[1 - number % 2]
        assert writer.writes_next and not reader.writes_next
        assert writer.write(bytes.fromhex(payload)).hex() == expected
        assert reader.read(bytes.fromhex(expected)).hex() == payload
        if number == 1:
            assert {side.handshake_hash.hex() for side in sides} == {HASH_AFTER_TWO}
    ends = [side.channel() for side in sides]
    assert [end.remote_static for end in ends] == [key(ACCEPTER_STATIC).public, key(INITIATOR_STATIC).public]
    for number, (payload, expected) in enumerate(MESSAGES[3:], start=3):
        writer, reader = ends[number % 2], ends[1 - number % 2]
        assert writer.sending.encrypt(bytes.fromhex(payload)).hex() == expected
        assert reader.receiving.decrypt(bytes.fromhex(expected)).hex() == payload


def independent(*, initiator: bool) -> NoiseConnection:
    other = NoiseConnection.from_name(PROTOCOL_NAME)
    other.set_prologue(PROLOGUE)
    other.set_keypair_from_private_bytes(Keypair.STATIC, KeyPair.generate().private)
    (other.set_as_initiator if initiator else other.set_as_responder)()
    other.start_handshake()
    return other


@pytest.mark.parametrize("initiator", [True, False])
def test_another_implementation_understands_every_message(initiator: bool) -> None:
    ours, theirs = handshake(initiator=initiator), independent(initiator=not initiator)
    for number in range(3):
        payload = b"payload %d" % number
        if ours.writes_next:
            assert bytes(theirs.read_message(ours.write(payload))) == payload
        else:
            assert ours.read(bytes(theirs.write_message(payload))) == payload
    end = ours.channel()
    assert theirs.handshake_finished and end.handshake_hash == theirs.get_handshake_hash()
    for number in range(20):
        message = bytes(number) * 999
        assert bytes(theirs.decrypt(end.sending.encrypt(message))) == message
        assert end.receiving.decrypt(bytes(theirs.encrypt(message))) == message


@given(number=st.integers(0, 2), position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_of_a_handshake_can_be_changed_unnoticed(number: int, position: int, bit: int) -> None:
    sides = [handshake(initiator=True), handshake(initiator=False)]
    with pytest.raises(NoiseError):  # of the first message, which is in the clear, the initiator hears in the answer
        for turn in range(3):
            message = bytearray(sides[turn % 2].write(b"payload"))
            if turn == number:
                message[position % len(message)] ^= 1 << bit
            sides[1 - turn % 2].read(bytes(message))


@given(cut=st.integers(0, 200), number=st.integers(0, 2))
def test_handshake_message_that_was_cut_short_is_refused(cut: int, number: int) -> None:
    sides = [handshake(initiator=True), handshake(initiator=False)]
    for turn in range(number):
        sides[1 - turn % 2].read(sides[turn % 2].write())
    message = sides[number % 2].write()
    with pytest.raises(NoiseError):
        sides[1 - number % 2].read(message[: min(cut, len(message) - 1)])


def test_sides_that_do_not_agree_on_the_prologue_have_no_channel() -> None:
    one, other = handshake(initiator=True), handshake(initiator=False, prologue=b"another")
    other.read(one.write())
    with pytest.raises(NoiseError):
        one.read(other.write())


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)], ids=["zero", "one"])
def test_public_key_of_small_order_is_refused(point: bytes) -> None:
    accepter = handshake(initiator=False)
    accepter.read(point)
    with pytest.raises(NoiseError):
        accepter.write()


def test_messages_cannot_be_replayed_swapped_dropped_or_reflected() -> None:
    one, other = channels()
    first, second = one.sending.encrypt(b"first"), one.sending.encrypt(b"second")
    with pytest.raises(NoiseError):
        channels()[1].receiving.decrypt(first)
    with pytest.raises(NoiseError):
        other.receiving.decrypt(second)
    one, other = channels()
    first = one.sending.encrypt(b"first")
    assert other.receiving.decrypt(first) == b"first"
    with pytest.raises(NoiseError):
        other.receiving.decrypt(first)
    with pytest.raises(NoiseError):
        one.receiving.decrypt(first)


@given(st.binary(max_size=200))
def test_noise_is_all_that_an_eavesdropper_hears(plaintext: bytes) -> None:
    one, other = channels()
    ciphertext = one.sending.encrypt(plaintext)
    assert len(ciphertext) == len(plaintext) + TAG_BYTES
    assert len(plaintext) < 8 or plaintext not in ciphertext
    assert other.receiving.decrypt(ciphertext) == plaintext


@pytest.mark.parametrize("size", [0, 1, TAG_BYTES - 1])
def test_message_without_a_tag_is_refused(size: int) -> None:
    with pytest.raises(NoiseError):
        channels()[0].receiving.decrypt(bytes(size))

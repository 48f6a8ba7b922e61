"""Sessions through a Noise wire: who may read them, who may change them, and sides that do not do the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicpnode.errors import RemoteError
from aicpnode.identity import Identity
from aicpnode.network.channel import NoiseWire, PlainWire
from aicpnode.network.framing import (
    FRAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    FrameReader,
    FrameType,
    Lane,
    encode_frame,
)
from aicpnode.network.noise import NoiseError
from aicpnode.network.session import (
    HandshakeFailed,
    Hello,
    PeerAuthenticated,
    RefusalCode,
    Role,
    Session,
    SessionEstablished,
    SessionRefused,
    decode_refusal,
    encode_refusal,
)

ALICE, BOB, MALLORY = (Identity(letter * 32) for letter in (b"a", b"b", b"m"))


def hello(identity: Identity) -> Hello:
    return Hello(
        network_id=b"n" * 32,
        key=identity.key,
        node_type="full",
        name="a name to look for",
        listen_port=7777,
        head_height=3,
        nonce=identity.key[:16],
    )


def session(role: Role, identity: Identity, *, encrypted: bool = True) -> Session:
    return Session(role=role, identity=identity, hello=hello(identity), encrypted=encrypted)


def pair() -> tuple[Session, Session]:
    return session(Role.INITIATOR, ALICE), session(Role.ACCEPTER, BOB)


def events_of(target: Session) -> list[object]:
    found = []
    while (event := target.next_event()) is not None:
        found.append(event)
    return found


def talk(one: Session, other: Session, *, piece: int = 1 << 16) -> tuple[list[object], list[bytes]]:
    """Pass bytes on in pieces, and accept, until nobody says anything more: (events, what travelled each time)."""
    events: list[object] = []
    travelled: list[bytes] = []
    sides = [one, other]
    silent = 0
    while silent < 2:
        source, target = sides
        data = source.data_to_send()
        silent = 0 if data else silent + 1
        travelled += [data] if data else []
        for at in range(0, len(data), piece):
            target.receive_data(data[at : at + piece])
            found = events_of(target)
            events += found
            if any(isinstance(event, PeerAuthenticated) for event in found):
                target.accept()
                events += events_of(target)
        sides.reverse()
    return events, travelled


def established() -> tuple[Session, Session]:
    one, other = pair()
    talk(one, other)
    return one, other


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_both_sides_know_each_other_however_the_bytes_arrive(piece: int) -> None:
    events, _travelled = talk(*pair(), piece=piece)
    assert events.count(SessionEstablished(peer=hello(BOB))) == 1
    assert events.count(SessionEstablished(peer=hello(ALICE))) == 1


def test_nothing_that_says_who_talks_travels_in_the_clear() -> None:
    _events, travelled = talk(*pair())
    everything = b"".join(travelled)
    for secret in (ALICE.key, BOB.key, b"n" * 32, b"a name to look for"):
        assert secret not in everything


def test_frames_of_any_length_arrive_as_they_were_sent() -> None:
    alice, bob = established()
    payloads = [b"", b"x", b"y" * 1000, b"z" * PAYLOAD_BYTES_MAX, bytes(range(256)) * 200]
    frames = [encode_frame(FrameType.ENVELOP, Lane.VOTES, payload) for payload in payloads]
    assert len(frames[3]) == FRAME_BYTES_MAX
    stream = alice.outgoing(frames[0]) + alice.outgoing(b"".join(frames[1:3])) + alice.outgoing(b"".join(frames[3:]))
    for at in range(0, len(stream), 999):
        bob.frames.receive_data(bob.incoming(stream[at : at + 999]))
    assert [bob.frames.next_message().payload for _ in payloads] == payloads  # type: ignore[union-attr]
    assert bob.frames.next_message() is None


def test_bytes_behind_the_handshake_are_kept_for_the_connection() -> None:
    alice, bob = pair()
    for source, target in ((alice, bob), (bob, alice), (alice, bob), (bob, alice)):
        target.receive_data(source.data_to_send())
        if events_of(target):
            target.accept()
    bob.receive_data(alice.data_to_send())
    assert events_of(bob) == [PeerAuthenticated(peer=hello(ALICE))]
    bob.accept()
    early = bob.outgoing(encode_frame(FrameType.PING, Lane.CONTROL, b"early"))
    more = bob.outgoing(encode_frame(FrameType.PONG, Lane.CONTROL, b"half of it"))
    alice.receive_data(bob.data_to_send() + early + more[:9])
    assert events_of(alice) == [SessionEstablished(peer=hello(BOB))]
    alice.frames.receive_data(alice.incoming(more[9:]))
    messages = [alice.frames.next_message() for _ in range(2)]
    assert [message.payload for message in messages if message] == [b"early", b"half of it"]


def test_garbage_that_comes_before_the_answer_fails_only_when_it_is_read() -> None:
    """``accept`` raises nothing: whoever calls it has done nothing wrong."""
    alice, bob = pair()
    for source, target in ((alice, bob), (bob, alice), (alice, bob), (bob, alice)):
        target.receive_data(source.data_to_send())
        if events_of(target):
            target.accept()
    bob.receive_data(alice.data_to_send())
    assert events_of(bob) == [PeerAuthenticated(peer=hello(ALICE))]
    bob.receive_data(b"\0\x20" + bytes(32))
    bob.accept()
    assert events_of(bob) == [SessionEstablished(peer=hello(ALICE))]
    with pytest.raises(NoiseError):
        bob.incoming(b"")


@given(position=st.integers(0, 1 << 20), bit=st.integers(0, 7), step=st.integers(0, 5))
def test_no_changed_bit_goes_unnoticed(position: int, bit: int, step: int) -> None:
    """Whoever sits on the way can end a session, and do nothing else."""
    alice, bob = pair()
    sides = [alice, bob]
    opened = 0
    try:
        for turn in range(6):
            source, target = sides[turn % 2], sides[1 - turn % 2]
            data = bytearray(source.data_to_send())
            if turn == step:
                data[position % len(data)] ^= 1 << bit
            target.receive_data(bytes(data))
            for event in events_of(target):
                if isinstance(event, PeerAuthenticated):
                    target.accept()
                    events_of(target)
                opened += isinstance(event, SessionEstablished)
    except RemoteError as error:
        assert error.reason
    assert opened < 2


def test_change_on_the_way_costs_the_peer_nothing() -> None:
    """It was not the peer who made it, and whoever made it could have everybody banned."""
    alice, bob = established()
    data = bytearray(alice.outgoing(encode_frame(FrameType.PING, Lane.CONTROL, bytes(16))))
    data[-1] ^= 1
    with pytest.raises(NoiseError) as failed:
        bob.incoming(bytes(data))
    assert failed.value.penalty == 0


def test_somebody_in_between_is_found_out() -> None:
    """Mallory shakes hands with both, and passes on what each of them says inside."""
    alice, bob = pair()
    to_alice, to_bob = NoiseWire(initiator=False), NoiseWire(initiator=True)
    bob.receive_data(to_bob.to_send())
    events_of(bob)
    to_alice.incoming(alice.data_to_send())
    alice.receive_data(to_alice.to_send())
    events_of(alice)
    to_bob.incoming(bob.data_to_send())
    bob.receive_data(to_bob.to_send())
    bob.receive_data(to_bob.outgoing(to_alice.incoming(alice.data_to_send())))
    assert events_of(bob) == []
    alice.receive_data(to_alice.outgoing(to_bob.incoming(bob.data_to_send())))
    with pytest.raises(HandshakeFailed) as failed:
        events_of(alice)
    assert "signature" in failed.value.reason


def test_a_recorded_session_cannot_be_played_again() -> None:
    alice, bob = pair()
    _events, travelled = talk(alice, bob)
    again = session(Role.ACCEPTER, BOB)
    again.receive_data(travelled[0])
    assert events_of(again) == []
    again.receive_data(travelled[2])
    with pytest.raises(NoiseError):
        events_of(again)


@pytest.mark.parametrize("initiator_encrypts", [True, False])
def test_sides_that_do_not_do_the_same_say_so_to_each_other(initiator_encrypts: bool) -> None:
    alice = session(Role.INITIATOR, ALICE, encrypted=initiator_encrypts)
    bob = session(Role.ACCEPTER, BOB, encrypted=not initiator_encrypts)
    bob.receive_data(alice.data_to_send())
    with pytest.raises(HandshakeFailed) as failed:
        events_of(bob)
    assert failed.value.code is RefusalCode.ENCRYPTION and failed.value.penalty == 0
    for byte in bob.data_to_send():
        alice.receive_data(bytes((byte,)))
        if events := events_of(alice):
            break
    assert events == [SessionRefused(code=RefusalCode.ENCRYPTION, reason=failed.value.reason)]
    dialled, dialling = ("does not encrypt", "does;") if initiator_encrypts else ("encrypts", "does not;")
    assert f"dialled {dialled} its sessions" in failed.value.reason and f"it {dialling}" in failed.value.reason


def test_a_peer_cannot_go_on_in_the_clear() -> None:
    """After the plain REFUSE that only says why, nothing else is taken from a plain wire."""
    alice = session(Role.INITIATOR, ALICE)
    alice.data_to_send()
    half = encode_frame(FrameType.REFUSE, Lane.CONTROL, encode_refusal(RefusalCode.FULL, "full"))
    alice.receive_data(half[:3])
    assert events_of(alice) == []
    alice.receive_data(half[3:] + encode_frame(FrameType.HELLO, Lane.CONTROL, b"aicp\x01\x00"))
    assert events_of(alice) == [SessionRefused(code=RefusalCode.FULL, reason="full")]
    assert events_of(alice) == []
    bob = session(Role.ACCEPTER, BOB)
    bob.receive_data(encode_frame(FrameType.HELLO, Lane.CONTROL, b"aicp\x01\x00"))
    with pytest.raises(HandshakeFailed):
        events_of(bob)
    reader = FrameReader()
    reader.receive_data(bob.data_to_send())
    message = reader.next_message()
    assert message is not None and decode_refusal(message.payload).code is RefusalCode.ENCRYPTION


@given(st.binary(max_size=300))
def test_garbage_ends_a_session_in_words(garbage: bytes) -> None:
    bob = session(Role.ACCEPTER, BOB)
    bob.receive_data(b"\0" + garbage)
    try:
        assert events_of(bob) == []
    except RemoteError as error:
        assert error.reason
    assert len(bob.data_to_send()) < 1000


def test_a_message_without_end_takes_no_more_than_its_own_room() -> None:
    wire, other = NoiseWire(initiator=True), NoiseWire(initiator=False)
    for source, target in ((wire, other), (other, wire), (wire, other)):
        target.incoming(source.to_send())
    assert wire.is_open and other.is_open and wire.binding == other.binding != b""
    with pytest.raises(NoiseError):
        for _ in range(4):
            other.incoming(b"\xff" * 40_000)


def test_plain_wire_changes_nothing() -> None:
    wire = PlainWire()
    assert (wire.is_open, wire.binding, wire.to_send()) == (True, b"", b"")
    assert wire.outgoing(b"frames") == wire.incoming(b"frames") == b"frames"

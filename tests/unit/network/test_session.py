"""Playbooks of the handshake on a plain wire: bytes in, events out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.envelop.codec import pack
from aicpnode.errors import MalformedError, RemoteError
from aicpnode.identity import Identity
from aicpnode.network.framing import FrameReader, FrameType, Lane, encode_frame
from aicpnode.network.session import (
    NO_NETWORK,
    PROTOCOL_VERSION,
    HandshakeFailed,
    Hello,
    PeerAuthenticated,
    RefusalCode,
    Role,
    Session,
    SessionEstablished,
    SessionRefused,
    decode_hello,
    decode_refusal,
    encode_hello,
    encode_refusal,
    printable,
)

ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
NETWORK = b"n" * 32


def hello(identity: Identity, **changes) -> Hello:
    fields = {
        "network_id": NETWORK,
        "key": identity.key,
        "node_type": "full",
        "name": "node",
        "listen_port": 7777,
        "head_height": 3,
        "nonce": identity.key[:16],
    }
    return Hello(**{**fields, **changes})


def initiator(identity=ALICE, **changes) -> Session:
    return Session(role=Role.INITIATOR, identity=identity, hello=hello(identity, **changes), encrypted=False)


def accepter(identity=BOB, **changes) -> Session:
    return Session(role=Role.ACCEPTER, identity=identity, hello=hello(identity, **changes), encrypted=False)


def pass_on(source: Session, target: Session):
    """Everything that ``source`` has to say, byte by byte; the events of ``target``."""
    events = []
    for byte in source.data_to_send():
        target.receive_data(bytes([byte]))
        while (event := target.next_event()) is not None:
            events.append(event)
    return events


def refusal_in(session: Session) -> SessionRefused:
    reader = FrameReader()
    reader.receive_data(session.data_to_send())
    while (message := reader.next_message()) is not None:
        if message.type is FrameType.REFUSE:
            return decode_refusal(message.payload)
    raise AssertionError("nothing was refused")


def test_handshake_establishes_both_sides_and_says_who_they_are():
    alice, bob = initiator(), accepter()
    assert pass_on(alice, bob) == []
    assert pass_on(bob, alice) == [PeerAuthenticated(peer=hello(BOB))]
    alice.accept()
    assert pass_on(alice, bob) == [PeerAuthenticated(peer=hello(ALICE))]
    bob.accept()
    assert bob.next_event() == SessionEstablished(peer=hello(ALICE))
    assert pass_on(bob, alice) == [SessionEstablished(peer=hello(BOB))]
    assert alice.peer == hello(BOB) and bob.peer == hello(ALICE)


def test_bytes_behind_the_handshake_are_kept_for_the_connection():
    alice, bob = initiator(), accepter()
    pass_on(alice, bob)
    pass_on(bob, alice)
    alice.accept()
    pass_on(alice, bob)
    bob.accept()
    alice.receive_data(bob.data_to_send() + encode_frame(FrameType.PING, Lane.CONTROL, b"early"))
    assert alice.next_event() == SessionEstablished(peer=hello(BOB))
    assert alice.next_event() is None
    assert alice.frames.next_message().payload == b"early"


def test_accepter_that_does_not_want_the_peer_says_why():
    alice, bob = initiator(), accepter()
    pass_on(alice, bob)
    pass_on(bob, alice)
    alice.accept()
    pass_on(alice, bob)
    bob.refuse(RefusalCode.FULL, "full: 128 peers")
    assert pass_on(bob, alice) == [SessionRefused(code=RefusalCode.FULL, reason="full: 128 peers")]


def test_initiator_that_does_not_want_the_peer_says_why():
    alice, bob = initiator(), accepter()
    pass_on(alice, bob)
    pass_on(bob, alice)
    alice.refuse(RefusalCode.DUPLICATE, "already connected")
    assert pass_on(alice, bob) == [SessionRefused(code=RefusalCode.DUPLICATE, reason="already connected")]


def test_wrong_network_is_refused_with_both_ids_on_both_sides():
    alice, bob = initiator(network_id=b"x" * 32), accepter()
    with pytest.raises(HandshakeFailed) as failed:
        pass_on(alice, bob)
    assert failed.value.code is RefusalCode.NETWORK
    (refused,) = pass_on(bob, alice)
    for reason in (failed.value.reason, refused.reason):
        assert NETWORK.hex() in reason and (b"x" * 32).hex() in reason


def test_wrong_version_is_refused_with_both_versions():
    alice, bob = initiator(version=PROTOCOL_VERSION + 6), accepter()
    with pytest.raises(HandshakeFailed):
        pass_on(alice, bob)
    (refused,) = pass_on(bob, alice)
    assert refused.code is RefusalCode.VERSION and "version 1" in refused.reason and "version 7" in refused.reason


def test_a_hello_of_another_version_is_refused_though_nothing_else_of_it_is_understood():
    bob = accepter()
    bob.receive_data(encode_frame(FrameType.HELLO, Lane.CONTROL, b"aicp\x02\x00 whatever version two says"))
    with pytest.raises(HandshakeFailed):
        bob.next_event()
    assert refusal_in(bob).code is RefusalCode.VERSION


def test_a_node_recognises_itself_by_its_nonce():
    alice = initiator()
    is_own = {alice.nonce}.__contains__
    own = Session(role=Role.ACCEPTER, identity=ALICE, hello=hello(ALICE), is_own_nonce=is_own, encrypted=False)
    with pytest.raises(HandshakeFailed) as failed:
        pass_on(alice, own)
    assert failed.value.code is RefusalCode.SELF


def test_the_same_key_elsewhere_is_told_apart_from_a_self_dial():
    alice, copy = initiator(), accepter(ALICE)
    with pytest.raises(HandshakeFailed) as failed:
        pass_on(alice, copy)
    assert failed.value.code is RefusalCode.SAME_KEY and "data_dir" in failed.value.reason


def test_a_guest_without_a_network_is_let_in_and_learns_the_network():
    guest, bob = initiator(network_id=NO_NETWORK), accepter()
    pass_on(guest, bob)
    (event,) = pass_on(bob, guest)
    assert event.peer.network_id == NETWORK


def test_two_sides_without_a_network_have_nothing_to_say():
    with pytest.raises(HandshakeFailed):
        pass_on(initiator(network_id=NO_NETWORK), accepter(network_id=NO_NETWORK))


def test_a_key_that_is_not_owned_is_refused():
    alice, bob = initiator(), accepter()
    pass_on(alice, bob)
    bob.data_to_send()
    forged = encode_frame(FrameType.AUTH, Lane.CONTROL, ALICE.sign(b"something else"))
    bob.receive_data(forged)
    with pytest.raises(HandshakeFailed, match="signature"):
        bob.next_event()
    assert refusal_in(bob).code is RefusalCode.MALFORMED
    assert bob.peer is None


def test_an_auth_cannot_be_reflected():
    """The accepter's own AUTH, sent back, proves nothing: the role is signed."""
    alice, bob = initiator(), accepter()
    pass_on(alice, bob)
    reader = FrameReader()
    reader.receive_data(bob.data_to_send())
    reader.next_message()
    own_auth = reader.next_message()
    bob.receive_data(encode_frame(FrameType.AUTH, Lane.CONTROL, own_auth.payload))
    with pytest.raises(HandshakeFailed):
        bob.next_event()


def test_an_auth_cannot_be_replayed_in_another_session():
    alice, bob = initiator(), accepter()
    recorded = alice.data_to_send()
    bob.receive_data(recorded)
    assert bob.next_event() is None
    pass_on(bob, alice)
    alice.accept()
    recorded += alice.data_to_send()

    later = accepter(nonce=b"another nonce..."[:16])
    later.receive_data(recorded)
    with pytest.raises(HandshakeFailed):
        later.next_event()


@pytest.mark.parametrize("frame_type", sorted(set(FrameType) - {FrameType.HELLO, FrameType.REFUSE}))
def test_nothing_but_hello_opens_a_handshake(frame_type):
    bob = accepter()
    bob.receive_data(encode_frame(frame_type, Lane.CONTROL, b""))
    with pytest.raises(MalformedError):
        bob.next_event()
    assert refusal_in(bob).code is RefusalCode.MALFORMED


def test_a_second_hello_is_refused():
    alice, bob = initiator(), accepter()
    data = alice.data_to_send()
    bob.receive_data(data + data)
    with pytest.raises(MalformedError):
        bob.next_event()


def fields_of(valid: Hello) -> list:
    return [
        valid.network_id,
        valid.key,
        valid.node_type,
        valid.name,
        valid.listen_port,
        valid.head_height,
        valid.nonce,
        valid.features,
    ]


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"short"),
        (1, b"k" * 31),
        (1, "k" * 32),
        (2, "x" * 33),
        (3, "line\nbreak"),
        (3, "\x1b[2J"),
        (3, "ü" * 33),
        (4, 65536),
        (4, -1),
        (4, True),
        (5, 1 << 63),
        (5, -1),
        (6, b"n" * 15),
        (7, ("f",) * 17),
        (7, ("f" * 33,)),
        (7, (1,)),
        (7, "feature"),
    ],
)
def test_a_hello_with_an_impossible_field_is_malformed(position, value):
    fields = fields_of(hello(ALICE))
    fields[position] = value
    with pytest.raises(MalformedError):
        decode_hello(b"aicp\x01\x00" + pack(fields))


@pytest.mark.parametrize("data", [b"", b"aicp", b"aicp\x01", b"http\x01\x00\x98", b"aicp\x01\x00", b"aicp\x01\x00\x90"])
def test_what_is_no_hello_is_malformed(data):
    with pytest.raises(MalformedError):
        decode_hello(data)


def test_hello_bytes_are_pinned():
    small = replace(hello(ALICE), network_id=bytes(32), nonce=bytes(16), name="n", features=("x",))
    assert encode_hello(small) == (
        b"aicp\x01\x00\x98\xc4\x20"
        + bytes(32)
        + b"\xc4\x20"
        + ALICE.key
        + b"\xa4full\xa1n\xcd\x1e\x61\x03\xc4\x10"
        + bytes(16)
        + b"\x91\xa1x"
    )
    assert decode_hello(encode_hello(small)) == small


def test_refusals_of_later_versions_are_shown_and_harmless():
    assert decode_refusal(b"").code is RefusalCode.OTHER
    shown = decode_refusal(b"\xfe" + b"\x1b[31mred\x07" + b"\xff" * 1000)
    assert shown.code is RefusalCode.OTHER and shown.reason.isprintable() and len(shown.reason) <= 400


def test_refusal_round_trip_keeps_the_text():
    assert decode_refusal(encode_refusal(RefusalCode.BANNED, "für 5 s")).reason == "für 5 s"
    assert printable("a\nb") == "a?b"


def handshake_with_flipped_bit(direction: Role, position: int) -> bool:
    """Run a handshake in which one bit of what ``direction`` sends is flipped. True iff either side is established."""
    alice, bob = initiator(), accepter()
    sent = {Role.INITIATOR: 0, Role.ACCEPTER: 0}
    try:
        for _ in range(3):
            for source, target in ((alice, bob), (bob, alice)):
                data = bytearray(source.data_to_send())
                start = sent[source.role]
                sent[source.role] += len(data)
                if source.role is direction and start <= position < start + len(data):
                    data[position - start] ^= 0x40
                target.receive_data(bytes(data))
                while (event := target.next_event()) is not None:
                    if isinstance(event, PeerAuthenticated):
                        target.accept()
                    else:
                        return isinstance(event, SessionEstablished)
    except RemoteError:
        return False
    return False  # a frame that claims to be longer than it is: the timeout ends it


def test_any_flipped_bit_of_the_handshake_ends_it_without_a_session():
    alice, bob = initiator(), accepter()
    hello_i = alice.data_to_send()
    bob.receive_data(hello_i)
    assert bob.next_event() is None
    hello_and_auth = bob.data_to_send()
    assert handshake_with_flipped_bit(Role.INITIATOR, 10_000)
    for position in range(len(hello_i) + 68):
        assert not handshake_with_flipped_bit(Role.INITIATOR, position)
    for position in range(len(hello_and_auth)):
        assert not handshake_with_flipped_bit(Role.ACCEPTER, position)

"""One connection over streams in memory: priorities, bounds, liveness, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from aicpnode.errors import MalformedError, RemoteError
from aicpnode.identity import Identity
from aicpnode.network.connection import LANE_LIMITS, SEND_STALL_S, Connection, Outbox, Overflow
from aicpnode.network.framing import MESSAGE_BYTES_MAX, FrameReader, FrameType, Lane, Message, encode_frame
from aicpnode.network.session import Hello, Role, Session, decode_refusal

TICK_S = 0.25
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)


def hello(identity: Identity) -> Hello:
    return Hello(
        network_id=b"n" * 32,
        key=identity.key,
        node_type="full",
        name="node",
        listen_port=0,
        head_height=5,
        nonce=identity.key[:16],
    )


def established() -> Session:
    """Bob's session with Alice, after the handshake."""
    alice = Session(role=Role.INITIATOR, identity=ALICE, hello=hello(ALICE), encrypted=False)
    bob = Session(role=Role.ACCEPTER, identity=BOB, hello=hello(BOB), encrypted=False)
    for source, target in ((alice, bob), (bob, alice), (alice, bob)):
        target.receive_data(source.data_to_send())
        if target.next_event() is not None:
            target.accept()
    bob.data_to_send()
    bob.next_event()
    return bob


@dataclass
class Ends:
    """Bob's connection, and Alice's end of the stream in the hands of the test."""

    connection: Connection
    far: trio.abc.HalfCloseableStream
    messages: list[Message] = field(default_factory=list)
    faults: list[RemoteError] = field(default_factory=list)
    reason: str | None = None
    reader: FrameReader = field(default_factory=FrameReader)

    async def run(self) -> None:
        self.reason = await self.connection.run()

    async def tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.connection.tick(TICK_S)

    async def receive(self) -> Message | None:
        """The next message at Alice's end, None at the end of the stream."""
        while (message := self.reader.next_message()) is None:
            data = await self.far.receive_some()
            if not data:
                return None
            self.reader.receive_data(bytes(data))
        return message


def make(pair: Callable[[], tuple], on_message=None) -> Ends:
    near, far = pair()
    ends: Ends

    def heard(_connection, message):
        if on_message is not None:
            on_message(message)
        ends.messages.append(message)

    connection = Connection(
        stream=near,
        session=established(),
        peer=hello(ALICE),
        remote_host="127.0.0.1",
        inbound=True,
        heartbeat_s=5.0,
        partition_timeout_s=15.0,
        head_height=lambda: 9,
        on_message=heard,
        on_fault=lambda _connection, error: ends.faults.append(error),
    )
    ends = Ends(connection, far)
    return ends


async def blocked() -> None:
    await trio.testing.wait_all_tasks_blocked()


def test_the_most_urgent_frame_goes_first_and_a_large_message_is_overtaken():
    outbox = Outbox()
    outbox.push(FrameType.CHUNK, Lane.BULK, b"chunk", 5)
    outbox.push(FrameType.ENVELOP, Lane.VOTES, bytes(100_000), 100_000)
    first = outbox.pop_frame()
    assert first[0] == FrameType.ENVELOP and first[1] == Lane.VOTES | 0x80
    outbox.push(FrameType.PING, Lane.CONTROL, b"", 0)
    outbox.push(FrameType.ENVELOP, Lane.VOTES, b"vote", 4)
    assert [frame[0] for frame in iter(outbox.pop_frame, None)] == [
        FrameType.PING,
        FrameType.ENVELOP,
        FrameType.ENVELOP,
        FrameType.CHUNK,
    ]
    assert outbox.queued_bytes() == 0


@pytest.mark.parametrize("lane", Lane)
def test_each_lane_is_bounded_in_items_and_in_bytes(lane):
    limit = LANE_LIMITS[lane]
    outbox = Outbox()
    for _ in range(limit.items_max):
        assert outbox.push(FrameType.ENVELOP, lane, b"", 0) is None
    assert outbox.push(FrameType.ENVELOP, lane, b"", 0) is limit.overflow
    outbox = Outbox()
    for _ in range(limit.bytes_max // MESSAGE_BYTES_MAX):
        assert outbox.push(FrameType.ENVELOP, lane, b"", MESSAGE_BYTES_MAX) is None
    assert outbox.push(FrameType.ENVELOP, lane, b"", 1) is limit.overflow
    assert outbox.dropped == 1


def test_announcements_and_bulk_are_dropped_and_votes_end_the_connection():
    assert {lane for lane in Lane if LANE_LIMITS[lane].overflow is Overflow.DROP} == {Lane.ANNOUNCEMENTS, Lane.BULK}


def test_a_payload_is_made_only_when_its_turn_has_come():
    made = []
    outbox = Outbox()
    outbox.push(FrameType.CHUNK, Lane.BULK, lambda: made.append(1) or b"made", 4)
    assert made == []
    assert outbox.pop_frame() == encode_frame(FrameType.CHUNK, Lane.BULK, b"made") and made == [1]


async def test_messages_arrive_in_order_and_pings_are_answered_with_the_height(nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    ping = (77).to_bytes(8, "little") + (6).to_bytes(8, "little")
    await ends.far.send_all(encode_frame(FrameType.HAVE, Lane.ANNOUNCEMENTS, b"1"))
    await ends.far.send_all(encode_frame(FrameType.PING, Lane.CONTROL, ping))
    await ends.far.send_all(encode_frame(FrameType.HAVE, Lane.ANNOUNCEMENTS, b"2"))
    pong = await ends.receive()
    assert pong.type is FrameType.PONG
    assert pong.payload == (77).to_bytes(8, "little") + (9).to_bytes(8, "little")
    await blocked()
    assert [message.payload for message in ends.messages] == [b"1", b"2"]
    assert ends.connection.head_height == 6


async def test_a_ping_that_is_answered_tells_the_round_trip(autojump_clock, nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    ends.connection.ping()
    ping = await ends.receive()
    await trio.sleep(0.125)
    await ends.far.send_all(encode_frame(FrameType.PONG, Lane.CONTROL, ping.payload))
    await blocked()
    assert ends.connection.rtt_ms == pytest.approx(125)


async def test_a_silent_peer_is_pinged_and_left_after_the_partition_timeout(autojump_clock, nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    nursery.start_soon(ends.tick)
    types = []
    while (message := await ends.receive()) is not None:
        types.append(message.type)
    assert types == [FrameType.PING, FrameType.PING, FrameType.REFUSE]
    assert trio.current_time() == pytest.approx(15.0, abs=2 * TICK_S)
    await ends.far.aclose()
    await blocked()
    assert "silent: no byte for 15 s" in ends.reason


async def test_any_byte_keeps_a_peer(autojump_clock, nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    nursery.start_soon(ends.tick)
    for byte in encode_frame(FrameType.HAVE, Lane.ANNOUNCEMENTS, b"slowly"):
        await trio.sleep(14.0)
        await ends.far.send_all(bytes((byte,)))
    await blocked()
    assert ends.reason is None and len(ends.messages) == 1


async def test_a_pause_of_this_process_is_not_taken_for_the_peers_silence(autojump_clock, nursery):
    """The owner caps its ticks: after a stop of a minute the peer still has nearly all of its time."""
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    await trio.sleep(60)
    ends.connection.tick(2 * TICK_S)
    await blocked()
    assert not ends.connection.closing


async def test_a_peer_that_does_not_read_is_left_after_two_seconds(autojump_clock, nursery):
    ends = make(trio.testing.lockstep_stream_pair)
    nursery.start_soon(ends.run)
    nursery.start_soon(ends.tick)
    assert ends.connection.send_nowait(FrameType.ENVELOP, Lane.VOTES, b"nobody reads this")
    await trio.sleep(SEND_STALL_S + 2 * TICK_S)
    assert ends.reason is not None and "too slow" in ends.reason
    assert not ends.connection.send_nowait(FrameType.ENVELOP, Lane.VOTES, b"too late")


async def test_a_peer_that_reads_slowly_but_steadily_is_kept(autojump_clock, nursery):
    ends = make(trio.testing.lockstep_stream_pair)
    nursery.start_soon(ends.run)
    nursery.start_soon(ends.tick)
    body = bytes(60_000)
    ends.connection.send_nowait(FrameType.CHUNK, Lane.BULK, body)
    received = b""
    while len(received) < len(body):
        await trio.sleep(1.5)
        received += await ends.far.receive_some(16_384)
    assert not ends.connection.closing


async def test_overflowing_votes_end_the_connection_and_overflowing_announcements_do_not(autojump_clock, nursery):
    ends = make(trio.testing.lockstep_stream_pair)
    nursery.start_soon(ends.run)
    while ends.connection.send_nowait(FrameType.HAVE, Lane.ANNOUNCEMENTS, b"have"):
        pass
    assert not ends.connection.closing and ends.connection.dropped == 1
    while ends.connection.send_nowait(FrameType.ENVELOP, Lane.VOTES, bytes(1000)):
        pass
    assert "queue of votes is full" in ends.connection.close_reason


async def test_the_reason_is_the_last_thing_the_peer_hears(nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    ends.connection.send_nowait(FrameType.ENVELOP, Lane.VOTES, b"vote")
    await blocked()
    ends.connection.close(7, "banned here: because")
    assert (await ends.receive()).payload == b"vote"
    assert decode_refusal((await ends.receive()).payload).reason == "banned here: because"
    assert await ends.receive() is None


async def test_the_peers_reason_is_kept(nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    await ends.far.send_all(encode_frame(FrameType.REFUSE, Lane.CONTROL, b"\x09this node is shutting down"))
    await blocked()
    assert ends.reason == "the peer ended the session: this node is shutting down"


@pytest.mark.parametrize("stuck", [False, True])
async def test_cancelling_says_goodbye_only_between_frames(nursery, stuck):
    """In the middle of a frame the words would be taken for the frame's rest."""
    ends = make(trio.testing.lockstep_stream_pair if stuck else trio.testing.memory_stream_pair)
    scope = trio.CancelScope()

    async def run():
        with scope:
            await ends.run()

    nursery.start_soon(run)
    if stuck:
        ends.connection.send_nowait(FrameType.ENVELOP, Lane.VOTES, b"stuck in the middle")
    await blocked()
    scope.cancel()
    await blocked()
    heard = []
    while (message := await ends.receive()) is not None:
        heard.append(message.type)
    assert (FrameType.REFUSE in heard) is not stuck


async def test_garbage_after_the_handshake_is_a_fault_and_the_end(nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    await ends.far.send_all(encode_frame(FrameType.HAVE, Lane.ANNOUNCEMENTS, b"good") + b"\xff\xff\xff\xff")
    assert decode_refusal((await ends.receive()).payload).reason.startswith("unknown frame type 255")
    assert [message.payload for message in ends.messages] == [b"good"]
    assert isinstance(ends.faults[0], MalformedError) and len(ends.faults) == 1


async def test_a_handlers_remote_error_is_a_fault_and_reading_goes_on(nursery):
    def picky(message):
        if message.payload == b"bad":
            raise RemoteError("bad")

    ends = make(trio.testing.memory_stream_pair, picky)
    nursery.start_soon(ends.run)
    for payload in (b"bad", b"good"):
        await ends.far.send_all(encode_frame(FrameType.HAVE, Lane.ANNOUNCEMENTS, payload))
    await blocked()
    assert [message.payload for message in ends.messages] == [b"good"]
    assert [error.reason for error in ends.faults] == ["bad"]


async def test_a_handlers_bug_propagates():
    class BugError(Exception):
        pass

    def buggy(_message):
        raise BugError

    ends = make(trio.testing.memory_stream_pair, buggy)
    await ends.far.send_all(encode_frame(FrameType.HAVE, Lane.ANNOUNCEMENTS, b""))
    with pytest.raises(ExceptionGroup) as caught:
        await ends.run()
    assert caught.group_contains(BugError)


async def test_a_malformed_ping_is_a_fault(nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    await ends.far.send_all(encode_frame(FrameType.PING, Lane.CONTROL, b"short"))
    await ends.far.send_all(encode_frame(FrameType.PING, Lane.CONTROL, b"\xff" * 16))
    await blocked()
    assert len(ends.faults) == 2


async def test_a_peer_that_answers_at_once_is_alive_and_one_that_does_not_is_not(autojump_clock, nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    assert not await ends.connection.answers(1.0)

    async def answer():
        await ends.receive()  # the ping of the first question
        ping = await ends.receive()
        await ends.far.send_all(encode_frame(FrameType.PONG, Lane.CONTROL, ping.payload))

    nursery.start_soon(answer)
    assert await ends.connection.answers(1.0)


async def test_two_questions_at_once_are_both_answered(autojump_clock, nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    answers = []

    async def ask():
        answers.append(await ends.connection.answers(1.0))

    nursery.start_soon(ask)
    nursery.start_soon(ask)
    await blocked()
    await ends.far.send_all(b"\x09")
    await blocked()
    assert answers == [True, True]


async def test_a_connection_that_is_closed_by_the_other_side_ends(nursery):
    ends = make(trio.testing.memory_stream_pair)
    nursery.start_soon(ends.run)
    await ends.far.aclose()
    await blocked()
    assert ends.reason == "the connection was closed"

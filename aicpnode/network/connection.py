"""One peer's connection: a thin trio driver around a byte stream.

Two tasks: the reader always drains and hands every message to ``on_message``, synchronously and in order; the writer
sends whatever is most urgent, one frame at a time, so that a vote waits behind at most one frame of a body. Sending
never blocks the caller: each lane is a queue bounded in items and bytes, and what happens when it is full depends on
the lane (announcements and bulk are dropped, control and votes end the connection).

Time comes as ticks from the owner, each capped in length: a process that was stopped for a while or short of CPU does
not take its own pause for its peers' silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

import trio

from aicpnode.errors import MalformedError, RemoteError
from aicpnode.network.framing import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    FrameType,
    Lane,
    Message,
    encode_frame,
    encode_message,
)
from aicpnode.network.session import Hello, RefusalCode, Session, decode_refusal, encode_refusal

RECEIVE_BYTES = 65_536
SEND_BATCH_BYTES = 16_384
"""Small frames are sent together up to this."""
SEND_SLICE_BYTES = 16_384
"""At a time to a stream that is no socket."""
SEND_STALL_S = 2.0
"""A peer that takes nothing for so long is left."""
GOODBYE_S = 0.25
"""How long the last frame, which says why, may take."""
PING_BYTES = 16


async def _send_some(stream: trio.abc.SendStream, data: memoryview) -> int:
    """Send the beginning of ``data``; returns how many bytes it was. ``send_all`` would not tell of any progress."""
    if not isinstance(stream, trio.SocketStream):
        part = data[:SEND_SLICE_BYTES]
        await stream.send_all(part)
        return len(part)
    try:
        return await stream.socket.send(data)
    except OSError as error:
        raise trio.BrokenResourceError(f"sending failed: {error}") from error


async def send_last_words(stream: trio.abc.HalfCloseableStream, data: bytes) -> None:
    """Send ``data`` and see the other side close, within ``GOODBYE_S`` even if cancelled; a failure changes nothing.

    Closing at once would throw away what is under way whenever bytes of the peer are still unread.
    """
    with trio.move_on_after(GOODBYE_S, shield=True), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_all(data)
        await stream.send_eof()
        while await stream.receive_some(RECEIVE_BYTES):
            pass


class Overflow(Enum):
    DROP = auto()
    DISCONNECT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimit:
    items_max: int
    bytes_max: int
    overflow: Overflow


LANE_LIMITS = {
    Lane.CONTROL: LaneLimit(items_max=1024, bytes_max=1 << 20, overflow=Overflow.DISCONNECT),
    Lane.VOTES: LaneLimit(items_max=8192, bytes_max=8 << 20, overflow=Overflow.DISCONNECT),
    Lane.ANNOUNCEMENTS: LaneLimit(items_max=1024, bytes_max=1 << 20, overflow=Overflow.DROP),
    Lane.BULK: LaneLimit(items_max=128, bytes_max=8 << 20, overflow=Overflow.DROP),
}

Payload = bytes | Callable[[], bytes]
"""The bytes, or what makes them when their turn has come (a chunk of a body is read from the disk only then)."""


@dataclass(slots=True)
class _Queue:
    items: deque[tuple[FrameType, Payload, int]]
    queued_bytes: int = 0
    frames: Iterator[bytes] | None = None
    """The rest of a message whose first frames were sent."""


class Outbox:
    """The bounded queues towards one peer. Pure."""

    def __init__(self) -> None:
        self._queues = {lane: _Queue(items=deque()) for lane in Lane}
        self.dropped = 0

    def push(self, frame_type: FrameType, lane: Lane, payload: Payload, size: int) -> Overflow | None:
        """Queue one message of ``size`` bytes; what to do about it if the lane is full, else None."""
        queue, limit = self._queues[lane], LANE_LIMITS[lane]
        if len(queue.items) >= limit.items_max or queue.queued_bytes + size > limit.bytes_max:
            self.dropped += 1
            return limit.overflow
        queue.items.append((frame_type, payload, size))
        queue.queued_bytes += size
        return None

    def pop_frame(self) -> bytes | None:
        """The most urgent frame, None if nothing is queued."""
        for lane, queue in self._queues.items():
            if queue.frames is not None:
                frame = next(queue.frames, None)
                if frame is not None:
                    return frame
                queue.frames = None
            if queue.items:
                frame_type, payload, size = queue.items.popleft()
                queue.queued_bytes -= size
                content = payload if isinstance(payload, bytes) else payload()
                if len(content) <= PAYLOAD_BYTES_MAX:
                    return encode_frame(frame_type, lane, content)
                queue.frames = encode_message(frame_type, lane, content)
                return next(queue.frames)
        return None

    def queued_bytes(self) -> int:
        return sum(queue.queued_bytes for queue in self._queues.values())


class Connection:
    """An established session with one peer, from ``run`` until it returns."""

    def __init__(
        self,
        *,
        stream: trio.abc.HalfCloseableStream,
        session: Session,
        peer: Hello,
        remote_host: str,
        inbound: bool,
        heartbeat_s: float,
        partition_timeout_s: float,
        head_height: Callable[[], int],
        on_message: Callable[[Connection, Message], None],
        on_fault: Callable[[Connection, RemoteError], None],
    ) -> None:
        self.peer = peer
        self.remote_host = remote_host
        self.inbound = inbound
        self.close_reason: str | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.rtt_ms: float | None = None
        self.head_height = peer.head_height
        self._stream = stream
        self._session = session
        self._heartbeat_s = heartbeat_s
        self._partition_timeout_s = partition_timeout_s
        self._own_head_height = head_height
        self._on_message = on_message
        self._on_fault = on_fault
        self._outbox = Outbox()
        self._scope = trio.CancelScope()
        self._wakeup = trio.Event()
        self._received = trio.Event()
        self._farewell: bytes | None = None
        self._sending = False
        self._broken = False
        self._at_frame_boundary = True
        self._stalled_s = 0.0
        self._silent_s = 0.0
        self._unpinged_s = 0.0
        self._ping_token = 0
        self._ping_sent_at_s = 0.0

    @property
    def closing(self) -> bool:
        return self.close_reason is not None

    @property
    def dropped(self) -> int:
        """Messages that found their lane full."""
        return self._outbox.dropped

    def queued_bytes(self) -> int:
        return self._outbox.queued_bytes()

    def send_nowait(self, frame_type: FrameType, lane: Lane, payload: Payload, *, size: int | None = None) -> bool:
        """Queue one message; never blocks. False if it was dropped or the connection is closing.

        ``size`` in bytes must be given when ``payload`` is a callable.
        """
        if self.closing:
            return False
        if size is None:
            assert isinstance(payload, bytes), "the size of a payload that is made later must be told"
            size = len(payload)
        overflow = self._outbox.push(frame_type, lane, payload, size + HEADER_BYTES)
        if overflow is None:
            self._wakeup.set()
        elif overflow is Overflow.DISCONNECT:
            self.close(RefusalCode.TOO_SLOW, f"too slow: the queue of {lane.name.lower()} is full")
        return overflow is None

    def close(self, code: RefusalCode, reason: str) -> None:
        """End the session and tell the peer why, if it still listens. The first reason stays."""
        if not self.closing:
            self.close_reason = reason
            self._farewell = encode_frame(FrameType.REFUSE, Lane.CONTROL, encode_refusal(code, reason))
            self._scope.cancel()

    def tick(self, elapsed_s: float) -> None:
        """Time passed: ping, and notice a peer that is silent or does not read."""
        self._silent_s += elapsed_s
        self._unpinged_s += elapsed_s
        self._stalled_s = self._stalled_s + elapsed_s if self._sending else 0.0
        if self._stalled_s >= SEND_STALL_S:
            self.close(RefusalCode.TOO_SLOW, f"too slow: nothing could be sent for {SEND_STALL_S:.0f} s")
        elif self._silent_s >= self._partition_timeout_s:
            self.close(RefusalCode.TOO_SLOW, f"silent: no byte for {self._partition_timeout_s:g} s")
        elif self._unpinged_s >= self._heartbeat_s:
            self.ping()

    def ping(self) -> None:
        self._unpinged_s = 0.0
        self._ping_token += 1
        self._ping_sent_at_s = trio.current_time()
        self.send_nowait(FrameType.PING, Lane.CONTROL, self._ping_payload(self._ping_token))

    async def answers(self, timeout_s: float) -> bool:
        """Ping the peer; True iff any byte comes back within ``timeout_s`` and the connection lives on."""
        if self._received.is_set():
            self._received = trio.Event()
        received = self._received
        self.ping()
        with trio.move_on_after(timeout_s):
            await received.wait()
        return received.is_set() and not self.closing

    async def run(self, first_bytes: bytes = b"") -> str:
        """Drive the connection until it ends; returns why. ``first_bytes`` (the end of the handshake) go out first.

        What ``on_message`` raises other than RemoteError is our own fault and propagates.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, first_bytes)
                    nursery.start_soon(self._read)
        finally:
            if self._broken:
                self._lost("the connection broke")
            self.close(RefusalCode.SHUTTING_DOWN, "this node is shutting down")
            await self._say_goodbye()
        assert self.close_reason is not None
        return self.close_reason

    async def _read(self) -> None:
        reason = "the connection was closed"
        try:
            while self._dispatch():
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    break
                self.bytes_received += len(data)
                self._silent_s = 0.0
                self._received.set()
                try:
                    frames = self._session.incoming(bytes(data))
                except RemoteError as error:
                    self._on_fault(self, error)
                    self._lost(error.reason)
                    return
                self._session.frames.receive_data(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reason = "the connection broke"
        self._lost(reason)

    def _dispatch(self) -> bool:
        """Handle all complete messages; False when there is no point in reading on."""
        while not self.closing:
            try:
                message = self._session.frames.next_message()
            except RemoteError as error:
                self._on_fault(self, error)
                self.close(RefusalCode.MALFORMED, error.reason)
                return False
            if message is None:
                return True
            try:
                self._handle(message)
            except RemoteError as error:
                self._on_fault(self, error)
        return False

    def _handle(self, message: Message) -> None:
        match message.type:
            case FrameType.PING:
                token, self.head_height = self._parse_ping(message.payload)
                self.send_nowait(FrameType.PONG, Lane.CONTROL, self._ping_payload(token))
            case FrameType.PONG:
                token, self.head_height = self._parse_ping(message.payload)
                if token == self._ping_token:
                    self.rtt_ms = (trio.current_time() - self._ping_sent_at_s) * 1000
            case FrameType.REFUSE:
                self._lost(f"the peer ended the session: {decode_refusal(message.payload).reason}")
            case _:
                self._on_message(self, message)

    def _ping_payload(self, token: int) -> bytes:
        return token.to_bytes(8, "little") + self._own_head_height().to_bytes(8, "little")

    @staticmethod
    def _parse_ping(payload: bytes) -> tuple[int, int]:
        """(token, the peer's head height)."""
        if len(payload) != PING_BYTES or payload[-1] & 0x80:
            raise MalformedError("a PING or PONG is a token and a height")
        return int.from_bytes(payload[:8], "little"), int.from_bytes(payload[8:], "little")

    async def _write(self, first_bytes: bytes) -> None:
        batch = first_bytes
        try:
            while True:
                if batch:
                    await self._send(batch)
                batch = self._next_batch()
                if not batch:
                    self._wakeup = trio.Event()
                    await self._wakeup.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The reader may still find the peer's last words.
            self._broken = True
            self._scope.deadline = trio.current_time() + GOODBYE_S

    def _next_batch(self) -> bytes:
        frames: list[bytes] = []
        size = 0
        while size < SEND_BATCH_BYTES:
            frame = self._outbox.pop_frame()
            if frame is None:
                break
            frames.append(frame)
            size += len(frame)
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        return self._session.outgoing(data) if data else b""

    async def _send(self, data: bytes) -> None:
        self._sending, self._stalled_s, self._at_frame_boundary = True, 0.0, False
        rest = memoryview(data)
        while rest:
            sent = await _send_some(self._stream, rest)
            self.bytes_sent += sent
            self._stalled_s = 0.0
            rest = rest[sent:]
        self._sending, self._at_frame_boundary = False, True

    def _lost(self, reason: str) -> None:
        """The other side is gone: nobody to say goodbye to."""
        if not self.closing:
            self.close_reason = reason
            self._scope.cancel()

    async def _say_goodbye(self) -> None:
        if self._farewell is not None and self._at_frame_boundary:
            await send_last_words(self._stream, self._session.outgoing(self._farewell))
        await trio.aclose_forcefully(self._stream)

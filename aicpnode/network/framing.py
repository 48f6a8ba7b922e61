"""Messages as frames on a byte stream. Pure: bytes in, messages out (network specification, section 2).

A frame is ``type u8 | lane and more-flag u8 | payload length u16 LE | payload``. A message longer than one payload
travels as full frames with the more-flag, then a last one. Each lane (a sending priority) is assembled by itself, so
that a vote may overtake the rest of a large message. Memory held for a peer is bounded whatever the peer says: one
frame, and one message of at most ``MESSAGE_BYTES_MAX`` for each lane; nothing is allocated on the word of a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from aicpnode.errors import MalformedError

FRAME_BYTES_MAX = 65_519
"""What fits into one Noise transport message of 65,535 bytes with its 16-byte tag."""
HEADER_BYTES = 4
PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES
MESSAGE_BYTES_MAX = 1 << 20
"""The largest message, an Envelop with its attachment."""
HANDSHAKE_PAYLOAD_BYTES_MAX = 1024
"""Before the handshake is done, no frame is longer."""
MORE_FLAG = 0x80


class FrameType(IntEnum):
    """What a message is. The first four belong to the handshake; REFUSE also ends a session, with the reason."""

    HELLO = 1
    AUTH = 2
    WELCOME = 3
    REFUSE = 4
    PING = 5
    PONG = 6
    PEERS = 7
    ENVELOP = 8
    HAVE = 9
    WANT = 10
    CHUNK = 11
    NOT_FOUND = 12


class Lane(IntEnum):
    """Sending priority, most urgent first."""

    CONTROL = 0
    VOTES = 1
    ANNOUNCEMENTS = 2
    BULK = 3


FRAGMENTED_TYPES = frozenset({FrameType.ENVELOP})
"""All other messages fit into one frame."""

_TYPES = {int(frame_type): frame_type for frame_type in FrameType}
_LANES = {int(lane): lane for lane in Lane}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    type: FrameType
    lane: Lane
    payload: bytes


def encode_frame(frame_type: FrameType, lane: Lane, payload: bytes | memoryview, *, more: bool = False) -> bytes:
    """One frame. ``more`` says that the message goes on in this lane's next frame."""
    assert len(payload) <= PAYLOAD_BYTES_MAX, "a frame's payload is too long"
    assert not more or len(payload) == PAYLOAD_BYTES_MAX, "only the last frame of a message may be short"
    flags = lane | MORE_FLAG if more else lane
    return b"".join((bytes((frame_type, flags)), len(payload).to_bytes(2, "little"), payload))


def encode_message(frame_type: FrameType, lane: Lane, payload: bytes) -> Iterator[bytes]:
    """The frames of one message, in order."""
    assert len(payload) <= (MESSAGE_BYTES_MAX if frame_type in FRAGMENTED_TYPES else PAYLOAD_BYTES_MAX)
    view = memoryview(payload)
    offset = 0
    while len(payload) - offset > PAYLOAD_BYTES_MAX:
        yield encode_frame(frame_type, lane, view[offset : offset + PAYLOAD_BYTES_MAX], more=True)
        offset += PAYLOAD_BYTES_MAX
    yield encode_frame(frame_type, lane, view[offset:])


class FrameReader:
    """Reassembles messages from bytes that arrive in any pieces.

    ``receive_data`` then ``next_message`` until it returns None; a MalformedError from ``next_message`` is final: the
    stream has no meaning any more and the peer must be left.
    """

    def __init__(self, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._unfinished: dict[Lane, tuple[FrameType, bytearray]] = {}
        self._payload_bytes_max = payload_bytes_max

    def allow_full_frames(self) -> None:
        """The handshake is done: frames may have their full length from here on."""
        self._payload_bytes_max = PAYLOAD_BYTES_MAX

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def next_message(self) -> Message | None:
        """The next complete message, or None until more bytes arrive. MalformedError on bytes that no node sends."""
        while len(self._buffer) >= HEADER_BYTES:
            frame_type, lane, more, length = self._parse_header()
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return None
            with memoryview(self._buffer) as view:
                payload = bytes(view[HEADER_BYTES:end])
            del self._buffer[:end]
            message = self._assemble(frame_type, lane, more, payload)
            if message is not None:
                return message
        return None

    def _parse_header(self) -> tuple[FrameType, Lane, bool, int]:
        frame_type = _TYPES.get(self._buffer[0])
        if frame_type is None:
            raise MalformedError(f"unknown frame type {self._buffer[0]}: not an aicp-node peer?")
        lane = _LANES.get(self._buffer[1] & ~MORE_FLAG)
        if lane is None:
            raise MalformedError(f"unknown lane in a {frame_type.name} frame")
        more = bool(self._buffer[1] & MORE_FLAG)
        length = int.from_bytes(self._buffer[2:4], "little")
        if length > self._payload_bytes_max:
            raise MalformedError(
                f"a {frame_type.name} frame of {length} bytes; at most {self._payload_bytes_max} may come"
            )
        if more and (frame_type not in FRAGMENTED_TYPES or length != PAYLOAD_BYTES_MAX):
            raise MalformedError(f"a {frame_type.name} frame that may not be continued")
        return frame_type, lane, more, length

    def _assemble(self, frame_type: FrameType, lane: Lane, more: bool, payload: bytes) -> Message | None:
        unfinished = self._unfinished.get(lane)
        if unfinished is None:
            if not more:
                return Message(type=frame_type, lane=lane, payload=payload)
            self._unfinished[lane] = (frame_type, bytearray(payload))
            return None
        started_type, parts = unfinished
        if frame_type is not started_type:
            raise MalformedError(f"a {frame_type.name} frame inside an unfinished {started_type.name} message")
        if len(parts) + len(payload) > MESSAGE_BYTES_MAX:
            raise MalformedError(f"a {frame_type.name} message above {MESSAGE_BYTES_MAX} bytes")
        parts += payload
        if more:
            return None
        del self._unfinished[lane]
        return Message(type=frame_type, lane=lane, payload=bytes(parts))

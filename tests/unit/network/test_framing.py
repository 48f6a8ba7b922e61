"""Frames as bytes, and what a reader refuses."""

from __future__ import annotations

import pytest

from aicpnode.errors import MalformedError
from aicpnode.network.framing import (
    FRAME_BYTES_MAX,
    HANDSHAKE_PAYLOAD_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    FrameReader,
    FrameType,
    Lane,
    encode_frame,
    encode_message,
)

FULL = bytes(PAYLOAD_BYTES_MAX)


def refuse(*frames: bytes, **settings) -> str:
    reader = FrameReader(**settings)
    reader.receive_data(b"".join(frames))
    with pytest.raises(MalformedError) as refused:
        while reader.next_message() is not None:
            pass
    return refused.value.reason


def test_frame_bytes_are_pinned():
    assert encode_frame(FrameType.WANT, Lane.BULK, b"abc") == b"\x0a\x03\x03\x00abc"
    assert encode_frame(FrameType.ENVELOP, Lane.VOTES, FULL, more=True)[:4] == b"\x08\x81\xeb\xff"


def test_no_frame_is_longer_than_a_noise_message_can_hold():
    frames = list(encode_message(FrameType.ENVELOP, Lane.VOTES, bytes(MESSAGE_BYTES_MAX)))
    assert max(map(len, frames)) == FRAME_BYTES_MAX == 65_535 - 16
    assert sum(map(len, frames)) == MESSAGE_BYTES_MAX + HEADER_BYTES * len(frames)


def test_a_type_of_a_later_version_is_refused():
    assert "unknown frame type 71" in refuse(b"GET / HTTP/1.1")


def test_an_unknown_lane_is_refused():
    assert "unknown lane" in refuse(b"\x05\x04\x00\x00")


def test_the_header_alone_is_enough_to_refuse_an_oversize_frame():
    assert "65535 bytes" in refuse(b"\x08\x01\xff\xff")
    limit = HANDSHAKE_PAYLOAD_BYTES_MAX
    assert f"at most {limit}" in refuse(b"\x01\x00\x01\x04", payload_bytes_max=limit)


def test_before_the_handshake_is_done_frames_are_short_and_after_it_they_are_not():
    reader = FrameReader(payload_bytes_max=HANDSHAKE_PAYLOAD_BYTES_MAX)
    reader.allow_full_frames()
    reader.receive_data(encode_frame(FrameType.CHUNK, Lane.BULK, FULL))
    assert reader.next_message().payload == FULL


def test_only_envelops_may_be_continued():
    assert "may not be continued" in refuse(encode_frame(FrameType.CHUNK, Lane.BULK, FULL, more=True))


def test_only_full_frames_may_be_continued():
    assert "may not be continued" in refuse(b"\x08\x81\x01\x00a")


def test_a_message_above_the_limit_is_refused_before_it_is_whole():
    frame = encode_frame(FrameType.ENVELOP, Lane.VOTES, FULL, more=True)
    assert "message above" in refuse(*[frame] * (MESSAGE_BYTES_MAX // PAYLOAD_BYTES_MAX + 1))


def test_another_type_inside_an_unfinished_message_is_refused():
    first = encode_frame(FrameType.ENVELOP, Lane.VOTES, FULL, more=True)
    assert "inside an unfinished" in refuse(first, encode_frame(FrameType.PING, Lane.VOTES, b""))


def test_another_lane_passes_an_unfinished_message():
    reader = FrameReader()
    first, last = encode_message(FrameType.ENVELOP, Lane.BULK, FULL + b"end")
    for frame in (first, encode_frame(FrameType.ENVELOP, Lane.VOTES, b"vote"), last):
        reader.receive_data(frame)
    assert reader.next_message().payload == b"vote"
    assert reader.next_message().payload == FULL + b"end"
    assert reader.next_message() is None


def test_what_came_before_the_fault_is_still_delivered():
    reader = FrameReader()
    reader.receive_data(encode_frame(FrameType.PING, Lane.CONTROL, b"1") + b"\xff\xff\xff\xff")
    assert reader.next_message().payload == b"1"
    with pytest.raises(MalformedError):
        reader.next_message()

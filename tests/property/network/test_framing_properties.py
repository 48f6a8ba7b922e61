"""Framing under arbitrary messages, cuts and mutations."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.errors import MalformedError
from aicpnode.network.framing import (
    FRAGMENTED_TYPES,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    FrameReader,
    FrameType,
    Lane,
    Message,
    encode_message,
)

SIZES = st.sampled_from([0, 1, 100, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, 200_000])


@st.composite
def messages(draw):
    frame_type = draw(st.sampled_from(FrameType))
    size = draw(SIZES)
    if frame_type not in FRAGMENTED_TYPES:
        size = min(size, PAYLOAD_BYTES_MAX)
    filling = draw(st.binary(min_size=1, max_size=3))
    payload = (filling * (size // len(filling) + 1))[:size]
    return Message(type=frame_type, lane=draw(st.sampled_from(Lane)), payload=payload)


def read_all(reader: FrameReader, pieces: list[bytes]) -> tuple[list[Message], bool]:
    """The messages, and whether the bytes after them were refused."""
    found = []
    for piece in pieces:
        reader.receive_data(piece)
        try:
            while (message := reader.next_message()) is not None:
                found.append(message)
        except MalformedError:
            return found, True
    return found, False


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(place, len(data)) for place in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(st.lists(messages(), max_size=4), st.lists(st.integers(0, 400_000), max_size=8))
@settings(max_examples=60, deadline=None)
def test_messages_survive_any_cutting(sent, cuts):
    data = b"".join(frame for message in sent for frame in encode_message(message.type, message.lane, message.payload))
    assert read_all(FrameReader(), cut(data, cuts)) == (sent, False)


@given(st.lists(messages(), min_size=1, max_size=4, unique_by=lambda message: message.lane), st.randoms())
@settings(max_examples=60, deadline=None)
def test_lanes_may_interleave_their_frames(sent, rng):
    """Each lane's messages arrive whole and in order however the frames of the lanes are mixed."""
    waiting = [list(encode_message(message.type, message.lane, message.payload)) for message in sent]
    data = b""
    while any(waiting):
        frames = rng.choice([frames for frames in waiting if frames])
        data += frames.pop(0)
    found, refused = read_all(FrameReader(), [data])
    assert not refused and sorted(found, key=lambda m: m.lane) == sorted(sent, key=lambda m: m.lane)


@given(st.binary(max_size=3000), st.lists(st.integers(0, 3000), max_size=6))
@settings(max_examples=200, deadline=None)
def test_random_bytes_give_the_same_whatever_the_cutting_and_raise_nothing_else(data, cuts):
    assert read_all(FrameReader(), [data]) == read_all(FrameReader(), cut(data, cuts))


@given(st.lists(messages(), min_size=1, max_size=3), st.integers(0, 1 << 30), st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_a_mutated_stream_raises_nothing_but_a_remote_error(sent, position, flip):
    data = bytearray(
        b"".join(frame for message in sent for frame in encode_message(message.type, message.lane, message.payload))
    )
    data[position % len(data)] ^= flip
    found, _ = read_all(FrameReader(), [bytes(data)])
    assert all(len(message.payload) <= MESSAGE_BYTES_MAX for message in found)

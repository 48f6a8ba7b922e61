"""The bytes of HAVE, WANT, CHUNK and NOT_FOUND."""

from __future__ import annotations

import pytest

from aicpnode.errors import MalformedError
from aicpnode.network.body_messages import (
    decode_chunk,
    decode_have,
    decode_not_found,
    decode_want,
    encode_chunk,
    encode_have,
    encode_not_found,
    encode_want,
)
from aicpnode.network.framing import PAYLOAD_BYTES_MAX
from aicpnode.network.transfer import CHUNK_BYTES

DIGEST = bytes(range(32))


def test_bytes_are_pinned():
    assert encode_have(2, DIGEST, 3) == b"\x02" + DIGEST + b"\x03" + bytes(7)
    assert encode_want(1, 2, DIGEST, 3, 4) == b"\x01\0\0\0\x02" + DIGEST + b"\x03" + bytes(7) + b"\x04\0\0\0"
    assert encode_chunk(1, 2, b"ab") == b"\x01\0\0\0\x02" + bytes(7) + b"ab"
    assert encode_not_found(7) == b"\x07\0\0\0"


def test_round_trips():
    assert decode_have(encode_have(255, DIGEST, (1 << 64) - 1)) == (255, DIGEST, (1 << 64) - 1)
    want = (0xFFFFFFFF, 1, DIGEST, (1 << 64) - 1, CHUNK_BYTES)
    assert decode_want(encode_want(*want)) == want
    assert decode_chunk(encode_chunk(9, 0, b"")) == (9, 0, b"")
    assert decode_not_found(encode_not_found(0)) == 0


def test_the_longest_chunk_fits_into_one_frame():
    assert len(encode_chunk(0, 0, bytes(CHUNK_BYTES))) <= PAYLOAD_BYTES_MAX


@pytest.mark.parametrize(
    ("decode", "payload"),
    [
        (decode_have, encode_have(1, DIGEST, 1)[:-1]),
        (decode_have, b""),
        (decode_want, encode_want(1, 1, DIGEST, 0, 1) + b"x"),
        (decode_want, encode_want(1, 1, DIGEST, 0, CHUNK_BYTES + 1)),
        (decode_chunk, bytes(11)),
        (decode_chunk, bytes(12 + CHUNK_BYTES + 1)),
        (decode_not_found, bytes(5)),
    ],
)
def test_wrong_lengths_are_refused(decode, payload):
    with pytest.raises(MalformedError):
        decode(payload)

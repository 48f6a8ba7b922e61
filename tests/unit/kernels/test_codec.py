"""Sizes, golden bytes, selection and every refusal of the codec."""

import hashlib

import numpy as np
import pytest

from kernels import codec
from kernels.codec import ALLOWED_BITS, ALLOWED_K, CHUNK, RecordError, RecordFault

FORMATS = [(k, bits) for k in ALLOWED_K for bits in ALLOWED_BITS]


def vector(chunks=1, scale=1e-3):
    """The same numbers on every machine: a linear congruential sequence, odd chunks sparse."""
    state, numbers = 12345, []
    for _ in range(chunks * CHUNK):
        state = (1103515245 * state + 12345) % 2**31
        numbers.append((state / 2**30 - 1) ** 3)
    return np.array(numbers, dtype=np.float64).astype(np.float32) * np.float32(scale)


def record(k=64, bits=2):
    return bytearray(codec.encode(vector(), k=k, bits=bits).tobytes())


def refused(body, k=64, bits=2, chunks=1):
    with pytest.raises(RecordError) as caught:
        codec.decode(bytes(body), k=k, bits=bits, chunks=chunks)
    return caught.value.fault


@pytest.mark.parametrize(("k", "bits", "size"), [(64, 2, 84), (205, 2, 217), (410, 2, 377), (64, 8, 132)])
def test_record_size_is_that_of_the_specification(k, bits, size):
    assert codec.record_layout(k, bits).record_bytes == size
    assert codec.encode(vector(3), k=k, bits=bits).shape == (3, size)


@pytest.mark.parametrize(("k", "bits"), [(63, 2), (64, 3), (0, 0)])
def test_record_layout_of_other_formats_is_refused(k, bits):
    with pytest.raises(ValueError, match="must be one of"):
        codec.record_layout(k, bits)


def test_encode_golden_bytes():
    bodies = b"".join(codec.encode(vector(2), k=k, bits=bits).tobytes() for k, bits in FORMATS)
    assert hashlib.sha256(bodies).hexdigest() == GOLDEN


def test_zero_chunk_takes_the_lowest_indices():
    body = codec.encode(np.zeros(CHUNK, dtype=np.float32), k=64, bits=2)
    decoded = codec.decode(body.tobytes(), k=64, bits=2, chunks=1)
    assert decoded.indices.tolist() == [list(range(64))]
    assert not decoded.values.any()
    assert not body[0, :4].any()


def test_negative_zero_has_no_sign():
    body = codec.encode(np.full(CHUNK, -0.0, dtype=np.float32), k=64, bits=2)
    assert body.tobytes() == codec.encode(np.zeros(CHUNK, dtype=np.float32), k=64, bits=2).tobytes()


def test_ties_go_to_the_lowest_index():
    e = np.zeros(CHUNK, dtype=np.float32)
    e[1000:1200] = 0.125
    e[3000] = -0.25
    chosen = codec.select_largest(e.reshape(1, -1), 64)[0].tolist()
    assert chosen == [*range(1000, 1063), 3000]


def test_selection_takes_the_last_coordinate():
    e = np.zeros(CHUNK, dtype=np.float32)
    e[-64:] = 1.0
    decoded = codec.decode(codec.encode(e, k=64, bits=2).tobytes(), k=64, bits=2, chunks=1)
    assert decoded.indices[0, -1] == CHUNK - 1


@pytest.mark.parametrize(("k", "bits"), FORMATS)
def test_encoder_saturates_and_the_residual_keeps_the_rest(k, bits):
    e = np.full(CHUNK, 3.0e38, dtype=np.float32)
    e[::2] = -1.0
    original = e.copy()
    decoded = codec.decode(codec.encode(e, k=k, bits=bits).tobytes(), k=k, bits=bits, chunks=1)
    assert np.abs(decoded.values).max() <= codec.VALUE_MAX
    dense = np.zeros(CHUNK, dtype=np.float32)
    dense[decoded.indices[0]] = decoded.values[0].astype(np.float32) * np.float32(2.0**-24)
    assert np.array_equal(e, original - dense)


@pytest.mark.parametrize(("k", "bits"), FORMATS)
def test_residual_and_decoded_add_up(k, bits):
    e = vector(2, scale=0.1)
    original = e.copy()
    decoded = codec.decode(codec.encode(e, k=k, bits=bits).tobytes(), k=k, bits=bits, chunks=2)
    assert np.count_nonzero(e != original) <= 2 * k
    norm_before, norm_after = np.linalg.norm(original), np.linalg.norm(e)
    assert norm_after < norm_before
    assert decoded.k == k
    assert decoded.chunks == 2


def test_encode_refuses_what_is_not_whole_chunks():
    for wrong in (np.zeros(CHUNK, dtype=np.float64), np.zeros(CHUNK + 1, dtype=np.float32), np.zeros(0, np.float32)):
        with pytest.raises(ValueError, match="contiguous float32"):
            codec.encode(wrong, k=64, bits=2)


def test_decode_refuses_wrong_length():
    assert refused(record()[:-1]) is RecordFault.LENGTH
    assert refused(record() + b"\0") is RecordFault.LENGTH
    assert refused(record(), chunks=2) is RecordFault.LENGTH
    assert refused(b"", chunks=0) is RecordFault.LENGTH
    assert refused(record(), k=128) is RecordFault.LENGTH


@pytest.mark.parametrize("section", ["low", "upper", "code"])
def test_decode_refuses_padding(section):
    k, bits = 205, 2  # every section of this format has padding bits
    layout = codec.record_layout(k, bits)
    last = {"low": layout.upper_start, "upper": layout.code_start, "code": layout.record_bytes}[section] - 1
    body = record(k, bits)
    assert body[last] & 0x80 == 0
    body[last] |= 0x80
    assert refused(body, k, bits) is RecordFault.PADDING


def test_decode_refuses_wrong_popcount():
    layout = codec.record_layout(64, 2)
    body = record()
    body[layout.upper_start : layout.code_start] = bytes(layout.code_start - layout.upper_start)
    assert refused(body) is RecordFault.POPCOUNT


def test_decode_refuses_an_index_beyond_the_chunk():
    layout = codec.record_layout(64, 2)
    body = record()
    upper = np.zeros(layout.upper_bits, dtype=np.uint8)
    upper[-64:] = 1
    body[layout.upper_start : layout.code_start] = np.packbits(upper, bitorder="little").tobytes()
    assert refused(body) is RecordFault.RANGE


def test_decode_refuses_indices_that_do_not_increase():
    layout = codec.record_layout(64, 2)
    body = record()
    upper = np.zeros(layout.upper_bits, dtype=np.uint8)
    upper[:64] = 1  # all in the first bucket, so the low parts decide
    body[layout.upper_start : layout.code_start] = np.packbits(upper, bitorder="little").tobytes()
    body[layout.low_start : layout.upper_start] = bytes(layout.upper_start - layout.low_start)
    assert refused(body) is RecordFault.ORDER


@pytest.mark.parametrize("offset", [0, 2])
def test_decode_refuses_a_small_float_that_is_not_canonical(offset):
    body = record()
    body[offset : offset + 2] = (1 << 11 | 1023).to_bytes(2, "little")
    assert refused(body) is RecordFault.SMALL_FLOAT


def test_decode_bound_is_exact():
    k, bits = 64, 8
    body = record(k, bits)
    a_at_limit = 12 << 11 | 1024  # 2^22
    body[0:4] = a_at_limit.to_bytes(2, "little") + bytes(2)
    assert np.abs(codec.decode(bytes(body), k=k, bits=bits, chunks=1).values).max() == codec.VALUE_MAX
    body[2] = 1  # d = 1
    assert refused(body, k, bits) is RecordFault.BOUND
    body[0:4] = (31 << 11 | 2047).to_bytes(2, "little") * 2
    assert refused(body, k, bits) is RecordFault.BOUND


def test_one_bad_record_among_many_is_found():
    body = bytearray(codec.encode(vector(5), k=64, bits=2).tobytes())
    body[3 * 84 + 2 : 3 * 84 + 4] = (31 << 11 | 2047).to_bytes(2, "little")
    assert refused(body, chunks=5) is RecordFault.BOUND


def test_block_boundary_changes_no_byte(monkeypatch):
    whole = codec.encode(vector(5), k=64, bits=4).tobytes()
    monkeypatch.setattr(codec, "BLOCK_CHUNKS", 2)
    assert codec.encode(vector(5), k=64, bits=4).tobytes() == whole


GOLDEN = "2c17fa90b7e3504bc161c6c7a7827fc21cd02f394c49d198740031c4a65ec938"

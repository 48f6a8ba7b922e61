"""Sparse chunk records: exact top-k, two small floats a chunk, Elias-Fano indices, quantised magnitudes.

Theory (gradients specification, section 2). A vector is cut into chunks of ``CHUNK`` coordinates. Of each chunk
the k largest by the bits of |e| survive (ties to the lowest index); a record of fixed length holds their indices,
signs and magnitude steps, and the two small floats ``a`` and ``d`` from which a receiver rebuilds the values
``v = +-(a + q*d)`` as integers in units of 2^-24. The encoder may use floats, because only its sender runs it;
the decoder is integers alone, so that all receivers hold the same bits, and it refuses every record that is not
in canonical form.

All kernels are vectorised over chunks. Float sums of the encoder run in index order, so that another
implementation (a plain loop) gives the same bytes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK = 4096
"""Coordinates a chunk (C)."""
ALLOWED_K = (410, 205, 128, 64, 41)
"""Kept coordinates a chunk: 10 %, 5 %, 3.1 %, 1.6 %, 1 %."""
ALLOWED_BITS = (2, 4, 8)
"""Bits a code, sign included."""
VALUE_MAX = 1 << 22
"""Largest decoded magnitude, in units of 2^-24."""
VALUE_SCALE = 2.0**24
MANTISSA_BITS = 11
MANTISSA_MASK = (1 << MANTISSA_BITS) - 1
MANTISSA_NORMAL = 1 << (MANTISSA_BITS - 1)
BLOCK_CHUNKS = 256
"""Chunks encoded at once: bounds the temporary arrays to a few MiB."""

Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]
UInt16Array = npt.NDArray[np.uint16]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


class RecordFault(enum.Enum):
    """Why a body is refused."""

    LENGTH = "length is not chunks times the record length"
    PADDING = "padding bits are not zero"
    POPCOUNT = "upper index part does not hold k bits"
    RANGE = "index outside its chunk"
    ORDER = "indices are not increasing"
    SMALL_FLOAT = "a or d is not canonical"
    BOUND = "magnitude above the bound"


class RecordError(ValueError):
    """A body that is not in canonical form; ``fault`` says how."""

    def __init__(self, fault: RecordFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """Where the sections of one chunk record lie, in bytes, and how many bits they use."""

    k: int
    bits: int
    low_width: int
    low_bits: int
    upper_bits: int
    code_bits: int
    low_start: int
    upper_start: int
    code_start: int
    record_bytes: int

    @property
    def steps(self) -> int:
        """Largest magnitude step: 2^(bits-1) - 1."""
        return (1 << (self.bits - 1)) - 1


@lru_cache(maxsize=len(ALLOWED_K) * len(ALLOWED_BITS))
def record_layout(k: int, bits: int) -> RecordLayout:
    """Layout of a chunk record. ValueError if k or bits is not an allowed one."""
    if k not in ALLOWED_K or bits not in ALLOWED_BITS:
        raise ValueError(f"k must be one of {ALLOWED_K} and bits one of {ALLOWED_BITS}, not {k} and {bits}")
    low_width = (CHUNK // k).bit_length() - 1
    low_bits, upper_bits, code_bits = k * low_width, k + (CHUNK >> low_width), k * bits
    low_start = 4
    upper_start = low_start + (low_bits + 7) // 8
    code_start = upper_start + (upper_bits + 7) // 8
    return RecordLayout(
        k=k,
        bits=bits,
        low_width=low_width,
        low_bits=low_bits,
        upper_bits=upper_bits,
        code_bits=code_bits,
        low_start=low_start,
        upper_start=upper_start,
        code_start=code_start,
        record_bytes=code_start + (code_bits + 7) // 8,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseProposal:
    """A decoded body: k coordinates of each chunk, in index order.

    ``indices``: uint16[chunks, k], position inside the chunk, strictly increasing along a row.
    ``values``: int32[chunks, k], units of 2^-24, magnitude at most ``VALUE_MAX``.
    """

    indices: UInt16Array
    values: Int32Array

    @property
    def chunks(self) -> int:
        return int(self.indices.shape[0])

    @property
    def k(self) -> int:
        return int(self.indices.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """The fields of a body before they become values; ``pack`` and ``unpack`` are inverses on them.

    ``a``, ``d``: uint16[chunks], small floats; ``indices``: uint16[chunks, k]; ``codes``: uint8[chunks, k].
    """

    a: UInt16Array
    d: UInt16Array
    indices: UInt16Array
    codes: UInt8Array


# -- sender ----------------------------------------------------------------------------------------------------


def encode(e: Float32Array, *, k: int, bits: int) -> UInt8Array:
    """Encode finite ``e``, float32[chunks * CHUNK]; on return ``e`` holds the residual ``e - decode(body)``.

    Returns the body, uint8[chunks, record_bytes]. ValueError on a wrong k, bits, dtype or length.
    """
    layout = record_layout(k, bits)
    if e.dtype != np.float32 or e.ndim != 1 or e.size == 0 or e.size % CHUNK or not e.flags.c_contiguous:
        raise ValueError("e must be contiguous float32 of a positive multiple of the chunk length")
    chunks_eC = e.reshape(-1, CHUNK)
    body = np.empty((chunks_eC.shape[0], layout.record_bytes), dtype=np.uint8)
    for start in range(0, chunks_eC.shape[0], BLOCK_CHUNKS):
        block = chunks_eC[start : start + BLOCK_CHUNKS]
        indices = select_largest(block, k)
        kept = np.take_along_axis(block, indices, axis=1)
        a, d, codes = quantise(kept, bits)
        values = dequantise(a, d, codes)
        np.put_along_axis(block, indices, kept - values.astype(np.float32) * np.float32(1 / VALUE_SCALE), axis=1)
        records = Records(a=a, d=d, indices=indices.astype(np.uint16), codes=codes)
        body[start : start + BLOCK_CHUNKS] = pack(records, layout)
    return body


def select_largest(block: Float32Array, k: int) -> Int64Array:
    """Indices, int64[chunks, k], increasing, of the k largest of each row by the bits of |e|, ties to the lowest."""
    magnitude = block.view(np.uint32) & np.uint32(0x7FFFFFFF)
    threshold = np.partition(magnitude, CHUNK - k, axis=1)[:, CHUNK - k]
    kept = magnitude >= threshold[:, None]
    for row in np.flatnonzero(np.count_nonzero(kept, axis=1) > k):
        tied = np.flatnonzero(magnitude[row] == threshold[row])
        room = k - int(np.count_nonzero(magnitude[row] > threshold[row]))
        kept[row, tied[room:]] = False
    flat = np.flatnonzero(kept).astype(np.int64, copy=False)
    return flat.reshape(-1, k) & (CHUNK - 1)


def quantise(kept: Float32Array, bits: int) -> tuple[UInt16Array, UInt16Array, UInt8Array]:
    """Small floats a and d, uint16[chunks], and codes, uint8[chunks, k], of the kept values, float32[chunks, k]."""
    k = kept.shape[1]
    steps = (1 << (bits - 1)) - 1
    absolute = np.abs(kept).astype(np.float64)
    if bits == 2:
        mean = _sums(absolute) / k
        below = absolute < mean[:, None]
        below_count = np.count_nonzero(below, axis=1)
        low = _sums(np.where(below, absolute, 0.0)) / np.maximum(below_count, 1)
        high = _sums(np.where(below, 0.0, absolute)) / np.maximum(k - below_count, 1)
        base = np.where(below_count > 0, low, mean)
        step = np.where((below_count > 0) & (below_count < k), high - base, 0.0)
    else:
        base = absolute.min(axis=1)
        step = (absolute.max(axis=1) - base) / steps
    a, a_value = _small_floats(base, np.full(kept.shape[0], VALUE_MAX, dtype=np.int64))
    d, d_value = _small_floats(step, (VALUE_MAX - a_value) // steps)
    offset = absolute * VALUE_SCALE - a_value[:, None]
    quotient = np.floor(offset / np.maximum(d_value, 1)[:, None] + 0.5)
    q = np.where(d_value[:, None] > 0, np.clip(quotient, 0, steps), 0).astype(np.uint8)
    signs: UInt8Array = (kept < 0).astype(np.uint8)
    codes: UInt8Array = np.bitwise_or(np.left_shift(q, np.uint8(1)), signs)
    return a, d, codes


def _sums(values: Float64Array) -> Float64Array:
    """Sum of each row, added in index order (``sum`` would pair, and other implementations would differ)."""
    return np.cumsum(values, axis=1)[:, -1]


def _small_floats(values: Float64Array, limit: Int64Array) -> tuple[UInt16Array, Int64Array]:
    """Round to 2^-24, saturate at ``limit``, truncate to 11 bits; returns the code and what it decodes to."""
    rounded = np.floor(np.minimum(values * VALUE_SCALE, float(VALUE_MAX)) + 0.5).astype(np.int64)
    number = np.minimum(rounded, limit)
    exponent = np.maximum(np.frexp(number.astype(np.float64))[1].astype(np.int64) - MANTISSA_BITS, 0)
    mantissa = number >> exponent
    return ((exponent << MANTISSA_BITS) | mantissa).astype(np.uint16), mantissa << exponent


def pack(records: Records, layout: RecordLayout) -> UInt8Array:
    """Records to uint8[chunks, record_bytes]; bits least significant first, sections byte-aligned, padding zero."""
    chunks, k = records.indices.shape
    out = np.empty((chunks, layout.record_bytes), dtype=np.uint8)
    out[:, 0:2] = records.a.astype("<u2").view(np.uint8).reshape(chunks, 2)
    out[:, 2:4] = records.d.astype("<u2").view(np.uint8).reshape(chunks, 2)
    out[:, layout.low_start : layout.upper_start] = _pack_fields(records.indices, layout.low_width)
    upper = np.zeros((chunks, layout.upper_bits), dtype=np.uint8)
    position = (records.indices >> layout.low_width).astype(np.int64) + np.arange(k)
    np.put_along_axis(upper, position, 1, axis=1)
    out[:, layout.upper_start : layout.code_start] = np.packbits(upper, axis=1, bitorder="little")
    out[:, layout.code_start :] = _pack_fields(records.codes, layout.bits)
    return out


def _pack_fields(fields: npt.NDArray[Any], width: int) -> UInt8Array:
    """The low ``width`` bits of each field, one after the other."""
    chunks, k = fields.shape
    planes = np.empty((chunks, k, width), dtype=np.uint8)
    for bit in range(width):
        planes[:, :, bit] = (fields >> bit) & 1
    return np.packbits(planes.reshape(chunks, k * width), axis=1, bitorder="little")


# -- receiver --------------------------------------------------------------------------------------------------


def decode(body: bytes | memoryview | UInt8Array, *, k: int, bits: int, chunks: int) -> SparseProposal:
    """Decode a body strictly. RecordError if it is not canonical; ValueError if k or bits is not an allowed one."""
    records = unpack(body, record_layout(k, bits), chunks)
    return SparseProposal(indices=records.indices, values=dequantise(records.a, records.d, records.codes))


def dequantise(a: UInt16Array, d: UInt16Array, codes: UInt8Array) -> Int32Array:
    """Values, int32[chunks, k] in 2^-24, of canonical and bounded fields."""
    magnitude = small_float_value(a)[:, None] + (codes >> 1).astype(np.int64) * small_float_value(d)[:, None]
    return np.where(codes & 1, -magnitude, magnitude).astype(np.int32)


def small_float_value(code: UInt16Array) -> Int64Array:
    """What a small float stands for, int64 in 2^-24: m * 2^x (at most 2047 * 2^31)."""
    wide = code.astype(np.int64)
    return (wide & MANTISSA_MASK) << (wide >> MANTISSA_BITS)


def unpack(body: bytes | memoryview | UInt8Array, layout: RecordLayout, chunks: int) -> Records:
    """Split a body into fields and refuse whatever is not canonical (RecordError)."""
    flat = body.reshape(-1) if isinstance(body, np.ndarray) else np.frombuffer(body, dtype=np.uint8)
    if chunks < 1 or flat.size != chunks * layout.record_bytes:
        raise RecordError(RecordFault.LENGTH)
    rows = flat.reshape(chunks, layout.record_bytes)
    a = np.ascontiguousarray(rows[:, 0:2]).view("<u2").reshape(chunks).astype(np.uint16)
    d = np.ascontiguousarray(rows[:, 2:4]).view("<u2").reshape(chunks).astype(np.uint16)
    low = _unpack_fields(rows[:, layout.low_start : layout.upper_start], layout.k, layout.low_width)
    codes = _unpack_fields(rows[:, layout.code_start :], layout.k, layout.bits).astype(np.uint8)
    upper = np.unpackbits(rows[:, layout.upper_start : layout.code_start], axis=1, bitorder="little")
    if upper[:, layout.upper_bits :].any():
        raise RecordError(RecordFault.PADDING)
    if (np.count_nonzero(upper, axis=1) != layout.k).any():
        raise RecordError(RecordFault.POPCOUNT)
    position = np.flatnonzero(upper).reshape(chunks, layout.k) % upper.shape[1]
    indices = ((position - np.arange(layout.k)) << layout.low_width) | low
    if (indices >= CHUNK).any():
        raise RecordError(RecordFault.RANGE)
    if (np.diff(indices, axis=1) <= 0).any():
        raise RecordError(RecordFault.ORDER)
    _refuse_scales(a, d, layout)
    return Records(a=a, d=d, indices=indices.astype(np.uint16), codes=codes)


def _unpack_fields(section: UInt8Array, k: int, width: int) -> UInt16Array:
    """Fields of ``width`` bits, uint16[chunks, k]; RecordError if the bits behind them are not zero."""
    planes = np.unpackbits(section, axis=1, bitorder="little")
    if planes[:, k * width :].any():
        raise RecordError(RecordFault.PADDING)
    planes = planes[:, : k * width].reshape(section.shape[0], k, width)
    fields = np.zeros((section.shape[0], k), dtype=np.uint16)
    for bit in range(width):
        fields |= planes[:, :, bit].astype(np.uint16) << np.uint16(bit)
    return fields


def _refuse_scales(a: UInt16Array, d: UInt16Array, layout: RecordLayout) -> None:
    """RecordError if a small float is not canonical or the largest possible magnitude is out of bounds."""
    for code in (a, d):
        if (((code & MANTISSA_MASK) < MANTISSA_NORMAL) & (code >> MANTISSA_BITS > 0)).any():
            raise RecordError(RecordFault.SMALL_FLOAT)
    if (small_float_value(a) + layout.steps * small_float_value(d) > VALUE_MAX).any():
        raise RecordError(RecordFault.BOUND)

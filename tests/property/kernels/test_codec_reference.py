"""The codec against a plain Python reference, byte for byte, over random and extreme vectors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import codec

FORMATS = st.tuples(st.sampled_from(codec.ALLOWED_K), st.sampled_from(codec.ALLOWED_BITS))
FLOAT32_MAX = float(np.finfo(np.float32).max)


def ties(rng, size):
    return rng.choice(np.array([-2.0, -1.0, 0.0, -0.0, 1.0, 2.0], dtype=np.float32), size) * np.float32(2.0**-10)


def denormals(rng, size):
    return rng.integers(0, 1 << 10, size, dtype=np.uint32).view(np.float32) * rng.choice([-1, 1], size)


def any_finite(rng, size):
    bits = rng.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(bits), bits, np.float32(FLOAT32_MAX))


def mixed_rows(rng, size):
    vector = rng.standard_normal(size) * 1e-3
    vector[rng.random(size) < 0.97] = 0.0
    return vector


VECTORS = {
    "gaussian": lambda rng, size: rng.standard_normal(size) * 10.0 ** rng.integers(-9, 3),
    "heavy_tail": lambda rng, size: rng.standard_cauchy(size) * 1e-4,
    "near_saturation": lambda rng, size: rng.uniform(0.2, 0.3, size) * rng.choice([-1, 1], size),
    "huge": lambda rng, size: rng.uniform(-FLOAT32_MAX, FLOAT32_MAX, size),
    "constant": lambda rng, size: np.full(size, rng.uniform(-0.5, 0.5)),
    "zeros": lambda rng, size: np.zeros(size),
    "negative_zeros": lambda rng, size: np.full(size, -0.0),
    "few_nonzero": mixed_rows,
    "ties": ties,
    "denormals": denormals,
    "any_finite": any_finite,
}
"""Each value a function (rng, size) -> array."""


@settings(max_examples=150, deadline=None)
@given(form=FORMATS, kind=st.sampled_from(sorted(VECTORS)), seed=st.integers(0, 2**32), chunks=st.integers(1, 3))
def test_encode_equals_the_reference(reference, form, kind, seed, chunks):
    k, bits = form
    vector = VECTORS[kind](np.random.default_rng(seed), chunks * codec.CHUNK).astype(np.float32)
    body, residual, values = reference.encode(vector.tolist(), k, bits)
    left = vector.copy()
    encoded = codec.encode(left, k=k, bits=bits)
    assert encoded.tobytes() == body
    assert left.tobytes() == np.array(residual, dtype=np.float32).tobytes()
    decoded = codec.decode(encoded.tobytes(), k=k, bits=bits, chunks=chunks)
    assert as_dict(decoded) == values
    assert np.abs(decoded.values).max(initial=0) <= codec.VALUE_MAX


def as_dict(proposal):
    flat = proposal.indices + np.arange(proposal.chunks, dtype=np.int64)[:, None] * codec.CHUNK
    return dict(zip(flat.ravel().tolist(), proposal.values.ravel().tolist(), strict=True))


@settings(max_examples=400, deadline=None)
@given(
    form=FORMATS,
    seed=st.integers(0, 2**32),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=4),
)
def test_decode_of_flipped_bits_agrees_with_the_reference(reference, form, seed, flips):
    """Refused by both, or decoded by both to the same values and packed again to the same bytes."""
    k, bits = form
    body = bytearray(
        codec.encode(VECTORS["gaussian"](np.random.default_rng(seed), 4096).astype(np.float32), k=k, bits=bits)
    )
    for place, bit in flips:
        body[int(place * len(body))] ^= 1 << bit
    check_same_verdict(reference, bytes(body), k, bits)


@settings(max_examples=200, deadline=None)
@given(form=FORMATS, data=st.data())
def test_decode_of_noise_agrees_with_the_reference(reference, form, data):
    k, bits = form
    layout = codec.record_layout(k, bits)
    scales = data.draw(st.binary(min_size=4, max_size=4))
    body = bytearray(codec.encode(np.ones(4096, dtype=np.float32), k=k, bits=bits).tobytes())
    body[:4] = scales
    length = data.draw(st.sampled_from([layout.record_bytes, layout.record_bytes - 1, layout.record_bytes + 1, 0]))
    check_same_verdict(reference, bytes(body[:length].ljust(length, b"\0")), k, bits)


def check_same_verdict(reference, body, k, bits):
    layout = codec.record_layout(k, bits)
    try:
        expected = reference.decode(body, k, bits, 1)
    except reference.Refused:
        with pytest.raises(codec.RecordError):
            codec.decode(body, k=k, bits=bits, chunks=1)
        return
    assert as_dict(codec.decode(body, k=k, bits=bits, chunks=1)) == expected
    assert codec.pack(codec.unpack(body, layout, 1), layout).tobytes() == body

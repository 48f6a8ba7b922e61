"""Headers, packages, error feedback."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from aicpnode.envelop.codec import pack
from aicpnode.errors import MalformedError
from aicpnode.gradients import proposal as proposals
from aicpnode.gradients.judge import decode_body
from aicpnode.gradients.proposal import Header, NonFiniteDelta
from aicpnode.gradients.state import RoundParameters
from kernels.codec import CHUNK, record_layout

PARAMETERS = RoundParameters(k=64, bits=2)
LAYOUT = record_layout(64, 2)
HEADER = Header(
    network_id=b"n" * 32,
    round=7,
    base_hash=b"b" * 32,
    author=b"a" * 32,
    k=64,
    bits=2,
    chunks=3,
    offsets_hash=b"o" * 32,
    body_root=b"r" * 32,
    tokens=12345,
)


def encode(delta, residual=None, parameters=PARAMETERS):
    zero = np.zeros(delta.size, dtype=np.float32)
    return proposals.encode_proposal(
        delta,
        zero if residual is None else residual,
        parameters=parameters,
        network_id=b"n" * 32,
        round=7,
        base_hash=b"b" * 32,
        author=b"a" * 32,
        offsets_hash=b"o" * 32,
        tokens=12345,
    )


def gaussian(seed=0, chunks=3):
    return (np.random.default_rng(seed).standard_normal(chunks * CHUNK) * 1e-3).astype(np.float32)


def test_header_golden_bytes():
    expected = pack((1, b"n" * 32, 7, b"b" * 32, b"a" * 32, 64, 2, 3, b"o" * 32, b"r" * 32, 12345))
    assert HEADER.encode() == expected
    assert proposals.decode_header(expected) == HEADER
    assert proposals.proposal_digest(expected) == hashlib.sha256(b"aicp-grad-1" + expected).digest()
    assert len(expected) <= proposals.HEADER_BYTES_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"network_id": b"n" * 31},
        {"round": -1},
        {"base_hash": b""},
        {"author": "a" * 32},
        {"k": True},
        {"chunks": None},
        {"tokens": b"1"},
        {"body_root": 5},
    ],
)
def test_header_with_a_wrong_field_is_refused(change):
    with pytest.raises(MalformedError):
        proposals.decode_header(replace(HEADER, **change).encode())


def test_header_that_is_no_array_of_eleven_is_refused():
    for wrong in (b"", pack(5), pack((1, 2)), HEADER.encode() + b"\0", pack((*range(10), bytes(500)))):
        with pytest.raises(MalformedError):
            proposals.decode_header(wrong)


def test_package_splits_into_what_it_was_built_from():
    raw = HEADER.encode()
    header, header_bytes, body = proposals.split_package(proposals.build_package(raw, b"body"))
    assert (header, header_bytes, bytes(body)) == (HEADER, raw, b"body")


def test_package_without_a_proper_header_is_refused():
    raw = HEADER.encode()
    wrong = [
        b"",
        b"\1\0\0",
        bytes(4),
        (513).to_bytes(4, "little") + bytes(600),
        len(raw).to_bytes(4, "little") + raw[:-1],
    ]
    for package in wrong:
        with pytest.raises(MalformedError):
            proposals.split_package(package)
        assert not proposals.is_package_of(package, bytes(32), LAYOUT)


def test_package_is_recognised_by_its_digest():
    encoded = encode(gaussian())
    assert proposals.is_package_of(encoded.package, encoded.digest, LAYOUT)
    assert not proposals.is_package_of(encoded.package, bytes(32), LAYOUT)
    for position in (4, 60, len(encoded.package) - 1):
        changed = bytearray(encoded.package)
        changed[position] ^= 1
        assert not proposals.is_package_of(bytes(changed), encoded.digest, LAYOUT)
    assert not proposals.is_package_of(encoded.package + b"\0", encoded.digest, LAYOUT)


def test_body_root_has_64_records_a_leaf():
    body = bytes(range(256)) * 84
    first, second = body[: 64 * 84], body[64 * 84 : 128 * 84]
    leaves = [hashlib.sha256(b"\0" + leaf).digest() for leaf in (first, second)]
    expected = hashlib.sha256(b"\1" + leaves[0] + leaves[1]).digest()
    assert proposals.body_root(first + second, LAYOUT) == expected


def test_error_feedback_loses_nothing():
    """What was sent and what is left add up to 0.95 * residual + delta, in float32."""
    delta, residual = gaussian(1), gaussian(2)
    before = delta.copy(), residual.copy()
    encoded = encode(delta, residual)
    _, _, body = proposals.split_package(encoded.package)
    sparse = decode_body(body, chunks=3, parameters=PARAMETERS)
    dense = np.zeros(3 * CHUNK, dtype=np.float32)
    places = sparse.indices + np.arange(3)[:, None] * CHUNK
    dense[places.ravel()] = sparse.values.ravel() * np.float32(2.0**-24)
    e = residual * np.float32(0.95) + delta
    assert np.array_equal(encoded.residual, e - dense)
    assert np.array_equal(delta, before[0])
    assert np.array_equal(residual, before[1])


def test_residual_is_sent_in_the_end():
    """With no new gradient, error feedback drains the residual."""
    residual = gaussian(3)
    start = np.linalg.norm(residual)
    zero = np.zeros(residual.size, dtype=np.float32)
    for _ in range(5):
        residual = encode(zero, residual).residual
    assert np.linalg.norm(residual) < start * 0.95**5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_delta_that_is_not_finite_makes_no_proposal(bad):
    delta = gaussian()
    delta[100] = bad
    with pytest.raises(NonFiniteDelta):
        encode(delta)


def test_sum_that_overflows_makes_no_proposal():
    huge = np.full(CHUNK, 3e38, dtype=np.float32)
    with pytest.raises(NonFiniteDelta):
        encode(huge, huge)


def test_proposal_size_lies_within_the_bounds_of_its_format():
    encoded = encode(gaussian())
    assert proposals.package_bytes_min(3, LAYOUT) <= len(encoded.package) <= proposals.package_bytes_max(3, LAYOUT)

"""Proposals and states under random data: nothing malformed passes, order changes no bit, snapshots are exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.envelop.codec import pack
from aicpnode.errors import MalformedError
from aicpnode.gradients import state as states
from aicpnode.gradients.judge import Expectation, Ruling, decode_body, judge
from aicpnode.gradients.proposal import (
    Header,
    body_root,
    build_package,
    decode_header,
    encode_proposal,
    is_package_of,
    proposal_digest,
    split_package,
)
from aicpnode.gradients.state import RoundParameters
from kernels.aggregate import Rule
from kernels.codec import ALLOWED_BITS, ALLOWED_K, CHUNK

FORMATS = st.builds(RoundParameters, k=st.sampled_from(ALLOWED_K), bits=st.sampled_from(ALLOWED_BITS))
HASHES = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(0, 2**64 - 1)


def encoded(seed, parameters, author=b"a" * 32, chunks=2):
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((2, chunks * CHUNK)) * 1e-3).astype(np.float32)
    return encode_proposal(
        vectors[0],
        vectors[1],
        parameters=parameters,
        network_id=b"n" * 32,
        round=7,
        base_hash=b"b" * 32,
        author=author,
        offsets_hash=bytes(32),
        tokens=1,
    )


def expectation(package, parameters):
    return Expectation(
        network_id=b"n" * 32,
        round=7,
        base_hash=b"b" * 32,
        author=b"a" * 32,
        size=len(package),
        chunks=2,
        parameters=parameters,
    )


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        Header,
        network_id=HASHES,
        round=NUMBERS,
        base_hash=HASHES,
        author=HASHES,
        k=NUMBERS,
        bits=NUMBERS,
        chunks=NUMBERS,
        offsets_hash=HASHES,
        body_root=HASHES,
        tokens=NUMBERS,
        version=NUMBERS,
    )
)
def test_header_round_trip(header):
    assert decode_header(header.encode()) == header


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.one_of(NUMBERS, st.binary(max_size=40), st.none(), st.booleans()), st.lists, max_leaves=14))
def test_header_from_any_value_is_refused_or_exact(value):
    try:
        header = decode_header(pack(value))
    except MalformedError:
        return
    assert header.encode() == pack(value)


@settings(max_examples=60, deadline=None)
@given(parameters=FORMATS, seed=st.integers(0, 2**32))
def test_honest_proposals_pass_everywhere(parameters, seed):
    proposal = encoded(seed, parameters)
    assert is_package_of(proposal.package, proposal.digest, parameters.layout)
    verdict = judge(proposal.package, expectation=expectation(proposal.package, parameters))
    assert verdict.ruling is Ruling.YES


@settings(max_examples=150, deadline=None)
@given(parameters=FORMATS, place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.integers(-3, 3))
def test_changed_package_is_never_the_committed_one(parameters, place, bit, cut):
    """And judging it raises nothing, whatever it is."""
    proposal = encoded(1, parameters)
    changed = bytearray(proposal.package)
    changed[int(place * len(changed))] ^= 1 << bit
    changed = bytes(changed[:cut] if cut < 0 else changed + bytes(cut))
    assert not is_package_of(changed, proposal.digest, parameters.layout)
    verdict = judge(changed, expectation=expectation(changed, parameters))
    if verdict.ruling is Ruling.YES:  # then only what the author says of itself has changed
        header, honest = split_package(changed)[0], proposal.header
        assert (header.tokens, header.offsets_hash) != (honest.tokens, honest.offsets_hash)


@settings(max_examples=150, deadline=None)
@given(parameters=FORMATS, place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_recommitted_body_is_refused_or_decodes_within_bounds(parameters, place, bit):
    """An author may commit to any bytes: whoever says yes can decode them, and gets bounded values."""
    header, _, body = split_package(encoded(1, parameters).package)
    body = bytearray(body)
    body[int(place * len(body))] ^= 1 << bit
    fields = {name: getattr(header, name) for name in Header.__slots__}
    raw = Header(**{**fields, "body_root": body_root(bytes(body), parameters.layout)}).encode()
    package = build_package(raw, bytes(body))
    assert is_package_of(package, proposal_digest(raw), parameters.layout)
    if judge(package, expectation=expectation(package, parameters)).ruling is Ruling.YES:
        values = decode_body(bytes(body), chunks=2, parameters=parameters).values
        assert np.abs(values).max() <= 1 << 22


@settings(max_examples=30, deadline=None)
@given(
    rule=st.sampled_from(Rule),
    momentum=st.sampled_from([0, 32768, 63488]),
    nesterov=st.booleans(),
    count=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_rounds_in_any_order_of_proposals_end_with_one_hash(rule, momentum, nesterov, count, seed, data):
    parameters = RoundParameters(k=64, bits=2, rule=rule, momentum_q16=momentum, nesterov=nesterov)
    size = 2 * CHUNK - 7
    vector = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    start = states.initial_state(vector, parameters=size, momentum_q16=momentum, norm_cap=0)
    here = there = start
    for step in range(2):
        packages = [encoded([seed, step, number], parameters).package for number in range(count)]
        decoded = [decode_body(split_package(package)[2], chunks=2, parameters=parameters) for package in packages]
        here = states.next_state(here, decoded, parameters)
        order = data.draw(st.permutations(range(count)))
        there = states.next_state(there, [decoded[number] for number in order], parameters)
        there = states.decode_snapshot(states.encode_snapshot(there))
        assert here.model_hash == there.model_hash
        assert here.theta.tobytes() == there.theta.tobytes()
        assert here.history == there.history


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_snapshot_with_a_flipped_bit_is_refused_or_differs_in_what_the_hash_leaves_out(place, bit):
    """The model hash covers the arrays; round and history are covered by the state hash, outside."""
    state = states.initial_state(
        np.arange(100, dtype=np.float32), parameters=100, momentum_q16=1, norm_cap=(1 << 40) + 5, round=3
    )
    data = bytearray(states.encode_snapshot(state))
    data[int(place * len(data))] ^= 1 << bit
    try:
        other = states.decode_snapshot(bytes(data))
    except MalformedError:
        return
    assert other.model_hash == state.model_hash
    assert (other.round, other.history) != (state.round, state.history)


@pytest.mark.parametrize("seed", range(3))
def test_error_feedback_over_rounds_sends_what_was_asked_for(seed):
    """Sent sum + residual = sum of decayed inputs, up to float32 rounding: nothing is lost or made up."""
    parameters = RoundParameters(k=205, bits=2)
    rng = np.random.default_rng(seed)
    residual = np.zeros(2 * CHUNK, dtype=np.float32)
    balance = np.zeros(2 * CHUNK)
    for step in range(6):
        delta = (rng.standard_normal(2 * CHUNK) * 1e-3).astype(np.float32)
        result = encode_proposal(
            delta,
            residual,
            parameters=parameters,
            network_id=bytes(32),
            round=step,
            base_hash=bytes(32),
            author=bytes(32),
            offsets_hash=bytes(32),
            tokens=0,
        )
        sparse = decode_body(split_package(result.package)[2], chunks=2, parameters=parameters)
        sent = np.zeros(2 * CHUNK)
        places = (sparse.indices + np.arange(2)[:, None] * CHUNK).ravel()
        sent[places] = sparse.values.ravel() * 2.0**-24
        balance = np.float64(np.float32(0.95)) * balance + delta - sent
        residual = result.residual
        assert np.allclose(balance, residual, atol=1e-9)

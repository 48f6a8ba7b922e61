"""Gram, weights and the outer step against a plain Python reference, and their independence of order and grouping."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import aggregate, codec, outer_step
from kernels.aggregate import Rule
from kernels.codec import SparseProposal

RULES = st.sampled_from(list(Rule))
MOMENTUMS = st.sampled_from([0, 1, 32768, 58982, outer_step.MOMENTUM_Q16_MAX])
RATES = st.sampled_from([1, 6554, 65536, 70000, outer_step.LEARNING_RATE_Q16_MAX])


def random_proposal(rng, chunks, k, scale):
    order = rng.random((chunks, codec.CHUNK)).argsort(axis=1)[:, :k]
    limit = min(int(scale), codec.VALUE_MAX)
    return SparseProposal(
        indices=np.sort(order, axis=1).astype(np.uint16),
        values=rng.integers(-limit, limit, (chunks, k), endpoint=True).astype(np.int32),
    )


def random_proposals(seed, count, chunks=2, k=41):
    rng = np.random.default_rng(seed)
    common = random_proposal(rng, chunks, k, 1000)
    proposals = []
    for _ in range(count):
        other = random_proposal(rng, chunks, k, 2.0 ** rng.integers(0, 23))
        shared = rng.random() < 0.5
        proposals.append(SparseProposal(indices=common.indices, values=other.values) if shared else other)
    return rng, proposals


def as_dict(proposal):
    flat = proposal.indices + np.arange(proposal.chunks, dtype=np.int64)[:, None] * codec.CHUNK
    return dict(zip(flat.ravel().tolist(), proposal.values.ravel().tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 9), rule=RULES, limit=st.sampled_from([0, 1, 1 << 20, 1 << 50]))
def test_weights_equal_the_reference(reference, seed, count, rule, limit):
    _, proposals = random_proposals(seed, count)
    matrix = aggregate.gram(proposals)
    assert matrix == reference.gram([as_dict(proposal) for proposal in proposals])
    result = aggregate.proposal_weights(matrix, rule=rule, norm_limit=limit)
    expected, median = reference.weights(matrix, rule.value, limit)
    assert list(result.weights) == expected
    assert result.median_norm == median
    assert sum(result.weights) <= count << 16


@st.composite
def hostile_matrices(draw):
    """Gram matrices of short vectors: around one line, on both of its sides, so that huge ones may cancel."""
    size = draw(st.sampled_from([10, 1000, codec.VALUE_MAX]))
    line = draw(st.lists(st.integers(-size, size), min_size=1, max_size=5))
    noise = st.lists(st.integers(-3000, 3000), min_size=len(line), max_size=len(line))
    drawn = draw(st.lists(st.tuples(st.sampled_from([-1, 0, 1]), noise), min_size=1, max_size=7))
    vectors = [[side * x + y for x, y in zip(line, rest, strict=True)] for side, rest in drawn]
    return [[sum(x * y for x, y in zip(one, other, strict=True)) for other in vectors] for one in vectors]


ROBUST_RULES = st.sampled_from([Rule.CLIP, Rule.CENTERED_CLIP])


@settings(max_examples=1000, deadline=None)
@given(matrix=hostile_matrices(), rule=ROBUST_RULES, limit=st.integers(0, 10_000 << 16))
def test_mean_step_is_never_longer_than_the_capped_median_norm(reference, matrix, rule, limit):
    result = aggregate.proposal_weights(matrix, rule=rule, norm_limit=limit)
    expected, median = reference.weights(matrix, rule.value, limit)
    assert list(result.weights) == expected
    assert result.median_norm == median
    assert not limit or median <= limit
    assert all(weight >= 0 for weight in result.weights)
    assert sum(result.weights) <= len(matrix) << 16
    assert reference.summed_norm(matrix, result.weights) <= (median + 1) * (len(matrix) << 16)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 9), limit=st.sampled_from([0, 1, 1 << 20, 1 << 50]))
def test_mean_step_of_sparse_proposals_is_bounded_too(reference, seed, count, limit):
    _, proposals = random_proposals(seed, count)
    matrix = aggregate.gram(proposals)
    for rule in (Rule.CLIP, Rule.CENTERED_CLIP):
        result = aggregate.proposal_weights(matrix, rule=rule, norm_limit=limit)
        assert reference.summed_norm(matrix, result.weights) <= (result.median_norm + 1) * (count << 16)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 6),
    rule=RULES,
    momentum=MOMENTUMS,
    rate=RATES,
    nesterov=st.booleans(),
    extra=st.integers(0, 5),
)
def test_outer_step_equals_the_reference(reference, seed, count, rule, momentum, rate, nesterov, extra):
    rng, proposals = random_proposals(seed, count, chunks=1)
    weights = aggregate.proposal_weights(aggregate.gram(proposals), rule=rule, norm_limit=0).weights
    theta = rng.standard_normal(codec.CHUNK).astype(np.float32) * np.float32(10.0 ** rng.integers(-45, 10))
    theta[rng.random(codec.CHUNK) < 0.2] = -0.0
    moved = rng.integers(-(2**31) + 1, 2**31, codec.CHUNK).astype(np.int32) if momentum else None
    divisor = (count + extra) << 16
    expected_theta, expected_moved = reference.step(
        theta.tolist(),
        None if moved is None else moved.tolist(),
        [as_dict(proposal) for proposal in proposals],
        weights,
        divisor,
        rate,
        momentum,
        nesterov,
    )
    rule_of_step = outer_step.StepRule(learning_rate_q16=rate, momentum_q16=momentum, nesterov=nesterov)
    outer_step.outer_step(theta, moved, proposals, weights, divisor=divisor, rule=rule_of_step)
    assert theta.tobytes() == np.array(expected_theta, dtype=np.float32).tobytes()
    if moved is not None:
        assert moved.tolist() == expected_moved


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 7), momentum=st.sampled_from([0, 58982]), data=st.data())
def test_order_of_proposals_changes_no_bit(seed, count, momentum, data):
    rng, proposals = random_proposals(seed, count, chunks=3, k=64)
    theta = rng.standard_normal(3 * codec.CHUNK).astype(np.float32)
    order = data.draw(st.permutations(range(count)))
    assert apply(theta, proposals, momentum) == apply(theta, [proposals[i] for i in order], momentum)


@pytest.mark.parametrize("group", [1, 3, 1024])
def test_grouping_of_chunks_changes_no_bit(monkeypatch, group):
    rng, proposals = random_proposals(7, 5, chunks=7, k=205)
    theta = rng.standard_normal(7 * codec.CHUNK).astype(np.float32)
    expected = apply(theta, proposals, 58982)
    monkeypatch.setattr(aggregate, "GROUP_CHUNKS", group)
    monkeypatch.setattr(outer_step, "GROUP_CHUNKS", group)
    assert apply(theta, proposals, 58982) == expected


def apply(theta, proposals, momentum):
    theta = theta.copy()
    moved = np.zeros(theta.size, dtype=np.int32) if momentum else None
    weights = aggregate.proposal_weights(aggregate.gram(proposals), rule=Rule.CENTERED_CLIP, norm_limit=0).weights
    rule = outer_step.StepRule(learning_rate_q16=65536, momentum_q16=momentum)
    outer_step.outer_step(theta, moved, proposals, weights, divisor=len(proposals) << 16, rule=rule)
    return theta.tobytes(), b"" if moved is None else moved.tobytes()

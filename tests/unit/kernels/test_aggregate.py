"""Weights and sums at their bounds."""

from math import isqrt

import numpy as np
import pytest

from kernels import aggregate
from kernels.aggregate import ONE_Q16, Rule
from kernels.codec import CHUNK, VALUE_MAX, SparseProposal


def proposal(values, indices=None, chunks=1):
    k = len(values)
    row = list(range(k)) if indices is None else indices
    return SparseProposal(
        indices=np.tile(np.array(row, dtype=np.uint16), (chunks, 1)),
        values=np.tile(np.array(values, dtype=np.int32), (chunks, 1)),
    )


def test_gram_is_exact_at_the_largest_values_of_more_than_one_group():
    chunks = aggregate.GRAM_GROUP_CHUNKS_MAX + 300
    full = proposal([VALUE_MAX] * 410, chunks=chunks)
    opposite = proposal([-VALUE_MAX] * 410, chunks=chunks)
    square = 410 * chunks << 44
    assert square > 2**63  # an int64 sum over all chunks would have overflowed
    assert aggregate.gram([full, opposite]) == [[square, -square], [-square, square]]


def test_gram_group_bound_holds():
    assert aggregate.GROUP_CHUNKS <= aggregate.GRAM_GROUP_CHUNKS_MAX
    assert 410 * aggregate.GRAM_GROUP_CHUNKS_MAX << 44 < 2**63


def test_gram_counts_only_shared_coordinates():
    first, second = proposal([3, 5], [0, 7]), proposal([11, 13], [7, 8])
    assert aggregate.gram([first, second]) == [[34, 55], [55, 290]]


def test_gram_refuses_different_shapes_and_nothing():
    with pytest.raises(ValueError, match="different shapes"):
        aggregate.gram([proposal([1]), proposal([1, 2])])
    with pytest.raises(ValueError, match="between 1 and"):
        aggregate.gram([])


def test_clip_scales_the_long_one_to_the_lower_median():
    matrix = aggregate.gram([proposal([100]), proposal([100], [1]), proposal([100], [2]), proposal([1000], [3])])
    result = aggregate.proposal_weights(matrix, rule=Rule.CLIP, norm_limit=0)
    assert result.weights == (ONE_Q16, ONE_Q16, ONE_Q16, ONE_Q16 // 10)
    assert result.median_norm == 100 << 16


def test_clip_uses_the_lower_median_of_an_even_number():
    matrix = aggregate.gram([proposal([100]), proposal([300], [1])])
    assert aggregate.proposal_weights(matrix, rule=Rule.CLIP, norm_limit=0).weights == (ONE_Q16, ONE_Q16 // 3)


def test_norm_limit_caps_the_median():
    matrix = aggregate.gram([proposal([100])])
    result = aggregate.proposal_weights(matrix, rule=Rule.CLIP, norm_limit=50 << 16)
    assert result.weights == (ONE_Q16 // 2,)
    assert result.median_norm == 50 << 16


def test_mean_ignores_the_norms():
    matrix = aggregate.gram([proposal([1]), proposal([VALUE_MAX])])
    assert aggregate.proposal_weights(matrix, rule=Rule.MEAN, norm_limit=1).weights == (ONE_Q16, ONE_Q16)


def test_centered_clip_bounds_a_sign_flipped_outlier():
    honest = [proposal([1000, 1000 + i], [0, 1]) for i in range(3)]
    matrix = aggregate.gram([*honest, proposal([-10000, -10000], [0, 1])])
    weights = aggregate.proposal_weights(matrix, rule=Rule.CENTERED_CLIP, norm_limit=0).weights
    assert weights[3] * 10000 < sum(weights[:3]) * 1000 // 10
    assert sum(weights) <= 4 << 16


def test_weighted_sum_is_exact_and_dense():
    total = aggregate.weighted_sum([proposal([3, 5], [0, 7]), proposal([-2, 0], [7, 9])], [10, 100], 0, 1)
    assert total.dtype == np.int64
    assert total.size == CHUNK
    assert {int(i): int(total[i]) for i in np.flatnonzero(total)} == {0: 30, 7: -150}


def mean_length(matrix, weights):
    """Norm of the mean of the weighted proposals, in 2^-40, rounded down."""
    square = sum(w * g * v for w, row in zip(weights, matrix, strict=True) for g, v in zip(row, weights, strict=True))
    return isqrt(square << 32) // (len(weights) << 16)


@pytest.mark.parametrize("rule", [Rule.CLIP, Rule.CENTERED_CLIP])
def test_case_C33_huge_proposal_let_in_alone_moves_the_model_no_further_than_the_agreed_norm(rule):
    matrix = aggregate.gram([proposal([100_000] * 410)])
    limit = 500_000 << 16
    result = aggregate.proposal_weights(matrix, rule=rule, norm_limit=limit)
    assert limit * 99 // 100 <= mean_length(matrix, result.weights) <= limit


def test_case_C33_two_of_three_that_collude_move_the_model_no_further_than_the_agreed_norm():
    huge = [proposal([VALUE_MAX] * 4, [0, 1, 2, 3]) for _ in range(2)]
    matrix = aggregate.gram([proposal([10] * 4, [4, 5, 6, 7]), *huge])
    result = aggregate.proposal_weights(matrix, rule=Rule.CENTERED_CLIP, norm_limit=1000 << 16)
    assert mean_length(matrix, result.weights) <= 1000 << 16


def test_huge_proposals_that_cancel_leave_no_remainder_beyond_the_agreed_norm():
    """Found by search: rounding the scaled weights down used to leave 0.5 % more than the agreed norm."""
    values = (
        [-3517931, -82748, 4181413, -3317117],
        [3518037, 80066, -4182968, 3316642],
        [3522123, 79795, -4183748, 3318060],
        [3516433, 82952, -4181624, 3317530],
        [1518, -1451, 1352, 1459],
        [-3521659, -84202, 4181080, -3315657],
    )
    matrix = aggregate.gram([proposal(list(row)) for row in values])
    limit = 5000 << 16
    weights = aggregate.proposal_weights(matrix, rule=Rule.CENTERED_CLIP, norm_limit=limit).weights
    assert mean_length(matrix, weights) <= limit


@pytest.mark.parametrize("rule", [Rule.CLIP, Rule.CENTERED_CLIP])
def test_equal_proposals_lose_one_step_of_a_weight_at_most_to_the_rounding_of_norms(rule):
    for count in (1, 3):
        matrix = aggregate.gram([proposal([300, 500, 700])] * count)
        weights = aggregate.proposal_weights(matrix, rule=rule, norm_limit=0).weights
        assert set(weights) <= {ONE_Q16 - 1, ONE_Q16}


def test_the_bound_leaves_the_weights_of_ordinary_rounds_as_they_are():
    random = np.random.default_rng(7)
    honest = [
        proposal(random.integers(-1000, 1000, 64).tolist(), sorted(random.choice(128, 64, replace=False).tolist()))
        for _ in range(8)
    ]
    matrix = aggregate.gram(honest)
    limit = aggregate.lower_median(aggregate.norms(matrix))
    unbounded = aggregate.centered_clip(matrix, aggregate._clipped(aggregate.norms(matrix), limit))
    result = aggregate.proposal_weights(matrix, rule=Rule.CENTERED_CLIP, norm_limit=0)
    assert result.weights == tuple(unbounded)

"""The outer step: rounding, saturation, untouched bits."""

import numpy as np
import pytest

from kernels import outer_step
from kernels.codec import CHUNK, VALUE_MAX, SparseProposal
from kernels.outer_step import INT31_MAX, StepRule


def proposal(values, indices):
    return SparseProposal(indices=np.array([indices], dtype=np.uint16), values=np.array([values], dtype=np.int32))


def test_q16_drops_bits_towards_zero():
    values = np.array([65535, -65535, 65536, -65536, -1, 0, -(1 << 52)], dtype=np.int64)
    assert outer_step.q16(values).tolist() == [0, 0, 1, -1, 0, 0, -(1 << 36)]


def test_sat31_is_symmetric():
    values = np.array([1 << 40, -(1 << 40), INT31_MAX, -INT31_MAX - 1], dtype=np.int64)
    assert outer_step.sat31(values).tolist() == [INT31_MAX, -INT31_MAX, INT31_MAX, -INT31_MAX]


def test_division_is_a_floor_with_half_added():
    total = np.array([0, 1, -1, 65536, -65536, -32768 >> 4, 32768 >> 4], dtype=np.int64)
    expected = [((int(t) << 4) + 32768) // 65536 for t in total]
    assert outer_step.divided(total, 65536).tolist() == expected
    assert outer_step.divided(np.array([-3], dtype=np.int64), 7).tolist() == [(-48 + 3) // 7]


def test_untouched_coordinates_keep_their_bits():
    theta = np.full(CHUNK, -0.0, dtype=np.float32)
    theta[5] = np.float32(np.nan)  # even bits that no arithmetic preserves
    before = theta.copy()
    outer_step.outer_step(theta, None, [proposal([1 << 20, 0], [3, 4])], [65536], divisor=65536, rule=plain())
    changed = np.flatnonzero(theta.view(np.uint32) != before.view(np.uint32))
    assert changed.tolist() == [3]
    assert theta[3] == np.float32(-0.0) - np.float32((1 << 24) * 2.0**-28)


def test_step_of_one_full_proposal_is_its_value():
    theta = np.zeros(CHUNK, dtype=np.float32)
    outer_step.outer_step(theta, None, [proposal([VALUE_MAX, -3], [0, 9])], [65536], divisor=65536, rule=plain())
    assert theta[0] == -VALUE_MAX * 2.0**-24
    assert theta[9] == 3 * 2.0**-24


def test_conversion_rounds_to_even_before_the_product():
    theta = np.zeros(CHUNK, dtype=np.float32)
    odd = (1 << 24) + 1  # halfway between two float32: to even, down
    outer_step.descend(theta, np.array([0, 1]), np.array([odd, -odd - 2], dtype=np.int64))
    assert theta[0] == -(2.0**24) * 2.0**-28
    assert theta[1] == (2.0**24 + 4) * 2.0**-28


def test_momentum_saturates_and_decays_to_zero():
    momentum = np.zeros(CHUNK, dtype=np.int32)
    momentum[0], momentum[1] = INT31_MAX, -1
    theta = np.zeros(CHUNK, dtype=np.float32)
    rule = StepRule(learning_rate_q16=65536, momentum_q16=outer_step.MOMENTUM_Q16_MAX)
    outer_step.outer_step(theta, momentum, [proposal([VALUE_MAX], [0])], [131071], divisor=65536, rule=rule)
    assert momentum[0] == INT31_MAX
    assert momentum[1] == 0


def test_step_rule_refuses_what_could_overflow():
    for wrong in ({"learning_rate_q16": 0}, {"learning_rate_q16": (16 << 16) + 1}):
        with pytest.raises(ValueError, match="learning rate"):
            StepRule(**wrong)
    with pytest.raises(ValueError, match="momentum"):
        StepRule(learning_rate_q16=65536, momentum_q16=outer_step.MOMENTUM_Q16_MAX + 1)


def test_momentum_is_kept_exactly_when_the_rule_has_one():
    theta = np.zeros(CHUNK, dtype=np.float32)
    with pytest.raises(ValueError, match="momentum"):
        outer_step.outer_step(
            theta, np.zeros(CHUNK, np.int32), [proposal([1], [0])], [65536], divisor=65536, rule=plain()
        )


def plain():
    return StepRule(learning_rate_q16=65536)

"""The outer step: from a weighted integer sum to new parameters, the same bits on every machine.

Theory (gradients specification, section 4). The sum is divided by the agreed weight with a floor division; the
optional momentum is integer arithmetic; the only floating-point work is one int-to-float32 conversion, one
product with a power of two (exact) and one subtraction, which no FMA, vector width or flushing can change.
Where the step is zero the parameter's bits are untouched, so without momentum only touched coordinates are
visited.

Units: gradient and step 2^-28, learning rate and momentum Q16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.aggregate import GROUP_CHUNKS, common_chunks, weighted_sum
from kernels.codec import CHUNK, Float32Array, Int32Array, Int64Array, SparseProposal

INT31_MAX = (1 << 31) - 1
LEARNING_RATE_Q16_MAX = 16 << 16
MOMENTUM_Q16_MAX = 63488
"""0.96875: with it the momentum of the largest gradient just fits 31 bits."""
STEP_UNIT = np.float32(2.0**-28)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """The agreed outer optimiser. ValueError if out of bounds."""

    learning_rate_q16: int
    momentum_q16: int = 0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate_q16 <= LEARNING_RATE_Q16_MAX:
            raise ValueError(f"the outer learning rate must lie in 1..{LEARNING_RATE_Q16_MAX} (Q16)")
        if not 0 <= self.momentum_q16 <= MOMENTUM_Q16_MAX:
            raise ValueError(f"the outer momentum must lie in 0..{MOMENTUM_Q16_MAX} (Q16)")


def q16(product: Int64Array) -> Int64Array:
    """Drop 16 fractional bits towards zero: a floor would drift every weight. int64 in and out."""
    shifted = np.abs(product) >> 16
    return np.where(product < 0, -shifted, shifted)


def sat31(value: Int64Array) -> Int64Array:
    """Saturate symmetrically to 31 bits and a sign."""
    return np.clip(value, -INT31_MAX, INT31_MAX)


def divided(total: Int64Array, divisor: int) -> Int64Array:
    """``floor(((total << 4) + divisor // 2) / divisor)``: the mean gradient, int64 in 2^-28."""
    return ((total << 4) + divisor // 2) // divisor


def descend(theta: Float32Array, places: Int64Array, step: Int64Array) -> None:
    """``theta[places] -= float32(step) * 2^-28`` in place where the step is not zero."""
    moved = step != 0
    places, step = places[moved], step[moved]
    theta[places] = theta[places] - step.astype(np.float32) * STEP_UNIT


def outer_step(
    theta: Float32Array,
    momentum: Int32Array | None,
    proposals: Sequence[SparseProposal],
    weights: Sequence[int],
    *,
    divisor: int,
    rule: StepRule,
) -> None:
    """Apply weighted proposals to ``theta``, float32[chunks * CHUNK], and ``momentum``, int32 of the same length.

    Both are changed in place. ``divisor``: the agreed total weight W (Q16). ``momentum`` is None exactly when the
    rule has none. ValueError on shapes that do not fit.
    """
    chunks = common_chunks(proposals)
    if theta.dtype != np.float32 or theta.shape != (chunks * CHUNK,):
        raise ValueError("theta does not have the proposals' chunks")
    if (momentum is None) != (rule.momentum_q16 == 0):
        raise ValueError("momentum is kept exactly when the outer rule has one")
    for start in range(0, chunks, GROUP_CHUNKS):
        stop = min(start + GROUP_CHUNKS, chunks)
        total = weighted_sum(proposals, weights, start, stop)
        part = slice(start * CHUNK, stop * CHUNK)
        if momentum is None:
            places = np.flatnonzero(total).astype(np.int64, copy=False)
            direction = divided(total[places], divisor)
        else:
            places = np.arange(total.size, dtype=np.int64)
            direction = _momentum_step(momentum[part], divided(total, divisor), rule)
        descend(theta[part], places, sat31(q16(direction * rule.learning_rate_q16)))


def _momentum_step(momentum: Int32Array, gradient: Int64Array, rule: StepRule) -> Int64Array:
    """Advance ``momentum`` in place and return the direction, int64 in 2^-28."""
    advanced = sat31(q16(momentum.astype(np.int64) * rule.momentum_q16) + gradient)
    momentum[:] = advanced.astype(np.int32)
    if not rule.nesterov:
        return advanced
    return gradient + q16(advanced * rule.momentum_q16)

"""How N sparse proposals become weights and one sum, in exact integers.

Theory (gradients specification, section 4). Every norm-based rule gives ``v = sum(w_j x_j)``, so it needs the
N x N Gram matrix, N weights, and one weighted sum. The Gram matrix is summed exactly in int64 over groups of
chunks short enough not to overflow (k * 2^44 a chunk, so 1,278 chunks at k = 410) and the groups are added as
Python integers; weights are Python integers throughout; the weighted sum is an int64 scatter-add, whose order
cannot matter. Nothing here rounds in floating point.

The mean step ``v / N`` is never longer than the norm that clips, whatever a robust rule makes of the weights. This
bound after the rule goes beyond the papers: CenteredClip only starts from clipped weights, and the radius it then
clips to is taken from the proposals themselves, so a single huge proposal that a Byzantine leader lets in alone would
count in full. Rounds whose mean step is shorter, which is all where proposals differ as honest ones do, keep their
weights to the bit; a lone proposal, or equal ones, may lose 2^-16 of a weight to the rounding of norms.

Units: values 2^-24, Gram 2^-48, norms 2^-40, weights 2^-16, accumulator 2^-40.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from kernels.codec import CHUNK, Int64Array, SparseProposal

GRAM_GROUP_CHUNKS_MAX = 1024
"""Chunks whose products may be added in int64: 410 * 2^44 * 1024 < 2^63."""
GROUP_CHUNKS = 128
"""Chunks visited at once: the dense int64 scratch row is 4 MiB. At most GRAM_GROUP_CHUNKS_MAX."""
ONE_Q16 = 1 << 16
CENTERED_CLIP_STEPS = 5
PROPOSALS_MAX = 1 << 20
"""Included proposals for which the accumulator cannot overflow."""

Gram = list[list[int]]


class Rule(enum.Enum):
    """How weights follow from the Gram matrix."""

    MEAN = "mean"
    CLIP = "clip"
    CENTERED_CLIP = "centered_clip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``weights`` (Q16, one a proposal) and the lower-median norm that they were clipped to (2^-40)."""

    weights: tuple[int, ...]
    median_norm: int


def lower_median(values: Sequence[int]) -> int:
    """The lower median, an element of ``values`` (not empty)."""
    return sorted(values)[(len(values) - 1) // 2]


def gram(proposals: Sequence[SparseProposal]) -> Gram:
    """Exact inner products of the proposals, in 2^-48. ValueError if their shapes differ."""
    chunks = common_chunks(proposals)
    count = len(proposals)
    result: Gram = [[0] * count for _ in range(count)]
    scratch = np.zeros(min(GROUP_CHUNKS, chunks) * CHUNK, dtype=np.int64)
    for start in range(0, chunks, GROUP_CHUNKS):
        places, values = group_entries(proposals, start, min(start + GROUP_CHUNKS, chunks))
        for i in range(count):
            scratch[places[i]] = values[i]
            products = (scratch[places[i:]] * values[i:]).sum(axis=1)
            scratch[places[i]] = 0
            for j, product in enumerate(products.tolist(), start=i):
                result[i][j] += product
    for i in range(count):
        for j in range(i):
            result[i][j] = result[j][i]
    return result


def common_chunks(proposals: Sequence[SparseProposal]) -> int:
    """The chunk count that all proposals share. ValueError if there is none."""
    if not 1 <= len(proposals) <= PROPOSALS_MAX:
        raise ValueError(f"between 1 and {PROPOSALS_MAX} proposals can be aggregated, not {len(proposals)}")
    if len({proposal.indices.shape for proposal in proposals}) != 1:
        raise ValueError("proposals of different shapes cannot be aggregated")
    return proposals[0].chunks


def group_entries(proposals: Sequence[SparseProposal], start: int, stop: int) -> tuple[Int64Array, Int64Array]:
    """Coordinates (counted from chunk ``start``) and values of chunks start..stop-1, both int64[N, chunks * k]."""
    count = len(proposals)
    base = (np.arange(stop - start, dtype=np.int64) * CHUNK)[:, None]
    places = np.stack([proposal.indices[start:stop] + base for proposal in proposals])
    values = np.stack([proposal.values[start:stop] for proposal in proposals]).astype(np.int64)
    return places.reshape(count, -1), values.reshape(count, -1)


def norms(matrix: Gram) -> list[int]:
    """Norms of the proposals in 2^-40."""
    return [isqrt(matrix[i][i] << 32) for i in range(len(matrix))]


def proposal_weights(matrix: Gram, *, rule: Rule, norm_limit: int) -> Weights:
    """Weights by ``rule``; the norm that clips is the lower median, capped at ``norm_limit`` (2^-40, 0: no cap)."""
    lengths = norms(matrix)
    median = lower_median(lengths)
    if norm_limit:
        median = min(median, norm_limit)
    if rule is Rule.MEAN:
        return Weights(weights=(ONE_Q16,) * len(lengths), median_norm=median)
    clipped = _clipped(lengths, median)
    weights = centered_clip(matrix, clipped) if rule is Rule.CENTERED_CLIP else clipped
    return Weights(weights=tuple(bounded(matrix, weights, clipped, median)), median_norm=median)


def _clipped(lengths: Sequence[int], limit: int) -> list[int]:
    return [ONE_Q16 if length <= limit else (limit << 16) // length for length in lengths]


def centered_clip(matrix: Gram, weights: Sequence[int]) -> list[int]:
    """CenteredClip (arXiv:2012.10333) on the Gram matrix, from the given start weights; sum of weights <= N << 16."""
    count = len(weights)
    current = list(weights)
    scale = count << 16
    for _ in range(CENTERED_CLIP_STEPS):
        towards = [sum(g * w for g, w in zip(row, current, strict=True)) for row in matrix]
        square = sum(w * t for w, t in zip(current, towards, strict=True))
        distances = [
            isqrt(max(0, matrix[i][i] * scale * scale - 2 * towards[i] * scale + square)) for i in range(count)
        ]
        pull = _clipped(distances, lower_median(distances))
        rest = scale - sum(pull)
        current = [(w * rest) // scale + c for w, c in zip(current, pull, strict=True)]
    return current


def bounded(matrix: Gram, weights: Sequence[int], clipped: Sequence[int], limit: int) -> list[int]:
    """``weights``, scaled down where needed so that the mean of the N weighted proposals is at most ``limit`` long
    (2^-40, within one unit).

    Scaling rounds every weight down for itself, and of huge proposals that cancel each other what is left may then be
    longer than before. ``clipped``, the weights that bring each proposal alone to ``limit``, bound it in that case too.
    """
    longest = limit * (len(weights) << 16)
    length = _length(matrix, weights)
    if length <= longest:
        return list(weights)
    scaled = [weight * longest // length for weight in weights]
    if _length(matrix, scaled) <= longest:
        return scaled
    return [min(weight, most) for weight, most in zip(scaled, clipped, strict=True)]


def _length(matrix: Gram, weights: Sequence[int]) -> int:
    """Norm of the weighted sum in 2^-56, rounded down."""
    towards = [sum(g * w for g, w in zip(row, weights, strict=True)) for row in matrix]
    return isqrt(sum(w * t for w, t in zip(weights, towards, strict=True)) << 32)


def weighted_sum(proposals: Sequence[SparseProposal], weights: Sequence[int], start: int, stop: int) -> Int64Array:
    """``sum(w * v)`` over chunks start..stop-1, dense int64[(stop - start) * CHUNK] in 2^-40; exact, order-free."""
    places, values = group_entries(proposals, start, stop)
    total = np.zeros((stop - start) * CHUNK, dtype=np.int64)
    for place, value, weight in zip(places, values, weights, strict=True):
        # Indices are distinct inside one proposal, so the fancy addition loses nothing.
        total[place] += value * weight
    return total

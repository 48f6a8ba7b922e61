"""The model that all nodes hold, bit for bit, and the step from one round to the next.

Theory (gradients specification, section 4). A state is the flat float32 vector theta, padded to whole chunks, the
integer momentum if the run has one, the round that is computed on it, and a short history of earlier rounds that
bounds what a single round may do. States are immutable: a round makes a new one, and whoever trains or reads keeps a
consistent old one. The model hash covers theta and momentum; the history is part of the snapshot and must stand,
through ``AggregationHistory.encode``, in the state hash that members vote on.

Two rules go beyond robust aggregation as published, both against a Byzantine leader that lets in one proposal only.
The mean step is bounded by the capped norm after the rule has made its weights (``kernels.aggregate``), or that
proposal, however large, would count in full. And the norm that caps the next round not only doubles at most but halves
at most, or one tiny proposal would hold back all steps for as many rounds as it takes to double back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from aicpnode.envelop.codec import pack, unpack
from aicpnode.envelop.merkle import merkle_root
from aicpnode.errors import MalformedError
from kernels import dispatch
from kernels.aggregate import Rule, lower_median, proposal_weights
from kernels.codec import CHUNK, Float32Array, Int32Array, RecordLayout, SparseProposal, record_layout
from kernels.outer_step import StepRule

MODEL_DOMAIN = b"aicp-model-1"
MODEL_LEAF_BYTES = 64 << 10
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER_BYTES_MAX = 1024
HISTORY_ROUNDS = 8
"""Non-empty rounds whose number of proposals is remembered."""
NORM_GROWTH_MAX = 2
"""The clipping norm may grow by this factor from one non-empty round to the next."""
PARAMETERS_MAX = 1 << 40
FIRST_ROUND = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParameters:
    """What the members agreed on for a round: format and aggregation. ValueError if out of bounds."""

    k: int
    bits: int
    rule: Rule = Rule.CENTERED_CLIP
    learning_rate_q16: int = 1 << 16
    momentum_q16: int = 0
    nesterov: bool = False

    def __post_init__(self) -> None:
        record_layout(self.k, self.bits)
        _ = self.step_rule

    @property
    def layout(self) -> RecordLayout:
        return record_layout(self.k, self.bits)

    @property
    def step_rule(self) -> StepRule:
        return StepRule(
            learning_rate_q16=self.learning_rate_q16, momentum_q16=self.momentum_q16, nesterov=self.nesterov
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationHistory:
    """Agreed memory of earlier rounds.

    ``norm``: the norm that the last non-empty round clipped to, in 2^-40, 0 for none yet; ``counts``: how many
    proposals each of the last non-empty rounds aggregated, newest last, at most HISTORY_ROUNDS.
    """

    norm: int = 0
    counts: tuple[int, ...] = ()

    @property
    def norm_limit(self) -> int:
        """The most that the next round may clip to, in 2^-40; 0: no limit."""
        return NORM_GROWTH_MAX * self.norm

    def full_count(self, count: int) -> int:
        """By how many proposals a sum of ``count`` is divided: a round with few of them takes no full step."""
        return max(count, lower_median(self.counts)) if self.counts else count

    def after(self, *, norm: int, count: int) -> Self:
        """The history once a non-empty round is over. A norm of zero is no measure and leaves the last one.

        The norm at most halves in a round: it may only double, so a single round in which a Byzantine leader let in
        nothing but a tiny proposal would otherwise hold back all steps for many rounds.
        """
        kept = max(norm, self.norm // NORM_GROWTH_MAX) if norm else self.norm
        return type(self)(norm=kept, counts=(*self.counts, count)[-HISTORY_ROUNDS:])

    def encode(self) -> bytes:
        """Canonical bytes, for the state hash."""
        return pack((self.norm, self.counts))


def chunk_count(parameters: int) -> int:
    """Chunks that hold this many parameters."""
    return -(-parameters // CHUNK)


def padded(vector: Float32Array, parameters: int) -> Float32Array:
    """A copy of float32[parameters], padded with zeros to whole chunks. ValueError on another shape or dtype."""
    if vector.dtype != np.float32 or vector.shape != (parameters,):
        raise ValueError(f"expected float32[{parameters}], got {vector.dtype}{list(vector.shape)}")
    result = np.zeros(chunk_count(parameters) * CHUNK, dtype=np.float32)
    result[:parameters] = vector
    return result


def model_hash(theta: Float32Array, momentum: Int32Array | None, parameters: int) -> bytes:
    """SHA-256 over the domain, P (u64, little-endian), has_m (u8), and the roots of theta and of m if there is one."""
    hasher = hashlib.sha256(MODEL_DOMAIN)
    hasher.update(parameters.to_bytes(8, "little") + bytes([momentum is not None]))
    hasher.update(merkle_root(array_bytes(theta), MODEL_LEAF_BYTES))
    if momentum is not None:
        hasher.update(merkle_root(array_bytes(momentum), MODEL_LEAF_BYTES))
    return hasher.digest()


def array_bytes(array: Float32Array | Int32Array) -> memoryview:
    """The bytes of an array, little-endian, without a copy where the machine is little-endian."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(np.uint8).data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelState:
    """One agreed state.

    ``parameters``: P; ``round``: the training round computed on this state; ``theta``: float32[chunks * CHUNK],
    read-only; ``momentum``: int32 of the same length in 2^-28, or None; ``model_hash``: 32 bytes, made here.
    """

    parameters: int
    round: int
    theta: Float32Array
    momentum: Int32Array | None
    history: AggregationHistory
    model_hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        size = (chunk_count(self.parameters) * CHUNK,)
        assert self.theta.dtype == np.float32
        assert self.theta.shape == size
        self.theta.flags.writeable = False
        if self.momentum is not None:
            assert self.momentum.dtype == np.int32
            assert self.momentum.shape == size
            self.momentum.flags.writeable = False
        object.__setattr__(self, "model_hash", model_hash(self.theta, self.momentum, self.parameters))

    @property
    def chunks(self) -> int:
        return chunk_count(self.parameters)

    @property
    def values(self) -> Float32Array:
        """theta without its padding, float32[parameters], read-only."""
        return self.theta[: self.parameters]


def initial_state(
    vector: Float32Array, *, parameters: int, momentum_q16: int, norm_cap: int, round: int = FIRST_ROUND
) -> ModelState:
    """The state that a run begins with, from float32[parameters]; ``norm_cap`` in 2^-40, 0 for none.

    ValueError if the vector has another shape or is not finite.
    """
    theta = padded(vector, parameters)
    if not np.isfinite(theta).all():
        raise ValueError("the initial model is not finite")
    momentum = np.zeros(theta.size, dtype=np.int32) if momentum_q16 else None
    return ModelState(
        parameters=parameters,
        round=round,
        theta=theta,
        momentum=momentum,
        history=AggregationHistory(norm=norm_cap),
    )


def vector_from_bytes(data: bytes | memoryview, parameters: int) -> Float32Array:
    """The initial model's blob, little-endian float32[parameters], as an array. MalformedError on another length."""
    if len(data) != 4 * parameters:
        raise MalformedError(f"a model of {parameters} parameters has {4 * parameters} bytes, not {len(data)}")
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def next_state(state: ModelState, proposals: Sequence[SparseProposal], parameters: RoundParameters) -> ModelState:
    """The state after a round that included ``proposals`` (of authors with power), in any order. None is no change.

    ValueError if a proposal does not have the state's chunks.
    """
    theta, momentum, history = state.theta, state.momentum, state.history
    if proposals:
        kernels = dispatch.pick(theta.size)
        weights = proposal_weights(kernels.gram(proposals), rule=parameters.rule, norm_limit=history.norm_limit)
        divisor = history.full_count(len(proposals)) << 16
        theta, momentum = theta.copy(), None if momentum is None else momentum.copy()
        kernels.outer_step(theta, momentum, proposals, weights.weights, divisor=divisor, rule=parameters.step_rule)
        history = history.after(norm=weights.median_norm, count=len(proposals))
    return ModelState(
        parameters=state.parameters, round=state.round + 1, theta=theta, momentum=momentum, history=history
    )


# -- snapshots -------------------------------------------------------------------------------------------------


def encode_snapshot(state: ModelState) -> bytes:
    """The whole state as one canonical blob: header length (u32, little-endian), header, theta, momentum if any."""
    header = pack(
        (
            SNAPSHOT_VERSION,
            state.parameters,
            state.round,
            state.history.norm,
            state.history.counts,
            state.momentum is not None,
            state.model_hash,
        )
    )
    parts: list[bytes | memoryview] = [len(header).to_bytes(4, "little"), header, array_bytes(state.theta)]
    if state.momentum is not None:
        parts.append(array_bytes(state.momentum))
    return b"".join(parts)


def decode_snapshot(data: bytes | memoryview) -> ModelState:
    """The state of a snapshot, its model hash verified. MalformedError on what ``encode_snapshot`` never makes."""
    view = memoryview(data)
    header_bytes = int.from_bytes(view[:4], "little")
    if len(view) < 4 or not 0 < header_bytes <= min(SNAPSHOT_HEADER_BYTES_MAX, len(view) - 4):
        raise MalformedError("a snapshot begins with the length of its header")
    parameters, round, history, has_momentum, expected = _snapshot_header(bytes(view[4 : 4 + header_bytes]))
    arrays = view[4 + header_bytes :]
    size = 4 * chunk_count(parameters) * CHUNK
    if len(arrays) != size * (2 if has_momentum else 1):
        raise MalformedError("a snapshot's arrays do not have the announced length")
    momentum = np.frombuffer(arrays[size:], dtype="<i4").astype(np.int32) if has_momentum else None
    theta = np.frombuffer(arrays[:size], dtype="<f4").astype(np.float32)
    state = ModelState(parameters=parameters, round=round, theta=theta, momentum=momentum, history=history)
    if state.model_hash != expected:
        raise MalformedError("a snapshot's content does not have the hash in its header")
    return state


def _snapshot_header(data: bytes) -> tuple[int, int, AggregationHistory, bool, bytes]:
    match unpack(data, max_bytes=SNAPSHOT_HEADER_BYTES_MAX):
        case (int(version), int(parameters), int(round), int(norm), tuple(counts), bool(has_momentum), bytes(root)):
            numbers = [count for count in counts if type(count) is int and count > 0]
            if version != SNAPSHOT_VERSION:
                raise MalformedError(f"a snapshot of the unknown version {version}")
            sizes_fit = 0 < parameters <= PARAMETERS_MAX and round >= FIRST_ROUND and norm >= 0
            if not sizes_fit or len(numbers) != len(counts) or len(counts) > HISTORY_ROUNDS:
                raise MalformedError("a snapshot's header is out of range")
            return parameters, round, AggregationHistory(norm=norm, counts=tuple(numbers)), has_momentum, root
        case _:
            raise MalformedError("a snapshot's header does not have the right fields")

"""Which implementation of the kernels runs where.

A ``KernelSet`` holds every kernel of one implementation; all sets give identical bits, so the choice is one of
speed alone. Implementations are listed from the most general to the most special with the size from which each is
worth loading; a set is loaded when it is first picked, so that a small node never pays for a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernels import aggregate, codec, outer_step
from kernels.codec import Float32Array, Int32Array, SparseProposal, UInt8Array


class Encode(Protocol):
    """See ``kernels.codec.encode``."""

    def __call__(self, e: Float32Array, *, k: int, bits: int) -> UInt8Array: ...


class Decode(Protocol):
    """See ``kernels.codec.decode``."""

    def __call__(self, body: bytes | memoryview | UInt8Array, *, k: int, bits: int, chunks: int) -> SparseProposal: ...


class OuterStep(Protocol):
    """See ``kernels.outer_step.outer_step``."""

    def __call__(
        self,
        theta: Float32Array,
        momentum: Int32Array | None,
        proposals: Sequence[SparseProposal],
        weights: Sequence[int],
        *,
        divisor: int,
        rule: outer_step.StepRule,
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSet:
    """Every kernel of one implementation."""

    name: str
    encode: Encode
    decode: Decode
    gram: Callable[[Sequence[SparseProposal]], aggregate.Gram]
    outer_step: OuterStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """``load`` makes the set; it is worth it from ``coordinates_min`` parameters on."""

    name: str
    coordinates_min: int
    load: Callable[[], KernelSet]


def _numpy() -> KernelSet:
    return KernelSet(
        name="numpy",
        encode=codec.encode,
        decode=codec.decode,
        gram=aggregate.gram,
        outer_step=outer_step.outer_step,
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = (Implementation(name="numpy", coordinates_min=0, load=_numpy),)


def pick(coordinates: int, *, name: str | None = None) -> KernelSet:
    """The named set, or else the most special one worth loading for a model of this size. ValueError if unknown."""
    if name is not None:
        for implementation in IMPLEMENTATIONS:
            if implementation.name == name:
                return implementation.load()
        known = ", ".join(implementation.name for implementation in IMPLEMENTATIONS)
        raise ValueError(f"no kernel implementation is called {name!r}; there are: {known}")
    worth = [item for item in IMPLEMENTATIONS if item.coordinates_min <= coordinates]
    return max(worth, key=lambda item: item.coordinates_min).load()

"""Checks on a revealed proposal, cheap and exact first; the loss only through an injected callable.

Theory (gradients specification, section 3). Checks 1 to 3 are the same for everyone: the header is of this run, round
and base model; the body is the committed one and decodes canonically; it is bounded and not empty. Check 4 compares
proposals with each other. Check 5, the loss, needs a model that can evaluate, so it comes in as ``score``; a member
without one relies on those that have it. A verdict is an opinion that goes into a vote, never a fact about the state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aicpnode.errors import MalformedError
from aicpnode.gradients.proposal import HEADER_VERSION, TOKENS_MAX, Header, body_root, split_package
from aicpnode.gradients.state import RoundParameters
from kernels import dispatch
from kernels.codec import CHUNK, RecordError, RecordFault, SparseProposal


class Ruling(enum.Enum):
    """What a member thinks of one proposal."""

    YES = "yes"
    NO = "no"
    ABSTAIN = "abstain"


class Reason(enum.Enum):
    """Why a proposal is refused. All four count as strikes."""

    STALE = "stale"
    MALFORMED = "malformed"
    BOUNDS = "bounds"
    LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An opinion, with a reason exactly when it is no; ``detail`` is a sentence for the author and the operator."""

    ruling: Ruling
    reason: Reason | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        assert (self.reason is not None) == (self.ruling is Ruling.NO)


YES = Verdict(ruling=Ruling.YES)


def refusal(reason: Reason, detail: str) -> Verdict:
    """A no with its reason."""
    return Verdict(ruling=Ruling.NO, reason=reason, detail=detail)


def abstention(detail: str) -> Verdict:
    """No opinion, and why."""
    return Verdict(ruling=Ruling.ABSTAIN, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a proposal must be to fit the running round; ``size``: bytes of the package, as GRAD said."""

    network_id: bytes
    round: int
    base_hash: bytes
    author: bytes
    size: int
    chunks: int
    parameters: RoundParameters


Score = Callable[[Header, SparseProposal], Verdict]
"""Check 5: judges a proposal that passed all others by the loss."""


def judge(package: bytes | memoryview, *, expectation: Expectation, score: Score | None = None) -> Verdict:
    """Judge a package that its digest commits to. Never raises on bad bytes: those are a no."""
    try:
        header, _, body = split_package(package)
    except MalformedError as error:
        return refusal(Reason.MALFORMED, error.reason)
    fault = _header_fault(header, expectation)
    if fault is not None:
        return fault
    layout = expectation.parameters.layout
    if len(package) != expectation.size or len(body) != expectation.chunks * layout.record_bytes:
        return refusal(
            Reason.MALFORMED, "the package does not have the size of its format, or not the one committed to"
        )
    if body_root(body, layout) != header.body_root:
        return refusal(Reason.MALFORMED, "the body does not have the Merkle root of the header")
    try:
        proposal = decode_body(body, chunks=expectation.chunks, parameters=expectation.parameters)
    except RecordError as error:
        reason = Reason.BOUNDS if error.fault is RecordFault.BOUND else Reason.MALFORMED
        return refusal(reason, str(error))
    if not np.any(proposal.values):
        return refusal(Reason.BOUNDS, "the proposal is zero")
    return score(header, proposal) if score is not None else YES


def decode_body(body: bytes | memoryview, *, chunks: int, parameters: RoundParameters) -> SparseProposal:
    """The values of a body in the agreed format. RecordError if it is not canonical."""
    kernels = dispatch.pick(chunks * CHUNK)
    return kernels.decode(body, k=parameters.k, bits=parameters.bits, chunks=chunks)


def _header_fault(header: Header, expectation: Expectation) -> Verdict | None:
    """Check 1; None if the header fits."""
    if header.round != expectation.round:
        return refusal(Reason.STALE, f"made for round {header.round}, not {expectation.round}")
    if header.base_hash != expectation.base_hash:
        return refusal(Reason.STALE, "made from another base model")
    parameters = expectation.parameters
    fields = (
        ("version", header.version, HEADER_VERSION),
        ("network id", header.network_id, expectation.network_id),
        ("author", header.author, expectation.author),
        ("k", header.k, parameters.k),
        ("bits", header.bits, parameters.bits),
        ("chunk count", header.chunks, expectation.chunks),
    )
    for name, found, wanted in fields:
        if found != wanted:
            return refusal(Reason.MALFORMED, f"the header has another {name}")
    if header.tokens > TOKENS_MAX:
        return refusal(Reason.MALFORMED, "the header's token count is out of range")
    return None

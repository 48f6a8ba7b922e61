"""From a trainer's pseudo-gradient to an own proposal that is durable, sound and sent.

Encoding and storing run in a worker thread. The own proposal passes the same checks as everybody's before it is
signed, because a refusal by others is a strike. One proposal a round, and never one for an earlier round than the
last: the slot may have been signed, and another content for it would be equivocation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from aicpnode.envelop.codec import Envelop
from aicpnode.events import EventBus, Notice
from aicpnode.gradients.exchange import RunFormat
from aicpnode.gradients.grad import sealed_grad
from aicpnode.gradients.judge import Expectation, Ruling, judge
from aicpnode.gradients.proposal import EncodedProposal, NonFiniteDelta, encode_proposal
from aicpnode.gradients.residual import OwnProposals
from aicpnode.gradients.state import padded
from aicpnode.identity import Identity
from aicpnode.storage.faults import StorageFull
from kernels.codec import Float32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundTask:
    """What a trainer needs: ``theta``, float32[parameters], read-only; stop inner steps at ``stop_at`` (trio time)."""

    round: int
    theta: Float32Array
    base_hash: bytes
    author_index: int
    stop_at: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """What a trainer hands in: ``delta``, float32[parameters], the hash of its batch offsets, tokens seen."""

    delta: Float32Array
    offsets_hash: bytes
    tokens: int


class Contributor:
    """Makes own proposals. ``objection`` says why a task cannot be proposed to any more, or None."""

    def __init__(
        self,
        *,
        identity: Identity,
        run: RunFormat,
        own: OwnProposals,
        events: EventBus,
        objection: Callable[[RoundTask], str | None],
    ) -> None:
        self._identity = identity
        self._run = run
        self._own = own
        self._events = events
        self._objection = objection

    async def propose(self, task: RoundTask, work: Work) -> Envelop | None:
        """The own GRAD of the task's round, durable with its package and residual.

        None if there is none, and a Notice says why; the residual is unchanged then.
        """
        refused = self._objection(task)
        if refused is not None:
            self._say(task.round, refused, level="warning")
            return None
        try:
            encoded, note = await trio.to_thread.run_sync(self._encode, task, work)
        except NonFiniteDelta as error:
            self._say(task.round, str(error), level="error")
            return None
        refused = self._own_verdict(encoded) or self._objection(task)
        if refused is not None:
            self._say(task.round, refused, level="warning")
            return None
        grad = sealed_grad(
            self._identity,
            network_id=self._run.network_id,
            round=task.round,
            digest=encoded.digest,
            size=len(encoded.package),
        )
        try:
            await trio.to_thread.run_sync(partial(self._own.store, grad, encoded))
        except StorageFull as error:
            self._say(task.round, str(error), level="error")
            return None
        if note:
            text = f"Round {task.round}: the error-feedback residual started from zero, because {note}."
            self._events.publish(Notice(level="warning", text=text))
        return grad

    def _say(self, round: int, reason: str, *, level: str) -> None:
        self._events.publish(Notice(level=level, text=f"No proposal in round {round}: {reason}"))

    def _encode(self, task: RoundTask, work: Work) -> tuple[EncodedProposal, str]:
        delta = padded(work.delta, task.theta.size)
        residual, note = self._own.residual(task.round, delta.size)
        encoded = encode_proposal(
            delta,
            residual,
            parameters=self._run.parameters,
            network_id=self._run.network_id,
            round=task.round,
            base_hash=task.base_hash,
            author=self._identity.key,
            offsets_hash=work.offsets_hash,
            tokens=work.tokens,
        )
        return encoded, note

    def _own_verdict(self, encoded: EncodedProposal) -> str | None:
        """Why the others would refuse the proposal, or None."""
        expectation = Expectation(
            network_id=self._run.network_id,
            round=encoded.header.round,
            base_hash=encoded.header.base_hash,
            author=self._identity.key,
            size=len(encoded.package),
            chunks=self._run.chunks,
            parameters=self._run.parameters,
        )
        verdict = judge(encoded.package, expectation=expectation)
        return None if verdict.ruling is Ruling.YES else f"{verdict.detail}."

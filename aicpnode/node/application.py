"""The gradient participant as the application that replication drives: two rooms that do not know each other."""

from __future__ import annotations

import trio

from aicpnode.envelop.codec import content_id
from aicpnode.gradients.exchange import RoundContext as GradientRound
from aicpnode.gradients.participant import DecidedProposal, DecidedRound, Participant
from aicpnode.replication.application import DecidedTraining, RoundContext
from aicpnode.storage.blobs import Blobs


class GradientApplication:
    """Translates; holds nothing."""

    def __init__(self, participant: Participant, key: bytes, blobs: Blobs) -> None:
        self._participant = participant
        self._key = key
        self._blobs = blobs

    def model_hash(self) -> bytes:
        return self._participant.state.model_hash

    def agreed_root(self) -> bytes:
        """The model and the history that bounds the next round: both must be the same everywhere."""
        state = self._participant.state
        return content_id("aicp/gradients/1", (state.model_hash, state.history.encode()))

    async def apply(self, training: DecidedTraining) -> bytes:
        included = tuple(
            DecidedProposal(author=proposal.author, power=proposal.power, digest=proposal.digest)
            for proposal in training.included
        )
        return await self._participant.apply(DecidedRound(round=training.round, included=included))

    def begin_round(self, context: RoundContext) -> None:
        self._participant.begin_round(
            GradientRound(
                round=context.round,
                authors=context.authors,
                expected=context.expected,
                last_round_empty=context.last_round_empty,
                contributing=context.contributing,
                contributing_here=context.own_contribution,
                my_index=context.authors.get(self._key),
                voters=context.voters,
                height=context.height,
                round_s=context.round_ms / 1000,
            )
        )

    async def snapshot(self) -> bytes:
        return await self._participant.snapshot()

    async def forget_snapshot(self, digest: bytes) -> None:
        await trio.to_thread.run_sync(self._blobs.delete, digest)

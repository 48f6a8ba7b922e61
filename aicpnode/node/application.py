"""The gradient participant as the application that replication drives: two rooms that do not know each other."""

from __future__ import annotations

import trio

from aicpnode.envelop.codec import content_id
from aicpnode.errors import MalformedError
from aicpnode.gradients.exchange import RoundContext as GradientRound
from aicpnode.gradients.participant import DecidedProposal, DecidedRound, Participant
from aicpnode.gradients.state import ModelState, decode_snapshot
from aicpnode.replication.application import DecidedTraining, RoundContext, SnapshotFacts
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
        return _agreed_root(self._participant.state)

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

    @property
    def snapshot_bytes_max(self) -> int:
        return self._participant.snapshot_bytes_max

    def snapshot_size(self, digest: bytes) -> int | None:
        return self._blobs.size(digest) if self._blobs.has(digest) else None

    def read_snapshot(self, digest: bytes, offset: int, length: int) -> bytes:
        return self._blobs.read(digest, offset, length)

    def inspect_snapshot(self, data: bytes) -> SnapshotFacts:
        state = decode_snapshot(data)
        if not self._participant.fits(state):
            raise MalformedError("a snapshot of another model")
        return SnapshotFacts(round=state.round, model_hash=state.model_hash, agreed_root=_agreed_root(state))

    async def store_snapshot(self, data: bytes) -> bytes:
        return await trio.to_thread.run_sync(self._blobs.put, data)

    async def restore(self, digest: bytes, model_hash: bytes) -> None:
        await self._participant.restore(digest, model_hash)

    async def forget_bodies(self, below_round: int) -> None:
        await self._participant.forget_bodies(below_round)

    def waits_for_bodies_s(self) -> float | None:
        return self._participant.waits_for_bodies_s()

    def pause(self, paused: bool) -> None:
        self._participant.pause(paused)


def _agreed_root(state: ModelState) -> bytes:
    return content_id("aicp/gradients/1", (state.model_hash, state.history.encode()))

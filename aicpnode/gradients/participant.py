"""A member's whole part in training except the training: all that a lightweight node runs.

The ledger drives it: after every block ``apply`` brings the model to the decided state and ``begin_round`` opens the
round that follows. A trainer, if there is one, waits for rounds and submits pseudo-gradients. What this member thinks
of a round's proposals leaves through ``on_opinion``.

The order that keeps it honest: an own proposal is durable before its GRAD is sent; another's package is durable before
it gets a yes; nothing is judged again at apply, where the certificate alone decides what enters; and the state is
replaced, never changed, so that whoever reads the model keeps a consistent one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from aicpnode.envelop.codec import Envelop
from aicpnode.errors import MalformedError, UserError
from aicpnode.events import EventBus, Notice
from aicpnode.genesis import Genesis
from aicpnode.gradients.contributor import Contributor, RoundTask, Work
from aicpnode.gradients.exchange import TRAIN_UNTIL, Exchange, RoundContext, RunFormat
from aicpnode.gradients.grad import GradientMesh, read_grad
from aicpnode.gradients.judge import Score, decode_body
from aicpnode.gradients.packages import Packages
from aicpnode.gradients.proposal import split_package
from aicpnode.gradients.residual import OwnProposals
from aicpnode.gradients.state import (
    SNAPSHOT_HEADER_BYTES_MAX,
    ModelState,
    RoundParameters,
    chunk_count,
    decode_snapshot,
    encode_snapshot,
    initial_state,
    next_state,
    vector_from_bytes,
)
from aicpnode.gradients.tally import ParticipantStatistics, Tally, Wait
from aicpnode.identity import Identity
from aicpnode.network.bodies import Namespace
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Applied, Database
from aicpnode.storage.faults import DamagedBlob, MissingBlob
from consensus.events import Opinion
from kernels.aggregate import Rule
from kernels.codec import CHUNK, Float32Array, SparseProposal


class CertifiedProposalUnusable(AssertionError):
    """A quorum certified a package that does not decode: more members are faulty than the roster tolerates, or this
    node decodes wrongly. Going on would be another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedProposal:
    """A certified proposal; ``power``: its author's voting power, without which it weighs nothing."""

    author: bytes
    power: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRound:
    """The training part of a decided block."""

    round: int
    included: tuple[DecidedProposal, ...]


def run_format(genesis: Genesis) -> RunFormat:
    """Format and rules of a run's rounds."""
    spec = genesis.round
    parameters = RoundParameters(
        k=spec.k,
        bits=spec.bits,
        rule=Rule(spec.rule.value),
        learning_rate_q16=spec.outer_lr_q16,
        momentum_q16=spec.momentum_q16,
        nesterov=spec.nesterov,
    )
    return RunFormat(
        network_id=genesis.network_id,
        chunks=chunk_count(genesis.parameters),
        parameters=parameters,
        round_s=spec.round_ms / 1000,
    )


class Participant:
    """Owns the model state. ``run`` it in a nursery; everything else may be called once it has started."""

    def __init__(
        self,
        *,
        identity: Identity,
        genesis: Genesis,
        database: Database,
        blobs: Blobs,
        mesh: GradientMesh,
        events: EventBus,
        on_opinion: Callable[[Opinion], None],
        on_equivocation: Callable[[Envelop, Envelop], None] = lambda _first, _second: None,
        may_propose: Callable[[int], bool] = lambda _round: True,
        score: Score | None = None,
    ) -> None:
        """``may_propose(round)``: whether this key has surely signed no GRAD of that round before its store was lost.

        ``on_opinion`` and ``on_equivocation`` are called from the event loop and must not block.
        """
        self.restored_from: Applied | None = None
        """The record of the snapshot that ``run`` started from; None: the initial model of the genesis."""
        self._identity = identity
        self._genesis = genesis
        self._run = run_format(genesis)
        self._database = database
        self._blobs = blobs
        self._mesh = mesh
        self._events = events
        self._packages = Packages(database, blobs)
        self._own = OwnProposals(database, blobs, self._packages)
        self._tally = Tally(me=identity.key, events=events, now_s=trio.current_time)
        self._exchange = Exchange(
            me=identity.key,
            run=self._run,
            mesh=mesh,
            packages=self._packages,
            blobs=blobs,
            events=events,
            tally=self._tally,
            on_opinion=on_opinion,
            on_equivocation=on_equivocation,
            score=score,
        )
        self._state: ModelState | None = None
        self._context: RoundContext | None = None
        self._last_decision: DecidedRound | None = None
        self._contributor = Contributor(
            identity=identity, run=self._run, own=self._own, events=events, objection=self._objection
        )
        self._may_propose = may_propose
        self._apply_lock = trio.Lock()
        self._submit_lock = trio.Lock()
        self._moved = trio.Event()
        self._waiting: dict[str, tuple[float, tuple[bytes, ...]]] = {}
        self._bodies_since_s: float | None = None
        self._paused = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the model (latest sound snapshot, else the initial one, fetched if need be); serve until cancelled.

        Reports started once the model is loaded. Raises UserError if the genesis and its initial model disagree.
        """
        async with trio.open_nursery() as nursery:
            try:
                self._exchange.open(nursery)
                await self._load()
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._exchange.close()

    # -- the model

    @property
    def state(self) -> ModelState:
        """The agreed state as of the last ``apply``; immutable."""
        assert self._state is not None, "the participant has not started"
        return self._state

    async def snapshot(self) -> bytes:
        """Store the whole state; returns the digest of its blob."""
        state = self.state
        return await self._exchange.in_thread(lambda: self._blobs.put(encode_snapshot(state)))

    @property
    def snapshot_bytes_max(self) -> int:
        """No snapshot of this run is larger."""
        vectors = 2 if self._run.parameters.momentum_q16 else 1
        return 4 + SNAPSHOT_HEADER_BYTES_MAX + vectors * 4 * self._run.chunks * CHUNK

    def fits(self, state: ModelState) -> bool:
        """Whether a state can be one of this run."""
        has_momentum = state.momentum is not None
        return state.parameters == self._genesis.parameters and has_momentum == bool(self._run.parameters.momentum_q16)

    async def restore(self, snapshot: bytes, model_hash: bytes) -> None:
        """Take the state from a stored snapshot; the next ``apply`` is for its round.

        Raises MissingBlob, DamagedBlob or MalformedError, and UserError if it is not the state with this model hash.
        """
        state = await trio.to_thread.run_sync(lambda: decode_snapshot(self._blobs.get(snapshot)))
        if state.model_hash != model_hash or not self.fits(state):
            raise UserError(
                "A stored model snapshot is not the state that the ledger recorded.",
                advice="Start the node with an empty data folder but the same key: it replays the run from its peers.",
            )
        self._exchange.stop_tasks()
        self._state, self._last_decision = state, None
        self._context = None  # until the ledger opens the round that this state computes

    async def _load(self) -> None:
        for record in self._database.snapshots():
            assert record.snapshot is not None
            try:
                await self.restore(record.snapshot, record.model_hash)
            except (MissingBlob, DamagedBlob) as error:
                text = f"The snapshot after height {record.height} is lost, an older state is used. {error}"
                self._events.publish(Notice(level="warning", text=text))
            else:
                self.restored_from = record
                return
        data = await self._initial_model()
        spec = self._genesis.round
        self._state = await trio.to_thread.run_sync(
            lambda: initial_state(
                vector_from_bytes(data, self._genesis.parameters),
                parameters=self._genesis.parameters,
                momentum_q16=spec.momentum_q16,
                norm_cap=spec.norm_cap,
            )
        )
        if self._state.model_hash != self._genesis.initial_model_hash:
            raise UserError(
                "The genesis names an initial model whose hash is another one than it says.",
                advice="Whoever wrote this genesis has to write it again (aicp-node init).",
            )

    async def _initial_model(self) -> bytes:
        digest = self._genesis.initial_model
        try:
            return await trio.to_thread.run_sync(self._blobs.get, digest)
        except MissingBlob:
            pass
        except DamagedBlob as error:
            self._events.publish(Notice(level="warning", text=f"{error.message} It is fetched again."))
            self._blobs.delete(digest)
        self._waiting["the initial model"] = trio.current_time(), ()
        data = await self._mesh.bodies.fetch(
            Namespace.BLOB,
            digest,
            max_size=4 * self._genesis.parameters,
            verify=lambda body: hashlib.sha256(body).digest() == digest,
        )
        await self._exchange.in_thread(lambda: self._blobs.put(data))
        del self._waiting["the initial model"]
        return data

    # -- what the ledger decides

    def begin_round(self, context: RoundContext) -> None:
        """Open the round that the state computes, or tell it that the ledger changed who takes part. Never blocks."""
        assert context.round == self.state.round, "the round follows from the applied state"
        self._context = context
        if self._exchange.begin(context, self.state.model_hash):
            stored = self._own.stored(context.round)
            if stored is not None:
                self._exchange.offer(stored)
        self._moved.set()
        self._moved = trio.Event()

    async def apply(self, decision: DecidedRound | None) -> bytes:
        """Bring the model to the state after a decided block; returns its model hash.

        None (a block without training) and a round without proposals change nothing; missing packages are fetched
        until they are here. The same decision again is harmless. Raises CertifiedProposalUnusable.
        """
        if decision is None:
            return self.state.model_hash
        async with self._apply_lock:
            if decision == self._last_decision:
                return self.state.model_hash
            state = self.state
            assert decision.round == state.round, f"decided round {decision.round}, but the state is at {state.round}"
            self._exchange.stop_tasks()
            weighed = [proposal for proposal in decision.included if proposal.power > 0]
            await self._obtain(decision.round, weighed)
            self._state = await trio.to_thread.run_sync(self._advance, state, weighed)
            self._last_decision = decision
            digests = [proposal.digest for proposal in decision.included]
            await self._exchange.in_thread(partial(self._packages.decide, decision.round, digests))
            grads = self._exchange.core.grads() if self._exchange.core.round == decision.round else ()
            self._tally.finish(
                decision.round, ((proposal.author, proposal.digest) for proposal in decision.included), grads
            )
            return self._state.model_hash

    async def _obtain(self, round: int, proposals: list[DecidedProposal]) -> None:
        """Fetch the packages that are not here, or not sound, all at once, for as long as it takes."""
        missing = await trio.to_thread.run_sync(
            lambda: [proposal for proposal in proposals if not self._packages.is_sound(proposal.digest)]
        )
        if not missing:
            return
        what = f"bodies of decided round {round}"
        self._bodies_since_s = trio.current_time()
        self._waiting[what] = self._bodies_since_s, tuple(proposal.author for proposal in missing)
        try:
            async with trio.open_nursery() as nursery:
                for proposal in missing:
                    nursery.start_soon(self._obtain_one, round, proposal)
        finally:  # given up, if a snapshot comes in between
            del self._waiting[what]
            self._bodies_since_s = None

    async def _obtain_one(self, round: int, proposal: DecidedProposal) -> None:
        package = await self._mesh.bodies.fetch(
            Namespace.GRADIENT,
            proposal.digest,
            max_size=self._run.package_bytes_max,
            verify=partial(self._run.is_package, proposal.digest),
            prefer=self._exchange.asked_first(proposal.author),
        )
        await self._exchange.in_thread(partial(self._packages.put, round, proposal.digest, package))

    def _advance(self, state: ModelState, proposals: list[DecidedProposal]) -> ModelState:
        return next_state(state, [self._decoded(proposal) for proposal in proposals], self._run.parameters)

    def _decoded(self, proposal: DecidedProposal) -> SparseProposal:
        try:
            _, _, body = split_package(self._packages.read(proposal.digest))
            return decode_body(body, chunks=self._run.chunks, parameters=self._run.parameters)
        except (ValueError, MalformedError) as error:
            raise CertifiedProposalUnusable(
                f"The certified proposal {proposal.digest.hex()} of {proposal.author.hex()[:8]} does not decode "
                f"({error}). More members are faulty than this roster tolerates, or this installation is broken; "
                "the node stops rather than hold another model than the others."
            ) from error

    async def forget_bodies(self, below_round: int) -> None:
        """Delete the packages of earlier decided rounds."""
        await trio.to_thread.run_sync(self._packages.forget, below_round)

    def waits_for_bodies_s(self) -> float | None:
        """For how long ``apply`` has waited for packages; None if it does not wait."""
        return None if self._bodies_since_s is None else trio.current_time() - self._bodies_since_s

    def pause(self, paused: bool) -> None:
        """While nothing can be decided nobody trains: a running round's work is dropped, no other one is handed out."""
        self._paused = paused
        self._moved.set()
        self._moved = trio.Event()

    # -- what a trainer does

    async def wait_over(self, round: int) -> None:
        """Until training for ``round`` is useless: another round can be trained, or nothing can be decided."""
        while not self._paused and self._next_task(round) is None:
            await self._moved.wait()

    async def wait_round(self, after: int) -> RoundTask:
        """The running round, once it is later than ``after``, this node contributes, and there is time to train."""
        while self._paused or (task := self._next_task(after)) is None:
            await self._moved.wait()
        return task

    def _next_task(self, after: int) -> RoundTask | None:
        context, started_s = self._context, self._exchange.timers_started_s
        if context is None or started_s is None or context.round <= max(after, self._own.latest_round):
            return None
        stop_at = started_s + TRAIN_UNTIL * self._exchange.round_s
        if not context.contributing_here or context.my_index is None or context.round != self.state.round:
            return None
        if trio.current_time() >= stop_at:
            return None
        return RoundTask(
            round=context.round,
            theta=self.state.values,
            base_hash=self.state.model_hash,
            author_index=context.my_index,
            stop_at=stop_at,
        )

    async def submit(self, task: RoundTask, delta: Float32Array, *, offsets_hash: bytes, tokens: int) -> bytes | None:
        """Propose ``delta``, float32[parameters], for the task's round; returns the proposal's digest.

        None if nothing was proposed, and a Notice says why: the round is over, bodies were revealed already, the
        delta is not finite or is zero, the disk is full. Then the residual is unchanged.
        """
        async with self._submit_lock:
            grad = self._own.stored(task.round)
            if grad is None:
                work = Work(delta=delta, offsets_hash=offsets_hash, tokens=tokens)
                grad = await self._contributor.propose(task, work)
                if grad is not None and self._context is not None and self._context.round == task.round:
                    self._exchange.offer(grad)
            return None if grad is None else read_grad(grad)[0]

    def _objection(self, task: RoundTask) -> str | None:
        """Why an own proposal for the task would come to nothing, or None."""
        if self._context is None or task.round != self._context.round or task.base_hash != self.state.model_hash:
            return "the round was decided before this node was done."
        if not self._may_propose(task.round):
            return "the store of this node was lost, and it may have proposed to this round before."
        if task.round <= self._own.latest_round:
            return "this node has proposed to a later round already."
        if self._exchange.core.saw_body:
            return "this node was late; the others have revealed their proposals, so nobody would accept another one."
        return None

    # -- what it can say about itself

    def why(self) -> list[Wait]:
        """Everything this participant waits for now."""
        now_s = trio.current_time()
        waiting = [
            Wait(what=what, who=who, since_s=now_s - since_s, next="asking every connected peer in turn")
            for what, (since_s, who) in self._waiting.items()
        ]
        return waiting + self._exchange.waits()

    def statistics(self) -> ParticipantStatistics:
        """Outcomes and phases since the start of the process."""
        tally = self._tally
        return ParticipantStatistics(
            round=self.state.round,
            model_hash=self.state.model_hash,
            accepted=tally.accepted,
            refused=tally.refused,
            mine_accepted=tally.mine_accepted,
            mine_refused=tally.mine_refused,
            equivocations=tally.equivocations,
            last=tuple(tally.last),
            rounds=tuple(tally.rounds),
            phases_ms=dict(tally.phases_ms),
        )

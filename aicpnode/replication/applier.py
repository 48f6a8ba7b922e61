"""Applies decided blocks in order, and tells what state came of them.

Voting never waits for it: applying may fetch gradient bodies for as long as that takes. After every block the state is
hashed (ledger, agreed parameters, application) and recorded; when the next block is decided already, as in a replay,
its header says what the hash must be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from aicpnode.envelop.ledger_state import encode_ledger_state
from aicpnode.events import EventBus, RoundApplied
from aicpnode.replication.agreement import Agreement
from aicpnode.replication.application import Application, DecidedTraining, IncludedProposal, RoundContext
from aicpnode.replication.ledger import DecidedBlock, state_hash
from aicpnode.storage.database import Database
from consensus.events import Applied, Diverged
from consensus.membership import LedgerState

SNAPSHOTS_KEPT = 2
SNAPSHOT_HEIGHTS = 1000
"""Also a run that decides operations alone takes a snapshot now and then."""
BODIES_KEPT_ROUNDS = 128
"""Before the oldest snapshot kept here: above SNAPSHOT_GAP, so that whoever is less far behind can replay."""


class Applier:
    """``enqueue`` decided blocks; ``run`` applies them. The callbacks are called from ``run`` and must not block."""

    def __init__(
        self,
        *,
        key: bytes,
        agreement: Agreement,
        database: Database,
        application: Application,
        events: EventBus,
        head: Callable[[], LedgerState],
        on_applied: Callable[[Applied], None],
        on_diverged: Callable[[Diverged], None],
        snapshot_rounds: int,
    ) -> None:
        """``head`` gives the ledger after the last decided block."""
        self._key = key
        self._agreement = agreement
        self._database = database
        self._application = application
        self._events = events
        self._head = head
        self._on_applied = on_applied
        self._on_diverged = on_diverged
        self._snapshot_rounds = snapshot_rounds
        self._waiting: deque[DecidedBlock] = deque()
        self._wakeup = trio.Event()
        self._halted = False
        self.ledger: LedgerState | None = None
        """Of the state that the application holds."""
        self.applied_height = 0
        self.state_hash = b""

    def enqueue(self, decided: DecidedBlock) -> None:
        self._waiting.append(decided)
        self._wakeup.set()

    def halt(self) -> None:
        """Apply nothing more: the state is not the one that the blocks build on."""
        self._halted = True

    async def run(self) -> None:
        """Until cancelled. The application holds the state before the first block that was enqueued."""
        first = self._waiting[0] if self._waiting else None
        before = self._head() if first is None else first.before
        certified = None if first is None else first.block.header.state_hash
        await self._applied(before, self._application.model_hash(), certified=certified)
        while True:
            while not self._waiting or self._halted:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
            await self._apply(self._waiting[0])
            if not self._halted:
                self._waiting.popleft()

    async def _apply(self, decided: DecidedBlock) -> None:
        began = trio.current_time()
        training = decided.block.body.training
        model_hash = self._application.model_hash()
        if training is not None:
            roster = decided.before.roster
            included = tuple(
                IncludedProposal(
                    author=roster.members[author].key,
                    power=roster.power(roster.members[author].key),
                    digest=digest,
                )
                for author, digest in training.included
            )
            model_hash = await self._application.apply(DecidedTraining(round=training.round, included=included))
        await self._applied(decided.after, model_hash, certified=self._certified_after(decided))
        if training is not None and not self._halted:
            self._events.publish(
                RoundApplied(
                    round=training.round,
                    height=decided.after.height,
                    included=len(training.included),
                    model_hash=model_hash,
                    seconds=trio.current_time() - began,
                )
            )

    def _certified_after(self, decided: DecidedBlock) -> bytes | None:
        """What the next block says of the state after this one, if it is decided already (replay, catching up)."""
        following = self._waiting[1] if len(self._waiting) > 1 else None
        return None if following is None else following.block.header.state_hash

    async def _applied(self, ledger: LedgerState, model_hash: bytes, *, certified: bytes | None = None) -> None:
        agreement, self.ledger = self._agreement, ledger
        root = self._application.agreed_root()
        hashed = state_hash(ledger, k=agreement.k, bits=agreement.bits, agreed_root=root)
        if certified is not None and certified != hashed:
            self._halted = True
            self._on_diverged(Diverged(height=ledger.height, own=hashed, certified=certified))
            return
        snapshot = await self._application.snapshot() if self._is_snapshot_due(ledger) else None
        if ledger.height > 0:
            await trio.to_thread.run_sync(self._record_applied, ledger, hashed, model_hash, snapshot)
            if snapshot is not None:
                await self._prune_snapshots()
        self.applied_height, self.state_hash = ledger.height, hashed
        if ledger.height == self._head().height:
            self._begin_round(ledger)
        self._on_applied(Applied(height=ledger.height, state_hash=hashed))

    def _is_snapshot_due(self, ledger: LedgerState) -> bool:
        """At the same heights everywhere, so that a newcomer finds several members that have the same one."""
        last = self._database.applied()
        if ledger.height == 0 or (last is not None and last.height >= ledger.height):
            return False
        fresh = last is None or last.round != ledger.round
        begins = ledger.round > 0 and ledger.round % self._snapshot_rounds == 0 and fresh
        return begins or ledger.height % SNAPSHOT_HEIGHTS == 0

    def _record_applied(self, ledger: LedgerState, hashed: bytes, model_hash: bytes, snapshot: bytes | None) -> None:
        with self._database.transaction():
            self._database.put_applied(
                height=ledger.height,
                round=ledger.round,
                state_hash=hashed,
                model_hash=model_hash,
                snapshot=snapshot,
            )
            if snapshot is not None:
                root = self._application.agreed_root()
                self._database.put_state(ledger.height, encode_ledger_state(ledger), root)

    async def _prune_snapshots(self) -> None:
        """Keep the newest ones: a damaged snapshot still leaves an older one to replay from."""
        snapshots = await trio.to_thread.run_sync(self._database.snapshots)
        kept = {applied.snapshot for applied in snapshots[:SNAPSHOTS_KEPT]}
        for applied in snapshots[SNAPSHOTS_KEPT:]:
            await trio.to_thread.run_sync(self._forget_snapshot, applied.height)
            if applied.snapshot is not None and applied.snapshot not in kept:
                await self._application.forget_snapshot(applied.snapshot)

        oldest = min((applied.round for applied in snapshots[:SNAPSHOTS_KEPT]), default=0)
        if (below := oldest - BODIES_KEPT_ROUNDS) > 0:
            await self._application.forget_bodies(below)

    def _forget_snapshot(self, height: int) -> None:
        with self._database.transaction():
            self._database.forget_snapshot(height)
            self._database.forget_state(height)

    async def record_snapshot(self) -> None:
        """Store the model as it is now, so that a restart replays nothing (called at a clean stop)."""
        applied, ledger = self._database.applied(), self.ledger
        if self._halted or applied is None or applied.snapshot is not None:
            return
        if ledger is None or applied.height != ledger.height:
            return
        snapshot = await self._application.snapshot()
        await trio.to_thread.run_sync(self._record_applied, ledger, applied.state_hash, applied.model_hash, snapshot)
        await self._prune_snapshots()

    def _begin_round(self, ledger: LedgerState) -> None:
        """Only once the application's model is that of the round: proposals build on it."""
        self._application.begin_round(
            RoundContext(
                round=ledger.round,
                height=ledger.height,
                authors={member.key: member.index for member in ledger.roster.members},
                voters=frozenset(member.key for member in ledger.roster.active),
                expected=frozenset(member.key for member in ledger.expected()),
                last_round_empty=ledger.last_round_empty,
                contributing=bool(ledger.contributors()),
                own_contribution=ledger.contributes(self._key),
                round_ms=ledger.rules.round_ms,
            )
        )

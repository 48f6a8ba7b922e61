"""One simulated member: a disk that survives, a production replica that does not, and a stand-in for training.

As in the driver, everything durable of one step is written before any of it is sent, a timer that is set again
replaces the earlier one, decided blocks are applied in order, and the owner's wish becomes operations by the
production's own rules. Crashes fall between steps or inside one: before its write, between write and sends, or
between two sends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from aicpnode.replication.intent import Applicant, Intent, Wish, wanted
from aicpnode.simulation.crypto import SimulatedCrypto
from consensus.events import (
    Accusation,
    Applied,
    Decide,
    Diverged,
    Effect,
    Fetch,
    Input,
    OperationReceived,
    Opinion,
    PersistBlock,
    PersistSafety,
    PersistVote,
    RequestDecisions,
    Safety,
    Send,
    ServeDecision,
    SetTimer,
    Timer,
    TimerFired,
)
from consensus.evidence import Evidence
from consensus.membership import LedgerState
from consensus.messages import BallotEntry, Block, Operation, Vote
from consensus.replica import Replica, Restored

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster

PURSUE_PERIOD_MS = 1_000
"""How often a member looks whether the ledger says what its owner wants."""
APPLY_MS = (1, 60)
SLOW_APPLY_MS = (500, 3_000)
SLOW_APPLY_SHARE = 0.03
UNJUDGED_SHARE = 0.1
JOIN_NONCE = bytes(16)


class Violation(AssertionError):
    """An invariant does not hold: the protocol, or its implementation, is wrong."""


class Behaviour(Enum):
    HONEST = "honest"
    SILENT = "silent"
    EQUIVOCATE = "equivocate"
    """Tells every second member another content in the same slot."""
    SELECTIVE = "selective"
    """Sends each COMMIT to a single member only."""
    STINGY = "stingy"
    """Shows its SETs and BALLOTs of a height to a single member only."""
    STALE = "stale"
    """Votes nil, hides certificates, completes them with PREPAREs that nobody sees, and proposes old blocks again."""
    CHAOS = "chaos"
    """Sends everything to a random part of the members, mixed with contradictions, noise and replays."""
    LIAR = "liar"
    """Has several of the ``habits``, drawn from the seed."""


@dataclass(slots=True)
class Disk:
    """What survives a crash."""

    intent: Intent
    safety: Safety | None = None
    votes: list[Vote] = field(default_factory=list)
    blocks: dict[bytes, Block] = field(default_factory=dict)
    decisions: list[Decide] = field(default_factory=list)
    proofs: dict[bytes, Evidence] = field(default_factory=dict)


class SimulatedMember:
    """A member of a ``Cluster``; ``replica`` is None while it is down."""

    def __init__(self, cluster: Cluster, key: bytes, name: str, behaviour: Behaviour, intent: Intent) -> None:
        self.cluster = cluster
        self.key = key
        self.name = name
        self.behaviour = behaviour
        self.honest = behaviour is Behaviour.HONEST
        self.crypto = SimulatedCrypto(key, cluster.network_id, honest=self.honest)
        self.disk = Disk(intent=intent)
        self.replica: Replica | None = None
        self._incarnation = 0
        self._timers: dict[Timer, int] = {}
        self._timers_set = 0
        self._opinions_round = -1
        self._applied_at_ms = 0
        self._sequence = 0

    @property
    def is_liar(self) -> bool:
        return self.behaviour is Behaviour.LIAR

    @property
    def ledger(self) -> LedgerState:
        """After the last block that is on the disk."""
        return self.disk.decisions[-1].ledger if self.disk.decisions else self.cluster.genesis

    # ---- up and down

    @property
    def is_up(self) -> bool:
        return self.replica is not None

    def start(self) -> None:
        if self.replica is not None:
            return
        ledger = self.ledger
        self.cluster.started(self)
        if self.honest:
            self.cluster.checks.started(self, ledger)
        self.crypto.restart(self.disk.votes)
        self.replica = Replica(
            key=self.key,
            crypto=self.crypto,
            timing=self.cluster.timing,
            ledger=ledger,
            restored=Restored(
                safety=self.disk.safety, votes=list(self.disk.votes), blocks=list(self.disk.blocks.values())
            ),
        )
        self._opinions_round = -1
        self._applied_at_ms = self.cluster.now_ms
        self._do(self.replica.start())
        if not self.is_up:
            return
        self.after(1, Applied(height=ledger.height, state_hash=self.state_hash(ledger)))
        self._begin_round(ledger)
        self._pursue_later()

    def crash(self) -> None:
        if self.replica is not None:
            self.cluster.crashed(self)
        self.replica = None
        self._incarnation += 1
        self._timers.clear()

    def after(self, delay_ms: int, event: Input) -> None:
        incarnation = self._incarnation

        def deliver() -> None:
            if self._incarnation == incarnation:
                self.handle(event)

        self.cluster.schedule(delay_ms, deliver)

    def handle(self, event: Input) -> None:
        if self.replica is None:
            return
        self.cluster.handled(self, event)
        effects = self.replica.handle(event)
        if effects:
            self._do(effects)
        if self.replica is not None and self.honest:
            self.cluster.checks.step(self)

    # ---- effects

    def _do(self, effects: list[Effect]) -> None:
        cut = self.cluster.power_cut(self, effects)
        if cut == 0:
            self.crash()
            return
        for effect in effects:
            self._persist(effect)
        for position, effect in enumerate(effects, start=1):
            if position == cut:
                self.crash()
                return
            self._carry_out(effect)

    def _persist(self, effect: Effect) -> None:
        match effect:
            case PersistVote(message=message):
                self.disk.votes.append(message)
                if self.honest:
                    self.cluster.checks.signed(self, message)
            case PersistSafety(safety=safety):
                if self.honest:
                    self.cluster.checks.safety(self, safety)
                self.disk.safety = safety
            case PersistBlock(block_id=name, block=block):
                self.disk.blocks[name] = block
            case Accusation(evidence=proof):
                if self.honest:
                    self.cluster.checks.accused(self, proof)
                self.cluster.accused(self, proof)
                self.disk.proofs.setdefault(proof.accused, proof)
            case Decide(ledger=ledger):
                if self.honest:
                    self.cluster.checks.decided(self, effect)
                    self.cluster.decided(self, effect)
                self.disk.decisions.append(effect)
                height = ledger.height
                self.disk.votes = [vote for vote in self.disk.votes if vote.height > height]
                self.disk.blocks = {n: b for n, b in self.disk.blocks.items() if b.height > height}

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(message=message, to=to):
                if self.honest:
                    self.cluster.checks.sent(self, message)
                self.cluster.send(self, message, to)
            case SetTimer(timer=timer, delay_ms=delay, jitter=jitter):
                spread = self.cluster.random.uniform(0.8, 1.2) if jitter else 1.0
                self._set_timer(timer, max(1, int(delay * spread)))
            case Fetch(height=height, block_id=name, targets=targets):
                for target in targets:
                    self.cluster.fetch(self, target, height, name)
            case RequestDecisions(height=height, target=target):
                self.cluster.request_decisions(self, target, height)
            case ServeDecision(height=height, to=to):
                self.cluster.serve_decisions(self, to, height, limit=1)
            case Decide(ledger=ledger):
                self._apply_later(ledger)
                self._begin_round(ledger)
            case Diverged():
                raise Violation(f"an honest replica diverged: {effect}")

    def _set_timer(self, timer: Timer, delay_ms: int) -> None:
        self._timers_set += 1
        serial = self._timers[timer] = self._timers_set

        def fire() -> None:
            if self._timers.get(timer) == serial:
                del self._timers[timer]
                self.handle(TimerFired(timer=timer))

        self.cluster.schedule(delay_ms, fire)

    # ---- the application

    def state_hash(self, ledger: LedgerState) -> bytes:
        """Stands for the model: a chain over the blocks."""
        return hashlib.sha256(b"state" + ledger.block_id + repr(ledger.content()).encode()).digest()

    def _apply_later(self, ledger: LedgerState) -> None:
        slow = self.cluster.random.random() < SLOW_APPLY_SHARE and self.cluster.is_noisy
        delay = self.cluster.random.randint(*(SLOW_APPLY_MS if slow else APPLY_MS))
        self._applied_at_ms = max(self._applied_at_ms, self.cluster.now_ms) + delay
        applied = Applied(height=ledger.height, state_hash=self.state_hash(ledger))
        self.after(self._applied_at_ms - self.cluster.now_ms, applied)

    def _begin_round(self, ledger: LedgerState) -> None:
        """Train for a random while, then say yes to every honest contributor's proposal that was judged by then."""
        if not ledger.contributors() or self._opinions_round >= ledger.round:
            return
        self._opinions_round = ledger.round
        entries = tuple(
            BallotEntry(
                author_index=member.index,
                digest=hashlib.sha256(b"%d/%d" % (ledger.round, member.index)).digest(),
                accepted=True,
            )
            for member in ledger.contributors()
            if self.cluster.members[member.key].honest and self.cluster.random.random() >= UNJUDGED_SHARE
        )
        delay = self.cluster.random.randint(50, self.cluster.round_ms)
        self.after(delay, Opinion(round=ledger.round, ready=True, entries=entries))

    # ---- the owner

    def wish(self, wish: Wish) -> None:
        self.disk.intent = Intent(wish=wish)

    def _pursue_later(self) -> None:
        incarnation = self._incarnation

        def pursue() -> None:
            if self._incarnation == incarnation:
                self._pursue()
                if self._incarnation == incarnation:
                    self._pursue_later()

        self.cluster.schedule(int(PURSUE_PERIOD_MS * self.cluster.random.uniform(0.8, 1.2)), pursue)

    def _pursue(self) -> None:
        assert self.replica is not None
        if self.replica.is_behind or self.replica.pool.own():
            return
        request, self.disk.intent = wanted(
            self.disk.intent,
            Applicant(key=self.key, name=self.name, nonce=JOIN_NONCE, trains=True),
            self.ledger,
            [proof for key, proof in self.disk.proofs.items() if not self.replica.pool.accuses(key)],
        )
        if request is not None:
            standing = self.ledger.standing(self.key)
            used = 0 if standing is None else standing.sequence
            self._sequence = max(self._sequence, used, self.cluster.now_ms) + 1
            operation = Operation(
                kind=request.kind,
                signer=self.key,
                sequence=self._sequence,
                arguments=request.arguments,
                evidence=request.evidence,
                invitation=request.invitation,
            )
            self.handle(OperationReceived(operation=self.crypto.sign_operation(operation), own=True))

    def block(self, height: int, name: bytes) -> Block | None:
        """For a member that fetches."""
        if 0 < height <= len(self.disk.decisions):
            decided = self.disk.decisions[height - 1]
            return decided.block if decided.certificate.block_id == name else None
        return self.replica.block(name) if self.replica is not None else None

"""One simulated member: a disk that survives, a production replica that does not, and a stand-in for training.

As in the driver, everything durable of one step is written before any of it is sent, a timer that is set again
replaces the earlier one, decided blocks are applied in order, and the owner's wish becomes operations by the
production's own rules. Crashes fall between steps or inside one: before its write, between write and sends, or
between two sends.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from aicpnode.replication.intent import Applicant, Intent, Request, Wish, wanted
from aicpnode.replication.recovery import Amnesia
from aicpnode.simulation.crypto import SimulatedCrypto
from aicpnode.simulation.snapshots import Shelf, SnapshotGiven, Taker
from consensus.events import (
    Accusation,
    Applied,
    Decide,
    DeltaMeasured,
    Diverged,
    Effect,
    Fetch,
    HeadAnnounced,
    Input,
    OperationReceived,
    Opinion,
    PersistBlock,
    PersistSafety,
    PersistVote,
    Received,
    RequestDecisions,
    Safety,
    Send,
    ServeDecision,
    SetTimer,
    Timer,
    TimerFired,
)
from consensus.evidence import Evidence
from consensus.membership import LedgerState, refuse_operation
from consensus.messages import BallotEntry, Block, Change, ChangeKind, Operation, OperationKind, Vote
from consensus.pacemaker import DecisionPace
from consensus.replica import Replica, Restored

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster

PURSUE_PERIOD_MS = 1_000
"""How often a member looks whether the ledger says what its owner wants."""
APPLY_MS = (1, 60)
SLOW_APPLY_MS = (500, 3_000)
SLOW_APPLY_SHARE = 0.03
UNJUDGED_SHARE = 0.1
SLOW_UNJUDGED_SHARE = 0.7
"""Of the proposals of slow trainers."""
DEADLINE_ROUNDS = 2
"""A slow trainer judges only at the deadline, so many usual rounds after the start."""
VERIFIED_KEPT = 512
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
    shelf: Shelf = field(default_factory=Shelf)
    voting_from: int | None = 1
    """The first height in which the member signs; None: the disk was lost, and it is not known yet."""

    @property
    def head(self) -> int:
        """The last height that is decided here, or the base."""
        return self.shelf.base_height + len(self.decisions)

    def decided(self, first: int, limit: int = 1) -> list[Decide]:
        """Up to ``limit`` decisions from height ``first`` on; none of heights below the base."""
        position = first - self.shelf.base_height - 1
        return self.decisions[position : position + limit] if position >= 0 else []


class SimulatedMember:
    """A member of a ``Cluster``; ``replica`` is None while it is down."""

    def __init__(self, cluster: Cluster, key: bytes, name: str, behaviour: Behaviour, intent: Intent) -> None:
        self.cluster = cluster
        self.key = key
        self.name = name
        self.behaviour = behaviour
        self.honest = behaviour is Behaviour.HONEST
        self.crypto = SimulatedCrypto(key, cluster.network_id, honest=self.honest)
        self.index = len(cluster.members)
        self.disk = Disk(intent=intent)
        self.replica: Replica | None = None
        self.amnesia: Amnesia | None = None
        self.clock_rate = 1.0
        """How much longer or shorter its timers are than they should be."""
        self.event_ms = 0
        """What its processor needs to verify a message that is new to it; one message waits for the other."""
        self.trains_slowly = False
        self.changes: dict[int, Change] = {}
        """What its owner endorses, by kind of change; the latest of each kind, and of STOP and RESUME."""
        self.incarnation = 0
        self.taker = Taker(self)
        self._first_intent = intent
        self._free_at_ms = 0
        self._verified: deque[bytes] = deque(maxlen=VERIFIED_KEPT)
        self._pace = DecisionPace()
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
        if self.disk.decisions:
            return self.disk.decisions[-1].ledger
        return self.cluster.genesis if self.disk.shelf.base is None else self.disk.shelf.base

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
            voting_from=self.disk.voting_from,
        )
        self.amnesia = Amnesia(self.key) if self.disk.voting_from is None else None
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
        self._pace = DecisionPace()
        self.incarnation += 1
        self._timers.clear()

    def lose_disk(self) -> None:
        """Crash, and everything is gone but the key."""
        self.crash()
        if self.honest:
            self.cluster.checks.lost(self)
        self.disk = Disk(intent=self._first_intent, voting_from=None)

    def after(self, delay_ms: int, event: Input) -> None:
        incarnation = self.incarnation

        def deliver() -> None:
            if self.incarnation == incarnation:
                self.handle(event)

        self.cluster.schedule(delay_ms, deliver)

    def receive(self, event: Input) -> None:
        """From the network: handled once the processor is free."""
        if not self.event_ms or self.replica is None:
            self.handle(event)
            return
        self._free_at_ms = max(self._free_at_ms, self.cluster.now_ms)
        signature = _signature(event)
        if signature not in self._verified:
            self._verified.append(signature)
            self._free_at_ms += self.event_ms
        self.after(self._free_at_ms - self.cluster.now_ms, event)

    def receive_snapshot(self, donor: bytes, given: SnapshotGiven) -> None:
        """Take over what holds, in one write, and start again from the disk."""
        if self.replica is None:
            return
        ledger = self.taker.receive(donor, given)
        if ledger is None:
            return
        self.cluster.checks.taken_over(self, ledger)
        disk = self.disk
        disk.shelf.install(ledger, given.links)
        disk.decisions = []
        disk.votes = [vote for vote in disk.votes if vote.height > ledger.height]
        disk.blocks = {name: block for name, block in disk.blocks.items() if block.height > ledger.height}
        self.cluster.takeovers += 1
        self.crash()
        self.start()

    def hear_head(self, event: HeadAnnounced) -> None:
        """By its signer itself, on a connection of this process."""
        self.taker.heard(event.peer, event.height)
        if self.amnesia is not None:
            self.amnesia.heard(event.peer, event.height, self.ledger)

    def _try_to_remember(self) -> None:
        """As the driver does: settle from which height on to sign again, once that is known."""
        if self.amnesia is None or self.replica is None:
            return
        voting_from = self.amnesia.first_safe_height(self.ledger)
        if voting_from is not None:
            self.disk.voting_from = self.replica.voting_from = voting_from
            self.amnesia = None

    def handle(self, event: Input) -> None:
        if self.replica is None:
            return
        self.cluster.handled(self, event)
        try:
            effects = self.replica.handle(event)
        except Exception as error:
            raise Violation(f"invariant 12: {error!r} in {self.name} on {event}") from error
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
                self._pace.cast(message, self.cluster.now_ms)
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
                if self.cluster.faults.snapshots:
                    self.disk.shelf.decided(effect)
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
                self._set_timer(timer, max(1, int(delay * spread * self.clock_rate)))
            case Fetch(height=height, block_id=name, targets=targets):
                for target in targets:
                    self.cluster.fetch(self, target, height, name)
            case RequestDecisions(height=height, target=target):
                self.cluster.request_decisions(self, target, height)
            case ServeDecision(height=height, to=to):
                self.cluster.serve_decisions(self, to, height, limit=1)
            case Decide(certificate=certificate, ledger=ledger):
                delta_ms = self._pace.decided(certificate, self.cluster.now_ms)
                if delta_ms is not None:
                    self.after(0, DeltaMeasured(delta_ms=delta_ms))
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
            if self._judges(self.cluster.members[member.key])
        )
        round_ms = ledger.rules.round_ms or self.cluster.round_ms
        delay = DEADLINE_ROUNDS * round_ms if self.trains_slowly else self.cluster.random.randint(50, round_ms)
        self.after(delay, Opinion(round=ledger.round, ready=True, entries=entries))

    def _judges(self, author: SimulatedMember) -> bool:
        share = SLOW_UNJUDGED_SHARE if author.trains_slowly else UNJUDGED_SHARE
        return author.honest and self.cluster.random.random() >= share

    # ---- the owner

    def endorse(self, change: Change) -> None:
        """From now on its owner wants this change."""
        opposites = (ChangeKind.STOP, ChangeKind.RESUME)
        kind = ChangeKind.STOP if change.kind in opposites else change.kind
        self.changes[int(kind)] = change

    def wish(self, wish: Wish) -> None:
        self.disk.intent = Intent(wish=wish)

    def _pursue_later(self) -> None:
        incarnation = self.incarnation

        def pursue() -> None:
            if self.incarnation == incarnation:
                self._pursue()
                if self.incarnation == incarnation:
                    self._pursue_later()

        self.cluster.schedule(int(PURSUE_PERIOD_MS * self.cluster.random.uniform(0.8, 1.2)), pursue)

    def _pursue(self) -> None:
        assert self.replica is not None
        self._try_to_remember()
        if self.cluster.faults.snapshots and self.honest:
            self.taker.look()
        if self.replica.is_behind or self.replica.pool.own():
            return
        request, self.disk.intent = wanted(
            self.disk.intent,
            Applicant(key=self.key, name=self.name, nonce=JOIN_NONCE, trains=True),
            self.ledger,
            [proof for key, proof in self.disk.proofs.items() if not self.replica.pool.accuses(key)],
        )
        if request is not None:
            self._submit(request)
            return
        for change in self.changes.values():
            request = Request(kind=OperationKind.ENDORSE, arguments=change.content())
            if refuse_operation(self.ledger, self._operation(request)) is None:
                self._submit(request)
                return

    def _operation(self, request: Request) -> Operation:
        """With the next sequence: above that of the ledger, and above time, which no crash sets back."""
        standing = self.ledger.standing(self.key)
        used = 0 if standing is None else standing.sequence
        return Operation(
            kind=request.kind,
            signer=self.key,
            sequence=max(self._sequence, used, self.cluster.now_ms) + 1,
            arguments=request.arguments,
            evidence=request.evidence,
            invitation=request.invitation,
        )

    def _submit(self, request: Request) -> None:
        operation = self._operation(request)
        self._sequence = operation.sequence
        self.handle(OperationReceived(operation=self.crypto.sign_operation(operation), own=True))

    def block(self, height: int, name: bytes) -> Block | None:
        """For a member that fetches."""
        for decided in self.disk.decided(height):
            return decided.block if decided.certificate.block_id == name else None
        return self.replica.block(name) if self.replica is not None else None


def _signature(event: Input) -> bytes:
    """What a processor has to verify of ``event``, or nothing."""
    match event:
        case Received(message=message):
            return message.signature
        case OperationReceived(operation=operation):
            return operation.signature
    return b""

"""Plays a schedule: production replicas, no delays, timers only when nothing can be delivered.

Messages are delivered in the order in which they were sent to whoever the schedule lets hear them. When none is left,
the earliest timer fires; virtual time is nothing but the order of timers. What one step must make durable is kept
before anything of it is sent, as in the driver.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from aicpnode.simulation.crypto import SimulatedCrypto, simulated_key
from aicpnode.simulation.member import Violation
from aicpnode.simulation.playbook import NETWORK_ID, founders
from aicpnode.simulation.twins.laws import Laws
from aicpnode.simulation.twins.schedule import Schedule, Wish, draw
from consensus.events import (
    Accusation,
    Applied,
    BlockReceived,
    Decide,
    DecisionReceived,
    Diverged,
    Effect,
    Fetch,
    HeadAnnounced,
    Input,
    OperationReceived,
    Opinion,
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
from consensus.membership import LedgerState
from consensus.messages import Ballot, BallotEntry, Block, MessageKind, Operation, OperationKind, SetMessage, Vote
from consensus.pacemaker import Timing
from consensus.replica import Replica
from consensus.types import NIL, NO_VIEW

HEAD_PERIOD_MS = 5_000
DECISIONS_PER_REPLY = 16
LIMIT_MS = 400_000
EVENTS_MAX = 60_000
"""A run that handles more is not deciding any more."""
UNTIL_ROUND = 1 << 40


class Seen(Enum):
    """What happened in a run: a search that never meets one of these shows little."""

    LOCK = "an honest member went on to another view with a lock"
    REPROPOSAL = "a SET repeated a prepared block"
    VIEW_CHANGE = "an honest member entered a later view"
    FETCH = "an honest member asked for a block that certificates name"
    CATCH_UP = "an honest member took a decision from others"
    EQUIVOCATION = "an honest member noticed a key that contradicts itself"
    LATER_VIEW = "a block was decided in a view above 0"
    LOCK_HELD = "a SET older than the lock met a locked honest member"
    BAN = "a twinned key was banned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. ``decided`` is False if an honest instance did not get far enough after all had healed."""

    seed: int
    nodes: int
    decided: bool
    heights: tuple[int, ...]
    """Decided by each honest member."""
    events: int
    trace: str
    """Hash of everything that was sent, and when."""
    seen: frozenset[Seen]

    @property
    def reached(self) -> int:
        """Heights that every honest member decided."""
        return min(self.heights)

    @property
    def events_seen(self) -> tuple[str, ...]:
        return tuple(sorted(seen.name.lower() for seen in self.seen))

    def __str__(self) -> str:
        return f"twins seed {self.seed}, {self.nodes} nodes: decided={self.decided}, heights {self.heights}"


class Instance:
    """One of the replicas, with what its disk holds."""

    def __init__(self, number: int, replica: Replica, crypto: SimulatedCrypto, honest: bool) -> None:
        self.number = number
        self.bit = 1 << number
        self.key = crypto.key
        self.replica = replica
        self.crypto = crypto
        self.honest = honest
        self.decisions: list[Decide] = []
        self.safety: Safety | None = None
        self.votes: dict[tuple[MessageKind, int, int], Vote] = {}
        self.timers: dict[Timer, int] = {}
        self.sequence = 0
        self.accused: set[bytes] = set()

    def ledger(self, genesis: LedgerState) -> LedgerState:
        return self.decisions[-1].ledger if self.decisions else genesis


class Table:
    """A run of ``schedule`` under ``laws``; with None anything may happen."""

    def __init__(self, schedule: Schedule, *, laws: type[Laws] | None = Laws, replica: type[Replica] = Replica) -> None:
        self.schedule = schedule
        self.now_ms = 0
        self.events = 0
        self.healed = False
        self.seen: set[Seen] = set()
        self._random = random.Random(schedule.seed)
        self._trace = hashlib.sha256()
        self._queue: deque[tuple[Instance, Input]] = deque()
        self._held: list[tuple[Instance, Input]] = []
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._states: dict[bytes, bytes] = {}
        start = schedule.start_height
        state = founders(schedule.nodes, until_round=UNTIL_ROUND)
        self.genesis = replace(state, height=start)
        self.target = start + schedule.heights + 1
        twinned = frozenset(simulated_key(index) for index in schedule.twinned)
        judge = SimulatedCrypto(simulated_key(0), NETWORK_ID, honest=False)
        self.laws = None if laws is None else laws(crypto=judge, twinned=twinned)
        self.instances = [self._instance(number, replica) for number in range(schedule.instances)]
        self.honest = [instance for instance in self.instances if instance.honest]

    def _instance(self, number: int, replica: type[Replica]) -> Instance:
        member = self.schedule.member(number)
        # One for each instance, twins too: each of them keeps the rule of one content a slot.
        crypto = SimulatedCrypto(simulated_key(member), NETWORK_ID)
        core = replica(key=crypto.key, crypto=crypto, timing=Timing(), ledger=self.genesis)
        return Instance(number, core, crypto, member not in self.schedule.twinned)

    # ---- time

    def _after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._later, (self.now_ms + delay_ms, self._scheduled, action))

    def run(self, *, limit_ms: int = LIMIT_MS) -> bool:
        """Whether every honest instance got to the target height in time."""
        schedule = self.schedule
        for instance in self.instances:
            self._do(instance, instance.replica.start())
            self._apply(instance, self.genesis)
            self._opine(instance, self.genesis)
        for wish in schedule.wishes:
            self._after(wish.at_ms, functools.partial(self._contribute, wish))
        self._after(schedule.heal_ms, self._heal)
        queue = self._queue
        while self.events < EVENTS_MAX:
            while queue and self.events < EVENTS_MAX:
                receiver, event = queue.popleft()
                self.handle(receiver, event)
            if all(len(i.decisions) + schedule.start_height >= self.target for i in self.honest):
                return True
            self.now_ms, _number, action = heapq.heappop(self._later)
            if self.now_ms > limit_ms:
                return False
            action()
        return False

    def _heal(self) -> None:
        self.healed = True
        self._queue.extend(self._held)
        self._held.clear()
        self._announce()

    def _announce(self) -> None:
        for instance in self.instances:
            head = HeadAnnounced(peer=instance.key, height=self.schedule.start_height + len(instance.decisions))
            for other in self.instances:
                if other.key != instance.key:
                    self._queue.append((other, head))
        self._after(HEAD_PERIOD_MS, self._announce)

    # ---- one step of one instance

    def handle(self, instance: Instance, event: Input) -> None:
        self.events += 1
        if instance.number in self.schedule.deaf_from_view and isinstance(event, Received):
            heard = self._muffled(instance, event.message)
            if heard is None:
                return
            event = heard
        replica = instance.replica
        height, view, locked = replica.height, replica.view, replica.locked_view
        effects = replica.handle(event)
        if effects:
            self._do(instance, effects)
        if instance.honest and replica.height == height:
            self._watch(replica, event, view, locked)

    def _watch(self, replica: Replica, event: Input, view: int, locked: int) -> None:
        if replica.locked_view < locked:
            raise Violation(f"invariant 4: the lock of view {locked} fell to {replica.locked_view}")
        if replica.view != view:
            self.seen.add(Seen.VIEW_CHANGE)
            if locked != NO_VIEW:
                self.seen.add(Seen.LOCK)
        elif locked != NO_VIEW and isinstance(event, Received) and isinstance(event.message, SetMessage):
            message = event.message
            if (message.height, message.view) == (replica.height, view) and message.valid_view < locked < view:
                self.seen.add(Seen.LOCK_HELD)

    def _muffled(self, instance: Instance, message: Vote) -> Received | None:
        """What the host of a deaf instance lets it hear: no certificate of the views that it is to know nothing of."""
        if isinstance(message, (Ballot, SetMessage)) and message.signer != instance.key:
            if message.valid_view < self.schedule.deaf_from_view[instance.number]:
                return Received(message=message)
            if isinstance(message, SetMessage):
                return None
            return Received(message=replace(message, valid_view=NO_VIEW, valid_id=NIL, certificate=None))
        return Received(message=message)

    def _do(self, instance: Instance, effects: list[Effect]) -> None:
        laws, deferred = self.laws, False
        for effect in effects:
            kind = type(effect)
            if kind is Send or kind is SetTimer:
                continue
            match effect:
                case PersistVote(message=message):
                    instance.votes[message.kind, message.height, message.view] = message
                case PersistSafety(safety=safety):
                    if laws is not None:
                        laws.kept(instance.number, instance.safety, safety, instance.replica.roster)
                    instance.safety = safety
                case Decide():
                    self._decided(instance, effect)
                case _:
                    deferred = True
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                assert isinstance(effect, Send)
                self._send(instance, effect)
            elif kind is SetTimer:
                assert isinstance(effect, SetTimer)
                self._set_timer(instance, effect)
            elif deferred:
                self._carry_out(instance, effect)

    def _decided(self, instance: Instance, decision: Decide) -> None:
        if self.laws is not None:
            self.laws.decides(instance.number, instance.ledger(self.genesis), decision, self.state_hash)
        if instance.honest and decision.certificate.view > 0:
            self.seen.add(Seen.LATER_VIEW)
        if decision.ledger.roster.active != decision.before.roster.active:
            self.seen.add(Seen.BAN)
        instance.decisions.append(decision)
        if decision.ledger.height >= self.target:
            return  # and rests: there is nothing that it knows or thinks of this height
        self._apply(instance, decision.ledger)
        if decision.ledger.round > decision.before.round:
            self._opine(instance, decision.ledger)

    def _carry_out(self, instance: Instance, effect: Effect) -> None:
        match effect:
            case Fetch(height=height, block_id=name, targets=targets):
                if instance.honest:
                    self.seen.add(Seen.FETCH)
                for target in targets:
                    self._fetch(instance, target, height, name)
            case RequestDecisions(height=height, target=target):
                self._serve(self._donor(instance, target), instance, height, DECISIONS_PER_REPLY)
            case ServeDecision(height=height, to=to):
                for other in self.instances:
                    if other.key == to:
                        self._serve(instance, other, height, 1)
            case Accusation(evidence=proof):
                if instance.honest:
                    self._accused(instance, proof)
                if self.schedule.accuses and proof.accused not in instance.accused:
                    instance.accused.add(proof.accused)
                    self._ask(instance, OperationKind.EVIDENCE, proof=proof)
            case Diverged():
                if self.laws is not None:
                    self.laws.diverged(instance.number, effect)

    def _accused(self, instance: Instance, proof: Evidence) -> None:
        self.seen.add(Seen.EQUIVOCATION)
        if self.laws is not None:
            self.laws.accused(instance.number, proof)

    def _set_timer(self, instance: Instance, effect: SetTimer) -> None:
        timer, delay = effect.timer, effect.delay_ms
        if effect.jitter:
            delay = max(1, int(delay * self._random.uniform(0.8, 1.2)))
        serial = instance.timers[timer] = self._scheduled + 1

        def fire() -> None:
            if instance.timers.get(timer) == serial:
                del instance.timers[timer]
                self.handle(instance, TimerFired(timer=timer))

        self._after(delay, fire)

    # ---- the network

    def _send(self, sender: Instance, effect: Send) -> None:
        message, to, schedule = effect.message, effect.to, self.schedule
        if message.signer != sender.key and not sender.crypto.verify(message):
            return  # what a deaf instance was told, and nobody else would believe
        self._trace.update(b"%d %d " % (self.now_ms, sender.number) + message.signature)
        event: Input
        if isinstance(message, Operation):
            event, heard = OperationReceived(operation=message), schedule.side[sender.number]
        else:
            self._said(sender, message)
            event = Received(message=message)
            masks = schedule.reach.get((message.height, message.view, message.kind))
            heard = -1 if masks is None else masks[sender.number]
        for other in self.instances:
            if other is sender or (to is not None and other.key != to):
                continue
            if other.key == sender.key and not schedule.twins_meet:
                continue
            if self.healed or heard & other.bit:
                self._queue.append((other, event))
            elif schedule.holds_back:
                self._held.append((other, event))

    def _said(self, sender: Instance, message: Vote) -> None:
        if isinstance(message, SetMessage) and message.valid_view != NO_VIEW:
            self.seen.add(Seen.REPROPOSAL)
        if self.laws is None or message.signer != sender.key:
            return
        slot = (message.kind, message.height, message.view)
        if sender.votes.get(slot) != message:
            if not sender.honest:
                return  # what the other instance said
            raise Violation(f"invariant 3: instance {sender.number} sent {slot} before it was durable")
        if message.height == sender.replica.height:
            self.laws.signed(sender.number, message, sender.replica.roster)

    def _link(self, one: Instance, other: Instance) -> bool:
        """Whether they serve each other now."""
        return self.healed or bool(self.schedule.side[one.number] & other.bit)

    def _donor(self, asker: Instance, target: bytes) -> Instance:
        """Of two instances of one key, the one that has more to give."""
        return max((i for i in self.instances if i.key == target), key=lambda i: (len(i.decisions), -i.number))

    def _fetch(self, asker: Instance, target: bytes, height: int, name: bytes) -> None:
        for donor in self.instances:
            if donor.key == target and donor is not asker and self._link(donor, asker):
                block = self._block(donor, height, name)
                if block is not None:
                    self._queue.append((asker, BlockReceived(block=block)))

    def _block(self, donor: Instance, height: int, name: bytes) -> Block | None:
        place = height - self.schedule.start_height - 1
        if 0 <= place < len(donor.decisions):
            decided = donor.decisions[place]
            return decided.block if decided.certificate.block_id == name else None
        return donor.replica.block(name)

    def _serve(self, donor: Instance, asker: Instance, height: int, limit: int) -> None:
        if not self._link(donor, asker):
            return
        place = height - self.schedule.start_height - 1
        for decided in donor.decisions[max(0, place) : max(0, place + limit)]:
            if asker.honest:
                self.seen.add(Seen.CATCH_UP)
            self._queue.append((asker, DecisionReceived(block=decided.block, certificate=decided.certificate)))

    # ---- the application and the owner

    def state_hash(self, ledger: LedgerState) -> bytes:
        """Stands for the model. Hashed once a block: ``laws`` compares the ledgers themselves."""
        known = self._states.get(ledger.block_id)
        if known is None:
            known = hashlib.sha256(b"state" + repr(ledger.content()).encode()).digest()
            self._states[ledger.block_id] = known
        return known

    def _apply(self, instance: Instance, ledger: LedgerState) -> None:
        applied = Applied(height=ledger.height, state_hash=self.state_hash(ledger))
        self._later_or_now(self.schedule.apply_ms, instance, applied)

    def _opine(self, instance: Instance, ledger: LedgerState) -> None:
        if not ledger.contributors():
            return
        entries = tuple(
            BallotEntry(
                author_index=member.index,
                digest=hashlib.sha256(b"%d/%d" % (ledger.round, member.index)).digest(),
                accepted=True,
            )
            for member in ledger.contributors()[: self.schedule.authors]
        )
        self._later_or_now(self.schedule.ready_ms, instance, Opinion(round=ledger.round, ready=True, entries=entries))

    def _later_or_now(self, delays: tuple[int, ...], instance: Instance, event: Input) -> None:
        delay = 0 if self.healed else delays[instance.number]
        if delay:
            self._after(delay, lambda: self._queue.append((instance, event)))
        else:
            self._queue.append((instance, event))

    def _contribute(self, wish: Wish) -> None:
        self._ask(self.instances[wish.instance], OperationKind.CONTRIBUTE, wish.until_round)

    def _ask(self, instance: Instance, kind: OperationKind, *arguments: int, proof: Evidence | None = None) -> None:
        standing = instance.ledger(self.genesis).standing(instance.key)
        instance.sequence = max(instance.sequence, 0 if standing is None else standing.sequence) + 1
        operation = Operation(
            kind=kind, signer=instance.key, sequence=instance.sequence, arguments=arguments, evidence=proof
        )
        signed = instance.crypto.sign_operation(operation)
        self._queue.append((instance, OperationReceived(operation=signed, own=True)))

    def outcome(self, decided: bool) -> Outcome:
        return Outcome(
            seed=self.schedule.seed,
            nodes=self.schedule.nodes,
            decided=decided,
            heights=tuple(len(instance.decisions) for instance in self.honest),
            events=self.events,
            trace=self._trace.hexdigest(),
            seen=frozenset(self.seen),
        )


def play(schedule: Schedule, *, laws: type[Laws] = Laws, replica: type[Replica] = Replica) -> Outcome:
    """Raises Violation if an invariant breaks."""
    table = Table(schedule, laws=laws, replica=replica)
    try:
        return table.outcome(table.run())
    except AssertionError as error:
        raise Violation(f"twins seed {schedule.seed}, {schedule.nodes} nodes: {error}") from error


def play_twins(seed: int, nodes: int) -> Outcome:
    """The run that ``seed`` names, for 4 to 7 nodes; raises Violation if an invariant breaks."""
    return play(draw(seed, nodes))

"""Production replicas on a simulated network: virtual time, seeded delays, loss, partitions, crashes, adversaries.

The theory is in ``member`` (one machine), ``adversary`` (what liars say) and ``checks`` (what must hold). Here are
time, an event queue with one seeded source of randomness, and the network between the members. The same seed gives
the same ``trace`` hash.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from aicpnode.replication.intent import Intent, Wish
from aicpnode.simulation.adversary import Adversary
from aicpnode.simulation.checks import Checks
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.faults import CLOCK_RATES, SLOW_EVENT_MS, Faults
from aicpnode.simulation.links import Cut, Links
from aicpnode.simulation.member import Behaviour, SimulatedMember, Violation
from aicpnode.simulation.snapshots import BLOCKS_KEPT, lie
from consensus.events import (
    Applied,
    BlockReceived,
    Decide,
    DecisionReceived,
    Effect,
    HeadAnnounced,
    Input,
    OperationReceived,
    Received,
    Send,
    TimerFired,
)
from consensus.evidence import Evidence
from consensus.membership import LedgerRules, genesis_state
from consensus.messages import Operation, Vote
from consensus.pacemaker import Timing
from consensus.types import MemberStatus

HEAD_PERIOD_MS = 5_000
DECISIONS_PER_REPLY = 16
DOWN_MS = (10, 5_000)
PARTED_MS = (100, 8_000)
ISOLATED_MS = (8_000, 12_000)
WIDE_AREA_DELTA_MS = 1_000


class Occurrence(Enum):
    """What an observer of a cluster is told of."""

    SENT = "sent"
    """A member says something, to ``receiver`` or (None) to everybody."""
    LEFT = "left"
    """A ``Copy`` is on its way: what is really said to this receiver, which a liar chooses."""
    ARRIVED = "arrived"
    LOST = "lost"
    """On the way: by chance, or because the network is parted."""
    DECIDED = "decided"
    STARTED = "started"
    CRASHED = "crashed"
    PARTED = "parted"
    HEALED = "healed"
    FIRED = "fired"
    """A timer of a member."""
    APPLIED = "applied"
    """A member has the state after a height."""
    ACCUSED = "accused"
    """A member holds proof against ``receiver``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Something on its way. It arrives unless its receiver is down by then."""

    said: object
    arrives_ms: int
    is_late: bool


Observer = Callable[[int, Occurrence, str, str | None, object], None]
"""Called with (now in ms of virtual time, what happens, the sender's name, the receiver's name or None, what it
is about: a message, an operation, another input of a replica, a Copy, a Decide, an Evidence, or a text). It only looks:
what it does changes no run."""


class Cluster:
    """Founders with ``behaviours``, and joiners with ``joiners``, on one seeded network."""

    def __init__(
        self,
        *,
        seed: int,
        behaviours: Sequence[Behaviour],
        faults: Faults,
        joiners: Sequence[Behaviour] = (),
        round_ms: int = 400,
        timing: Timing | None = None,
        rules: LedgerRules | None = None,
        wish: Wish = Wish.ON,
        observer: Observer | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.observer = observer
        self.random = random.Random(seed)
        self.network_id = hashlib.sha256(b"simulated network").digest()
        self.timing = timing or Timing(delta_ms=WIDE_AREA_DELTA_MS if faults.wide_area else Timing().delta_ms)
        self.faults = faults
        self.round_ms = round_ms
        self.now_ms = 0
        self.events = 0
        self._trace = hashlib.sha256()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self.links = Links(faults, self.random)
        self._cuts: list[Cut] = []
        self.highest_decided = 0
        self.takeovers = 0
        """How many snapshots were taken over."""
        self._power_cuts_left = faults.power_cuts
        self.keys = [simulated_key(index) for index in range(len(behaviours) + len(joiners))]
        names = names or [f"node-{index}" for index in range(len(self.keys))]
        founders = list(zip(self.keys, names, strict=True))[: len(behaviours)]
        self.genesis = genesis_state(
            ((key, 1, name) for key, name in founders),
            self.network_id,
            rules or LedgerRules(probation_rounds=2, members_max=64),
        )
        self.adversary = Adversary(self)
        self.members: dict[bytes, SimulatedMember] = {}
        for key, name, behaviour in zip(self.keys, names, [*behaviours, *joiners], strict=True):
            intent = Intent(wish=wish if len(self.members) < len(behaviours) else Wish.FOLLOW)
            self.members[key] = SimulatedMember(self, key, name, behaviour, intent)
        self._all = list(self.members.values())
        self.checks = Checks(self)
        self.settled_height: int | None = None
        """The height that was running when the last message of the noisy time had arrived."""
        self._draw_machines()

    def _draw_machines(self) -> None:
        """Clocks that go wrong, slow processors and slow trainers. What is not asked for draws nothing."""
        faults, rng = self.faults, self.random
        for member in self._all if faults.skewed_clocks else ():
            member.clock_rate = rng.uniform(*CLOCK_RATES)
        for member in rng.sample(self._all, min(faults.slow_members, len(self._all))):
            member.event_ms = rng.randint(*SLOW_EVENT_MS)
        for member in rng.sample(self._all, min(faults.slow_trainers, len(self._all))):
            member.trains_slowly = True

    @property
    def trace(self) -> str:
        """Hash of everything that was sent, and when."""
        return self._trace.hexdigest()

    @property
    def settled_ms(self) -> int:
        """From then on nothing of the noisy time is on its way any more."""
        quiet_after = self.faults.quiet_after_ms
        return quiet_after + self.links.longest_ms if quiet_after else 0

    def _settle(self) -> None:
        self.settled_height = 1 + max(self.heights())

    @property
    def longest_delay_ms(self) -> int:
        """Of a message, once it is quiet, with what slow members need for those before it."""
        queued = SLOW_EVENT_MS[1] * len(self.keys) if self.faults.slow_members else 0
        return self.links.usual_ms + queued

    @property
    def is_noisy(self) -> bool:
        return self.now_ms < self.faults.quiet_after_ms

    @property
    def honest(self) -> list[SimulatedMember]:
        return [member for member in self.members.values() if member.honest]

    def observe(self, what: Occurrence, sender: str, receiver: str | None = None, said: object = "") -> None:
        if self.observer is not None:
            self.observer(self.now_ms, what, sender, receiver, said)

    # ---- time

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._queue, (self.now_ms + max(0, delay_ms), self._scheduled, action))

    def start(self, *, absent: Collection[bytes] = ()) -> None:
        """All members but those with ``absent`` keys, which come later."""
        for member in self.members.values():
            if member.behaviour is not Behaviour.SILENT and member.key not in absent:
                member.start()
        self._schedule_faults()
        self._announce_heads()
        self.schedule(self.settled_ms, self._settle)

    def run(self, *, until: Callable[[], bool], limit_ms: int) -> bool:
        """Let virtual time pass until ``until()``, looked at after each decision, holds (True) or ``limit_ms`` is
        over (False)."""
        seen = -1
        while self._queue:
            if seen != self.checks.decisions:
                seen = self.checks.decisions
                if until():
                    return True
            at, _number, action = heapq.heappop(self._queue)
            if at > limit_ms:
                break
            self.now_ms = at
            self.events += 1
            action()
        return until()

    # ---- faults

    def _schedule_faults(self) -> None:
        quiet = self.faults.quiet_after_ms
        for _ in range(self.faults.crashes):
            victim = self.random.choice(self.honest)
            at = self.random.randint(0, quiet)
            self.schedule(at, victim.crash)
            self.schedule(min(quiet, at + self.random.randint(*DOWN_MS)), victim.start)
        for victim in self.random.sample(self.honest, min(self.faults.disk_losses, len(self.honest))):
            at = self.random.randint(0, quiet * 3 // 4)
            self.schedule(at, victim.lose_disk)
            self.schedule(at + self.random.randint(*DOWN_MS), victim.start)
        for number in range(self.faults.partitions + self.faults.one_way):
            island = frozenset(self.random.sample(self.keys, self.random.randint(1, max(1, len(self.keys) - 1))))
            is_one_way = number >= self.faults.partitions
            speaks = is_one_way and self.random.random() < 0.5
            cut = Cut(island=island, speaks=speaks, hears=is_one_way and not speaks)
            self._cut_later(self.random.randint(0, quiet), cut, self.random.randint(*PARTED_MS))
        for _ in range(self.faults.isolations):
            cut = Cut(island=frozenset((self.random.choice(self.keys),)))
            self._cut_later(self.random.randint(0, quiet // 4), cut, self.random.randint(*ISOLATED_MS))

    def _cut_later(self, at_ms: int, cut: Cut, lasts_ms: int) -> None:
        """For a while, at most until it is quiet."""
        quiet = self.faults.quiet_after_ms
        self.schedule(at_ms - self.now_ms, functools.partial(self._cut, cut))
        self.schedule(min(quiet, at_ms + lasts_ms) - self.now_ms, functools.partial(self._mend, cut))

    def part(self, island: frozenset[bytes], *, speaks: bool = False, hears: bool = False) -> None:
        """From now on its members and all others do not hear each other, or only in one direction."""
        self._cut(Cut(island=island, speaks=speaks, hears=hears))

    def heal(self, island: frozenset[bytes]) -> None:
        """Of the islands that are these members, the oldest."""
        self._mend(next(cut for cut in self._cuts if cut.island == island))

    def _cut(self, cut: Cut) -> None:
        self._cuts.append(cut)
        self.links.part(cut)
        self._tell_links()
        self._observe_island(Occurrence.PARTED, cut.island)

    def _mend(self, cut: Cut) -> None:
        self._cuts.remove(cut)
        self.links.heal(cut)
        self._tell_links()
        self._observe_island(Occurrence.HEALED, cut.island)

    def _tell_links(self) -> None:
        """The checks of what is out of reach."""
        pairs = itertools.permutations(self.keys, 2)
        self.checks.reach.links_changed(frozenset(pair for pair in pairs if self.links.is_cut(*pair)))

    def _observe_island(self, what: Occurrence, island: frozenset[bytes]) -> None:
        for member in self.members.values():
            if member.key in island:
                self.observe(what, member.name)

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """An honest member is about to tell of a decision that is on its disk."""
        height = decision.ledger.height
        self.observe(Occurrence.DECIDED, member.name, said=decision)
        is_first = height > self.highest_decided
        self.highest_decided = max(self.highest_decided, height)
        if is_first and self.is_noisy and self.random.random() < self.faults.isolated_deciders:
            cut = Cut(island=frozenset((member.key,)))
            self._cut_later(self.now_ms, cut, self.random.randint(*PARTED_MS))

    def started(self, member: SimulatedMember) -> None:
        self.observe(Occurrence.STARTED, member.name, said=f"at height {member.ledger.height + 1}")

    def crashed(self, member: SimulatedMember) -> None:
        self.observe(Occurrence.CRASHED, member.name, said=f"at height {member.ledger.height + 1}")

    def accused(self, member: SimulatedMember, proof: Evidence) -> None:
        self.observe(Occurrence.ACCUSED, member.name, self._name(proof.accused), proof)

    def handled(self, member: SimulatedMember, event: Input) -> None:
        """A running member is about to handle ``event``."""
        if self.observer is None:
            return
        if isinstance(event, TimerFired):
            self.observe(Occurrence.FIRED, member.name, said=event.timer)
        elif isinstance(event, Applied):
            self.observe(Occurrence.APPLIED, member.name, said=event)

    def power_cut(self, member: SimulatedMember, effects: list[Effect]) -> int | None:
        """Before which effect ``member`` crashes (0: before its write); None if it goes on."""
        if not self._power_cuts_left or not member.honest or not self.is_noisy:
            return None
        if not any(isinstance(effect, Send) for effect in effects) or self.random.random() >= 0.02:
            return None
        self._power_cuts_left -= 1
        back_at = min(self.faults.quiet_after_ms, self.now_ms + self.random.randint(*DOWN_MS))
        self.schedule(back_at - self.now_ms, member.start)
        return self.random.randint(0, len(effects))

    # ---- the network

    def _transmit(self, sender: SimulatedMember, receiver: SimulatedMember, event: Input) -> None:
        if sender is receiver:
            return
        is_noisy = self.now_ms < self.faults.quiet_after_ms
        is_cut = self.links.is_cut(sender.key, receiver.key)
        copies = [] if is_cut else self.links.delays_ms(sender.index, receiver.index, is_noisy=is_noisy)
        if not copies:
            self.observe(Occurrence.LOST, sender.name, receiver.name, _said(event))
        for delay, is_late in copies:
            if self.observer is not None:
                copy = Copy(said=_said(event), arrives_ms=self.now_ms + delay, is_late=is_late)
                self.observe(Occurrence.LEFT, sender.name, receiver.name, copy)
            arrive = functools.partial(self._arrive, sender, receiver, event, receiver.incarnation)
            self.schedule(delay, arrive)

    def _arrive(self, sender: SimulatedMember, receiver: SimulatedMember, event: Input, incarnation: int) -> None:
        if self.observer is not None:
            self.observe(Occurrence.ARRIVED, sender.name, receiver.name, _said(event))
        if isinstance(event, HeadAnnounced) and receiver.incarnation == incarnation:
            receiver.hear_head(event)  # what was said to an earlier process does not reach the next one
        receiver.receive(event)

    def send(self, sender: SimulatedMember, message: Vote | Operation, to: bytes | None) -> None:
        # The signature covers kind, place and content, so it stands for them.
        self._trace.update(b"%d%b%b" % (self.now_ms, sender.key, message.signature))
        if self.observer is not None:
            self.observe(Occurrence.SENT, sender.name, None if to is None else self._name(to), message)
        self.adversary.overhear(message)
        receivers = self._all if to is None else [self.members[to]] if to in self.members else []
        if sender.honest:
            event = _input(message)
            for receiver in receivers:
                self._transmit(sender, receiver, event)
            return
        for receiver, said in self.adversary.sayings(sender, message, [m for m in receivers if m is not sender]):
            self._transmit(sender, receiver, _input(said))

    def pass_on(self, sender: SimulatedMember, message: Vote | Operation) -> None:
        """``sender`` says to everybody what somebody else signed."""
        for receiver in self._all:
            if receiver.key != message.signer:
                self._transmit(sender, receiver, _input(message))

    def _name(self, key: bytes) -> str:
        member = self.members.get(key)
        return key.hex()[:8] if member is None else member.name

    def _announce_heads(self) -> None:
        for member in self.members.values():
            if member.replica is not None:
                for other in self.members.values():
                    head = member.disk.head
                    told = head if member.honest else self.adversary.head(head)
                    self._transmit(member, other, HeadAnnounced(peer=member.key, height=told))
        self.schedule(HEAD_PERIOD_MS, self._announce_heads)

    def fetch(self, asker: SimulatedMember, target: bytes, height: int, name: bytes) -> None:
        """A request, and the block back from whoever has it."""
        member = self.members.get(target)
        if member is not None and member.replica is not None:
            block = self.adversary.fetched(member, member.block(height, name))
            if block is not None:
                self._transmit(member, asker, BlockReceived(block=block))

    def request_decisions(self, asker: SimulatedMember, target: bytes, height: int) -> None:
        member = self.members.get(target)
        if member is not None:
            delay = self.links.delay_ms(asker.index, member.index)
            serve = functools.partial(self.serve_decisions, member, asker.key, height, limit=DECISIONS_PER_REPLY)
            self.schedule(delay, serve)

    def serve_decisions(self, donor: SimulatedMember, to: bytes, height: int, *, limit: int) -> None:
        asker = self.members.get(to)
        if asker is None or donor.replica is None or height < 1:
            return
        if self.faults.snapshots and height <= donor.disk.head - BLOCKS_KEPT:
            return
        for decided in donor.disk.decided(height, limit):
            for block, certificate in self.adversary.served(donor, decided.block, decided.certificate):
                self._transmit(donor, asker, DecisionReceived(block=block, certificate=certificate))

    def request_snapshot(self, asker: SimulatedMember, target: bytes, first: int, least: int) -> None:
        """A state after height ``least`` or later, with the headers from ``first`` on that prove it."""
        donor = self.members.get(target)
        if donor is not None and not self.links.is_cut(asker.key, target):
            delay = self.links.delay_ms(asker.index, donor.index)
            self.schedule(delay, functools.partial(self._give_snapshot, donor, asker, first, least))

    def _give_snapshot(self, donor: SimulatedMember, asker: SimulatedMember, first: int, least: int) -> None:
        given = donor.disk.shelf.give(first, least, donor.disk.head) if donor.is_up else None
        if given is not None and not donor.honest:
            given = lie(given, self.random, self.genesis)
        if given is not None and not self.links.is_cut(donor.key, asker.key):
            delay = self.links.delay_ms(donor.index, asker.index)
            self.schedule(delay, functools.partial(asker.receive_snapshot, donor.key, given))

    # ---- how far they are

    def heights(self) -> list[int]:
        """Decided by each honest member."""
        return [member.ledger.height for member in self.honest]

    def rounds(self) -> list[int]:
        """Training rounds decided by each honest member."""
        return [member.ledger.round for member in self.honest]

    def promoted(self) -> int:
        """Joiners that every honest member sees ACTIVE."""
        newcomers = self.keys[len(self.genesis.roster.members) :]
        return min(sum(member.ledger.roster.is_active(key) for key in newcomers) for member in self.honest)

    def statuses(self) -> dict[str, MemberStatus]:
        """Of all members, as the first honest one sees them."""
        return {member.name: member.status for member in self.honest[0].ledger.roster.members}


def _input(message: Vote | Operation) -> Input:
    return OperationReceived(operation=message) if isinstance(message, Operation) else Received(message=message)


def _said(event: Input) -> object:
    """What an event carries from member to member."""
    match event:
        case Received(message=message):
            return message
        case OperationReceived(operation=operation):
            return operation
    return event


__all__ = ["Behaviour", "Cluster", "Copy", "Faults", "Observer", "Occurrence", "Violation"]

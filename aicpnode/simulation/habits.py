"""What a liar of a simulation makes a habit of, and how several habits work together.

A liar runs a production replica. What that replica wants to say passes through its habits, one after the other; each
takes what the ones before it made of it, for each receiver, and changes, drops or adds something, now and then. So a
member that equivocates can strip, forge and withhold at the same time. Everything a liar signs it signs for itself; it
never has a signature that its owner did not make. ``acted`` counts how often each habit really did something.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from aicpnode.simulation.forgery import Forger
from aicpnode.simulation.malformed import garbled
from consensus.messages import Ballot, Block, Commit, CommitCert, Operation, Prepare, SetMessage, Vote

if TYPE_CHECKING:
    from aicpnode.simulation.adversary import Adversary
    from aicpnode.simulation.cluster import Cluster
    from aicpnode.simulation.member import SimulatedMember

Message = Vote | Operation
Sayings = list[tuple["SimulatedMember", Message]]
MESSAGES_KEPT = 400
HABITS_DRAWN = (1, 5)
REPEATED = 3
"""Messages that one flood holds at most."""


class Habit(Enum):
    EQUIVOCATE = "equivocate"
    """Another content in the same slot, or of the same sequence, for every second member."""
    WITHHOLD = "withhold"
    """Nothing for some."""
    SINGLE_OUT = "single-out"
    """A PREPARE or COMMIT for one member only."""
    HOARD = "hoard"
    """Votes nil in public, hides certificates, completes them in secret, proposes old blocks again."""
    OMIT = "omit"
    """As a leader: no more ballots than it must take, the unready ones first, and no operations."""
    MUTATE = "mutate"
    """A view, height, round or pointer that is one off, or one that was used before."""
    REPLAY = "replay"
    """What anybody said once, of old heights and old rosters."""
    FOREIGN = "foreign"
    """What it signed for another network, by itself and within certificates."""
    FORGE = "forge"
    """Certificates of too few, of the same one twice, of strangers, of another view, with signatures swapped."""
    STRIP = "strip"
    """Others' SETs and BALLOTs passed on without what is attached, or with something else attached."""
    FLOOD = "flood"
    """Operations without number, most of them evidence that proves nothing."""
    GARBLE = "garble"
    """Bytes that were changed on the way."""
    MISLEAD = "mislead"
    """Whoever catches up or fetches gets other blocks and certificates, or nothing."""


SHARES = {
    Habit.EQUIVOCATE: 0.3,
    Habit.WITHHOLD: 0.3,
    Habit.SINGLE_OUT: 0.5,
    Habit.HOARD: 0.5,
    Habit.OMIT: 0.7,
    Habit.MUTATE: 0.2,
    Habit.REPLAY: 0.2,
    Habit.FOREIGN: 0.1,
    Habit.FORGE: 0.2,
    Habit.STRIP: 0.5,
    Habit.FLOOD: 0.1,
    Habit.GARBLE: 0.3,
    Habit.MISLEAD: 0.7,
}
"""How often each acts when it could."""


OF_OWN_MESSAGES = frozenset({Habit.OMIT, Habit.HOARD, Habit.EQUIVOCATE, Habit.MUTATE})


class Habits:
    """Of all liars of one cluster, who conspire."""

    def __init__(self, cluster: Cluster, adversary: Adversary, rng: random.Random) -> None:
        self._cluster = cluster
        self._adversary = adversary
        self._random = rng
        self._forger = Forger(cluster, rng)
        self._of: dict[bytes, frozenset[Habit]] = {}
        self._kept: list[Message] = []
        self._kept_slots: dict[tuple[bytes, int, int], SetMessage] = {}
        self.acted: Counter[Habit] = Counter()
        self._rules: dict[Habit, Callable[[SimulatedMember, Message, Sayings], Sayings]] = {
            Habit.OMIT: self._omit,
            Habit.HOARD: self._hoard,
            Habit.EQUIVOCATE: self._equivocate,
            Habit.MUTATE: self._mutate,
            Habit.WITHHOLD: self._withhold,
            Habit.SINGLE_OUT: self._single_out,
            Habit.FORGE: self._forge,
            Habit.REPLAY: self._replay,
            Habit.FOREIGN: self._foreign,
            Habit.FLOOD: self._flood,
            Habit.GARBLE: self._garble,
        }
        """In the order in which they apply."""

    def of(self, liar: SimulatedMember) -> frozenset[Habit]:
        """Drawn when it is first asked for, unless somebody chose them."""
        if liar.key not in self._of:
            self._of[liar.key] = frozenset(self._random.sample(list(Habit), self._random.randint(*HABITS_DRAWN)))
        return self._of[liar.key]

    def choose(self, liar: SimulatedMember, *habits: Habit) -> None:
        self._of[liar.key] = frozenset(habits)

    def _acts(self, liar: SimulatedMember, habit: Habit) -> bool:
        return habit in self.of(liar) and self._random.random() < SHARES[habit]

    def _count(self, habit: Habit, before: Sayings, after: Sayings) -> Sayings:
        """``after``, which counts if it is anything else than ``before``."""
        unchanged = len(before) == len(after) and all(
            one[0] is other[0] and one[1] is other[1] for one, other in zip(before, after, strict=True)
        )
        self.acted[habit] += not unchanged
        return after

    # ---- what is heard and said

    def overhear(self, message: Message) -> None:
        """Keep some of all that was ever said, and strip what can be stripped."""
        if len(self._kept) < MESSAGES_KEPT:
            self._kept.append(message)
        elif self._random.random() < 0.1:
            self._kept[self._random.randrange(MESSAGES_KEPT)] = message
        if isinstance(message, SetMessage | Ballot) and (stripped := self._forger.stripped(message)) is not None:
            for liar in self._cluster.members.values():
                if liar.is_liar and liar.is_up and liar.key != message.signer and self._acts(liar, Habit.STRIP):
                    self.acted[Habit.STRIP] += 1
                    self._cluster.pass_on(liar, stripped)

    def sayings(self, liar: SimulatedMember, message: Message, receivers: list[SimulatedMember]) -> Sayings:
        """What ``liar`` says instead of ``message``, as far as a receiver's network lets it in."""
        said: Sayings = [(receiver, message) for receiver in receivers]
        for habit, rule in self._rules.items():
            if message.signer != liar.key and habit in OF_OWN_MESSAGES:
                continue  # passed on for somebody else: to change it would be to forge it
            if self._acts(liar, habit):
                said = self._count(habit, said, rule(liar, message, said))
        return [(receiver, each) for receiver, each in said if self._forger.is_genuine(each)]

    def _equivocate(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        other = self._adversary.other_content(message)
        return [(r, other if place % 2 and each is message else each) for place, (r, each) in enumerate(said)]

    def _withhold(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        return [saying for saying in said if self._random.random() < 0.5]

    def _single_out(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        if not isinstance(message, Prepare | Commit) or not said:
            return said
        return [said[message.height % len(said)]]

    def _hoard(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        hoarded = self._adversary.stale(liar, message, [receiver for receiver, _each in said])
        same = len(hoarded) == len(said) and all(each is message for _receiver, each in hoarded)
        return said if same else hoarded

    def _omit(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        if not isinstance(message, SetMessage) or message.block is None:
            return said
        at = (liar.key, message.height, message.view)
        if at not in self._kept_slots:
            poorer = self._forger.poorer(liar, message)
            if poorer is None:
                return said
            self._kept_slots[at] = poorer
        return [(receiver, self._kept_slots[at]) for receiver, _each in said]

    def _mutate(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        mutated = self._forger.mutated(message)
        return [(r, mutated if self._random.random() < 0.5 else each) for r, each in said]

    def _replay(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        if not self._kept:
            return said
        old = [self._random.choice(self._kept) for _ in range(self._random.randint(1, REPEATED))]
        return said + [(receiver, each) for each in old for receiver, _now in said]

    def _foreign(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        foreign = self._forger.foreign(message)
        return said if foreign is None else said + [(receiver, foreign) for receiver, _each in said]

    def _forge(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        if liar.replica is None:
            return said
        forged = self._forger.with_forged_certificate(liar, self._adversary.prepares(liar.replica.height))
        return said if forged is None else said + [(receiver, forged) for receiver, _each in said]

    def _flood(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        flood = [self._forger.operation(liar, self._kept) for _ in range(self._random.randint(1, REPEATED))]
        return said + [(receiver, each) for each in flood if each is not None for receiver, _now in said]

    def _garble(self, liar: SimulatedMember, message: Message, said: Sayings) -> Sayings:
        kept: Sayings = []
        for receiver, each in said:
            if self._random.random() < 0.7:
                kept.append((receiver, each))
            if self._random.random() < 0.5:
                self.acted[Habit.GARBLE] += 1
                arrives = garbled(each, self._cluster.network_id, self._random)
                kept += [] if arrives is None else [(receiver, arrives)]
        return kept

    # ---- what is asked for

    def served(self, liar: SimulatedMember, block: Block, certificate: CommitCert) -> list[tuple[Block, CommitCert]]:
        """What somebody gets who asks ``liar`` for this decision."""
        if not self._acts(liar, Habit.MISLEAD):
            return [(block, certificate)]
        self.acted[Habit.MISLEAD] += 1
        return self._forger.decisions(liar, block, certificate)

    def block(self, liar: SimulatedMember, block: Block | None) -> Block | None:
        """What somebody gets who fetches this block from ``liar``."""
        if not self._acts(liar, Habit.MISLEAD):
            return block
        self.acted[Habit.MISLEAD] += 1
        return None if block is None else self._forger.other_block(block)


__all__ = ["SHARES", "Habit", "Habits"]

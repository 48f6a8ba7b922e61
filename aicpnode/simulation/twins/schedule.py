"""What the adversary of a twins run chooses: who is twinned, who hears whom, who is late, when all of it ends.

Instances are numbered: members first, in join order, then the second instance of each twinned member. For every
(height, view, kind) there is a mask a sender: bit i says whether instance i hears it. Most views are drawn from shapes
that matter (a partition, one that hears nothing, few that hear, twins that each talk to one side) rather than link by
link; some schedules are guided: a certificate that only a twin sees, then another block that one member decides and
others are locked on, then the twin as leader with its old certificate. That is where locks are tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from consensus.messages import MessageKind

KINDS = (MessageKind.BALLOT, MessageKind.SET, MessageKind.PREPARE, MessageKind.COMMIT)
Masks = tuple[int, ...]
"""By sender: the instances that hear it."""
View = dict[MessageKind, list[int]]
GUIDED_SHARE = 0.3
GUIDED_VIEWS_MAX = 10
DIVIDED_VIEWS = 12
DIVIDED_MS = 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An operation that an instance's owner wants: CONTRIBUTE until a round, at a time in ms."""

    at_ms: int
    instance: int
    until_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Everything that one run does not leave to the protocol. Times in milliseconds of virtual time."""

    seed: int
    nodes: int
    twinned: tuple[int, ...]
    """Indices of the members that run twice."""
    start_height: int
    """Of the ledger that all begin with, so that leaders rotate."""
    heights: int
    """How many are scheduled; one more must be decided."""
    reach: dict[tuple[int, int, MessageKind], Masks]
    side: Masks
    """Who serves whom with blocks and decisions, and hears its operations and heads, before all is healed."""
    heal_ms: int
    holds_back: bool = False
    """Whether what was cut is delivered once healed; else it is lost."""
    twins_meet: bool = False
    """Whether the instances of one key hear each other."""
    deaf_from_view: dict[int, int] = field(default_factory=dict)
    """Twin instances whose host keeps certificates of these and later views from them."""
    ready_ms: tuple[int, ...] = ()
    """By instance: how long after a round began its opinion comes."""
    apply_ms: tuple[int, ...] = ()
    """By instance: how long it takes to apply a block."""
    wishes: tuple[Wish, ...] = ()
    authors: int = 2
    """How many members propose in each round."""
    accuses: bool = False
    """Whether who notices an equivocation has it banned."""

    @property
    def instances(self) -> int:
        return self.nodes + len(self.twinned)

    @property
    def honest(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.nodes) if index not in self.twinned)

    def member(self, instance: int) -> int:
        """Whose instance it is: the index in join order."""
        return instance if instance < self.nodes else self.twinned[instance - self.nodes]

    def leader(self, height: int, view: int) -> int:
        """The index of the leader while nobody is banned."""
        return (height + view) % self.nodes


def draw(seed: int, nodes: int, *, faulty: int | None = None) -> Schedule:
    """The schedule of ``seed`` for ``nodes`` members, of whom ``faulty`` (default: 1 to F, mostly F) are twinned."""
    rng = random.Random(seed * 64 + nodes)
    limit = (nodes - 1) // 3
    count = faulty if faulty is not None else (limit if rng.random() < 0.8 else rng.randint(1, limit))
    guided = rng.random() < GUIDED_SHARE
    start = rng.randrange(2 * nodes)
    twinned = tuple(sorted(rng.sample(range(nodes), count)))
    heights = 1 if rng.random() < 0.7 else 2
    painter = _Painter(rng, nodes, twinned)
    reach: dict[tuple[int, int, MessageKind], Masks] = {}
    deaf: dict[int, int] = {}
    for height in range(start + 1, start + 1 + heights):
        if guided and height == start + 1 and count:
            views, deaf = painter.guided(height)
        else:
            views = [painter.view() for _ in range(rng.randint(1, 4))]
        for view, masks in enumerate(views):
            reach.update({(height, view, kind): tuple(masks[kind]) for kind in KINDS})
    total = nodes + count
    open_side = rng.random() < (0.2 if guided else 0.5)
    return Schedule(
        seed=seed,
        nodes=nodes,
        twinned=twinned,
        start_height=start,
        heights=heights,
        reach=reach,
        side=tuple(painter.some() if open_side else 0 for _ in range(total)),
        heal_ms=rng.choice((3_200, 6_400) if guided else (800, 1_600, 3_200, 4_800)),
        holds_back=rng.random() < 0.3,
        twins_meet=rng.random() < 0.15,
        deaf_from_view=deaf if deaf or rng.random() < 0.7 else dict.fromkeys(painter.twins, rng.randint(1, 2)),
        ready_ms=tuple(0 if guided or rng.random() < 0.85 else rng.randint(20, 600) for _ in range(total)),
        apply_ms=tuple(0 if guided or rng.random() < 0.9 else rng.randint(20, 1_500) for _ in range(total)),
        wishes=tuple(
            Wish(at_ms=rng.choice((0, 0, rng.randint(0, 1_500))), instance=i, until_round=rng.choice((0, 1 << 30)))
            for i in rng.sample(range(total), rng.choice((0, 0, 1, 2)))
        ),
        authors=rng.randint(0, 2),
        accuses=rng.random() < 0.15,
    )


def divide(seed: int, nodes: int, *, faulty: int) -> Schedule:
    """Two sides that hear nothing of each other, with one instance of each twinned key on both: if more than F are
    twinned, both may be a quorum. What each side does in its views is drawn, so that they decide in different ones."""
    rng = random.Random(seed * 64 + nodes)
    start = rng.randrange(2 * nodes)
    twinned = tuple(sorted(rng.sample(range(nodes), faulty)))
    painter = _Painter(rng, nodes, twinned)
    sides = painter.sides()
    reach: dict[tuple[int, int, MessageKind], Masks] = {}
    for view in range(DIVIDED_VIEWS):
        for kind, masks in painter.divided(sides).items():
            reach[start + 1, view, kind] = tuple(masks)
    return Schedule(
        seed=seed,
        nodes=nodes,
        twinned=twinned,
        start_height=start,
        heights=1,
        reach=reach,
        side=tuple(0 for _ in range(nodes + faulty)),
        heal_ms=DIVIDED_MS,
        ready_ms=(0,) * (nodes + faulty),
        apply_ms=(0,) * (nodes + faulty),
    )


class _Painter:
    """Draws views: for each kind of message, who hears whom."""

    def __init__(self, rng: random.Random, nodes: int, twinned: tuple[int, ...]) -> None:
        self._rng = rng
        self._nodes = nodes
        self._twinned = twinned
        self._total = nodes + len(twinned)
        self._all = (1 << self._total) - 1
        self._honest = [index for index in range(nodes) if index not in twinned]
        self._seconds = list(range(nodes, self._total))
        self.twins = [*twinned, *self._seconds]

    def some(self) -> int:
        """A random set of instances, mostly large."""
        return sum(1 << i for i in range(self._total) if self._rng.random() < 0.7)

    def view(self) -> View:
        rng = self._rng
        if rng.random() < 0.3:  # one partition for the whole view
            masks = self._partition()
            return {kind: list(masks) for kind in KINDS}
        view: View = {}
        for kind in KINDS:
            masks = self._shape()
            if rng.random() < 0.5:
                self._split_twins(masks)
            view[kind] = masks
        return view

    def _shape(self) -> list[int]:
        rng, full = self._rng, [self._all] * self._total
        roll = rng.random()
        if roll < 0.4:
            return full
        if roll < 0.55:
            return self._partition()
        if roll < 0.7:  # some hear nothing
            deaf = self._bits(rng.sample(range(self._total), rng.randint(1, 2)))
            return [mask & ~deaf for mask in full]
        if roll < 0.8:  # some say nothing
            for mute in rng.sample(range(self._total), rng.randint(1, 2)):
                full[mute] = 0
            return full
        if roll < 0.92:  # few hear
            few = self._bits(rng.sample(range(self._total), rng.randint(1, 2)))
            return [few] * self._total
        return [self.some() for _ in range(self._total)]

    def _partition(self) -> list[int]:
        groups = [self._rng.randrange(self._rng.choice((2, 2, 3))) for _ in range(self._total)]
        return [self._bits(i for i, other in enumerate(groups) if other == mine) for mine in groups]

    def _split_twins(self, masks: list[int]) -> None:
        """Every instance hears one of the two that share a key, or neither."""
        for first, second in zip(self._twinned, self._seconds, strict=True):
            for hearer in range(self._total):
                roll = self._rng.random()
                if roll < 0.6:
                    masks[first] &= ~(1 << hearer)
                if not 0.1 <= roll < 0.6:
                    masks[second] &= ~(1 << hearer)

    def sides(self) -> tuple[int, int]:
        """Each with half of the honest (by chance) and one instance of each twin."""
        honest = self._rng.sample(self._honest, len(self._honest))
        firsts = [
            pair if self._rng.random() < 0.5 else pair[::-1] for pair in zip(self._twinned, self._seconds, strict=True)
        ]
        half = len(honest) // 2
        return (
            self._bits([*honest[:half], *(first for first, _second in firsts)]),
            self._bits([*honest[half:], *(second for _first, second in firsts)]),
        )

    def divided(self, sides: tuple[int, int]) -> View:
        """A view of two sides, in each of which one may miss something, and the SET may reach nobody."""
        view: View = {kind: [0] * self._total for kind in KINDS}
        for side in sides:
            members = [index for index in range(self._total) if side >> index & 1]
            for kind in KINDS:
                heard = side
                roll = self._rng.random()
                if kind is MessageKind.SET and roll < 0.2:
                    heard = 0
                elif kind is not MessageKind.BALLOT and roll < 0.4:
                    heard &= ~(1 << self._rng.choice(members))
                for index in members:
                    view[kind][index] = heard
        return view

    # ---- guided

    def guided(self, height: int) -> tuple[list[View], dict[int, int]]:
        """Views that try a lock, and from which view on which instances are kept from learning of it.

        One side of the twins ends up with an old certificate that nobody else knows, while other members are locked on
        another block, which one of them (who is cut off then) decided. Views whose leader does not fit come to nothing.
        """
        rng = self._rng
        old, new = (self._twinned, self._seconds) if rng.random() < 0.5 else (self._seconds, self._twinned)
        idle_before_last = rng.choice((0, 0, 1))
        views: list[View] = []
        stages = [self._hide, self._lock]
        deaf_from, decider, last = 0, -1, False
        while not last and len(views) < GUIDED_VIEWS_MAX:
            leader = (height + len(views)) % self._nodes
            is_twin = leader in self._twinned
            if stages and not is_twin:
                deaf_from = len(views)
                view, decider = stages.pop(0)(leader, old, new)
            elif not stages and is_twin and not idle_before_last:
                view, last = self._only(old, without=decider), True
            else:
                view = self._only(old if not stages else self.twins, without=decider)
                view[MessageKind.SET] = [0] * self._total
                idle_before_last = max(0, idle_before_last - (not stages))
            views.append(view)
        if rng.random() < 0.3:
            self._disturb(views)
        return views, dict.fromkeys(old, deaf_from)

    def _view(self) -> View:
        return {kind: [self._all] * self._total for kind in KINDS}

    def _some_honest(self, leader: int) -> list[int]:
        """So many without the leader that the rest are a quorum only together with all twins."""
        honest, twins = len(self._honest), len(self._twinned)
        quorum = self._nodes - (self._nodes - 1) // 3
        rest = self._rng.randint(max(1, quorum - twins), max(1, quorum - 1))
        others = [index for index in self._honest if index != leader]
        return self._rng.sample(others, min(len(others), max(0, honest - rest)))

    def _hide(self, leader: int, old: Sequence[int], new: Sequence[int]) -> tuple[View, int]:
        """The leader's block is prepared by a quorum, but only ``old`` gets to know of all its PREPAREs."""
        view = self._view()
        without = self._bits((*self._some_honest(leader), *new))
        view[MessageKind.SET] = [self._all & ~without] * self._total
        for twin in old:
            view[MessageKind.PREPARE][twin] = self._bits(old)
            view[MessageKind.COMMIT][twin] = 0
        for twin in new:
            view[MessageKind.PREPARE][twin] &= ~self._bits(old)
            view[MessageKind.COMMIT][twin] &= ~self._bits(old)
        return view, -1

    def _lock(self, leader: int, old: Sequence[int], new: Sequence[int]) -> tuple[View, int]:
        """A fresh block: some members lock on it, and one decides."""
        view = self._view()
        others = self._some_honest(leader)
        lockers = [index for index in self._honest if index not in others]
        decider = self._rng.choice(lockers)
        view[MessageKind.SET] = [self._all & ~self._bits((*others, *old))] * self._total
        view[MessageKind.PREPARE] = [self._all & ~self._bits(old)] * self._total
        for twin in old:
            view[MessageKind.BALLOT][twin] = view[MessageKind.PREPARE][twin] = view[MessageKind.COMMIT][twin] = 0
        for twin in new:
            view[MessageKind.PREPARE][twin] = self._bits((*lockers, *new))
            view[MessageKind.COMMIT][twin] = 1 << decider
        return view, decider

    def _only(self, twins: Sequence[int], *, without: int) -> View:
        """Everybody hears everybody but ``without`` and the twins other than ``twins``."""
        view = self._view()
        for mute in range(self._total):
            if mute == without or (mute in self.twins and mute not in twins):
                for kind in KINDS:
                    view[kind][mute] = 0
        return view

    def _disturb(self, views: list[View]) -> None:
        for _ in range(self._rng.randint(1, 4)):
            masks = self._rng.choice(views)[self._rng.choice(KINDS)]
            masks[self._rng.randrange(self._total)] ^= 1 << self._rng.randrange(self._total)

    @staticmethod
    def _bits(instances: Iterable[int]) -> int:
        return sum(1 << i for i in set(instances))

"""A whole simulated run from one number: how many members, who misbehaves how, what fails when, who joins.

``run(seed)`` is what the tests and long searches share, so that a failing seed found anywhere fails everywhere.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from aicpnode.replication.intent import Wish
from aicpnode.simulation.cluster import Behaviour, Cluster, Observer, Violation
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.faults import FAULTS, SNAPSHOTS_SHARE, Fault, Faults, chosen_faults, draw_faults
from consensus.messages import Change, ChangeKind
from consensus.types import CLAMP_FROM_POWER

FOUNDERS = (1, 2, 3, 4, 4, 4, 5, 7)
LIES = (*(lie for lie in Behaviour if lie is not Behaviour.HONEST), *[Behaviour.LIAR] * 6)
"""Every second one has habits, of which there are thousands of combinations; the others lie in one way each."""
WISHES = (Wish.OFF, Wish.ON, Wish.FOLLOW)
HEIGHTS = 10
ROUNDS = 4
SETTLED_HEIGHTS = 6
"""To be decided after it has become quiet."""
LIMIT_MS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Drawn from ``seed`` by ``draw``."""

    seed: int
    founders: tuple[Behaviour, ...]
    joiners: tuple[Behaviour, ...]
    faults: Faults
    wishes: tuple[tuple[int, int, Wish], ...]
    """(when in ms, which founder, its owner's new wish)."""
    leaves: tuple[tuple[int, int, int | None], ...] = ()
    """(when in ms, which founder leaves, when it comes back or None: never)."""
    changes: tuple[tuple[int, Change], ...] = ()
    """(when in ms, what all honest owners endorse from then on)."""

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        nodes: int | None = None,
        byzantine: int | None = None,
        faults: str | Collection[str] = "all",
    ) -> Scenario:
        """``nodes`` founders of which ``byzantine`` misbehave (None: drawn, never more than F), and of ``faults``
        ("all" or names of ``FAULTS``) whatever chance brings. ValueError for other names or numbers."""
        chosen = chosen_faults(faults)
        rng = random.Random(seed)
        count = rng.choice(FOUNDERS) if nodes is None else nodes
        if count < 1 or (byzantine is not None and not 0 <= byzantine < count):
            raise ValueError("at least one member, and at least one honest one")
        faulty = (count - 1) // 3
        lying = faulty if rng.random() < 0.7 else 0
        liars = [rng.choice(LIES) for _ in range(lying if byzantine is None else byzantine)]
        founders = [Behaviour.HONEST] * (count - len(liars)) + liars
        rng.shuffle(founders)
        joiners = [Behaviour.HONEST] * rng.choice((0, 0, 0, 1, 2, 3))
        if joiners and faulty and not liars and byzantine is None and rng.random() < 0.5:
            joiners[0] = rng.choice(LIES)
        if Fault.JOINS not in chosen:
            joiners = []
        lying = sum(behaviour is not Behaviour.HONEST for behaviour in (*founders, *joiners))
        drawn = draw_faults(rng, chosen, disk_losses_max=max(0, faulty - lying))
        if Fault.SNAPSHOTS in chosen:
            drawn = replace(drawn, snapshots=random.Random(f"snapshots/{seed}").random() < SNAPSHOTS_SHARE)
        quiet = drawn.quiet_after_ms
        wishes = [
            (rng.randint(0, quiet), rng.randrange(count), rng.choice(WISHES)) for _ in range(rng.choice((0, 0, 2, 5)))
        ]
        leavers = rng.choice((0, 0, 1, 2)) if Fault.LEAVES in chosen else 0
        left = _draw_leavers(rng, founders, leavers, faulty=lying + drawn.disk_losses)
        return cls(
            seed=seed,
            founders=tuple(founders),
            joiners=tuple(joiners),
            faults=drawn,
            wishes=tuple(wishes) if Fault.WISHES in chosen else (),
            leaves=tuple((rng.randint(0, quiet), index, rng.choice((None, rng.randint(0, quiet)))) for index in left),
            changes=_draw_changes(rng, founders, quiet) if Fault.CHANGES in chosen else (),
        )

    @property
    def promotions(self) -> int:
        """How many honest joiners must be promoted before the run is over: from four members on one in 100 rounds."""
        honest = sum(behaviour is Behaviour.HONEST for behaviour in self.joiners)
        below_four = max(0, CLAMP_FROM_POWER - len(self.founders))
        return min(honest, max(1, below_four)) if honest == len(self.joiners) else 0

    def cluster(self, observer: Observer | None = None) -> Cluster:
        cluster = Cluster(
            seed=self.seed, behaviours=self.founders, faults=self.faults, joiners=self.joiners, observer=observer
        )
        members = list(cluster.members.values())
        cluster.start()
        for at_ms, index, wish in self.wishes:
            cluster.schedule(at_ms, functools.partial(members[index].wish, wish))
        for member in members[: len(self.founders)]:
            cluster.schedule(self.faults.quiet_after_ms, functools.partial(member.wish, Wish.ON))
        for at_ms, index, back_ms in self.leaves:
            cluster.schedule(at_ms, functools.partial(members[index].wish, Wish.LEAVE))
            back = Wish.LEAVE if back_ms is None else Wish.ON
            cluster.schedule(self.faults.quiet_after_ms, functools.partial(members[index].wish, back))
            if back_ms is not None:
                cluster.schedule(at_ms + back_ms, functools.partial(members[index].wish, Wish.ON))
        for at_ms, change in (*self.changes, (self.faults.quiet_after_ms, Change(kind=ChangeKind.RESUME))):
            for member in cluster.honest:
                cluster.schedule(at_ms, functools.partial(member.endorse, change))
        return cluster


def _draw_leavers(rng: random.Random, founders: list[Behaviour], count: int, *, faulty: int) -> list[int]:
    """Honest founders, so few that the rest bears ``faulty`` members still."""
    honest = [index for index, behaviour in enumerate(founders) if behaviour is Behaviour.HONEST]
    chosen = rng.sample(honest, min(count, len(honest) - 1))
    while chosen and (len(founders) - len(chosen) - 1) // 3 < faulty:
        chosen.pop()
    return chosen


def _draw_changes(rng: random.Random, founders: list[Behaviour], quiet_ms: int) -> tuple[tuple[int, Change], ...]:
    """A few, of which one may remove a liar."""
    changes = [
        Change(kind=ChangeKind.STOP),
        Change(kind=ChangeKind.ROUND_MS, number=rng.randint(200, 800)),
        Change(kind=ChangeKind.PROBATION_ROUNDS, number=rng.randint(1, 3)),
        Change(kind=ChangeKind.MEMBERS_MAX, number=rng.randint(40, 90)),
    ]
    changes += [
        Change(kind=ChangeKind.REMOVE, key=simulated_key(index), text="misbehaves")
        for index, behaviour in enumerate(founders)
        if behaviour is not Behaviour.HONEST
    ]
    chosen = rng.sample(changes, rng.choice((0, 0, 1, 2)))
    return tuple((rng.randint(0, quiet_ms), change) for change in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. ``decided`` is False if it did not get far enough in time."""

    seed: int
    decided: bool
    cluster: Cluster

    @property
    def reached(self) -> int:
        """Heights that every honest member decided."""
        return min(self.cluster.heights())

    @property
    def trace(self) -> str:
        return self.cluster.trace

    @property
    def events_seen(self) -> tuple[str, ...]:
        return ()

    def __str__(self) -> str:
        cluster = self.cluster
        where = [
            (m.name, m.behaviour.value, *((m.replica.height, m.replica.view, m.replica.step.name) if m.replica else ()))
            for m in cluster.members.values()
        ]
        return (
            f"seed {self.seed}: decided={self.decided} at {cluster.now_ms} ms, heights {cluster.heights()}, "
            f"rounds {cluster.rounds()}, promoted {cluster.promoted()}, {where}"
        )


def run(seed: int) -> Outcome:
    """Raises Violation if an invariant breaks."""
    return play(Scenario.draw(seed))


def play(scenario: Scenario, observer: Observer | None = None) -> Outcome:
    """As ``run``, for a scenario that was drawn once and shall stay what it was."""
    cluster = scenario.cluster(observer)
    promotions = scenario.promotions

    def is_enough() -> bool:
        settled = cluster.settled_height
        return (
            settled is not None
            and min(cluster.heights()) >= max(HEIGHTS, settled + SETTLED_HEIGHTS)
            and min(cluster.rounds()) >= ROUNDS
            and cluster.promoted() >= promotions
        )

    return Outcome(seed=scenario.seed, decided=cluster.run(until=is_enough, limit_ms=LIMIT_MS), cluster=cluster)


def examine(seed: int) -> str:
    """What went wrong with ``seed``, in one line; empty if nothing did."""
    try:
        outcome = run(seed)
    except Violation as violation:
        return f"seed {seed}: {violation}"
    return "" if outcome.decided else str(outcome)


def search(first: int, last: int, *, seconds: float, jobs: int = 1) -> tuple[int, list[str]]:
    """Run seeds from ``first`` up to ``last`` for at most so long, in so many processes; (how many ran, what went
    wrong)."""
    ends, ran = time.monotonic() + seconds, 0
    wrong: list[str] = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for fault in pool.imap_unordered(examine, range(first, last)):
            ran += 1
            if fault:
                wrong.append(fault)
            if time.monotonic() > ends:
                break
    return ran, wrong


__all__ = ["FAULTS", "Fault", "Faults", "Outcome", "Scenario", "examine", "play", "run", "search"]

if __name__ == "__main__":
    ran, faults = search(int(sys.argv[1]), int(sys.argv[2]), seconds=float(sys.argv[3]), jobs=os.cpu_count() or 1)
    sys.stdout.write("\n".join([*faults, f"{ran} seeds, {len(faults)} wrong", ""]))

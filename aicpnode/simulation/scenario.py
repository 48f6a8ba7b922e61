"""A whole simulated run from one number: how many members, who misbehaves how, what fails when, who joins.

``run(seed)`` is what the tests and long searches share, so that a failing seed found anywhere fails everywhere.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from aicpnode.replication.intent import Wish
from aicpnode.simulation.cluster import Behaviour, Cluster, Faults, Observer, Violation
from consensus.types import CLAMP_FROM_POWER

FOUNDERS = (1, 2, 3, 4, 4, 4, 5, 7)
LIES = tuple(behaviour for behaviour in Behaviour if behaviour is not Behaviour.HONEST)
WISHES = (Wish.OFF, Wish.ON, Wish.FOLLOW)
HEIGHTS = 10
ROUNDS = 4
QUIET_AFTER_MS = 20_000
LIMIT_MS = 400_000


class Fault(Enum):
    """What can be drawn besides misbehaviour; ``FAULTS`` are all of their names."""

    LOSS = "loss"
    DUPLICATION = "duplication"
    LATENESS = "lateness"
    CRASHES = "crashes"
    POWER_CUTS = "power-cuts"
    PARTITIONS = "partitions"
    ISOLATION = "isolation"
    JOINS = "joins"
    WISHES = "wishes"


FAULTS = frozenset(fault.value for fault in Fault)
FIELDS = {
    "loss": Fault.LOSS,
    "duplication": Fault.DUPLICATION,
    "late_share": Fault.LATENESS,
    "crashes": Fault.CRASHES,
    "power_cuts": Fault.POWER_CUTS,
    "partitions": Fault.PARTITIONS,
    "isolated_deciders": Fault.ISOLATION,
}
"""Which fault a field of ``Faults`` belongs to."""


def _chosen(faults: str | Collection[str]) -> frozenset[Fault]:
    """ValueError for a name that is none."""
    return frozenset(Fault(name) for name in (FAULTS if faults == "all" else faults))


def _only(faults: Faults, chosen: Collection[Fault]) -> Faults:
    """Without those that were not chosen."""
    absent: dict[str, Any] = {name: 0 for name, fault in FIELDS.items() if fault not in chosen}
    return replace(faults, **absent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Drawn from ``seed`` by ``draw``."""

    seed: int
    founders: tuple[Behaviour, ...]
    joiners: tuple[Behaviour, ...]
    faults: Faults
    wishes: tuple[tuple[int, int, Wish], ...]
    """(when in ms, which founder, its owner's new wish)."""

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
        chosen = _chosen(faults)
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
        drawn = Faults(
            delay_ms=rng.choice(((1, 10), (1, 40), (20, 200))),
            loss=rng.choice((0.0, 0.0, 0.05, 0.2)),
            duplication=0.05,
            crashes=rng.choice((0, 0, 3, 8)),
            power_cuts=rng.choice((0, 0, 5, 20)),
            partitions=rng.choice((0, 0, 2, 5)),
            isolated_deciders=rng.choice((0.0, 0.0, 0.3)),
            quiet_after_ms=QUIET_AFTER_MS,
        )
        changes = rng.choice((0, 0, 2, 5))
        wishes = tuple(
            (rng.randint(0, QUIET_AFTER_MS), rng.randrange(count), rng.choice(WISHES)) for _ in range(changes)
        )
        return cls(
            seed=seed,
            founders=tuple(founders),
            joiners=tuple(joiners) if Fault.JOINS in chosen else (),
            faults=_only(drawn, chosen),
            wishes=wishes if Fault.WISHES in chosen else (),
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
        founders = list(cluster.members.values())[: len(self.founders)]
        cluster.start()
        for at_ms, index, wish in self.wishes:
            cluster.schedule(at_ms, functools.partial(founders[index].wish, wish))
        for founder in founders:
            cluster.schedule(QUIET_AFTER_MS, functools.partial(founder.wish, Wish.ON))
        return cluster


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
        return (
            min(cluster.heights()) >= HEIGHTS and min(cluster.rounds()) >= ROUNDS and cluster.promoted() >= promotions
        )

    return Outcome(seed=scenario.seed, decided=cluster.run(until=is_enough, limit_ms=LIMIT_MS), cluster=cluster)


def search(first: int, last: int, *, seconds: float) -> tuple[int, list[str]]:
    """Run seeds from ``first`` up to ``last`` for at most so long; (how many ran, what went wrong)."""
    ends = time.monotonic() + seconds
    wrong: list[str] = []
    for count, seed in enumerate(range(first, last)):
        if time.monotonic() > ends:
            return count, wrong
        try:
            outcome = run(seed)
        except Violation as violation:
            wrong.append(f"seed {seed}: {violation}")
        else:
            if not outcome.decided:
                wrong.append(str(outcome))
    return last - first, wrong


if __name__ == "__main__":
    ran, faults = search(int(sys.argv[1]), int(sys.argv[2]), seconds=float(sys.argv[3]))
    sys.stdout.write("\n".join([*faults, f"{ran} seeds, {len(faults)} wrong", ""]))

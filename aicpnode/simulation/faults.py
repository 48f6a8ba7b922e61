"""What goes wrong in a simulated run besides misbehaviour: the network, the machines, their clocks and disks."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

LATE_SHARE = 0.02
QUIET_AFTER_MS = 20_000
CLOCK_RATES = (0.7, 1.4)
SLOW_EVENT_MS = (1, 3)
SNAPSHOTS_SHARE = 0.3
"""Of the runs."""


class Fault(Enum):
    """What can be drawn besides misbehaviour; ``FAULTS`` are all of their names."""

    WIDE_AREA = "wide-area"
    LOSS = "loss"
    DUPLICATION = "duplication"
    LATENESS = "lateness"
    CRASHES = "crashes"
    POWER_CUTS = "power-cuts"
    DISK_LOSS = "disk-loss"
    PARTITIONS = "partitions"
    ONE_WAY = "one-way"
    ISOLATION = "isolation"
    SKEW = "skew"
    SLOW_MEMBERS = "slow-members"
    SLOW_TRAINERS = "slow-trainers"
    JOINS = "joins"
    LEAVES = "leaves"
    WISHES = "wishes"
    CHANGES = "changes"
    SNAPSHOTS = "snapshots"


FAULTS = frozenset(fault.value for fault in Fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the network and the machines do until ``quiet_after_ms``. Times in milliseconds of virtual time."""

    delay_ms: tuple[int, int] = (1, 40)
    wide_area: bool = False
    """Members live in eight regions of the world (``latency``) instead, also when it is quiet."""
    loss: float = 0.0
    duplication: float = 0.0
    late_share: float = LATE_SHARE
    crashes: int = 0
    """At random moments."""
    power_cuts: int = 0
    """At random steps of a member: before its write, or before one of its effects."""
    disk_losses: int = 0
    """Honest members that crash once and come back with an empty disk. Each counts as faulty: it votes no more until
    it knows what it can have signed."""
    partitions: int = 0
    one_way: int = 0
    """Partitions in which one side still hears the other."""
    isolations: int = 0
    """Members that hear nobody for so long that they fall many heights behind."""
    isolated_deciders: float = 0.0
    """Share of heights whose first member to decide is cut off before it can say so."""
    skewed_clocks: bool = False
    """Timers of members run at 0.7 to 1.4 times their length, also when it is quiet."""
    slow_members: int = 0
    """Members that need milliseconds for every event, one event after the other, also when it is quiet."""
    slow_trainers: int = 0
    """Members whose proposals often come too late to be judged, and whose own judgement comes late."""
    snapshots: bool = False
    """Old blocks are not to be had: members that are far behind take over snapshots, which liars make up."""
    quiet_after_ms: int = QUIET_AFTER_MS
    """From then on: no loss, no partition, everybody up."""


FIELDS = {
    "wide_area": Fault.WIDE_AREA,
    "loss": Fault.LOSS,
    "duplication": Fault.DUPLICATION,
    "late_share": Fault.LATENESS,
    "crashes": Fault.CRASHES,
    "power_cuts": Fault.POWER_CUTS,
    "disk_losses": Fault.DISK_LOSS,
    "partitions": Fault.PARTITIONS,
    "one_way": Fault.ONE_WAY,
    "isolations": Fault.ISOLATION,
    "isolated_deciders": Fault.ISOLATION,
    "skewed_clocks": Fault.SKEW,
    "slow_members": Fault.SLOW_MEMBERS,
    "slow_trainers": Fault.SLOW_TRAINERS,
    "snapshots": Fault.SNAPSHOTS,
}
"""Which fault a field of ``Faults`` belongs to."""


def chosen_faults(names: str | Collection[str]) -> frozenset[Fault]:
    """Of "all" or of names. ValueError for a name that is none."""
    return frozenset(Fault(name) for name in (FAULTS if names == "all" else names))


def draw_faults(rng: random.Random, chosen: Collection[Fault], *, disk_losses_max: int) -> Faults:
    """Whatever chance brings of the chosen ones. The same numbers are drawn whatever is chosen."""
    drawn = Faults(
        delay_ms=rng.choice(((1, 10), (1, 40), (20, 200))),
        wide_area=rng.random() < 0.15,
        loss=rng.choice((0.0, 0.0, 0.05, 0.2)),
        duplication=0.05,
        crashes=rng.choice((0, 0, 3, 8)),
        power_cuts=rng.choice((0, 0, 5, 20)),
        disk_losses=min(disk_losses_max, rng.choice((0, 1, 1, 2))),
        partitions=rng.choice((0, 0, 2, 5)),
        one_way=rng.choice((0, 0, 0, 3)),
        isolations=rng.choice((0, 0, 0, 1)),
        isolated_deciders=rng.choice((0.0, 0.0, 0.3)),
        skewed_clocks=rng.random() < 0.3,
        slow_members=rng.choice((0, 0, 0, 1, 2)),
        slow_trainers=rng.choice((0, 0, 0, 1, 2)),
        quiet_after_ms=rng.choice((4_000, 8_000, 14_000)),
    )
    absent: dict[str, Any] = {name: 0 for name, fault in FIELDS.items() if fault not in chosen}
    return replace(drawn, **absent)


__all__ = ["FAULTS", "Fault", "Faults", "chosen_faults", "draw_faults"]

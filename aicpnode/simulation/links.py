"""Who hears whom in a simulated network, and how long that takes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from aicpnode.simulation import latency
from aicpnode.simulation.faults import Faults

LATE_MS = (200, 3_000)
"""Some messages of a noisy network come late, so that they overtake each other by whole views."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """Between ``island`` and everybody else. One partition each, so that equal ones heal one by one."""

    island: frozenset[bytes]
    speaks: bool = False
    """Whether others hear the island all the same."""
    hears: bool = False
    """Whether the island hears the others all the same."""

    def stops(self, sender: bytes, receiver: bytes) -> bool:
        if sender in self.island:
            return not self.speaks and receiver not in self.island
        return not self.hears and receiver in self.island


class Links:
    """The ways between members. ``random`` is the run's one source of chance."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self._faults = faults
        self._random = rng
        self._cuts: list[Cut] = []

    def part(self, cut: Cut) -> None:
        self._cuts.append(cut)

    def heal(self, cut: Cut) -> None:
        self._cuts.remove(cut)

    def is_cut(self, sender: bytes, receiver: bytes) -> bool:
        return any(cut.stops(sender, receiver) for cut in self._cuts) if self._cuts else False

    @property
    def usual_ms(self) -> int:
        """No message of a quiet network takes longer."""
        return max(map(max, latency.ROUND_TRIPS_MS)) if self._faults.wide_area else self._faults.delay_ms[1]

    @property
    def longest_ms(self) -> int:
        """No message takes longer."""
        return self.usual_ms + LATE_MS[1]

    def delays_ms(self, sender: int, receiver: int, *, is_noisy: bool) -> list[tuple[int, bool]]:
        """For each copy that arrives of a message between the members with these indices: (delay, whether it is late).

        Empty if it is lost.
        """
        faults, draw = self._faults, self._random.random
        if is_noisy and draw() < faults.loss:
            return []
        copies = 2 if is_noisy and draw() < faults.duplication else 1
        found = []
        for _ in range(copies):
            delay = self.delay_ms(sender, receiver)
            is_late = is_noisy and draw() < faults.late_share
            found.append((delay + self._random.randint(*LATE_MS) if is_late else delay, is_late))
        return found

    def delay_ms(self, sender: int, receiver: int) -> int:
        if self._faults.wide_area:
            return 1 + int(latency.delay_ms(sender, receiver, self._random))
        shortest, longest = self._faults.delay_ms
        return shortest + int(self._random.random() * (longest - shortest + 1))


__all__ = ["Cut", "Links"]

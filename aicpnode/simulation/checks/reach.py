"""Invariant 8: no member decides what a component without a quorum made up.

A block of height h names the state after h-1, in ballots that honest members only send once they have decided h-1. So
all that its decision rests on was sent after the first decision of h-1, over links that were open at some moment since.
If those links lead from members with less than a quorum to the one that decides first, it decided without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicpnode.simulation.checks.agreement import power_of, quorum_of
from aicpnode.simulation.member import Violation
from consensus.events import Decide

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster
    from aicpnode.simulation.member import SimulatedMember


class Reach:
    """When each link was open last."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._closed: frozenset[tuple[bytes, bytes]] = frozenset()
        """(from, to)."""
        self._closed_at_ms: dict[tuple[bytes, bytes], int] = {}
        self._first_ms = {0: 0}
        """Height -> when it was decided first."""

    def links_changed(self, closed: frozenset[tuple[bytes, bytes]]) -> None:
        """From now on nothing passes over the links ``closed``."""
        for link in closed - self._closed:
            self._closed_at_ms[link] = self._cluster.now_ms
        self._closed = closed

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """The first decision of its height."""
        height, roster = decision.ledger.height, decision.before.roster
        self._first_ms[height] = self._cluster.now_ms
        if not self._closed:
            return
        since = self._first_ms[height - 1]
        reached, fresh = {member.key}, [member.key]
        while fresh:
            to = fresh.pop()
            for key in self._cluster.keys:
                if key not in reached and self._was_open((key, to), since):
                    reached.add(key)
                    fresh.append(key)
        power = power_of(reached, roster)
        if power < quorum_of(roster):
            raise Violation(f"invariant 8: {member.name} decides height {height} in reach of power {power} only")

    def _was_open(self, link: tuple[bytes, bytes], since_ms: int) -> bool:
        return link not in self._closed or self._closed_at_ms[link] >= since_ms


__all__ = ["Reach"]

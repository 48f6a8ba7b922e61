"""Invariant 11: what a replica keeps is bounded by the number of members, whatever it is sent."""

from __future__ import annotations

from aicpnode.simulation.member import Violation
from consensus.certificates import CERTIFICATES_KEPT
from consensus.pool import OPERATIONS_KEPT
from consensus.replica import BLOCKS_KEPT, Replica
from consensus.votebook import PAST_VIEWS_KEPT
from consensus.watch import STATEMENTS_PER_MEMBER_MAX

CHECKED_EVERY = 16
"""Steps of all members together."""
VOTE_KINDS = 4
VIEWS_KEPT = PAST_VIEWS_KEPT + 2
"""Per sender: the last ones, the current one and one of the future."""


def size_limits(members: int) -> dict[str, int]:
    """What ``Replica.statistics`` may say at most with so many on the roster."""
    return {
        "blocks": BLOCKS_KEPT,
        "certificates": 2 * CERTIFICATES_KEPT,
        "statements": 2 * members * STATEMENTS_PER_MEMBER_MAX,
        "votes": members * VIEWS_KEPT * VOTE_KINDS,
        "previous_votes": members * VIEWS_KEPT * VOTE_KINDS,
        "early_votes": members * VOTE_KINDS,
        "operations": OPERATIONS_KEPT,
    }


class Bounds:
    """Looks, every so many steps, whether a replica holds more than O(n) of anything (invariant 11)."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self, replica: Replica) -> None:
        self._steps += 1
        if self._steps % CHECKED_EVERY == 0:
            self._sizes(replica)

    @staticmethod
    def _sizes(replica: Replica) -> None:
        sizes = replica.statistics()
        limits = size_limits(len(replica.roster.members))
        for name, limit in limits.items():
            if sizes[name] > limit:
                raise Violation(f"invariant 11: {sizes[name]} {name}, at most {limit}")


__all__ = ["Bounds", "size_limits"]

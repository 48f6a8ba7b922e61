"""When has this node lost the quorum? Pure: time, and who was heard, go in (consensus specification, section 8).

While a ballot of its own is outstanding, a member that hears nothing of members with power Q for a while is on the
smaller side of a partition, or the others are down. Nothing can be decided there; that nothing is lost either is the
protocol's doing. PAUSED only says so, and stops computing what nobody could agree on.
"""

from __future__ import annotations

from collections.abc import Mapping

from consensus.types import Roster

TIMEOUTS = 3
PAUSE_S_MIN = 5.0


class QuorumWatch:
    """``observe`` it from time to time; ``is_paused`` says where it stands."""

    def __init__(self, key: bytes, *, least_s: float = PAUSE_S_MIN) -> None:
        self._key = key
        self._least_s = least_s
        self._since_s: float | None = None
        self.is_paused = False

    def observe(
        self,
        now_s: float,
        roster: Roster,
        heard_s: Mapping[bytes, float],
        *,
        outstanding: bool,
        timeout_ms: int,
    ) -> bool:
        """Whether ``is_paused`` changed. ``heard_s``: when each member was last heard; ``outstanding``: whether an
        own ballot of the running height waits for its decision; ``timeout_ms``: of the present view."""
        if not outstanding:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        limit_s = max(TIMEOUTS * timeout_ms / 1000, self._least_s)
        power = sum(
            roster.power(member.key)
            for member in roster.active
            if member.key == self._key or now_s - heard_s.get(member.key, float("-inf")) <= limit_s
        )
        waited = self._since_s is not None and now_s - self._since_s > limit_s
        before, self.is_paused = self.is_paused, waited and power < roster.quorum
        return self.is_paused != before

    def missing(self, now_s: float, roster: Roster, heard_s: Mapping[bytes, float], *, timeout_ms: int) -> list[bytes]:
        """Keys of the members that are not heard."""
        limit_s = max(TIMEOUTS * timeout_ms / 1000, self._least_s)
        others = (member.key for member in roster.active if member.key != self._key)
        return [key for key in others if now_s - heard_s.get(key, float("-inf")) > limit_s]

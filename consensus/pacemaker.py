"""Time, as far as the core knows it: how long each wait is, and how often a message is sent again (section 4).

One formula for all timeouts: ``min(delta * 1.5^v, 60 s)``. ``delta`` comes from the genesis; a slow machine raises it
for itself to twice the median of its recent decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

RESEND_MAX_MS = 5_000
VIEW_GROWTH_CAP = 40
"""Beyond this exponent every timeout is at its maximum for any delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """From the genesis: the run's unit of waiting and the patience for operations."""

    delta_ms: int = 150
    operation_delay_ms: int = 200
    timeout_max_ms: int = 60_000


class Pacemaker:
    """Durations in milliseconds. Pure arithmetic: the driver owns the clock."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.delta_ms = timing.delta_ms
        self._resend_ms = timing.delta_ms

    def measured(self, delta_ms: int) -> None:
        self.delta_ms = min(max(self.timing.delta_ms, delta_ms), self.timing.timeout_max_ms)

    def timeout_ms(self, view: int) -> int:
        exponent = min(view, VIEW_GROWTH_CAP)
        return min(self.delta_ms * int(3**exponent) // int(2**exponent), self.timing.timeout_max_ms)

    def leader_soft_ms(self) -> int:
        return max(1, self.delta_ms // 4)

    def leader_hard_ms(self, view: int) -> int:
        return max(1, self.timeout_ms(view) // 2)

    def progressed(self) -> None:
        """A new view or height: start resending at short intervals again."""
        self._resend_ms = self.delta_ms

    def next_resend_ms(self) -> int:
        """delta, then twice as long each time, up to 5 s."""
        interval = max(1, min(self._resend_ms, RESEND_MAX_MS))
        self._resend_ms = min(interval * 2, RESEND_MAX_MS)
        return interval

"""Time, as far as the core knows it: how long each wait is, and how often a message is sent again (section 4).

One formula for all timeouts: ``min(delta * 1.5^v, 60 s)``. ``delta`` comes from the genesis; a slow machine raises it
for itself to twice the median of what its recent decisions cost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_low

from consensus.messages import CommitCert, Prepare, Vote
from consensus.types import NIL

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


class DecisionPace:
    """What a decision costs this member in hops and work, and nothing else: from its own PREPARE to the decision in
    the same view.

    Two of the four steps of a decision lie between them, and none of its waits: were timeouts, the leader's patience or
    the time until a quorum is there measured as well, one height that was decided late (after a partition, or through
    many views) would make the next timeouts long, these the next height late, and so on without end.
    """

    STEPS_RATIO = 4
    """Twice the median of four steps, of which two are measured."""
    LEAST = 2
    """Decisions that are measured before the first word, so that one of them that took long says nothing."""
    KEPT = 16

    def __init__(self) -> None:
        self._prepared: tuple[int, int, float] | None = None
        """(height, view, when in ms) of the last own PREPARE of a block."""
        self._took_ms: deque[float] = deque(maxlen=self.KEPT)

    def cast(self, message: Vote, now_ms: float) -> None:
        """This member signed ``message`` now."""
        if isinstance(message, Prepare) and message.block_id != NIL:
            self._prepared = (message.height, message.view, now_ms)

    def decided(self, certificate: CommitCert, now_ms: float) -> int | None:
        """The delta that the decisions so far ask for, in ms; None if this one taught nothing."""
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared[:2] != (certificate.height, certificate.view):
            return None
        self._took_ms.append(now_ms - prepared[2])
        if len(self._took_ms) < self.LEAST:
            return None
        return int(self.STEPS_RATIO * median_low(self._took_ms))

"""Virtual time, and members that have one processor core each: a piece of work waits until those before it are done.

A job runs real code when its turn has come and says how many milliseconds it took; what it leads to happens only when
those have passed in virtual time. With costs that were measured, the latency of a simulated run so includes the time
that its members compute. Times are floats in milliseconds; equal ones keep the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

Job = Callable[[], tuple[float, Callable[[], None]]]
"""Does the work; returns (what it costs in ms, what happens once it is done)."""


class VirtualTime:
    """A queue of what happens next."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(self, when_ms: float, action: Callable[[], None]) -> None:
        """``action()`` at ``when_ms``, or now if that is over."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(when_ms, self.now_ms), self._scheduled, action))

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, action)

    def run(self, *, until: Callable[[], bool], limit_ms: float) -> bool:
        """Let time pass until ``until()`` holds (True), or nothing is left to happen before ``limit_ms`` (False)."""
        while not until():
            if not self._queue or self._queue[0][0] > limit_ms:
                return False
            self.now_ms, _number, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        return True


class Processor:
    """One core of one member: jobs one after the other, in order of arrival."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._waiting: deque[Job] = deque()
        self._busy = False
        self.busy_ms = 0.0
        """Spent on jobs so far."""

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        cost_ms, then = self._waiting.popleft()()
        assert cost_ms >= 0, "time does not run backwards"
        self.busy_ms += cost_ms
        self._time.after(cost_ms, lambda: self._done(then))

    def _done(self, then: Callable[[], None]) -> None:
        self._busy = False
        then()
        if self._waiting and not self._busy:
            self._begin()


__all__ = ["Job", "Processor", "VirtualTime"]

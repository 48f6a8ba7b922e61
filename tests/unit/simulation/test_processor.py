"""Virtual time and processors: order, waiting, and what a job leads to only once it is paid for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aicpnode.simulation.processor import Job, Processor, VirtualTime


def never() -> bool:
    return False


def job(cost_ms: float, note: Callable[[], None]) -> Job:
    return lambda: (cost_ms, note)


def test_events_happen_in_order_of_time_and_then_of_scheduling() -> None:
    time, seen = VirtualTime(), []
    for name, when in (("late", 5.0), ("first", 1.0), ("second", 1.0)):
        time.at(when, lambda name=name: seen.append((time.now_ms, name)))
    assert not time.run(until=never, limit_ms=10.0)
    assert seen == [(1.0, "first"), (1.0, "second"), (5.0, "late")]
    assert time.events == 3


def test_what_is_scheduled_in_the_past_happens_now() -> None:
    time, seen = VirtualTime(), []
    time.at(4.0, lambda: time.at(2.0, lambda: seen.append(time.now_ms)))
    time.run(until=never, limit_ms=10.0)
    assert seen == [4.0]


def test_time_stops_at_the_goal_and_at_the_limit() -> None:
    time, seen = VirtualTime(), []
    for when in (1.0, 2.0, 3.0):
        time.at(when, lambda: seen.append(time.now_ms))
    assert time.run(until=lambda: len(seen) == 1, limit_ms=10.0)
    assert not time.run(until=never, limit_ms=2.5)
    assert seen == [1.0, 2.0]


def test_jobs_of_one_member_wait_for_each_other_and_those_of_two_do_not() -> None:
    time, done = VirtualTime(), []
    one, other = Processor(time), Processor(time)
    for processor, name, cost in ((one, "a", 3.0), (one, "b", 2.0), (other, "c", 4.0)):
        processor.submit(job(cost, lambda name=name: done.append((name, time.now_ms))))
    assert one.waiting == 1
    time.run(until=never, limit_ms=100.0)
    assert done == [("a", 3.0), ("c", 4.0), ("b", 5.0)]
    assert (one.busy_ms, other.busy_ms) == (5.0, 4.0)


def test_a_job_runs_when_its_turn_comes_and_takes_effect_when_it_is_paid() -> None:
    time, seen = VirtualTime(), []

    def work() -> tuple[float, Callable[[], None]]:
        seen.append(("runs", time.now_ms))
        return 2.0, lambda: seen.append(("done", time.now_ms))

    processor = Processor(time)
    processor.submit(job(1.0, lambda: None))
    processor.submit(work)
    time.run(until=never, limit_ms=100.0)
    assert seen == [("runs", 1.0), ("done", 3.0)]


def test_a_job_that_follows_from_another_goes_behind_those_that_wait() -> None:
    time, done = VirtualTime(), []
    processor = Processor(time)
    processor.submit(job(1.0, lambda: processor.submit(job(1.0, lambda: done.append("follows")))))
    processor.submit(job(1.0, lambda: done.append("waited")))
    time.run(until=never, limit_ms=100.0)
    assert done == ["waited", "follows"]


def test_a_negative_cost_is_our_own_fault() -> None:
    with pytest.raises(AssertionError):
        Processor(VirtualTime()).submit(job(-1.0, lambda: None))

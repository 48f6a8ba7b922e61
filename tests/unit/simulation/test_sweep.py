"""Many seeds: counts, order, one hash, and failures with the command that repeats them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from aicpnode.errors import AicpError
from aicpnode.simulation.choice import Choice
from aicpnode.simulation.cluster import Behaviour, Cluster, Faults, Observer
from aicpnode.simulation.member import Violation
from aicpnode.simulation.report import FAILURES_SHOWN, Watch, summary_json
from aicpnode.simulation.scenario import Outcome
from aicpnode.simulation.sweep import FAILURES_KEPT, Run, Summary, Verdict, cores, run_one, sweep

CALM = Choice(nodes=(1,), byzantine=0, faults=())


class Faulty:
    """Seeds that end in different ways, by the last digit."""

    def play(self, seed: int, observer: Observer | None = None) -> Outcome:
        if seed % 10 == 1:
            raise Violation("invariant 1: two blocks")
        if seed % 10 == 2:
            raise KeyError("a defect")
        cluster = Cluster(seed=seed, behaviours=[Behaviour.HONEST], faults=Faults(), observer=observer)
        return Outcome(seed=seed, decided=seed % 10 != 3, cluster=cluster)

    def command(self, seed: int) -> str:
        return f"again --seeds {seed}"


class Dying(Faulty):
    """Ends its process."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        import os

        return os._exit, (7,)


def test_each_way_to_end_is_counted_and_named() -> None:
    summary = sweep(Faulty(), range(20), jobs=1)
    assert (summary.runs, summary.violations, summary.undecided, summary.heights) == (20, 4, 2, 0)
    assert summary.seeds(Verdict.VIOLATION) == [1, 2, 11, 12]
    assert summary.seeds(Verdict.UNDECIDED) == [3, 13]
    texts = {run.seed: run.text for run in summary.failures}
    assert texts[1] == "invariant 1: two blocks"
    assert texts[2].startswith("invariant 12: KeyError: 'a defect' (test_sweep.py:")
    assert "seed 3: decided=False" in texts[3]


def test_an_interrupt_is_no_violation() -> None:
    class Interrupted(Faulty):
        def play(self, seed: int, observer: Observer | None = None) -> Outcome:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(Interrupted(), 0)


def test_one_hash_over_all_runs_notices_each_of_them() -> None:
    def hash_of(*runs: Run) -> str:
        summary = Summary()
        for run in runs:
            summary.add(run)
        return summary.trace_hash

    first = Run(seed=1, verdict=Verdict.FINE, trace="aa")
    second = Run(seed=2, verdict=Verdict.FINE, trace="bb")
    assert hash_of(first, second) == hash_of(first, second)
    others = [
        hash_of(first),
        hash_of(second, first),
        hash_of(first, Run(seed=2, verdict=Verdict.FINE, trace="cc")),
        hash_of(first, Run(seed=2, verdict=Verdict.UNDECIDED, trace="bb")),
        hash_of(first, Run(seed=3, verdict=Verdict.FINE, trace="bb")),
    ]
    assert len({hash_of(first, second), *others}) == 6


def test_failures_are_kept_up_to_a_limit_and_all_counted() -> None:
    summary = Summary()
    for seed in range(FAILURES_KEPT + 5):
        summary.add(Run(seed=seed, verdict=Verdict.VIOLATION))
    assert summary.violations == FAILURES_KEPT + 5
    assert summary.seeds(Verdict.VIOLATION) == list(range(FAILURES_KEPT))


def test_processes_report_in_the_order_of_the_seeds_and_change_no_hash() -> None:
    heard: list[int] = []
    alone = sweep(CALM, range(5, 30), jobs=1)
    together = sweep(CALM, range(5, 30), jobs=2, report=lambda run: heard.append(run.seed))
    assert heard == list(range(5, 30))
    assert (together.trace_hash, together.heights) == (alone.trace_hash, alone.heights)
    assert alone.violations == alone.undecided == 0


def test_a_worker_that_dies_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(AicpError, match="a worker process ended early, with exit code 7"):
        sweep(Dying(), range(40), jobs=2)


def test_failures_are_told_with_the_command_that_repeats_them() -> None:
    stream = io.StringIO()
    with Watch(Faulty(), Console(file=stream, width=60), total=20) as watch:
        summary = sweep(Faulty(), range(20), jobs=1, report=watch.hear)
    told = stream.getvalue()
    assert "Seed 1: violation: invariant 1: two blocks\nRun it again: again --seeds 1\n" in told
    assert "Seed 13: undecided: " in told
    assert told.endswith("20 of 20 runs, 6 failed\n")
    result = summary_json(summary, Faulty(), {"nodes": "1"})
    assert result["violating_seeds"] == [1, 2, 11, 12]
    assert result["undecided_seeds"] == [3, 13]
    assert (result["replay"], result["nodes"]) == ("again --seeds 1", "1")


def test_only_the_first_failures_are_told() -> None:
    stream = io.StringIO()
    with Watch(Faulty(), Console(file=stream, width=60), total=500) as watch:
        for seed in range(500):
            watch.hear(Run(seed=seed, verdict=Verdict.VIOLATION, text="[odd] text"))
    assert stream.getvalue().count("Run it again") == FAILURES_SHOWN
    assert "[odd] text" in stream.getvalue()
    assert stream.getvalue().endswith("500 of 500 runs, 500 failed\n")


def test_cores_are_at_least_one() -> None:
    assert cores() >= 1

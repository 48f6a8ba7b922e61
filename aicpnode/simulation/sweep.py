"""Many seeds, on all cores: which of them broke an invariant or did not get far enough, and one hash over all of them.

Each worker process runs a few consecutive seeds at a time. Results count in the order of the seeds, whoever ran them,
so that ``trace_hash`` depends on the seeds and the code only: not on the number of processes, the hash seed of Python,
or chance.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

from aicpnode.errors import AicpError
from aicpnode.simulation.cluster import Observer
from aicpnode.simulation.member import Violation
from aicpnode.simulation.record import Lane

CHUNK_MAX = 16
"""Seeds that a worker runs between two reports."""
FAILURES_KEPT = 100
JOIN_S = 5.0


class Ended(Protocol):
    """What a sweep asks of a run that is over."""

    @property
    def decided(self) -> bool: ...

    @property
    def reached(self) -> int:
        """Heights that every honest member decided."""
        ...

    @property
    def trace(self) -> str: ...

    @property
    def events_seen(self) -> tuple[str, ...]:
        """Names of what happened, for searches that count it."""
        ...


class Runs(Protocol):
    """What is run with each seed. Travels to other processes by pickle."""

    def play(self, seed: int, observer: Observer | None = None) -> Ended: ...

    def command(self, seed: int) -> str:
        """What a person types to run one seed again."""
        ...


class Observable(Runs, Protocol):
    """Runs that can be looked at closely."""

    def lanes(self, seed: int) -> tuple[Lane, ...]:
        """Who takes part, in the order of their keys."""
        ...

    def title(self, seed: int) -> str:
        """One line about what is run, for a picture."""
        ...


class Verdict(Enum):
    FINE = "fine"
    VIOLATION = "violation"
    UNDECIDED = "undecided"
    """It did not get far enough in its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One seed and what came of it."""

    seed: int
    verdict: Verdict
    heights: int = 0
    """Decided by every honest member."""
    trace: str = ""
    """Hash of all that was sent, and when; of a violation, of its text."""
    text: str = ""
    """What went wrong."""
    seen: tuple[str, ...] = ()
    """Names of what happened in it."""


@dataclass(slots=True, kw_only=True)
class Summary:
    """All runs together."""

    runs: int = 0
    violations: int = 0
    undecided: int = 0
    heights: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    """In how many runs each thing happened."""
    failures: list[Run] = field(default_factory=list)
    """The first ``FAILURES_KEPT``."""
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256, repr=False)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def add(self, run: Run) -> None:
        """The next one, in the order of the seeds."""
        self._hash.update(f"{run.seed} {run.verdict.value} {run.trace}\n".encode())
        self.runs += 1
        self.heights += run.heights
        self.seen.update(run.seen)
        self.violations += run.verdict is Verdict.VIOLATION
        self.undecided += run.verdict is Verdict.UNDECIDED
        if run.verdict is not Verdict.FINE and len(self.failures) < FAILURES_KEPT:
            self.failures.append(run)

    def seeds(self, verdict: Verdict) -> list[int]:
        """Of the failures that are kept."""
        return [run.seed for run in self.failures if run.verdict is verdict]


def run_one(runs: Runs, seed: int, observer: Observer | None = None) -> Run:
    """Whatever a simulated run raises is a violation: no input makes a replica raise (invariant 12)."""
    try:
        outcome = runs.play(seed, observer)
    except Exception as error:
        text = str(error) if isinstance(error, Violation) else _defect(error)
        trace = hashlib.sha256(text.encode()).hexdigest()
        return Run(seed=seed, verdict=Verdict.VIOLATION, trace=trace, text=text)
    verdict = Verdict.FINE if outcome.decided else Verdict.UNDECIDED
    return Run(
        seed=seed,
        verdict=verdict,
        heights=outcome.reached,
        trace=outcome.trace,
        text="" if outcome.decided else str(outcome),
        seen=outcome.events_seen,
    )


def _defect(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"invariant 12: {type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})"


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(runs: Runs, seeds: range, *, jobs: int, report: Callable[[Run], None] = lambda _run: None) -> Summary:
    """Run all seeds in ``jobs`` processes; ``report`` hears of each, in order. Call it from the main thread.

    Raises ``AicpError`` if a worker dies. Workers end with this process, however that ends.
    """
    summary = Summary()
    began = time.monotonic()
    for run in _each(runs, seeds, jobs=min(jobs, len(seeds))):
        summary.add(run)
        report(run)
    summary.seconds = time.monotonic() - began
    return summary


def _each(runs: Runs, seeds: range, *, jobs: int) -> Iterator[Run]:
    if jobs <= 1:
        for seed in seeds:
            yield run_one(runs, seed)
        return
    chunk = max(1, min(CHUNK_MAX, len(seeds) // (4 * jobs)))
    chunks = [seeds[start : start + chunk] for start in range(0, len(seeds), chunk)]
    with _workers(runs, jobs) as workers:
        yield from _in_order(workers, chunks)


def _in_order(workers: dict[Connection, SpawnProcess], chunks: Sequence[range]) -> Iterator[Run]:
    """Each worker has one chunk at a time. What comes early waits for what is before it."""
    asked: dict[Connection, int] = {}
    early: dict[int, list[Run]] = {}
    following = 0
    for awaited in range(len(chunks)):
        while awaited not in early:
            for connection in workers:
                if connection not in asked and following < len(chunks):
                    _ask(connection, workers[connection], chunks[following])
                    asked[connection] = following
                    following += 1
            for ready in wait(list(asked)):
                assert isinstance(ready, Connection)
                early[asked.pop(ready)] = _received(ready, workers[ready])
        yield from early.pop(awaited)


def _ask(connection: Connection, process: SpawnProcess, seeds: range) -> None:
    try:
        connection.send(seeds)
    except OSError:
        raise _ended_early(process) from None


def _received(connection: Connection, process: SpawnProcess) -> list[Run]:
    try:
        done: list[Run] = connection.recv()
    except (EOFError, OSError):
        raise _ended_early(process) from None
    return done


def _ended_early(process: SpawnProcess) -> AicpError:
    process.join(JOIN_S)
    return AicpError(f"a worker process ended early, with exit code {process.exitcode}")


@contextmanager
def _workers(runs: Runs, jobs: int) -> Iterator[dict[Connection, SpawnProcess]]:
    """Fresh processes (a fork would copy whatever state and threads this one has), ended whatever happens."""
    context = get_context("spawn")
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(runs, theirs), daemon=True)
            with _deaf_to_interrupts():
                process.start()
            theirs.close()
            workers[ours] = process
        yield workers
    finally:
        for connection, process in workers.items():
            connection.close()
            process.terminate()
        for process in workers.values():
            process.join(JOIN_S)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile ignore Ctrl-C, from their first instruction on: their parent ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(runs: Runs, connection: Connection) -> None:
    """In a worker: run what is asked until nobody asks any more."""
    while True:
        try:
            seeds: range = connection.recv()
            connection.send([run_one(runs, seed) for seed in seeds])
        except (EOFError, ConnectionError):
            return


__all__ = ["FAILURES_KEPT", "Ended", "Observable", "Run", "Runs", "Summary", "Verdict", "cores", "run_one", "sweep"]

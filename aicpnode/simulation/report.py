"""How simulated runs are told to people and to programs: progress and failures as they come, then a table or JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from aicpnode.simulation.sweep import Run, Runs, Summary, Verdict

FAILURES_SHOWN = 10
PARTS_TOLD = 10
"""Lines of progress where no bar can be drawn."""


class Watch:
    """Progress on the console while runs go on, and each failure with the command that runs it again."""

    def __init__(self, runs: Runs, console: Console, *, total: int) -> None:
        self._runs = runs
        self._console = console
        self._total = total
        self._done = 0
        self._failed = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("runs", total=total)

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.stop()

    def hear(self, run: Run) -> None:
        """One more is done."""
        self._done += 1
        if run.verdict is not Verdict.FINE:
            self._failed += 1
            self._tell(run)
        self._bar.advance(self._task)
        part = self._done * PARTS_TOLD // self._total
        if (
            not self._console.is_terminal
            and self._total >= PARTS_TOLD
            and self._done == -(-part * self._total // PARTS_TOLD)
        ):
            self._console.print(f"{self._done} of {self._total} runs, {self._failed} failed")

    def _tell(self, run: Run) -> None:
        if self._failed <= FAILURES_SHOWN:
            self._console.print(f"[red]Seed {run.seed}: {run.verdict.value}:[/red] {escape(run.text)}", soft_wrap=True)
            self._console.print(f"Run it again: {escape(self._runs.command(run.seed))}", soft_wrap=True)
        if self._failed == FAILURES_SHOWN:
            self._console.print("Further failures are only counted here.")


def summary_json(summary: Summary, runs: Runs, what: dict[str, Any]) -> dict[str, Any]:
    """One object for programs: the contract of ``simulate --json``. ``what`` says what was run."""
    failures = summary.failures
    return {
        "runs": summary.runs,
        "violations": summary.violations,
        "undecided": summary.undecided,
        "heights": summary.heights,
        "seconds": round(summary.seconds, 3),
        "trace_hash": summary.trace_hash,
        "violating_seeds": [run.seed for run in failures if run.verdict is Verdict.VIOLATION],
        "undecided_seeds": [run.seed for run in failures if run.verdict is Verdict.UNDECIDED],
        "replay": runs.command(failures[0].seed) if failures else None,
        **what,
    }


def summary_table(summary: Summary, what: dict[str, Any]) -> Table:
    """The same for people."""
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in what.items():
        table.add_row(name, escape("by seed" if value is None else str(value)))
    table.add_section()
    rate = summary.runs / summary.seconds if summary.seconds else 0.0
    table.add_row("runs", f"{summary.runs} in {summary.seconds:.1f} s, {rate:.1f} a second")
    table.add_row("heights decided", str(summary.heights))
    for name, count in (("violations", summary.violations), ("undecided", summary.undecided)):
        table.add_row(name, f"[{'red' if count else 'green'}]{count}")
    table.add_row("trace hash", summary.trace_hash)
    return table


__all__ = ["Watch", "summary_json", "summary_table"]

"""One run, looked at closely: played with a recorder, its log and its picture written to files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aicpnode.errors import UserError
from aicpnode.simulation.picture import picture
from aicpnode.simulation.record import Recorder
from aicpnode.simulation.sweep import Observable, Run, run_one
from aicpnode.simulation.trace import trace_lines

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """Where the log and the picture go (``-``: standard output; None: nowhere), and which ms they show."""

    trace: str | None = None
    svg: str | None = None
    window: tuple[int, int] | None = None

    @property
    def any(self) -> bool:
        return self.trace is not None or self.svg is not None

    def check(self, seeds: range) -> None:
        """Raises ``UserError`` for what cannot be written, before anything is run."""
        if self.window is not None and not self.any:
            raise UserError("--window is for --trace and --svg.", advice="Give one of them as well.")
        if self.any and len(seeds) > 1:
            raise UserError(
                f"A log or a picture is of one run, not of {len(seeds)}.", advice=f"Try --seeds {seeds.start}."
            )
        if self.trace == self.svg == STANDARD_OUTPUT:
            raise UserError("The log and the picture cannot both go to standard output.")


def run_closely(runs: Observable, seed: int, papers: Papers) -> Run:
    """Run one seed and write what was asked for, also if it fails. Raises ``UserError`` if a file cannot be written."""
    recorder = Recorder(runs.lanes(seed), window=papers.window)
    run = run_one(runs, seed, recorder)
    if papers.trace is not None:
        _write(papers.trace, (f"{line}\n" for line in trace_lines(recorder, run)))
    if papers.svg is not None:
        _write(papers.svg, [picture(recorder, title=runs.title(seed))])
    return run


def _write(target: str, parts: Iterable[str]) -> None:
    if target == STANDARD_OUTPUT:
        sys.stdout.writelines(parts)
        return
    try:
        with Path(target).open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror}.") from error


__all__ = ["Papers", "run_closely"]

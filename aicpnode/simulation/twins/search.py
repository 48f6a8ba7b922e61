"""Many twins runs: in the words of the command line, and as a module.

``python -m aicpnode.simulation.twins FIRST LAST`` plays the seeds from FIRST up to, not including, LAST and prints one
JSON object: how many runs went wrong, which, and in how many of them each thing happened that a search should meet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from aicpnode.errors import UserError
from aicpnode.simulation.choice import parse_nodes
from aicpnode.simulation.cluster import Observer
from aicpnode.simulation.report import summary_json
from aicpnode.simulation.sweep import Run, Verdict, cores, sweep
from aicpnode.simulation.twins.table import Outcome, play_twins

NODES = (4, 5, 6, 7)
NODES_MIN = 4
"""Below, nobody may be faulty, so there is nobody to twin."""
NODES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinsChoice:
    """Twins runs that are drawn from their seeds; seeds take turns through ``nodes``."""

    nodes: tuple[int, ...] = NODES

    def play(self, seed: int, observer: Observer | None = None) -> Outcome:
        """Raises Violation if an invariant breaks."""
        return play_twins(seed, self._nodes(seed))

    def command(self, seed: int) -> str:
        """What to type to run this seed alone."""
        return f"aicp-node simulate --twins --nodes {self._nodes(seed)} --seeds {seed}"

    def _nodes(self, seed: int) -> int:
        return self.nodes[seed % len(self.nodes)]


def parse_twins(nodes: str) -> TwinsChoice:
    """Of ``--nodes`` with ``--twins``. Raises ``UserError``."""
    counts = parse_nodes(nodes)
    if not counts or min(counts) < NODES_MIN or max(counts) > NODES_MAX:
        raise UserError(
            f"--twins needs {NODES_MIN} to {NODES_MAX} members.",
            advice=f"Write --nodes {','.join(map(str, NODES))}: with fewer than {NODES_MIN} nobody may be faulty.",
        )
    return TwinsChoice(nodes=counts)


def main(arguments: Sequence[str]) -> int:
    """0 if nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m aicpnode.simulation.twins", description="Search twins runs.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="the first seed that is not played")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)))
    parser.add_argument("--jobs", type=int, default=cores())
    options = parser.parse_args(arguments)
    choice = parse_twins(options.nodes)

    def tell(run: Run) -> None:
        if run.verdict is not Verdict.FINE:
            sys.stderr.write(
                f"seed {run.seed}: {run.verdict.value}: {run.text}\nRun it again: {choice.command(run.seed)}\n"
            )

    summary = sweep(choice, range(options.first, options.last), jobs=options.jobs, report=tell)
    what = {"nodes": options.nodes, "seen": dict(sorted(summary.seen.items()))}
    sys.stdout.write(json.dumps(summary_json(summary, choice, what)) + "\n")
    return 1 if summary.violations or summary.undecided else 0


__all__ = ["TwinsChoice", "main", "parse_twins"]

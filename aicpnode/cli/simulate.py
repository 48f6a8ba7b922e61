"""``aicp-node simulate``: the production protocol on a seeded network with faults and liars, checked at every step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aicpnode.cli.options import JsonOption, console, print_json
from aicpnode.errors import UserError

if TYPE_CHECKING:
    from aicpnode.simulation.closely import Papers
    from aicpnode.simulation.sweep import Observable, Runs, Summary

EXIT_FAILED = 1
NODES = "4"
SEEDS = "0:100"
ALL = "all"


def simulate(
    nodes: Annotated[
        str | None, typer.Option(help="Founders: 4 (default), 4,5,7 by turns, 10-16, or any (1 to 7).")
    ] = None,
    byzantine: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="How many misbehave; default: up to F, by seed.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="all (default), none, or names with commas, such as loss,crashes.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="A:B", help=f"From A up to, not including, B, or one; default {SEEDS}.")
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run what this TOML file says instead (docs/simulation.md).")
    ] = None,
    twins: Annotated[
        bool, typer.Option("--twins", help="Members that run twice under one key, 4 to 16 nodes, every link chosen.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024, help="Processes; default: all cores.")] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write what happened in one run, line by line; - to the terminal."),
    ] = None,
    svg: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the messages of one run.")] = None,
    window: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Only these milliseconds in the log and the picture.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the protocol under seeded faults and adversaries. Exit 0 if no run broke an invariant or hung."""
    from aicpnode.simulation.choice import parse_window
    from aicpnode.simulation.closely import Papers
    from aicpnode.simulation.report import summary_json, summary_table

    papers = Papers(trace=trace, svg=svg, window=None if window is None else parse_window(window))
    runs: Runs
    if twins:
        runs, chosen, what = _twins(nodes, seeds, papers, others=(byzantine, faults, scenario))
        summary = _sweep(runs, chosen, jobs=jobs)
        what["seen"] = dict(sorted(summary.seen.items()))
    else:
        if scenario is None:
            observable, chosen, what = _drawn(nodes or NODES, byzantine, faults or ALL, seeds or SEEDS)
        else:
            observable, chosen, what = _written(scenario, seeds, others=(nodes, byzantine, faults))
        papers.check(chosen)
        runs = observable
        summary = _closely(observable, chosen.start, papers) if papers.any else _sweep(runs, chosen, jobs=jobs)
    if as_json:
        print_json(summary_json(summary, runs, what))
    else:
        console(stderr="-" in (trace, svg)).print(summary_table(summary, what))
    if summary.violations or summary.undecided:
        raise typer.Exit(EXIT_FAILED)


# ---- what is run: (the runs, their seeds, the words for them)


def _drawn(nodes: str, byzantine: int | None, faults: str, seeds: str) -> tuple[Observable, range, dict[str, Any]]:
    from aicpnode.simulation.choice import parse_choice, parse_seeds

    choice, chosen = parse_choice(nodes, byzantine, faults), parse_seeds(seeds)
    if choice.exceeds:
        typer.secho(f"{choice.exceeds} Nothing is promised.", fg=typer.colors.YELLOW, err=True)
    return choice, chosen, {"nodes": nodes, "byzantine": byzantine, "faults": faults, "seeds": seeds}


def _written(path: Path, seeds: str | None, *, others: tuple[object, ...]) -> tuple[Observable, range, dict[str, Any]]:
    from aicpnode.simulation.choice import parse_seeds
    from aicpnode.simulation.scenario_file import load_scenario
    from aicpnode.simulation.staging import Staging

    if any(option is not None for option in others):
        raise UserError(
            "The scenario says who takes part and what fails.", advice="Leave out --nodes, --byzantine and --faults."
        )
    file = load_scenario(path)
    chosen = range(file.seed, file.seed + 1) if seeds is None else parse_seeds(seeds)
    return Staging(file=file, path=str(path)), chosen, {"scenario": str(path), "seeds": seeds or str(file.seed)}


def _twins(
    nodes: str | None, seeds: str | None, papers: Papers, *, others: tuple[object, ...]
) -> tuple[Runs, range, dict[str, Any]]:
    from aicpnode.simulation.choice import parse_seeds
    from aicpnode.simulation.twins.search import parse_twins

    if any(option not in (None, ALL) for option in others):
        raise UserError(
            "--twins draws who is twinned and what fails.", advice="Leave out --byzantine, --faults and --scenario."
        )
    if papers.any or papers.window is not None:
        raise UserError("--trace and --svg of a run with --twins are not available yet.")
    nodes, seeds = nodes or NODES, seeds or SEEDS
    return parse_twins(nodes), parse_seeds(seeds), {"twins": True, "nodes": nodes, "seeds": seeds}


# ---- how it is run


def _sweep(runs: Runs, seeds: range, *, jobs: int | None) -> Summary:
    from aicpnode.simulation.report import Watch
    from aicpnode.simulation.sweep import cores, sweep

    with Watch(runs, console(stderr=True), total=len(seeds)) as watch:
        return sweep(runs, seeds, jobs=jobs or cores(), report=watch.hear)


def _closely(runs: Observable, seed: int, papers: Papers) -> Summary:
    from aicpnode.simulation.closely import run_closely
    from aicpnode.simulation.report import Watch
    from aicpnode.simulation.sweep import Summary

    with Watch(runs, console(stderr=True), total=1) as watch:
        began = time.monotonic()
        run = run_closely(runs, seed, papers)
        summary = Summary(seconds=time.monotonic() - began)
        summary.add(run)
        watch.hear(run)
        return summary

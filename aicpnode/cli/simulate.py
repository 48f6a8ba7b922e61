"""``aicp-node simulate``: the production protocol on a seeded network with faults and liars, checked at every step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aicpnode.cli.options import JsonOption, console, print_json

if TYPE_CHECKING:
    from aicpnode.simulation.closely import Papers
    from aicpnode.simulation.sweep import Observable, Runs, Summary

EXIT_FAILED = 1


def simulate(
    nodes: Annotated[str, typer.Option(help="Founders: 4, or 4,5,7 by turns, or 10-16, or any (1 to 7).")] = "4",
    byzantine: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="How many misbehave; default: up to F, by seed.")
    ] = None,
    faults: Annotated[str, typer.Option(help="all, none, or names with commas, such as loss,crashes.")] = "all",
    seeds: Annotated[str, typer.Option(metavar="A:B", help="From A up to, not including, B; or one seed.")] = "0:100",
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
    from aicpnode.simulation.choice import parse_choice, parse_seeds, parse_window
    from aicpnode.simulation.closely import Papers
    from aicpnode.simulation.report import summary_json, summary_table

    chosen = parse_seeds(seeds)
    papers = Papers(trace=trace, svg=svg, window=None if window is None else parse_window(window))
    papers.check(chosen)
    what: dict[str, Any] = {"nodes": nodes, "byzantine": byzantine, "faults": faults, "seeds": seeds}
    choice: Runs
    if twins:
        choice = _twins(nodes, byzantine, faults, papers)
        summary = _sweep(choice, chosen, jobs=jobs)
        what = {"twins": True, "nodes": nodes, "seeds": seeds, "seen": dict(sorted(summary.seen.items()))}
    else:
        choice = parse_choice(nodes, byzantine, faults)
        if choice.exceeds:
            typer.secho(f"{choice.exceeds} Nothing is promised.", fg=typer.colors.YELLOW, err=True)
        summary = _closely(choice, chosen.start, papers) if papers.any else _sweep(choice, chosen, jobs=jobs)
    if as_json:
        print_json(summary_json(summary, choice, what))
    else:
        console(stderr=trace == "-" or svg == "-").print(summary_table(summary, what))
    if summary.violations or summary.undecided:
        raise typer.Exit(EXIT_FAILED)


def _twins(nodes: str, byzantine: int | None, faults: str, papers: Papers) -> Runs:
    from aicpnode.errors import UserError
    from aicpnode.simulation.twins.search import parse_twins

    if byzantine is not None or faults != "all":
        raise UserError("--twins draws who is twinned and what fails.", advice="Leave out --byzantine and --faults.")
    if papers.any:
        raise UserError("--trace and --svg of a run with --twins are not available yet.")
    return parse_twins(nodes)


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

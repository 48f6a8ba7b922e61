"""``aicp-node simulate``: the production protocol on a seeded network with faults and liars, checked at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from aicpnode.cli.options import JsonOption, console, print_json

if TYPE_CHECKING:
    from aicpnode.simulation.sweep import Runs

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
    as_json: JsonOption = False,
) -> None:
    """Run the protocol under seeded faults and adversaries. Exit 0 if no run broke an invariant or hung."""
    from aicpnode.simulation.choice import parse_choice, parse_seeds
    from aicpnode.simulation.report import Watch, summary_json, summary_table
    from aicpnode.simulation.sweep import cores, sweep

    chosen = parse_seeds(seeds)
    choice: Runs
    if twins:
        choice = _twins(nodes, byzantine, faults)
    else:
        choice = parse_choice(nodes, byzantine, faults)
        if choice.exceeds:
            typer.secho(f"{choice.exceeds} Nothing is promised.", fg=typer.colors.YELLOW, err=True)
    with Watch(choice, console(stderr=True), total=len(chosen)) as watch:
        summary = sweep(choice, chosen, jobs=jobs or cores(), report=watch.hear)
    what: dict[str, Any] = {"nodes": nodes, "byzantine": byzantine, "faults": faults, "seeds": seeds}
    if twins:
        what = {"twins": True, "nodes": nodes, "seeds": seeds, "seen": dict(sorted(summary.seen.items()))}
    if as_json:
        print_json(summary_json(summary, choice, what))
    else:
        console().print(summary_table(summary, what))
    if summary.violations or summary.undecided:
        raise typer.Exit(EXIT_FAILED)


def _twins(nodes: str, byzantine: int | None, faults: str) -> Runs:
    from aicpnode.errors import UserError
    from aicpnode.simulation.twins.search import parse_twins

    if byzantine is not None or faults != "all":
        raise UserError("--twins draws who is twinned and what fails.", advice="Leave out --byzantine and --faults.")
    return parse_twins(nodes)

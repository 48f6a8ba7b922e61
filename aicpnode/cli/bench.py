"""``aicp-node bench``: measurements against the bars of the design."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from aicpnode.cli.later import ANY_ARGUMENTS, refuse
from aicpnode.cli.options import JsonOption, console, print_json

app = typer.Typer(help="Measure this build on this machine.", no_args_is_help=True)

LATER = ("compression", "aggregation", "round", "attacks", "transport", "scaling", "collectives")


class ConsensusMode(StrEnum):
    """Which rows ``bench consensus`` measures."""

    LOOPBACK = "loopback"
    SIMULATED_WAN = "simulated_wan"
    BOTH = "both"


@app.command("consensus")
def consensus(
    mode: Annotated[
        ConsensusMode, typer.Option(help="Real processes, simulated regions, or both.")
    ] = ConsensusMode.BOTH,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, max=100, help="Members; default 4 to 100.")] = None,
    decisions: Annotated[int, typer.Option(min=1, max=10_000, help="Blocks for real processes to decide.")] = 50,
    heights: Annotated[int, typer.Option(min=1, max=1_000, help="Blocks for simulated members to decide.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Decision latency and cost, among processes on this machine and in a simulated wide-area network."""
    from aicpnode.bench import consensus as bench
    from aicpnode.interfaces.render import render_plain

    chosen = None if nodes is None else (nodes,)
    result = bench.run(
        loopback_members=() if mode is ConsensusMode.SIMULATED_WAN else chosen or bench.LOOPBACK_MEMBERS,
        wide_area_members=() if mode is ConsensusMode.LOOPBACK else chosen or bench.WIDE_AREA_MEMBERS,
        decisions=decisions,
        heights=heights,
        report=lambda line: typer.echo(line, err=True),
    )
    if as_json:
        print_json(result)
        return
    for row in result["rows"]:
        console().print(render_plain(row))


@app.command("training")
def training(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure each way.")] = 20.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; default all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Training and generation speed of one process, against a plain loop."""
    from aicpnode.bench import training as bench
    from aicpnode.interfaces.render import render_plain

    result = bench.run(seconds=seconds, threads=threads, report=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(result)
    else:
        console().print(render_plain(result))


for _name in LATER:
    app.command(_name, help="Not available yet.", context_settings=ANY_ARGUMENTS)(refuse(f"bench {_name}"))

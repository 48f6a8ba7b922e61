"""``aicp-node bench``: measurements against the bars of the design."""

from __future__ import annotations

from typing import Annotated

import typer

from aicpnode.cli.later import ANY_ARGUMENTS, refuse
from aicpnode.cli.options import JsonOption, console, print_json

app = typer.Typer(help="Measure this build on this machine.", no_args_is_help=True)

LATER = ("compression", "aggregation", "round", "attacks", "transport", "scaling", "collectives")


@app.command("consensus")
def consensus(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=100, help="Member processes.")] = 4,
    decisions: Annotated[int, typer.Option(min=1, max=10_000, help="Blocks to decide.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Decision latency and cost among processes on this machine."""
    from aicpnode.bench import consensus as bench
    from aicpnode.interfaces.render import render_plain

    result = bench.run(members=nodes, decisions=decisions, report=lambda line: typer.echo(line, err=True))
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

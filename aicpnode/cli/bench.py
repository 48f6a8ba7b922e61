"""``aicp-node bench``: measurements against the bars of the design."""

from __future__ import annotations

import typer

from aicpnode.cli.later import ANY_ARGUMENTS, refuse
from aicpnode.cli.options import JsonOption, print_json

app = typer.Typer(help="Measure this build on this machine.", no_args_is_help=True)

LATER = ("compression", "aggregation", "round", "attacks", "transport", "scaling", "collectives")


@app.command("consensus")
def consensus(as_json: JsonOption = False) -> None:
    """Decision latency and cost among processes on this machine."""
    from aicpnode.bench import consensus as bench

    result = bench.run()
    if as_json:
        print_json(result)


@app.command("training")
def training(as_json: JsonOption = False) -> None:
    """Training and generation speed of one process, against a plain loop."""
    from aicpnode.bench import training as bench

    result = bench.run()
    if as_json:
        print_json(result)


for _name in LATER:
    app.command(_name, help="Not available yet.", context_settings=ANY_ARGUMENTS)(refuse(f"bench {_name}"))

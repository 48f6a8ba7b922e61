"""``aicp-node demo``: the main job, on this machine, in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aicpnode.cli.options import console

NODES = 4


def demo(
    nodes: Annotated[int, typer.Option(help="Node processes to start.")] = NODES,
    rounds: Annotated[
        int | None, typer.Option(help="Training rounds; default: enough to beat the bigram model.")
    ] = None,
    byzantine: Annotated[
        str | None, typer.Option(metavar="K:KIND", help="K nodes show a fault: garbage, silent or equivocate.")
    ] = None,
    kill_at: Annotated[int | None, typer.Option(metavar="ROUND", help="Kill the leader at this round.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", metavar="D", help="New folder for keys and data.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="PATH", help="Text file or folder; default: embedded.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the nodes running at the end.")] = False,
) -> None:
    """Start several nodes that do not trust each other and train one model together. Exit 0 if all models are equal."""
    from aicpnode.demo.options import DemoOptions, parse_byzantine
    from aicpnode.demo.show import run_demo, write_json
    from aicpnode.training.presets import DEMO_ROUNDS

    count, fault = parse_byzantine(byzantine)
    options = DemoOptions(
        nodes=nodes,
        rounds=DEMO_ROUNDS if rounds is None else rounds,
        byzantine=count,
        fault=fault,
        kill_at=kill_at,
        directory=default_directory() if directory is None else directory.absolute(),
        data=data,
        keep=keep,
    )
    result = run_demo(options, console())
    if json_file is not None:
        write_json(result, json_file)
    if not result.equal:
        raise typer.Exit(1)


def default_directory() -> Path:
    """A new folder for this demo in the user's data directory."""
    import datetime

    import platformdirs

    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return platformdirs.user_data_path("aicp-node") / "demo" / stamp

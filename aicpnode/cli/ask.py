"""Commands that ask a node which runs already: they find its control socket, call one command, print the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aicpnode.cli.options import JsonOption, NodeOption, console, print_json

if TYPE_CHECKING:
    from aicpnode.interfaces.client import SyncControlClient
    from aicpnode.interfaces.control import JsonObject

EXIT_HEALTHY, EXIT_PAUSED, EXIT_DIVERGED, EXIT_UNREACHABLE = 0, 1, 2, 3
CHECK_TIMEOUT_S = 5.0
LONG_COMMAND_TIMEOUT_S = 600.0
GENERATE_TOKENS = 256


def register(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    for name, function in (
        ("status", status),
        ("why", why),
        ("peers", peers),
        ("members", members),
        ("health", health),
        ("rounds", rounds),
        ("checkpoint", checkpoint),
        ("generate", generate),
        ("repl", repl),
    ):
        app.command(name)(function)


def status(
    node: NodeOption = None,
    as_json: JsonOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 0 if healthy, 1 paused, 2 diverged, 3 unreachable.")
    ] = False,
) -> None:
    """Where the ledger, the model and the training of a running node stand."""
    if check:
        raise typer.Exit(_check(node, as_json=as_json))
    ask("status", node, as_json)


def why(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """What a running node waits for, on whom, and what happens next."""
    ask("why", node, as_json)


def peers(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Connected peers, and addresses that are being dialled."""
    ask("peers", node, as_json)


def members(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """The roster that votes, with each member's standing."""
    ask("members", node, as_json)


def health(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """The checks a running node makes of itself; exits 1 if one fails."""
    result = ask("health", node, as_json)
    if not result.get("healthy"):
        raise typer.Exit(1)


def rounds(
    node: NodeOption = None,
    as_json: JsonOption = False,
    first: Annotated[int, typer.Option("--from", min=0, help="First round to list.")] = 0,
) -> None:
    """What each training round brought."""
    ask("rounds", node, as_json, {"from": first})


def checkpoint(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Write a checkpoint of the agreed model now."""
    ask("checkpoint", node, as_json, timeout_s=LONG_COMMAND_TIMEOUT_S)


def generate(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to continue.")],
    node: NodeOption = None,
    as_json: JsonOption = False,
    from_checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="FILE", help="Take the model from this file; needs no running node."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens to generate.")] = GENERATE_TOKENS,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most likely token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among the k most likely tokens; 0 means all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw among the fewest tokens reaching p.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
) -> None:
    """Continue TEXT with the agreed model."""
    wanted = {
        "prompt": text, "tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
    }  # fmt: skip
    from aicpnode.interfaces.render import printable

    shown = text

    def show(event: JsonObject) -> None:
        nonlocal shown
        piece = printable(str(event.get("text", "")))
        if not as_json:
            typer.echo(shown + piece, nl=False)
            shown = ""

    if from_checkpoint is not None:
        from aicpnode.cli.offline import generate_from_checkpoint

        result = generate_from_checkpoint(from_checkpoint, wanted, show)
    else:
        result = _client(node, LONG_COMMAND_TIMEOUT_S).call("generate", wanted, on_event=show)
    if as_json:
        print_json(result)
    else:
        typer.echo()


def repl(node: NodeOption = None) -> None:
    """Attach the prompt p2p> to a running node; leaving it does not stop the node."""
    from aicpnode.cli.prompt import attach
    from aicpnode.interfaces.registry import Registry

    attach(Registry().find(node), timeout_s=LONG_COMMAND_TIMEOUT_S)


def _client(node: str | None, timeout_s: float) -> SyncControlClient:
    from aicpnode.interfaces.client import SyncControlClient
    from aicpnode.interfaces.registry import Registry

    return SyncControlClient(Registry().find(node), idle_timeout_s=timeout_s)


def ask(
    command: str, node: str | None, as_json: bool, args: JsonObject | None = None, *, timeout_s: float = 15.0
) -> JsonObject:
    """Call one command of the running node and print its result."""
    from aicpnode.interfaces.render import render

    result = _client(node, timeout_s).call(command, args)
    if as_json:
        print_json(result)
    else:
        console().print(render(command, result))
    return result


def _check(node: str | None, *, as_json: bool) -> int:
    from aicpnode.interfaces.client import CommandFailed, NodeUnreachable
    from aicpnode.interfaces.registry import NoRunningNode

    result: JsonObject = {}
    try:
        result = _client(node, CHECK_TIMEOUT_S).call("status")
        code = EXIT_DIVERGED if result.get("diverged") else EXIT_PAUSED if result.get("paused") else EXIT_HEALTHY
        reason = ""
    except (NodeUnreachable, NoRunningNode, CommandFailed) as error:
        code, reason = EXIT_UNREACHABLE, str(error)
    state = {EXIT_HEALTHY: "healthy", EXIT_PAUSED: "paused", EXIT_DIVERGED: "diverged"}.get(code, "unreachable")
    if as_json:
        print_json({**result, "state": state, "reason": reason})
    else:
        typer.echo(f"{state}: {reason}" if reason else state)
    return code

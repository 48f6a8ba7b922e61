"""Options that several commands share, and how results reach the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="NAME", help="Which running node: its node id, pid or data directory.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]

EXIT_INTERRUPTED = 130
"""As shells report a process that SIGINT ended."""
PIPE_WIDTH = 160
"""Columns of output that goes to a pipe, where the width of no terminal limits it."""


def console(*, stderr: bool = False) -> Console:
    """A console for people; wide when its output is no terminal."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False)
    return out if out.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def print_json(result: dict[str, Any]) -> None:
    """One JSON object on one line."""
    typer.echo(json.dumps(result, separators=(",", ":")))

"""Commands whose parts are not built yet: each says so and exits 2."""

from __future__ import annotations

from collections.abc import Callable

import typer

from aicpnode.errors import NotAvailableYet

LATER = {
    "doctor": "Check ports, clock, disk, memory, torch and reachability, with advice",
    "export": "Export the model for other tools",
    "train": "Train on one machine without a network",
    "plan": "Plan how a model fits the machines of a run",
}
ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


def register(app: typer.Typer) -> None:
    """Add a refusing command for each name."""
    for name, purpose in LATER.items():
        app.command(name, help=f"{purpose} (not available yet).", context_settings=ANY_ARGUMENTS)(refuse(name))


def refuse(name: str) -> Callable[[], None]:
    """A command that raises ``NotAvailableYet``."""

    def command() -> None:
        raise NotAvailableYet(name)

    return command

"""Commands about membership and run-wide changes, asked of a node that runs."""

from __future__ import annotations

from typing import Annotated

import typer

from aicpnode.cli.ask import ask
from aicpnode.cli.options import JsonOption, NodeOption

TIMEOUT_S = 60.0


def register(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    for function in (blacklist, propose, endorse, invite, leave):
        app.command(function.__name__)(function)


def blacklist(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Members banned by agreement, with the reason, and members that evidence waits for."""
    ask("blacklist", node, as_json)


def propose(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="CHANGE",
            help="stop, resume, remove, admission, round-seconds, probation-rounds or max-members.",
        ),
    ],
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="Member to remove, or the new value.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why a member is removed; it stands in the ledger.")] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Propose a run-wide change. It takes effect once voting members with a quorum of power endorse the same."""
    ask("propose", node, as_json, {"kind": kind, "value": value, "reason": reason}, timeout_s=TIMEOUT_S)


def endorse(
    change: Annotated[str | None, typer.Argument(metavar="[ID]", help="Without: list what waits.")] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Endorse a run-wide change that another member proposed."""
    if change is None:
        ask("changes", node, as_json)
    else:
        ask("endorse", node, as_json, {"id": change}, timeout_s=TIMEOUT_S)


def invite(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The newcomer's public key, as its key show prints it.")],
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an invitation for the holder of KEY, who starts with run --invite."""
    ask("invite", node, as_json, {"key": key})


def leave(node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Give up this node's membership: it goes on serving data and votes no more."""
    ask("leave", node, as_json, timeout_s=TIMEOUT_S)

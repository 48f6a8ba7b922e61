"""``aicp-node init``: write the genesis of a new run, its initial model and its data into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aicpnode.cli.options import JsonOption, print_json
from aicpnode.errors import NotAvailableYet, UserError

if TYPE_CHECKING:
    from aicpnode.genesis import Admission, Expected, Founder

KEY_HEX_DIGITS = 64


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the genesis and what it names.")],
    member: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY:NAME", help="A founder: public key in hex and a name. Repeat for each founder."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the run for people.")] = "run",
    data: Annotated[Path | None, typer.Option(metavar="PATH", help="Text file or folder; default: embedded.")] = None,
    probation_rounds: Annotated[int, typer.Option(min=1, help="Rounds until a newcomer gets a vote.")] = 50,
    admission: Annotated[str, typer.Option(help="Who may join: open, invite or allowlist.")] = "open",
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="A key that may join without invitation. Repeat for each."),
    ] = None,
    from_run: Annotated[str | None, typer.Option("--from", metavar="NAME|DIR", help="Not available yet.")] = None,
    from_checkpoint: Annotated[str | None, typer.Option(metavar="HASH", help="Not available yet.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the genesis of a new run. Give the folder to every founder; they start with run --genesis."""
    if from_run is not None or from_checkpoint is not None:
        raise NotAvailableYet("init --from" if from_run is not None else "init --from-checkpoint")
    founders = [parse_member(text) for text in member or []]
    if not founders:
        raise UserError(
            "A run needs at least one founder.",
            advice="Show each founder's key with: aicp-node key new --node-id NAME, then add --member KEY:NAME.",
        )
    from aicpnode.founding import found_run_folder

    rule, expected = parse_admission(admission, allow or [])
    path, genesis = found_run_folder(
        folder,
        name=name,
        founders=founders,
        data=data,
        probation_rounds=probation_rounds,
        admission=rule,
        allowlist=expected,
    )
    network = genesis.network_id.hex()
    if as_json:
        print_json(
            {"genesis": str(path), "network": network, "parameters": genesis.parameters, "founders": len(founders)}
        )
        return
    tolerates = (len(founders) - 1) // 3
    typer.echo(f"{path}: network {network}, {genesis.parameters} parameters")
    typer.echo(f"{len(founders)} founders, which tolerate {tolerates} faulty among them.")
    typer.echo(f"Each founder starts with: aicp-node run --genesis {path} --bootstrap HOST:PORT")


def parse_admission(text: str, keys: list[str]) -> tuple[Admission, tuple[Expected, ...]]:
    """Who may join, and the keys that need no invitation. Raises ``UserError``."""
    from aicpnode.genesis import Admission, Expected

    try:
        rule = Admission(text)
    except ValueError:
        raise UserError(f"{text!r} is no admission.", advice="It is open, invite or allowlist.") from None
    if rule is Admission.OPEN and keys:
        raise UserError("--allow means nothing while admission is open.", advice="Add --admission allowlist or invite.")
    try:
        return rule, tuple(Expected(key=bytes.fromhex(key)) for key in keys)
    except ValueError as error:
        raise UserError("A key after --allow is none.", advice="Give the 64 digits of aicp-node key show.") from error


def parse_member(text: str) -> Founder:
    """``KEY:NAME`` as a founder with power 1. Raises ``UserError``."""
    from aicpnode.genesis import Founder

    key, separator, name = text.partition(":")
    try:
        raw = bytes.fromhex(key)
        if len(key) != KEY_HEX_DIGITS or not separator or not name.strip():
            raise ValueError(text)
        return Founder(key=raw, name=name.strip())
    except ValueError as error:
        raise UserError(
            f"{text!r} is no founder.", advice="Write KEY:NAME, the key as aicp-node key show prints it."
        ) from error

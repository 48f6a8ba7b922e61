"""``aicp-node init``: write the genesis of a new run, its initial model and its data into a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aicpnode.cli.options import JsonOption, print_json
from aicpnode.errors import NotAvailableYet, UserError

if TYPE_CHECKING:
    from aicpnode.genesis import Admission, Expected, Founder, Genesis

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
    from_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Go on from this state of a run that lost its quorum (see --data-dir)."),
    ] = None,
    members: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The founders, one KEY:NAME a line, besides --member.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="D", help="With --from-checkpoint: of the stopped node that has the state.")
    ] = None,
    node_id: Annotated[str | None, typer.Option(metavar="NAME", help="The same by node id, as for run.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the genesis of a new run. Give the folder to every founder; they start with run --genesis.

    With --from-checkpoint the run goes on from a state of an old one whose quorum is lost for good: the members that
    are gone cannot come back, and the others are too few to decide. Its founders are new keys.
    """
    if from_run is not None:
        raise NotAvailableYet("init --from")
    founders = [parse_member(text) for text in (*(member or []), *_listed(members))]
    if not founders:
        raise UserError(
            "A run needs at least one founder.",
            advice="Show each founder's key with: aicp-node key new --node-id NAME, then add --member KEY:NAME.",
        )
    rule, expected = parse_admission(admission, allow or [])
    settings = Settings(
        name=name, founders=founders, probation_rounds=probation_rounds, admission=rule, allowlist=expected
    )
    if from_checkpoint is None:
        path, genesis = _found(folder, settings, data)
    else:
        path, genesis = _succeed(folder, settings, data, from_checkpoint, data_dir, node_id)
    network = genesis.network_id.hex()
    if as_json:
        told = {"genesis": str(path), "network": network, "parameters": genesis.parameters, "founders": len(founders)}
        print_json({**told, "lineage": lineage(genesis)})
        return
    for old in genesis.lineage:
        typer.echo(f"It goes on from height {old.height} (round {old.round}) of network {old.network_id.hex()}.")
    tolerates = (len(founders) - 1) // 3
    typer.echo(f"{path}: network {network}, {genesis.parameters} parameters")
    typer.echo(f"{len(founders)} founders, which tolerate {tolerates} faulty among them.")
    typer.echo(f"Each founder starts with: aicp-node run --genesis {path} --bootstrap HOST:PORT")


def lineage(genesis: Genesis) -> dict[str, object] | None:
    """Where the first model comes from, for tools; None if it is new."""
    for old in genesis.lineage:
        return {
            "network": old.network_id.hex(),
            "height": old.height,
            "round": old.round,
            "state_hash": old.state_hash.hex(),
            "model_hash": old.model_hash.hex(),
        }
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every new run is given, wherever its model comes from."""

    name: str
    founders: list[Founder]
    probation_rounds: int
    admission: Admission
    allowlist: tuple[Expected, ...]


def _listed(members: Path | None) -> list[str]:
    from aicpnode.succession import read_members

    return [] if members is None else read_members(members)


def _found(folder: Path, settings: Settings, data: Path | None) -> tuple[Path, Genesis]:
    from aicpnode.founding import found_run_folder

    return found_run_folder(
        folder,
        name=settings.name,
        founders=settings.founders,
        data=data,
        probation_rounds=settings.probation_rounds,
        admission=settings.admission,
        allowlist=settings.allowlist,
    )


def _succeed(
    folder: Path, settings: Settings, data: Path | None, wanted: str, data_dir: Path | None, node_id: str | None
) -> tuple[Path, Genesis]:
    from aicpnode.config import NodeConfig
    from aicpnode.succession import found_successor

    if data is not None:
        raise UserError("A run that goes on from another keeps its data.", advice="Leave --data out.")
    old = NodeConfig.load(None, {"data_dir": data_dir, "node_id": node_id})
    return found_successor(
        folder,
        data_dir=old.directory,
        checkpoints_dir=old.checkpoints,
        wanted=wanted,
        name=settings.name,
        founders=settings.founders,
        probation_rounds=settings.probation_rounds,
        admission=settings.admission,
        allowlist=settings.allowlist,
    )


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

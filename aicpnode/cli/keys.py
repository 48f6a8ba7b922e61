"""``aicp-node key``: a node's identity, which is its vote in the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aicpnode.cli.options import JsonOption, print_json
from aicpnode.errors import UserError

if TYPE_CHECKING:
    from aicpnode.identity import Identity

app = typer.Typer(help="Make, show and move the key of a node.", no_args_is_help=True)

KEY_TEXT_CHARACTERS_MAX = 1024

DirOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="D", help="Data directory of the node; default as for run.")
]
IdOption = Annotated[str | None, typer.Option("--node-id", metavar="NAME", help="Node id, as for run.")]


def key_path(data_dir: Path | None, node_id: str | None) -> Path:
    """The key file of the node that ``run`` would start with the same options."""
    from aicpnode.config import NodeConfig

    return NodeConfig.load(None, {"data_dir": data_dir, "node_id": node_id}).key_path


@app.command("new")
def new(data_dir: DirOption = None, node_id: IdOption = None, as_json: JsonOption = False) -> None:
    """Make a new key. An existing one is never overwritten."""
    from aicpnode.identity import Identity

    path = key_path(data_dir, node_id)
    identity = Identity.generate()
    identity.save(path)
    _tell(identity, path, as_json)


@app.command("show")
def show(data_dir: DirOption = None, node_id: IdOption = None, as_json: JsonOption = False) -> None:
    """Print the public key, which others may know."""
    from aicpnode.identity import Identity

    path = key_path(data_dir, node_id)
    _tell(Identity.load(path), path, as_json)


@app.command("export")
def export(data_dir: DirOption = None, node_id: IdOption = None, as_json: JsonOption = False) -> None:
    """Print the SECRET key as one line, for a backup or another machine. Never run both at once: it would be banned."""
    from aicpnode.identity import Identity

    identity = Identity.load(key_path(data_dir, node_id))
    if as_json:
        print_json({"key": identity.key.hex(), "secret": identity.to_text()})
    else:
        typer.echo(identity.to_text())


@app.command("import")
def import_(data_dir: DirOption = None, node_id: IdOption = None, as_json: JsonOption = False) -> None:
    """Read an exported key from standard input and store it. An existing one is never overwritten."""
    from aicpnode.identity import USED_MARKER, Identity

    if sys.stdin.isatty():
        typer.echo("Paste the exported line and press Enter:", err=True)
    text = sys.stdin.readline(KEY_TEXT_CHARACTERS_MAX).strip()
    if not text:
        raise UserError("No key was given.", advice="Use: aicp-node key import < FILE")
    path = key_path(data_dir, node_id)
    identity = Identity.from_text(text)
    identity.save(path)
    # It may have signed elsewhere, so a node that starts with it and without its database must not vote at once.
    (path.parent / USED_MARKER).touch(mode=0o600)
    _tell(identity, path, as_json)
    if not as_json:
        typer.echo("Where the key voted before, it votes again once the others' heads show that it is safe.", err=True)


def _tell(identity: Identity, path: Path, as_json: bool) -> None:
    if as_json:
        print_json({"key": identity.key.hex(), "path": str(path)})
    else:
        typer.echo(f"{identity.key.hex()}\n{path}")

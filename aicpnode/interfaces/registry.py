"""Which nodes of this user run on this machine: one small file each, so that commands find "the one running node".

A file proves nothing: a node counts as running while something listens on its control socket. Files whose node is
gone are removed by whoever looks. The directory is the user's state directory; it can be given for tests.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from aicpnode.errors import UserError
from aicpnode.interfaces.control import accepts

ENTRIES_MAX = 1000
ENTRY_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNode:
    """One running node as its registry file describes it; ``network`` is the genesis hash in hex."""

    pid: int
    node_id: str
    socket: str
    data_dir: str
    p2p: str
    network: str


class NoRunningNode(UserError):
    """No node runs, or none by the name that was asked for."""


class Registry:
    """The directory of running nodes."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or platformdirs.user_state_path("aicp-node") / "running"

    @contextlib.contextmanager
    def announced(self, node: RunningNode) -> Iterator[Path]:
        """Keep ``node`` in the registry for the length of a ``with``. Raises ``OSError`` if it cannot be written."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.directory / f"{node.pid}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(node)))
        fresh.replace(path)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def running(self) -> list[RunningNode]:
        """All running nodes by name; removes the files of nodes that are gone."""
        found = []
        for path in sorted(self.directory.glob("*.json"))[:ENTRIES_MAX]:
            node = _read(path)
            if node is None or not accepts(Path(node.socket)):
                path.unlink(missing_ok=True)
            else:
                found.append(node)
        return sorted(found, key=lambda node: (node.node_id, node.pid))

    def find(self, name: str | None = None) -> RunningNode:
        """The running node called ``name`` (its node id, data directory or process id), or the only one.

        Raises ``NoRunningNode``, or ``UserError`` with the list of names if several fit.
        """
        running = self.running()
        fitting = (
            running if name is None else [node for node in running if {name, os.path.realpath(name)} & _names(node)]
        )
        if len(fitting) == 1:
            return fitting[0]
        if not running:
            raise NoRunningNode("No node of yours is running on this machine.", advice="Start one: aicp-node run")
        listing = ", ".join(f"{node.node_id} (pid {node.pid}, {node.p2p})" for node in fitting or running)
        if not fitting:
            raise NoRunningNode(f"No running node is called {name}.", advice=f"Running: {listing}.")
        raise UserError(f"{len(fitting)} nodes are running: {listing}.", advice="Say which: --node NAME (or its pid).")


def _names(node: RunningNode) -> set[str]:
    return {node.node_id, str(node.pid), os.path.realpath(node.data_dir)}


def _read(path: Path) -> RunningNode | None:
    """The entry, or ``None`` if the file is gone or damaged (it is about to be removed then)."""
    try:
        with path.open("rb") as file:
            return RunningNode(**json.loads(file.read(ENTRY_BYTES_MAX)))
    except (OSError, ValueError, TypeError):
        return None

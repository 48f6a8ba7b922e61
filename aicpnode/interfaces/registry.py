"""Which nodes of this user run on this machine: one small file each, so that commands find "the one running node".

A file proves nothing: a node counts as running while something listens on its control socket. Files whose node is
gone are removed by whoever looks. The directory is the user's state directory; it can be given for tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
import trio

from aicpnode.errors import UserError
from aicpnode.interfaces.control import CommandSurface, accepts, socket_path

ENTRIES_MAX = 1000
ENTRY_BYTES_MAX = 16 * 1024

log = logging.getLogger(__name__)


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
        # A process may hold several nodes, each with a data directory of its own.
        path = self.directory / f"{node.pid}-{hashlib.sha256(node.data_dir.encode()).hexdigest()[:8]}.json"
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

    def find(self, name: str | None = None) -> Path:
        """The control socket of the node called ``name`` (node id, data directory or process id), or of the only one.

        A data directory is found even if the node is not listed. Raises ``NoRunningNode``, or ``UserError`` with the
        list of names if several fit.
        """
        if name is not None and os.path.isdir(name) and accepts(socket_path(Path(name))):
            return socket_path(Path(name))
        return Path(self._find_listed(name).socket)

    def _find_listed(self, name: str | None) -> RunningNode:
        running = self.running()
        fitting = running if name is None else [node for node in running if name in (node.node_id, str(node.pid))]
        if len(fitting) == 1:
            return fitting[0]
        if not running:
            raise NoRunningNode("No node of yours is running on this machine.", advice="Start one: aicp-node run")
        listing = ", ".join(f"{node.node_id} (pid {node.pid}, {node.p2p})" for node in fitting or running)
        if not fitting:
            raise NoRunningNode(f"No running node is called {name}.", advice=f"Running: {listing}.")
        raise UserError(f"{len(fitting)} nodes are running: {listing}.", advice="Say which: --node NAME (or its pid).")


async def serve_announced(
    surface: CommandSurface,
    *,
    data_dir: Path,
    node_id: str,
    p2p: str,
    network: str,
    registry: Registry | None = None,
    task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``surface`` on its socket and keep the node in the registry, until cancelled; ``started`` with the path.

    A home directory that cannot be written costs the convenience of the registry, not the node: it is logged.
    """
    async with trio.open_nursery() as nursery:
        path = await nursery.start(surface.serve, data_dir)
        node = RunningNode(
            pid=os.getpid(),
            node_id=node_id,
            socket=os.fspath(path),
            data_dir=str(data_dir.absolute()),  # noqa: ASYNC240 - asks no disk
            p2p=p2p,
            network=network,
        )
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context((registry or Registry()).announced(node))
            except OSError as error:
                log.warning("this node is not listed for other commands (%s); use --node %s", error, node.data_dir)
            task_status.started(path)
            await trio.sleep_forever()


def _read(path: Path) -> RunningNode | None:
    """The entry, or ``None`` if the file is gone or damaged (it is about to be removed then)."""
    try:
        with path.open("rb") as file:
            return RunningNode(**json.loads(file.read(ENTRY_BYTES_MAX)))
    except (OSError, ValueError, TypeError):
        return None

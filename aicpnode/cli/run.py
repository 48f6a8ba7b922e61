"""``aicp-node run``: start one node, say how others join it, and keep it until it is told to stop."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aicpnode.cli.options import EXIT_INTERRUPTED, console

if TYPE_CHECKING:
    import trio

    from aicpnode.config import NodeConfig
    from aicpnode.genesis import Genesis
    from aicpnode.identity import Identity
    from aicpnode.interfaces.control import CommandSurface, JsonObject
    from aicpnode.interfaces.repl import Repl
    from aicpnode.network.mesh import Mesh
    from aicpnode.node import Node
    from aicpnode.node.node import Interpose, Network
    from aicpnode.storage.lock import DataDirLock

READY_PATIENCE_S = 10.0
"""Usually a node votes well before; one that still waits for its model says so instead, and can be asked why."""

Text = str | None
Number = int | None


def run(
    node_type: Annotated[Text, typer.Option(help="full, training, annotation or lightweight.")] = None,
    node_id: Annotated[Text, typer.Option(metavar="NAME", help="Name of this node for people.")] = None,
    p2p_port: Annotated[
        Number, typer.Option("--p2p-port", "--port", help="Port for peers, 7777; a default that is taken moves on.")
    ] = None,
    web_port: Annotated[Number, typer.Option(help="Port of the web interface (later).")] = None,
    p2p_host: Annotated[Text, typer.Option(help="Address for peers; 127.0.0.1 unless named.")] = None,
    web_host: Annotated[Text, typer.Option(help="Address of the web interface (later).")] = None,
    advertise: Annotated[Text, typer.Option(metavar="HOST:PORT", help="Not available yet.")] = None,
    bootstrap: Annotated[Text, typer.Option(metavar="HOST:PORT[,HOST:PORT]", help="Members to contact first.")] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="D", help="Where everything durable lives.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON or TOML file with these settings.")] = None,
    genesis: Annotated[Path | None, typer.Option(metavar="FILE", help="Genesis of the run to take part in.")] = None,
    network: Annotated[Text, typer.Option(metavar="HASH", help="Hash of the genesis; others are refused.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="PATH", help="Text for a run of this node's own.")] = None,
    device: Annotated[Text, typer.Option(help="auto, cpu or cuda:N.")] = None,
    encryption: Annotated[Text, typer.Option(help="Of sessions: on (default) or off, the same on all nodes.")] = None,
    invite: Annotated[Text, typer.Option(help="An invitation that a member made for this node's key.")] = None,
    log_level: Annotated[Text, typer.Option(help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log file as JSON lines.")] = False,
    repl: Annotated[bool, typer.Option("--repl", help="Show the prompt p2p> here.")] = False,
    max_memory_mb: Annotated[Number, typer.Option(help="Stop cleanly above so much resident memory.")] = None,
    max_cpu_threads: Annotated[Number, typer.Option(help="Keep at most so many processors busy.")] = None,
    checkpoint_every_rounds: Annotated[Number, typer.Option(help="Rounds between checkpoints; 0 for none.")] = None,
    train_rounds: Annotated[Number, typer.Option(hidden=True)] = None,
    byzantine: Annotated[Text, typer.Option(hidden=True)] = None,
    watch_stdin: Annotated[bool, typer.Option("--watch-stdin", hidden=True)] = False,
) -> None:
    """Start a node: without --bootstrap and --genesis in a run of its own, which others can join."""
    given: dict[str, Any] = {
        "node_type": node_type, "node_id": node_id, "p2p_port": p2p_port, "web_port": web_port, "p2p_host": p2p_host,
        "web_host": web_host, "advertise": advertise, "bootstrap_peers": bootstrap, "data_dir": data_dir,
        "genesis": genesis, "network": network, "data": data, "device": device, "encryption": encryption,
        "invite": invite, "log_level": log_level, "log_json": log_json or None, "repl": repl or None,
        "max_memory_mb": max_memory_mb, "max_cpu_threads": max_cpu_threads, "train_rounds": train_rounds,
        "checkpoint_every_rounds": checkpoint_every_rounds, "byzantine": byzantine,
        "p2p_port_explicit": True if p2p_port is not None else None,
    }  # fmt: skip
    from aicpnode.config import NodeConfig

    settled, lock = claim_directory(NodeConfig.load(config, given))
    with lock:
        start(settled, lock, watch_stdin=watch_stdin)


def claim_directory(config: NodeConfig) -> tuple[NodeConfig, DataDirLock]:
    """Settle port and data directory, and take the directory's lock.

    Nodes that are started at the same moment may settle on the same port: whoever comes second to its directory moves
    on, unless the user named it.
    """
    from aicpnode.storage.lock import DataDirLock, DataDirLocked

    while True:
        settled = config.with_free_port()
        try:
            return settled, DataDirLock(settled.directory)
        except DataDirLocked:
            if config.node_id is not None or config.data_dir is not None or config.p2p_port_explicit:
                raise


def start(config: NodeConfig, lock: DataDirLock, *, watch_stdin: bool) -> None:
    """Keep the limits, set up logging, and run the node in this process until it stops."""
    from aicpnode.limits import limit_memory, limit_threads
    from aicpnode.logs import configure_logging

    if config.max_cpu_threads is not None:
        limit_threads(config.max_cpu_threads)
    if config.max_memory_mb is not None:
        limit_memory(config.max_memory_mb)
    level = config.effective_log_level
    at_prompt = "warning" if config.repl and level in ("debug", "info") else None
    configure_logging(level=level, data_dir=config.directory, json_lines=config.log_json, stderr_level=at_prompt)

    import trio

    trio.run(_serve, config, lock, watch_stdin)


async def _serve(config: NodeConfig, lock: DataDirLock, watch_stdin: bool) -> None:
    import trio

    from aicpnode.node import Node

    stopper = Stopper()
    async with trio.open_nursery() as background:
        await background.start(stopper.watch_signals)
        if watch_stdin:
            background.start_soon(_stop_at_end_of_stdin, stopper)
        with stopper.stopping_here():
            async with Node(config, lock=lock, interpose=_misbehaviour(config)) as node:
                # A stop ends this inner scope, so that the node shuts down without being cancelled itself.
                with stopper.stopping_here():
                    with trio.move_on_after(READY_PATIENCE_S):
                        await node.running.wait()
                    await _announce(node.surface, config)
                    await _until_stopped(node, config, stopper)
        background.cancel_scope.cancel()


def _misbehaviour(config: NodeConfig) -> Interpose | None:
    """What stands between this node and its network if it is to misbehave on purpose (``demo --byzantine``)."""
    if config.byzantine is None:
        return None
    from aicpnode.simulation.byzantine import Disguise, MisbehavingNetwork, Misbehaviour

    kind = Misbehaviour(config.byzantine.value)

    def interpose(mesh: Mesh, identity: Identity, genesis: Genesis, base_hash: Callable[[], bytes]) -> Network:
        disguise = Disguise(identity=identity, genesis=genesis, base_hash=base_hash)
        return MisbehavingNetwork(mesh, kind, disguise)

    return interpose


async def _until_stopped(node: Node, config: NodeConfig, stopper: Stopper) -> None:
    import trio

    from aicpnode.limits import watch_memory

    async def at_the_prompt(repl: Repl) -> None:
        await repl.run()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        if config.max_memory_mb is not None:
            nursery.start_soon(watch_memory, config.max_memory_mb)
        if config.repl:
            from aicpnode.cli.prompt import make_repl

            stopper.repl = make_repl(node.surface, data_dir=config.directory, attached=False)
            nursery.start_soon(at_the_prompt, stopper.repl)
        await node.run_until_stopped()
        nursery.cancel_scope.cancel()


class Stopper:
    """SIGTERM, Ctrl-C while no command runs at the prompt, or a parent that is gone: stop cleanly.

    A second signal ends the process at once.
    """

    def __init__(self) -> None:
        self.repl: Repl | None = None
        self._scopes: list[trio.CancelScope] = []
        self._signalled = False

    @contextlib.contextmanager
    def stopping_here(self) -> Iterator[None]:
        """Let a stop cancel the body of this ``with``, unless another one is open inside it."""
        import trio

        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                yield
            finally:
                self._scopes.remove(scope)

    def stop(self) -> None:
        """Cancel the innermost open scope."""
        if self._scopes:
            self._scopes[-1].cancel()

    async def watch_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Turn signals into stops until cancelled."""
        import trio

        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGINT and self.repl is not None and self.repl.interrupt():
                    continue
                if self._signalled:
                    os._exit(EXIT_INTERRUPTED)
                self._signalled = True
                typer.echo("Stopping; once more to stop at once.", err=True)
                self.stop()


async def _stop_at_end_of_stdin(stopper: Stopper) -> None:
    """Stop when the other end of standard input is closed: the parent ended, however it ended."""
    from aicpnode.interfaces.lines import StreamLines

    lines = StreamLines(sys.stdin.fileno())
    while await lines.read() is not None:
        continue
    stopper.stop()


async def _announce(surface: CommandSurface, config: NodeConfig) -> None:
    """Print the one ready line, how others join, and what they must know before they do."""
    status = await surface.call("status")
    out = console()
    word = "ready" if status["phase"] == "running" else f"started, {status['phase']}"
    address, network = str(status["p2p"]), str(status["network"])
    out.print(
        f"{word}: node {status['node_id']}, key {status['key']}, p2p {address}, network {network}",
        style="green", markup=False, soft_wrap=True,
    )  # fmt: skip
    host, _, port = address.rpartition(":")
    if _is_loopback(config.p2p_host):
        out.print(f"Join on this machine:  aicp-node run --bootstrap {address} --network {network}", soft_wrap=True)
        out.print("For other machines, start with --p2p-host 0.0.0.0 (or one address of this machine).")
    else:
        reachable = f"{own_address() if host in ('0.0.0.0', '[::]') else host}:{port}"
        out.print(f"Join from elsewhere:  aicp-node run --bootstrap {reachable} --network {network}", soft_wrap=True)
        if not config.is_encrypted:
            warning = "Sessions are signed but not encrypted: others on the path can read what is exchanged."
            out.print(warning, style="yellow")
    for warning in _admission_warning(status):
        out.print(warning, style="yellow")


def _admission_warning(status: JsonObject) -> list[str]:
    """What open admission means, at every start (consensus specification, section 7)."""
    if status.get("admission") != "open":
        return []
    tolerates = (status.get("roster") or {}).get("tolerates")
    return [
        f"Admission is open: anyone who reaches {status['p2p']} gets a vote after {status.get('probation_rounds')} "
        f"rounds; the present roster tolerates {tolerates} faulty."
    ]


def own_address() -> str:
    """The address of this machine that a route to elsewhere would use; no packet is sent. Loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"

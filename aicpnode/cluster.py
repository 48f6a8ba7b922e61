"""Node processes on this machine: started, killed, started again, and never left behind.

Each child runs in a session of its own, so that Ctrl-C reaches the starter alone, which then ends the children in
order: SIGTERM, a deadline, SIGKILL. Should the starter itself be killed, the children notice that the pipe on their
standard input was closed, and stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aicpnode.config import Fault
from aicpnode.interfaces.control import socket_path

STOP_DEADLINE_S = 20.0
OUTPUT_NAME = "output.log"
TAIL_LINES = 15
TAIL_BYTES = 16 * 1024
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node process: everything needed to start it, twice if need be."""

    index: int
    name: str
    directory: Path
    port: int
    fault: Fault | None
    command: tuple[str, ...]

    @property
    def socket(self) -> Path:
        """Its control socket."""
        return socket_path(self.directory)


def plan_nodes(
    *,
    directory: Path,
    genesis: Path,
    names: Sequence[str],
    ports: Sequence[int],
    arguments: Sequence[str] = (),
    faults: Sequence[Fault | None] | None = None,
) -> tuple[NodePlan, ...]:
    """One node for each of ``names``, its data in a folder of that name, where its key may lie already.

    All get ``arguments`` of ``run`` besides what makes them one run; ``faults`` are by node, None for an honest one.
    """
    addresses = [f"{HOST}:{port}" for port in ports]
    by_node = [None] * len(names) if faults is None else faults
    plans = []
    for index, (name, fault, port) in enumerate(zip(names, by_node, ports, strict=True)):
        others = [address for address in addresses if address != addresses[index]]
        command = [
            sys.executable, "-m", "aicpnode", "run", "--node-id", name, "--p2p-host", HOST, "--p2p-port", str(port),
            "--data-dir", str(directory / name), "--genesis", str(genesis), *arguments, "--watch-stdin",
        ]  # fmt: skip
        command += ["--bootstrap", ",".join(others)] if others else []
        command += ["--byzantine", fault.value] if fault is not None else []
        plans.append(
            NodePlan(index=index, name=name, directory=directory / name, port=port, fault=fault, command=tuple(command))
        )
    return tuple(plans)


def free_ports(count: int) -> list[int]:
    """Different TCP ports that nobody listens on at the moment."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class Cluster:
    """The processes of such nodes, from their start to their end."""

    def __init__(self, plans: Sequence[NodePlan]) -> None:
        self.plans = tuple(plans)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def running(self, *, keep: bool = False) -> Iterator[Cluster]:
        """Start all nodes; stop all on the way out, whatever happened, unless ``keep`` and nothing went wrong."""
        try:
            for plan in self.plans:
                self.start(plan.index)
            yield self
        except BaseException:
            self.stop()
            raise
        if not keep:
            self.stop()

    def start(self, index: int) -> None:
        """Start a node, for the first time or again."""
        plan = self.plans[index]
        plan.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (plan.directory / OUTPUT_NAME).open("ab") as output:
            self._processes[index] = subprocess.Popen(
                plan.command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    def kill(self, index: int) -> None:
        """SIGKILL a node and wait until it is gone."""
        process = self._processes.pop(index)
        process.kill()
        process.wait()
        _close_stdin(process)

    def exited(self) -> dict[int, int]:
        """Nodes that ended by themselves, with their exit codes."""
        codes = {index: process.poll() for index, process in self._processes.items()}
        return {index: code for index, code in codes.items() if code is not None}

    def pids(self) -> dict[int, int]:
        """Process ids of the nodes that were started and not killed."""
        return {index: process.pid for index, process in self._processes.items()}

    def tail(self, index: int) -> str:
        """The last lines that a node printed."""
        try:
            data = (self.plans[index].directory / OUTPUT_NAME).read_bytes()[-TAIL_BYTES:]
        except FileNotFoundError:
            return ""
        return "\n".join(data.decode("utf-8", errors="replace").splitlines()[-TAIL_LINES:])

    def stop(self, *, deadline_s: float = STOP_DEADLINE_S) -> list[int]:
        """End all nodes: SIGTERM, then SIGKILL after the deadline or on Ctrl-C. Returns those that were killed."""
        processes, self._processes = self._processes, {}
        for process in processes.values():
            _close_stdin(process)
            process.send_signal(signal.SIGTERM)
        killed = []
        end = time.monotonic() + deadline_s
        for index, process in processes.items():
            try:
                process.wait(timeout=max(0.0, end - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                end = time.monotonic()
                process.kill()
                process.wait()
                killed.append(index)
        return killed


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()

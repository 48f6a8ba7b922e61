"""Decision latency and cost of consensus among real processes on loopback, without training.

Each member is a lightweight node process with its own disk and sockets. Probe operations, which change nothing, are
submitted to the members in turn; every block that is decided is a sample of each member's time from its first sight of
the height's ballots to the decision, its sync to the disk included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from aicpnode.cluster import Cluster, NodePlan, free_ports, plan_nodes
from aicpnode.config import KEY_FILE
from aicpnode.errors import AicpError
from aicpnode.founding import found_run_folder
from aicpnode.genesis import Founder
from aicpnode.identity import Identity
from aicpnode.interfaces.client import NodeUnreachable, SyncControlClient

JsonObject = dict[str, Any]

TEXT = "The quick brown fox jumps over the lazy dog. " * 4096
"""Nobody trains in this measurement; a genesis needs a text all the same."""
START_DEADLINE_S = 120.0
POLL_S = 0.1
WARM_UP_DECISIONS = 3


class BenchFailed(AicpError):
    """A measurement that could not be made."""


def measure(*, members: int, decisions: int, report: Callable[[str], None] = lambda _line: None) -> JsonObject:
    """One row. Raises BenchFailed if the members do not come up."""
    with _running(members) as clients:
        report(f"{members} members are up")
        for number in range(WARM_UP_DECISIONS):
            clients[number % members].call("probe")
        before = [client.call("status") for client in clients]
        probes = [clients[number % members].call("probe")["ms"] for number in range(decisions)]
        after = [client.call("status") for client in clients]
    return _row(members, before, after, probes)


def _row(members: int, before: list[JsonObject], after: list[JsonObject], probes: list[float]) -> JsonObject:
    """One row; costs are a decision's, summed over the members except where the name says otherwise.

    ``messages``: a broadcast counts once; ``bytes`` are all that went out, to every peer and heartbeats included.
    ``verifications``: each distinct signature once, on arrival or inside a certificate.
    """
    decided = min(later["height"] - earlier["height"] for later, earlier in zip(after, before, strict=True))

    def spent(name: str) -> float:
        total = sum(float(later[name] - earlier[name]) for later, earlier in zip(after, before, strict=True))
        return float(total / decided)

    return {
        "mode": "loopback",
        "n": members,
        "proposals": 0,
        "decisions": decided,
        "decision_ms_p50": median(status["decision_ms_p50"] for status in after),
        "decision_ms_p99": max(status["decision_ms_p99"] for status in after),
        "operation_ms_p50": median(probes),
        "cpu_ms_per_decision_per_node": 1000 * spent("cpu_s") / members,
        "messages": spent("messages_sent"),
        "bytes": spent("wire_bytes_sent"),
        "verifications": spent("verifications"),
    }


@contextmanager
def _running(members: int) -> Iterator[list[SyncControlClient]]:
    """Control clients of ``members`` connected founders in a temporary folder; stopped and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="aicp-bench-") as folder:
        directory = Path(folder)
        plans = _plans(directory, members)
        with Cluster(plans).running() as cluster:
            clients = [SyncControlClient(plan.socket) for plan in plans]
            _wait_connected(cluster, clients)
            yield clients


def _plans(directory: Path, members: int) -> tuple[NodePlan, ...]:
    names = [f"member-{index}" for index in range(members)]
    founders = [Founder(key=Identity.load_or_create(directory / name / KEY_FILE).key, name=name) for name in names]
    text = directory / "text.txt"
    text.write_text(TEXT)
    genesis, _ = found_run_folder(directory / "run", name="bench", founders=founders, data=text)
    return plan_nodes(
        directory=directory,
        genesis=genesis,
        names=names,
        ports=free_ports(members),
        arguments=("--node-type", "lightweight"),
    )


def _wait_connected(cluster: Cluster, clients: list[SyncControlClient]) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    waiting = set(range(len(clients)))
    while waiting:
        for index in sorted(waiting):
            if index in cluster.exited():
                raise BenchFailed(f"a member ended by itself:\n{cluster.tail(index)}")
            try:
                status = clients[index].call("status")
            except NodeUnreachable:
                continue
            if status["phase"] == "running" and status["peers"] == len(clients) - 1:
                waiting.discard(index)
        if time.monotonic() > deadline:
            raise BenchFailed(f"the members did not connect within {START_DEADLINE_S:.0f} s")
        time.sleep(POLL_S)

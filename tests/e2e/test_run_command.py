"""``aicp-node run`` as a user starts it: by hand, twice on one machine, wrongly, and through its prompt."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 120
TEXT = b"def f(x):\n    return x + 1\n\n\n" * 8000
RSS_MB_MAX = 120
READY = re.compile(r"ready: node (\S+), key ([0-9a-f]{64}), p2p 127\.0\.0\.1:(\d+), network ([0-9a-f]{64})")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user of our own, so that other nodes on this machine are not seen."""
    (tmp_path / "text").write_bytes(TEXT)
    homes = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "DATA")}
    return {**os.environ, **homes, "OMP_NUM_THREADS": "1"}


def aicp_node(environment: dict[str, str], *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aicpnode", *arguments],
        input=typed, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment,
    )  # fmt: skip


class Running:
    """A node process that said it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.seen += line
            if found := READY.search(line):
                self.name, self.key, self.port, self.network = found[1], found[2], int(found[3]), found[4]
                return
        raise AssertionError(f"not ready: {self.seen}")


@contextlib.contextmanager
def run(environment: dict[str, str], *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "aicpnode", "run", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def lightweight(tmp_path: Path, *arguments: str) -> list[str]:
    return ["--node-type", "lightweight", "--data", str(tmp_path / "text"), *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_lightweight_node_is_small_and_stops_cleanly(tmp_path: Path, environment: dict[str, str]) -> None:
    with run(environment, *lightweight(tmp_path, "--node-id", "ada", "--p2p-port", str(free_port()))) as node:
        asked = aicp_node(environment, "status", "--json")
        status = json.loads(asked.stdout.splitlines()[-1])
        assert (status["node_id"], status["key"], status["network"]) == ("ada", node.key, node.network)
        process = psutil.Process(node.process.pid)
        assert process.memory_info().rss < RSS_MB_MAX << 20
        if sys.platform == "linux":
            assert not [mapped.path for mapped in process.memory_maps() if "libtorch" in mapped.path]
        assert aicp_node(environment, "status", "--check").returncode == 0
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(timeout=DEADLINE_S) == 0
    assert aicp_node(environment, "status", "--check").returncode == 3
    assert (tmp_path / "data" / "aicp-node" / "ada" / "node.log").exists()


def test_two_nodes_by_hand_find_ports_and_directories_and_each_other(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with run(environment, *lightweight(tmp_path)) as first:
        join = ["--node-type", "lightweight", "--bootstrap", f"127.0.0.1:{first.port}", "--network", first.network]
        with run(environment, *join) as second:
            assert second.port != first.port
            assert (second.network, second.key != first.key) == (first.network, True)
            wrong = aicp_node(environment, "run", *join[:-1], "ab" * 32)
            assert wrong.returncode == 2
            assert "network" in wrong.stderr


def test_errors_of_users_are_sentences(tmp_path: Path, environment: dict[str, str]) -> None:
    port = free_port()
    with run(environment, *lightweight(tmp_path, "--node-id", "ada", "--p2p-port", str(port))) as node:
        same_directory = aicp_node(environment, "run", *lightweight(tmp_path, "--node-id", "ada", "--p2p-port", "0"))
        assert same_directory.returncode == 2
        assert f"in use by process {node.process.pid}" in same_directory.stderr
        same_port = aicp_node(environment, "run", *lightweight(tmp_path, "--node-id", "bob", "--p2p-port", str(port)))
        assert same_port.returncode == 2
        assert str(port) in same_port.stderr
        for failed in (same_directory, same_port):
            assert "Traceback" not in failed.stderr


def test_prompt_over_a_pipe_answers_and_quits(tmp_path: Path, environment: dict[str, str]) -> None:
    done = aicp_node(
        environment, "run", "--repl", *lightweight(tmp_path, "--p2p-port", "0"), typed="stats\nmembers\nwhy\nquit\n"
    )
    assert done.returncode == 0, done.stderr
    for part in ("p2p> stats", "1 active, quorum 1", "p2p> members", "ACTIVE", "p2p> why"):
        assert part in done.stdout


def test_memory_limit_stops_the_node_with_the_reason(tmp_path: Path, environment: dict[str, str]) -> None:
    done = aicp_node(environment, "run", *lightweight(tmp_path, "--p2p-port", "0", "--max-memory-mb", "64"))
    assert done.returncode == 2
    assert "max_memory_mb = 64" in done.stderr

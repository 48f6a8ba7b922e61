"""Real node processes on loopback: founded, started, killed and asked by tests, and never left behind.

Runs are founded with a tiny model, so that a round takes about a second. Everything that a user keeps (home, registry
of running nodes, data) lies under the test's own folder. What the nodes printed is attached to a test that fails.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aicpnode.config import KEY_FILE
from aicpnode.errors import AicpError
from aicpnode.founding import GENESIS_FILE
from aicpnode.genesis import Founder, Genesis, write_genesis
from aicpnode.gradients.state import initial_state
from aicpnode.identity import Identity
from aicpnode.interfaces.client import NodeUnreachable, SyncControlClient
from aicpnode.interfaces.control import socket_path
from aicpnode.model.config import TransformerConfig
from aicpnode.model.initial import initial_theta
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import FILE_NAME as DATABASE_FILE
from aicpnode.training.corpus import build_corpus
from aicpnode.training.presets import default_genesis

HOST = "127.0.0.1"
PATIENCE_S = 120.0
"""No condition takes so long unless something is broken: two cores carry two tests at once."""
POLL_S = 0.1
ANSWER_S = 30.0
TAIL_BYTES = 6_000
ROUND_MS = 3000
WORDS = "the model of a run is agreed by hash and every member can prove that it holds the same bits as all"
RUNNING = pytest.StashKey[list["NodeProcess"]]()
_port_numbers = itertools.count(10_000 + 61 * (os.getpid() % 300))
"""Below the ports that outgoing connections use, and apart from those of other test processes."""


def take_ports(count: int) -> list[int]:
    """Ports that nobody listens on; no later call in this process gives them again."""
    found: list[int] = []
    while len(found) < count:
        port = next(_port_numbers)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for process in item.stash.get(RUNNING, []):
            report.sections.append((f"output of {process.name}", process.output()[-TAIL_BYTES:]))
    return report


@dataclass(eq=False)
class NodeProcess:
    """One ``aicp-node run`` process, perhaps started several times on the same data directory."""

    name: str
    directory: Path
    port: int
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    _log_began: int = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"{self.name} is not running"
        return self.process

    def start(self, *, extra: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "aicpnode", "run", *self.arguments, *extra]
        self._log_began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        process, self.process = self.running, None
        process.kill()
        process.wait()

    def terminate(self, *, within_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        self.running.send_signal(signal.SIGTERM)
        return self.wait(within_s=within_s)

    def wait(self, *, within_s: float = PATIENCE_S) -> int:
        """The exit code of a process that ends by itself."""
        code = self.running.wait(timeout=within_s)
        self.process = None
        return code

    def dispose(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def output(self) -> str:
        """All that it printed since its first start."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def latest_output(self) -> str:
        """What it printed since its latest start."""
        with self.log.open("rb") as file:
            file.seek(self._log_began)
            return file.read().decode(errors="replace")

    def call(self, command: str, args: dict[str, Any] | None = None, **keywords: Any) -> dict[str, Any]:
        return SyncControlClient(socket_path(self.directory), idle_timeout_s=ANSWER_S).call(command, args, **keywords)

    def status(self) -> dict[str, Any]:
        """The answer to ``status``; empty while the node does not answer."""
        if self.process is None:
            return {}
        try:
            return self.call("status")
        except NodeUnreachable:
            return {}

    def round_hashes(self) -> dict[int, str]:
        """Model hash after each round that this node has applied."""
        return {row["round"]: row["model_hash"] for row in self.call("rounds")["rounds"] if row.get("model_hash")}

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What stands in the database of a node that is not running. Read from a copy: its log is not touched."""
        assert self.process is None, "only of a node that does not run"
        copies = self.log.with_name(f"{self.name}-database")
        shutil.rmtree(copies, ignore_errors=True)
        copies.mkdir()
        for file in self.directory.glob(f"{DATABASE_FILE}*"):
            shutil.copy(file, copies)
        with sqlite3.connect(copies / DATABASE_FILE) as connection:
            found = connection.execute(query).fetchall()
        connection.close()
        return found


@dataclass(eq=False)
class Cluster:
    """The nodes of one run."""

    genesis: Genesis
    genesis_file: Path
    nodes: list[NodeProcess]
    launch: Callable[..., NodeProcess]
    until: Callable[..., None]
    extra: dict[str, Any] = field(default_factory=dict)

    def start(self, *indexes: int) -> None:
        for index in indexes or range(len(self.nodes)):
            self.nodes[index].start()

    def until_connected(self) -> None:
        """Until every running node runs whole and sees all others."""
        running = [node for node in self.nodes if node.process is not None]

        def connected() -> bool:
            statuses = [node.status() for node in running]
            return all(s.get("phase") == "running" and s["peers"] >= len(running) - 1 for s in statuses)

        self.until(connected, "all nodes run and are connected", running)

    def until_round(self, least: int, nodes: Sequence[NodeProcess] | None = None) -> None:
        """Until these nodes have applied so many rounds."""
        chosen = self.nodes if nodes is None else nodes
        self.until(lambda: all(n.status().get("round", 0) >= least for n in chosen), f"round {least}", chosen)

    def assert_equal_rounds(self, least: int, nodes: Sequence[NodeProcess] | None = None) -> None:
        """The hashes of these nodes are equal after every round of which all keep figures, at least so many."""
        chosen = self.nodes if nodes is None else nodes
        hashes: dict[str, dict[int, str]] = {}

        def enough() -> bool:
            # A node writes the figures of a round a moment after it has applied it.
            hashes.update({node.name: node.round_hashes() for node in chosen})
            return len(set.intersection(*(set(found) for found in hashes.values()))) >= least

        self.until(enough, f"figures of {least} rounds", chosen)
        for number in sorted(set.intersection(*(set(found) for found in hashes.values()))):
            after = {name: by_round[number] for name, by_round in hashes.items()}
            assert len(set(after.values())) == 1, f"round {number}: {after}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, also for every process it starts."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    for name in ("DEBUG_LEVEL", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A small text to train on."""
    path = tmp_path / "text.txt"
    words, chooser = WORDS.split(), random.Random(1)
    path.write_text(" ".join(chooser.choice(words) for _ in range(24_000)))
    return path


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """``launch(name, *arguments)``: a node with a data directory and a port of its own, not yet started."""
    nodes = request.node.stash.setdefault(RUNNING, [])

    def make(name: str, *arguments: str, port: int | None = None, directory: Path | None = None) -> NodeProcess:
        directory = tmp_path / name if directory is None else directory
        port = take_ports(1)[0] if port is None else port
        given = ["--node-id", name, "--data-dir", str(directory), "--port", str(port), *arguments]
        node = NodeProcess(name=name, directory=directory, port=port, arguments=given, log=tmp_path / f"{name}.log")
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.dispose()


@pytest.fixture
def until(launch: object, request: pytest.FixtureRequest) -> Callable[..., None]:
    """``until(condition, what, nodes)``: wait for it; fail with what these nodes wait for after ``PATIENCE_S``."""

    def wait(
        condition: Callable[[], bool], what: str, nodes: Sequence[NodeProcess] = (), *, within_s: float = PATIENCE_S
    ) -> None:
        end = time.monotonic() + within_s
        while not condition():
            for node in nodes:
                ended = node.process is not None and node.process.poll() is not None
                assert not ended, f"{node.name} ended while waited for: {what}"
            if time.monotonic() > end:
                asked = nodes or request.node.stash.get(RUNNING, [])
                pytest.fail(f"not within {within_s:.0f} s: {what}\n" + "\n".join(map(_state_of, asked)))
            time.sleep(POLL_S)

    return wait


def _state_of(node: NodeProcess) -> str:
    try:
        status, why = node.call("status"), node.call("why")
    except AicpError as error:
        return f"{node.name}: {error}"
    shown = {key: status[key] for key in ("phase", "round", "height", "view", "step", "peers", "paused", "behind")}
    return f"{node.name}: {json.dumps(shown)}\n  why: {json.dumps(why)}"


@pytest.fixture
def found(
    tmp_path: Path, text: Path, launch: Callable[..., NodeProcess], until: Callable[..., None]
) -> Callable[..., Cluster]:
    """``found(count)``: a run with so many founders and a tiny model; ``arguments`` by index go to ``run``."""

    def make(
        count: int,
        *,
        node_type: str = "training",
        arguments: dict[int, Sequence[str]] | None = None,
        demo_model: bool = False,
        **changes: Any,
    ) -> Cluster:
        names = [f"n{index}" for index in range(count)]
        identities = [Identity.load_or_create(tmp_path / name / KEY_FILE) for name in names]
        founders = [Founder(key=i.key, name=name) for i, name in zip(identities, names, strict=True)]
        path, genesis = write_run(tmp_path / "run", founders, text, demo_model=demo_model, **changes)
        ports = take_ports(count)
        nodes = []
        for index, name in enumerate(names):
            others = ",".join(f"{HOST}:{port}" for port in ports if port != ports[index])
            given = ["--genesis", str(path), "--node-type", node_type]
            given += ["--bootstrap", others] if others else []
            given += (arguments or {}).get(index, ())
            nodes.append(launch(name, *given, port=ports[index]))
        return Cluster(genesis=genesis, genesis_file=path, nodes=nodes, launch=launch, until=until)

    return make


def write_run(
    folder: Path, founders: Sequence[Founder], text: Path, *, demo_model: bool = False, **changes: Any
) -> tuple[Path, Genesis]:
    """A run folder like ``found_run_folder`` makes it, with a model that trains in no time."""
    preset = default_genesis()
    model = preset.model
    if not demo_model:
        model = replace(model, layers=1, width=32, heads=2, kv_heads=2, ffn_width=64, context=32)
    config = TransformerConfig.from_spec(model)
    rounds = replace(preset.round, round_ms=ROUND_MS)
    with Blobs.open(folder / "blobs") as blobs:
        shards = build_corpus(text)
        for shard in shards:
            blobs.put(shard.content)
        theta = initial_theta(config, seed=1)
        first = initial_state(
            theta, parameters=config.parameters, momentum_q16=rounds.momentum_q16, norm_cap=rounds.norm_cap
        )
        fields: dict[str, Any] = {
            "name": "test",
            "nonce": bytes(16),
            "created": "now",
            "model": model,
            "parameters": config.parameters,
            "layout_hash": config.layout_hash,
            "initial_model": blobs.put(theta.astype("<f4").tobytes()),
            "initial_model_hash": first.model_hash,
            "data": preset.data(tuple(shard.record for shard in shards)),
            "training": replace(preset.training, inner_steps=3, batch_size=2, sequence_length=32),
            "round": rounds,
            "roster": tuple(founders),
            "probation_rounds": 2,
            "consensus": preset.consensus,
        }
        genesis = Genesis(**{**fields, **changes})
    path = folder / GENESIS_FILE
    write_genesis(path, genesis)
    return path, genesis


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``command(*arguments)``: one ``aicp-node`` command line to its end."""

    def run(*arguments: str, within_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "aicpnode", *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=within_s, check=False)

    return run

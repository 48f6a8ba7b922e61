"""What the user can mend is refused with exit code 2, a sentence that names the thing, and advice; no traceback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from aicpnode.errors import AicpError

EXIT_USER = 2
LIGHT = ("--node-type", "lightweight")


def refused(done: subprocess.CompletedProcess[str], *says: str) -> None:
    """One red sentence and one of advice, on stderr alone."""
    assert done.returncode == EXIT_USER, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("20")]
    assert lines[0].startswith("Error: "), done.stderr
    assert len(lines) >= 2, "advice follows"
    for text in says:
        assert text in done.stderr, done.stderr


@pytest.fixture
def stopped(found, until):
    """A lightweight node of a run of its own that ran and was stopped, with its cluster."""
    cluster = found(1, node_type="lightweight")
    (node,) = cluster.nodes
    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs", [node])
    assert node.terminate() == 0
    return node, cluster


def test_unknown_config_key_is_refused_with_the_nearest_name(tmp_path: Path, command) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"bootstrap_peer": ["127.0.0.1:1"]}))
    refused(command("run", "--config", str(file)), "'bootstrap_peer'", "Did you mean bootstrap_peers?")


def test_explicit_port_in_use_is_refused(launch, text, command) -> None:
    node = launch("node", *LIGHT, "--data", str(text))
    with socket.socket() as other:
        other.bind(("127.0.0.1", node.port))
        other.listen()
        refused(command("run", *node.arguments), f"port {node.port}", "in use", "--p2p-port")


def test_other_network_than_the_named_one_is_refused(stopped, launch, until, command) -> None:
    node, cluster = stopped
    wrong = "ab" * 32
    right = cluster.genesis.network_id.hex()
    refused(command("run", *node.arguments, "--network", wrong), right, wrong, "--data-dir")
    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs", [node])
    joiner = launch("joiner", *LIGHT, "--bootstrap", node.address, "--network", wrong)
    refused(command("run", *joiner.arguments), node.address, right, wrong, "whoever invited you")


def test_genesis_of_another_run_is_refused_on_an_old_data_directory(stopped, text, tmp_path: Path, command) -> None:
    node, cluster = stopped
    key = cluster.genesis.roster[0].key.hex()
    other = tmp_path / "other"
    made = command("init", str(other), "--member", f"{key}:n0", "--data", str(text))
    assert made.returncode == 0, made.stderr
    arguments = ["--data-dir", str(node.directory), "--genesis", str(other / "genesis.aicp"), *LIGHT]
    refused(
        command("run", *arguments), str(node.directory), cluster.genesis.network_id.hex(), "another run", "--data-dir"
    )


def test_key_file_that_others_can_read_is_refused(stopped, command) -> None:
    node, _ = stopped
    key = node.directory / "identity.key"
    key.chmod(0o644)
    refused(command("run", *node.arguments), str(key), "644", "chmod 600")


def test_data_directory_in_use_is_refused_with_the_process_id(found, until, command) -> None:
    (node,) = found(1, node_type="lightweight").nodes
    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs", [node])
    second = command("run", "--data-dir", str(node.directory), *LIGHT)
    refused(second, str(node.directory), f"process {node.running.pid}", "another --data-dir")
    assert node.status()["phase"] == "running"


@pytest.mark.parametrize("offset", [0, 4096 + 8], ids=["header", "page"])
def test_damaged_database_is_refused(stopped, command, offset: int) -> None:
    node, _ = stopped
    database = node.directory / "node.sqlite"
    with database.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(2048))
    refused(command("run", *node.arguments), str(database), "damaged", "leave the key file", "replaying the ledger")


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of its own with 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def test_full_disk_is_refused_at_the_start(small_disk: Path, launch, text, command) -> None:
    directory = small_disk / "node"
    directory.mkdir(mode=0o700)
    fill(small_disk)
    node = launch("node", *LIGHT, "--data", str(text), directory=directory)
    refused(command("run", *node.arguments), str(directory), "is full", "--data-dir")


def test_disk_that_fills_up_stops_the_node_and_loses_nothing(small_disk: Path, found, launch, until) -> None:
    cluster = found(1, node_type="lightweight")
    original = cluster.nodes[0]
    directory = small_disk / "node"
    directory.mkdir(mode=0o700)
    shutil.copy(original.directory / "identity.key", directory)
    node = launch("node", *LIGHT, "--genesis", str(cluster.genesis_file), directory=directory)
    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs", [node])
    decided = node.call("probe")["height"]
    ballast = fill(small_disk)
    # SQLite reuses what its files hold already, so it takes a few operations until a write fails.
    with pytest.raises(AicpError):
        while True:
            decided = node.call("probe")["height"]
    assert node.wait() == EXIT_USER
    assert "is full" in node.output() and "Nothing was lost" in node.output()
    assert "Traceback" not in node.output()
    ballast.unlink()
    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs again", [node])
    assert node.status()["height"] >= decided
    assert node.call("probe")["height"] > decided


def test_unreachable_bootstrap_is_tried_until_it_is_there(stopped, launch, until) -> None:
    founder, cluster = stopped
    joiner = launch("joiner", *LIGHT, "--bootstrap", founder.address)
    joiner.start()
    said = f"the genesis cannot be fetched from {founder.address}: connection refused."
    until(lambda: joiner.output().count(said) >= 2, "it says that it keeps trying", [joiner])
    assert "Attempt 2, next in" in joiner.output()
    founder.start()
    until(lambda: joiner.status().get("phase") == "running", "it goes on", [founder, joiner])
    assert joiner.status()["network"] == cluster.genesis.network_id.hex()
    # Known from the genesis on, an unreachable bootstrap is a wait that can be named.
    assert founder.terminate() == 0

    def named() -> bool:
        return any(founder.address in wait["what"] for wait in joiner.call("why")["waits"])

    until(named, "the lost bootstrap is named", [joiner])

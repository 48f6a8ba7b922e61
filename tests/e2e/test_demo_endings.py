"""However the demo ends, no process of it is left behind; and at full size it does what the README promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

NODES = 4
GONE_WITHIN_S = 60
FULL_DEMO_S = 900
EXIT_INTERRUPTED = 130


@pytest.fixture
def demo(tmp_path: Path, text: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a demo as the leader of a process group, as a terminal does, and waits until all its nodes train."""
    started: list[psutil.Process] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aicpnode", "demo", "--nodes", str(NODES), "--rounds", "1000"]
        command += ["--dir", str(tmp_path / "demo"), "--data", str(text)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        started.append(psutil.Process(process.pid))
        seen = []
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line)
            if "All nodes are up" in line:
                started.extend(started[0].children(recursive=True))
                return process
        raise AssertionError("the demo ended: " + "".join(seen))

    yield start
    for process in started:
        if process.is_running():
            process.kill()


def test_ctrl_c_at_the_demo_ends_every_process(demo) -> None:
    process = demo()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == NODES
    # The terminal sends Ctrl-C to the whole group of the foreground process.
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=GONE_WITHIN_S)
    assert process.returncode == EXIT_INTERRUPTED, rest
    assert "Traceback" not in rest
    _, alive = psutil.wait_procs(children, timeout=1)
    assert alive == []


def test_nodes_of_a_demo_that_was_killed_stop_by_themselves(demo) -> None:
    process = demo()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == NODES
    process.kill()
    process.communicate(timeout=GONE_WITHIN_S)
    _, alive = psutil.wait_procs(children, timeout=GONE_WITHIN_S)
    assert alive == []


@pytest.mark.parametrize(
    ("fault", "honest"),
    [(("--kill-at", "2"), 4), (("--byzantine", "1:garbage"), 3)],
    ids=lambda value: "-".join(value).strip("-").replace(":", "-") if isinstance(value, tuple) else str(value),
)
def test_demo_with_a_fault_ends_with_equal_honest_models(
    tmp_path: Path, text: Path, command, fault: tuple[str, ...], honest: int
) -> None:
    where = ("--dir", str(tmp_path / "demo"), "--data", str(text))
    done = command("demo", *where, "--rounds", "4", *fault, "--json", "-", within_s=FULL_DEMO_S)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["equal"] is True and len(result["state_hashes"]) == honest
    assert len(set(result["state_hashes"])) == 1
    if "--kill-at" in fault:
        assert "Killing the leader" in done.stdout and "starting" in done.stdout
    if "1:garbage" in fault:
        assert result["refused"] > 0


def test_full_demo_learns_more_than_a_bigram_model_and_ends_equal(tmp_path: Path, command, record_property) -> None:
    done = command("demo", "--dir", str(tmp_path / "demo"), "--json", "-", within_s=FULL_DEMO_S)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    for name in ("seconds", "decision_ms_p50", "wire_bytes_per_round", "training_share"):
        record_property(name, result[name])
    assert result["nodes"] == NODES and len(result["state_hashes"]) == NODES
    assert len(set(result["state_hashes"])) == 1
    assert result["val_loss"][-1] <= 2.1
    assert result["val_loss"][-1] < result["bigram_loss"]
    assert result["refused"] == 0

"""``aicp-node demo`` as a user starts it, small: real nodes, the JSON of the contract, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 240
TEXT = b"def f(x):\n    return x + 1\n\n\n" * 8000


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}


def demo_command(tmp_path: Path, *arguments: str) -> list[str]:
    text = tmp_path / "text"
    text.write_bytes(TEXT)
    folder = tmp_path / "demo"
    return [sys.executable, "-m", "aicpnode", "demo", "--dir", str(folder), "--data", str(text), *arguments]


def test_demo_of_two_nodes_ends_equal_with_json_as_its_last_line(tmp_path: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        demo_command(tmp_path, "--nodes", "2", "--rounds", "2", "--json", "-"),
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["nodes"], result["rounds"], len(result["state_hashes"])) == (2, 2, 2)
    assert len(set(result["state_hashes"])) == 1
    assert "EQUAL: All nodes" in done.stdout
    assert (tmp_path / "demo" / "loss.png").exists()
    checkpoint = next((tmp_path / "demo" / "node-0" / "checkpoints").glob("*.aicp"))
    generated = subprocess.run(
        [sys.executable, "-m", "aicpnode", "generate", "def", "--checkpoint", checkpoint, "--tokens", "5", "--json"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment,
    )  # fmt: skip
    assert generated.returncode == 0, generated.stderr
    assert json.loads(generated.stdout.splitlines()[-1])["model_hash"] == result["state_hashes"][0]


def test_ctrl_c_ends_the_demo_and_leaves_no_process_behind(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = subprocess.Popen(
        demo_command(tmp_path, "--nodes", "2", "--rounds", "50"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    assert demo.stdout is not None
    seen = []
    for line in demo.stdout:
        seen.append(line)
        if "All nodes are up" in line:
            break
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) == 2, "".join(seen)
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 130, rest
    assert "Interrupted" in rest and "Traceback" not in rest
    _, alive = psutil.wait_procs(children, timeout=1)
    assert alive == []

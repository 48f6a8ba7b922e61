"""``aicp-node simulate`` as a user meets it: its JSON, its hash, its refusals, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest

from aicpnode.cli.app import run_app
from aicpnode.simulation.checks import Checks
from aicpnode.simulation.member import Violation

CONTRACT = ("runs", "violations", "undecided", "heights", "seconds", "trace_hash")
WAIT_S = 120
EXAMPLE = Path(__file__).parents[3] / "docs" / "scenario.toml"


def simulate(*arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "aicpnode", "simulate", *arguments, "--json"],
        capture_output=True, text=True, timeout=WAIT_S, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_same_seeds_have_one_hash_whatever_the_processes_and_the_hash_seed() -> None:
    what = ("--nodes", "4", "--byzantine", "1", "--faults", "all", "--seeds", "0:4")
    alone = simulate(*what, "--jobs", "1", PYTHONHASHSEED="1")
    together = simulate(*what, "--jobs", "2", PYTHONHASHSEED="2")
    assert len(alone["trace_hash"]) == 64
    assert {**alone, "seconds": 0} == {**together, "seconds": 0}
    assert tuple(alone)[: len(CONTRACT)] == CONTRACT
    assert (alone["runs"], alone["violations"], alone["undecided"]) == (4, 0, 0)
    assert alone["heights"] >= 40
    assert alone["violating_seeds"] == alone["undecided_seeds"] == []
    assert alone["replay"] is None


def test_other_seeds_and_faults_have_another_hash(capsys: pytest.CaptureFixture[str]) -> None:
    hashes = set()
    for words in (["0:2", "none"], ["1:3", "none"], ["0:2", "all"]):
        assert run_app(["simulate", "--seeds", words[0], "--faults", words[1], "--jobs", "1", "--json"]) == 0
        hashes.add(json.loads(capsys.readouterr().out.splitlines()[-1])["trace_hash"])
    assert len(hashes) == 3


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", "--seeds", "0:2", "--faults", "none", "--byzantine", "0", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    for word in ("byzantine", "heights decided", "violations", "undecided", "trace hash"):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nodes", "x"], "Write 4, or 4,5,7, or 10-16."),
        (["--seeds", "9:3"], "the smaller number first"),
        (["--faults", "los"], "Did you mean loss?"),
        (["--byzantine", "4"], "leaves no honest member"),
        (["--trace", "-"], "Try --seeds 0."),
        (["--scenario", "/nonexistent.toml"], "Cannot read the scenario"),
        (["--scenario", "x.toml", "--nodes", "4"], "Leave out --nodes"),
        (["--seeds", "3", "--trace", "-", "--svg", "-"], "cannot both go to standard output"),
        (["--seeds", "3", "--window", "0:9"], "--window is for --trace and --svg"),
        (["--seeds", "3", "--trace", "-", "--window", "9:0"], "such as 0:1500"),
        (["--seeds", "3", "--byzantine", "0", "--trace", "/nonexistent/x"], "Cannot write /nonexistent/x"),
    ],
)
def test_refusals_say_what_to_write(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_one_run_is_logged_drawn_and_hashed_as_among_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = ["simulate", "--nodes", "4", "--byzantine", "1", "--seeds", "2", "--json"]
    assert run_app([*what, "--jobs", "1"]) == 0
    plain = json.loads(capsys.readouterr().out.splitlines()[-1])
    svg = tmp_path / "run.svg"
    assert run_app([*what, "--trace", "-", "--svg", str(svg), "--window", "0:2000"]) == 0
    *log, last = capsys.readouterr().out.splitlines()
    assert {**json.loads(last), "seconds": 0} == {**plain, "seconds": 0}
    assert log[0].startswith("# seed 2;")
    assert log[-1].startswith("# trace hash ")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_a_scenario_file_runs_with_its_own_seed_or_others(capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for seeds in ([], ["--seeds", "5"], ["--seeds", "1:3"]):
        assert run_app(["simulate", "--scenario", str(EXAMPLE), *seeds, "--jobs", "1", "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert [result["runs"] for result in results] == [1, 1, 2]
    assert results[0]["trace_hash"] == results[1]["trace_hash"] != results[2]["trace_hash"]
    assert (results[0]["scenario"], results[0]["seeds"]) == (str(EXAMPLE), "5")


def test_a_failure_exits_1_and_its_command_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_blocks(checks: Checks, *_arguments: object) -> None:
        raise Violation("invariant 1 or 10: two blocks")

    monkeypatch.setattr(Checks, "decided", two_blocks)
    assert run_app(["simulate", "--nodes", "4,5", "--byzantine", "1", "--seeds", "6:8", "--jobs", "1", "--json"]) == 1
    told = capsys.readouterr()
    result = json.loads(told.out.splitlines()[-1])
    assert (result["runs"], result["violations"], result["violating_seeds"]) == (2, 2, [6, 7])
    commands = re.findall(r"^Run it again: aicp-node (.*)$", told.err, flags=re.MULTILINE)
    assert commands[0] == "simulate --nodes 4 --byzantine 1 --faults all --seeds 6 --trace -"
    assert result["replay"] == f"aicp-node {commands[0]}"
    assert run_app(shlex.split(commands[1])) == 1
    again = capsys.readouterr()
    assert "node-4: " in again.out
    assert again.out.splitlines()[-1] == "# violation: invariant 1 or 10: two blocks"
    assert "Seed 7: violation: invariant 1 or 10: two blocks" in again.err


def test_ctrl_c_ends_all_processes_and_says_nothing_ugly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aicpnode", "simulate", "--seeds", "0:60", "--faults", "none", "--jobs", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "of 60 runs" in process.stderr.readline()
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == ""
    assert psutil.wait_procs(workers, timeout=WAIT_S)[1] == []


def test_twins_say_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", "--twins", "--nodes", "4,5", "--seeds", "0:6", "--jobs", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tuple(result)[: len(CONTRACT)] == CONTRACT
    assert (result["runs"], result["violations"], result["undecided"], result["twins"]) == (6, 0, 0, True)
    assert result["seen"]["view_change"] >= 1


def test_twins_refuse_other_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["simulate", "--twins", "--faults", "loss", "--seeds", "0:2"]) != 0
    assert "--faults" in capsys.readouterr().err

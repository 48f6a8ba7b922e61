"""The course of a demo with stand-in nodes: real processes and control sockets, but rounds that pass by the clock."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from rich.console import Console

from aicpnode.cluster import Cluster, NodePlan, free_ports, plan_nodes
from aicpnode.demo import course as course_module
from aicpnode.demo.board import Board
from aicpnode.demo.course import Course, DemoFailed, Stage
from aicpnode.demo.options import DemoOptions

ROUND_S = 0.1
STAND_IN = """
import sys, time, trio
from pathlib import Path
from aicpnode.interfaces.control import CommandSurface

name, directory, began, rounds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
print(name, "is up", flush=True)

async def status(args):
    round_ = min(rounds, int((time.time() - began) / ROUND_S))
    return {"round": round_, "leader": "node-1", "model_hash": f"{round_:064x}", "peers": 3,
            "training": {"contributing": round_ < rounds, "loss": 2.0, "tokens_per_s": 100.0}}

async def why(args):
    return {"summary": "waiting for carol", "waits": []}

async def main():
    surface = CommandSurface()
    surface.register("status", status)
    surface.register("why", why)
    await surface.serve(directory)

trio.run(main)
""".replace("ROUND_S", str(ROUND_S))


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course_module, "POLL_INTERVAL_S", 0.02)


def stand_ins(folder: Path, count: int, *, rounds: int, program: str = STAND_IN) -> list[NodePlan]:
    began = str(time.time() + 1.0)
    return [
        NodePlan(
            index=i, name=f"node-{i}", directory=folder / f"node-{i}", port=1, fault=None,
            command=(sys.executable, "-c", program, f"node-{i}", str(folder / f"node-{i}"), began, str(rounds)),
        )
        for i in range(count)
    ]  # fmt: skip


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    yield io.StringIO()


def make_course(options: DemoOptions, cluster: Cluster, out: io.StringIO) -> Course:
    board = Board(cluster.plans, rounds=options.rounds, console=Console(file=out, width=160))
    return Course(options=options, cluster=cluster, board=board)


async def test_course_kills_the_leader_restarts_it_and_waits_for_all(tmp_path: Path, out: io.StringIO) -> None:
    options = DemoOptions(nodes=4, rounds=30, kill_at=2, directory=tmp_path)
    cluster = Cluster(stand_ins(tmp_path, 4, rounds=30))
    with trio.fail_after(60), cluster.running():
        course = make_course(options, cluster, out)
        await course.wait_all_ready()
        first = cluster.pids()
        await course.wait_all_rounds_done()
        second = cluster.pids()
    assert (course.stage, course.killed) == (Stage.RESTARTED, 1)
    assert {index for index in first if first[index] != second[index]} == {1}
    assert len({status["model_hash"] for status in course.statuses.values()}) == 1
    text = out.getvalue()
    assert "Killing the leader, node-1" in text and "starting node-1 again" in text and "round 30/30" in text
    assert not any(is_running(pid) for pid in (*first.values(), *second.values()))


async def test_node_that_ends_by_itself_fails_the_demo_with_its_last_words(tmp_path: Path, out: io.StringIO) -> None:
    options = DemoOptions(nodes=1, rounds=5, directory=tmp_path)
    cluster = Cluster(stand_ins(tmp_path, 1, rounds=5, program="raise SystemExit('no disk left')"))
    with trio.fail_after(60), pytest.raises(DemoFailed, match=r"exit code 1[\s\S]*no disk left"), cluster.running():
        await make_course(options, cluster, out).wait_all_ready()


async def test_stall_is_reported_with_the_reason_that_a_node_gives(
    tmp_path: Path, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course_module, "STALL_DEADLINE_S", 0.5)
    options = DemoOptions(nodes=1, rounds=9, directory=tmp_path)
    cluster = Cluster(stand_ins(tmp_path, 1, rounds=3))
    with trio.fail_after(60), cluster.running():
        course = make_course(options, cluster, out)
        await course.wait_all_ready()
        monkeypatch.setattr(course_module, "STALL_DEADLINE_S", 2.0)
        with pytest.raises(DemoFailed, match="waiting for carol"):
            await course.wait_all_rounds_done()


def test_nodes_that_ignore_sigterm_are_killed_after_the_deadline(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    cluster = Cluster(stand_ins(tmp_path, 2, rounds=1, program=program))
    with cluster.running():
        deadline = time.monotonic() + 30
        while not all("up" in cluster.tail(index) for index in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pids = cluster.pids()
        assert cluster.stop(deadline_s=0.2) == [0, 1]
    assert not any(is_running(pid) for pid in pids.values())


def test_failure_stops_all_nodes_even_with_keep(tmp_path: Path) -> None:
    cluster = Cluster(stand_ins(tmp_path, 2, rounds=1, program="import time; time.sleep(600)"))
    with pytest.raises(ZeroDivisionError), cluster.running(keep=True):
        pids = cluster.pids()
        raise ZeroDivisionError
    assert not any(is_running(pid) for pid in pids.values())


def test_children_notice_a_demo_that_was_killed(tmp_path: Path) -> None:
    """A parent that dies by SIGKILL closes the pipe on its child's standard input."""
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time\nfrom pathlib import Path\nfrom aicpnode.cluster import Cluster, NodePlan\n"
            "child = 'import sys; sys.stdin.read(); open(sys.argv[1], \"w\").write(\"noticed\")'\n"
            "folder = Path(sys.argv[1])\n"
            "plan = NodePlan(index=0, name='n', directory=folder, port=1, fault=None,\n"
            "                command=(sys.executable, '-c', child, str(folder / 'end')))\n"
            "Cluster([plan]).start(0)\nprint('started', flush=True)\ntime.sleep(600)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while not (tmp_path / "end").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_planned_commands_name_the_others_and_the_fault(tmp_path: Path) -> None:
    from aicpnode.config import Fault

    plans = plan_nodes(
        directory=tmp_path,
        genesis=tmp_path / "g",
        names=["a", "b"],
        ports=[7001, 7002],
        arguments=("--train-rounds", "5"),
        faults=[None, Fault.SILENT],
    )
    assert "--train-rounds" in plans[0].command
    assert plans[1].directory == tmp_path / "b"
    assert plans[0].command[plans[0].command.index("--bootstrap") + 1] == "127.0.0.1:7002"
    assert "--byzantine" not in plans[0].command
    assert plans[1].command[-2:] == ("--byzantine", "silent")


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(8))) == 8

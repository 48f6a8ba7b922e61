"""Memory and processor limits, each in a process of its own because they cannot be taken back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio

from aicpnode import limits


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are pinned on Linux only")
def test_limit_threads_pins_the_process_and_sizes_the_pools() -> None:
    done = run_python(
        "import os; from aicpnode.limits import limit_threads\n"
        "assert len(limit_threads(1)) == 1 == len(os.sched_getaffinity(0))\n"
        "assert os.environ['OMP_NUM_THREADS'] == '1'\n"
        "assert len(limit_threads(4000)) == 1, 'never widened'\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
def test_limit_memory_turns_a_runaway_allocation_into_a_memory_error() -> None:
    done = run_python(
        "from aicpnode.limits import limit_memory\n"
        "limit_memory(64)\n"
        "bytearray(500 << 20)\n"
        "try:\n    bytearray(3000 << 20)\nexcept MemoryError:\n    print('refused')\n"
    )
    assert done.stdout.strip() == "refused", done.stderr


async def test_watch_memory_reports_the_limit() -> None:
    with trio.fail_after(5), pytest.raises(limits.MemoryLimitExceeded, match=r"max_memory_mb = 1"):
        await limits.watch_memory(1)


async def test_watch_memory_below_the_limit_goes_on(autojump_clock: object) -> None:
    with trio.move_on_after(30) as scope:
        await limits.watch_memory(10**6)
    assert scope.cancelled_caught


def test_resident_mb_is_plausible() -> None:
    assert 5 < limits.resident_mb() < 10_000

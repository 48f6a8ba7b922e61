"""The two limits that a node keeps on itself: memory and processor threads.

Memory. RLIMIT_AS would count address space, of which torch and CUDA map many gigabytes that are never touched, so a
useful value kills honest processes. What an owner means is resident memory, which no limit of the kernel covers
without cgroups. So a watchdog compares the resident size with the limit once a second and ends the node cleanly
(checkpoint, exit code, a sentence that says why), and RLIMIT_DATA, set with headroom above the limit because it
counts reserved thread stacks and arenas too, turns a runaway allocation inside one second into a MemoryError here
instead of the kernel killing somebody else's process. macOS has the watchdog only.

Threads. The pools of torch, OpenMP and numba are sized, and on Linux the process is pinned to as many processors, so
that other threads cannot exceed the limit either. Nodes on one machine start their set at different processors.
"""

from __future__ import annotations

import os
import resource
import sys

import psutil
import trio

from aicpnode.errors import UserError

MIB = 1024 * 1024
DATA_HEADROOM_BYTES = 1024 * MIB
MEMORY_CHECK_INTERVAL_S = 1.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class MemoryLimitExceeded(UserError):
    """The node's resident memory went over ``max_memory_mb``."""


def limit_threads(threads: int) -> frozenset[int]:
    """Keep this process, and its thread pools, to ``threads`` processors; returns the processors it may use.

    Call it before numpy and torch are imported: their pools read the environment once. An empty set means that this
    system cannot pin a process (macOS) and only the pools are limited.
    """
    assert threads >= 1
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if not hasattr(os, "sched_setaffinity"):
        return frozenset()
    allowed = sorted(os.sched_getaffinity(0))
    if threads < len(allowed):
        first = os.getpid() % len(allowed)
        os.sched_setaffinity(0, {allowed[(first + i) % len(allowed)] for i in range(threads)})
    return frozenset(os.sched_getaffinity(0))


def limit_memory(limit_mb: int) -> None:
    """Set the backstop: allocations beyond the limit and its headroom fail in this process (Linux)."""
    if sys.platform != "linux":
        return
    wanted = limit_mb * MIB + DATA_HEADROOM_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def resident_mb() -> float:
    """Resident memory of this process in mebibytes."""
    return float(psutil.Process().memory_info().rss) / MIB


async def watch_memory(limit_mb: int, *, interval_s: float = MEMORY_CHECK_INTERVAL_S) -> None:
    """Raise ``MemoryLimitExceeded`` once the resident memory is over the limit; runs until cancelled."""
    process = psutil.Process()
    while True:
        resident = process.memory_info().rss / MIB
        if resident > limit_mb:
            raise MemoryLimitExceeded(
                f"This node uses {resident:.0f} MiB, more than max_memory_mb = {limit_mb}; it stops.",
                advice="Raise max_memory_mb, or run a lightweight node, which needs no torch.",
            )
        await trio.sleep(interval_s)

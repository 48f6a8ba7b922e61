"""Work that must not get in the way: a thread of its own at a lower priority than votes and gossip.

Training keeps every core busy for seconds; on a machine with few cores the operating system would otherwise share time
evenly between it and the event loop, and every vote would wait for its slice. The threads of trio's pool are not used,
because a thread that gave up its priority may not be allowed to take it back.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import outcome
import trio

NICENESS = 10

Result = TypeVar("Result")


async def run_in_background(work: Callable[[], Result]) -> Result:
    """Run ``work`` in a low-priority thread and wait for its end; a cancellation waits too, so ``work`` must watch for
    it. Its exceptions are raised here."""
    token = trio.lowlevel.current_trio_token()
    done = trio.Event()
    results: list[outcome.Outcome[Result]] = []

    def body() -> None:
        _lower_priority()
        results.append(outcome.capture(work))
        token.run_sync_soon(done.set)

    threading.Thread(target=body, name="training").start()
    with trio.CancelScope(shield=True):
        await done.wait()
    return results[0].unwrap()


def _lower_priority() -> None:
    """Of this thread alone: only Linux counts niceness by thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

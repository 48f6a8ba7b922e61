"""The prompt at this process's terminal, or over its standard input when that is no terminal, and its signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio

from aicpnode.cli.options import console
from aicpnode.interfaces.client import ControlClient
from aicpnode.interfaces.control import CommandCaller
from aicpnode.interfaces.lines import StreamLines, TerminalLines
from aicpnode.interfaces.repl import PROMPT, WORDS, Repl

HISTORY_FILE = "history"


def make_repl(caller: CommandCaller, *, data_dir: Path, attached: bool) -> Repl:
    """A prompt on standard input and output, with its history in the node's data directory."""
    if sys.stdin.isatty():
        lines = TerminalLines(PROMPT, words=WORDS, history=_history(data_dir))
        return Repl(caller, lines, console=console(), attached=attached)
    return Repl(caller, StreamLines(sys.stdin.fileno()), console=console(), attached=attached, echo=True)


def attach(path: Path, *, timeout_s: float) -> None:
    """Run the prompt against a node in another process until the user leaves it."""
    caller = ControlClient(path, idle_timeout_s=timeout_s)

    async def main() -> None:
        status = await caller.call("status")
        directory = Path(status["data_dir"]) if status.get("data_dir") else path.parent
        repl = make_repl(caller, data_dir=directory, attached=True)
        console().print(f"Attached to {status.get('node_id')}.", style="dim", markup=False)
        async with trio.open_nursery() as nursery:
            await nursery.start(interrupt_on_sigint, repl, nursery.cancel_scope)
            await repl.run()
            nursery.cancel_scope.cancel()

    trio.run(main)


async def interrupt_on_sigint(
    repl: Repl, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Ctrl-C cancels the running command of an attached prompt; with none running it leaves. SIGTERM leaves."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGTERM or not repl.interrupt():
                scope.cancel()


def _history(data_dir: Path) -> Path | None:
    path = data_dir / HISTORY_FILE
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return None
    return path

"""Where the prompt's lines come from: a terminal with editing, history and completion, or any other standard input.

Neither blocks the event loop. prompt_toolkit brings an event loop of its own, so its prompt runs in a worker thread
and is told to end when the reader is cancelled, which also gives the terminal back in order. Other inputs are read
without a thread: a thread stuck in ``readline`` would stop the interpreter from exiting.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import trio

LINE_BYTES_MAX = 64 * 1024
PROMPT_EXIT_RETRY_S = 0.05


class LineSource(Protocol):
    """A source of lines. ``KeyboardInterrupt`` from ``read`` means that the user threw the line away."""

    async def read(self) -> str | None:
        """The next line without its end, or ``None`` at the end of the input."""


class StreamLines:
    """Lines from a pipe, a file or a socket."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._waitable = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._data = bytearray()
        self._ended = False

    async def read(self) -> str | None:
        while b"\n" not in self._data and not self._ended:
            chunk = await self._read_some()
            self._ended = not chunk or len(self._data) > LINE_BYTES_MAX
            self._data += chunk
        if self._ended and not self._data:
            return None
        line, _, rest = self._data.partition(b"\n")
        self._data = rest
        return line.decode("utf-8", errors="replace").rstrip("\r")

    async def _read_some(self) -> bytes:
        if self._waitable:
            try:
                await trio.lowlevel.wait_readable(self._descriptor)
            except PermissionError:
                self._waitable = False
        else:
            await trio.lowlevel.checkpoint()
        return os.read(self._descriptor, LINE_BYTES_MAX)


class TerminalLines:
    """Lines edited at a terminal. Output of other tasks appears above the prompt."""

    def __init__(self, prompt: str, *, words: Sequence[str], history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle

        self._prompt = prompt
        self._running = threading.Event()
        self._session: PromptSession[str] = PromptSession(
            completer=WordCompleter(list(words), sentence=True),
            history=InMemoryHistory() if history is None else FileHistory(os.fspath(history)),
            auto_suggest=AutoSuggestFromHistory(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
        )

    async def read(self) -> str | None:
        done = False
        line: str | None = None

        async def end_when_cancelled() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    while not done:
                        self._end_prompt()
                        await trio.sleep(PROMPT_EXIT_RETRY_S)

        interrupted = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_when_cancelled)
            try:
                line = await trio.to_thread.run_sync(self._ask)
            except EOFError:
                line = None
            except KeyboardInterrupt:
                interrupted = True
            finally:
                done = True
                nursery.cancel_scope.cancel()
        if interrupted:
            raise KeyboardInterrupt
        return line

    def _ask(self) -> str:
        from prompt_toolkit.patch_stdout import patch_stdout

        with patch_stdout(raw=True):
            return self._session.prompt(self._prompt)

    def _end_prompt(self) -> None:
        app = self._session.app
        if app.is_running and app.loop is not None:
            app.loop.call_soon_threadsafe(_exit, app)


def _exit(app: object) -> None:
    from prompt_toolkit.application import Application

    assert isinstance(app, Application)
    if app.is_running and app.future is not None and not app.future.done():
        app.exit(exception=EOFError())

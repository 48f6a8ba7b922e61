"""The prompt at a real (pseudo) terminal: completion, output above it, and its end when the reader is cancelled."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios

import pytest

PROGRAM = """
import sys, trio
from aicpnode.interfaces.lines import TerminalLines

async def main():
    lines = TerminalLines("p2p> ", words=["stats", "peers"], history=None)
    print("LINE", await lines.read(), flush=True)
    try:
        print("LINE", await lines.read(), flush=True)
    except KeyboardInterrupt:
        print("THROWN AWAY", flush=True)
    with trio.move_on_after(0.2) as scope:
        await lines.read()
    print("CANCELLED", scope.cancelled_caught, flush=True)
    print("LINE", await lines.read(), flush=True)

trio.run(main)
"""

DEADLINE_S = 20.0
CURSOR_QUESTION, CURSOR_ANSWER = b"\x1b[6n", b"\x1b[1;1R"


class Terminal:
    """The program at the other end of a pseudo terminal."""

    def __init__(self) -> None:
        self.descriptor, program_end = pty.openpty()
        self.settings = termios.tcgetattr(program_end)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=program_end, stdout=program_end, stderr=program_end,
            start_new_session=True, env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )  # fmt: skip
        self.program_end = program_end
        self.seen = b""

    def wait_for(self, text: bytes) -> None:
        while text not in self.seen:
            readable, _, _ = select.select([self.descriptor], [], [], DEADLINE_S)
            assert readable, f"no {text!r} within {DEADLINE_S} s; seen: {self.seen!r}"
            chunk = os.read(self.descriptor, 65536)
            if CURSOR_QUESTION in chunk:
                os.write(self.descriptor, CURSOR_ANSWER)
            self.seen += chunk
        self.seen = self.seen.split(text, 1)[1]

    def type(self, data: bytes) -> None:
        os.write(self.descriptor, data)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are POSIX")
def test_terminal_lines_complete_interrupt_cancel_and_end() -> None:
    terminal = Terminal()
    terminal.wait_for(b"p2p>")
    terminal.type(b"sta\t\r")
    terminal.wait_for(b"LINE stats")
    terminal.wait_for(b"p2p>")
    terminal.type(b"half\x03")
    terminal.wait_for(b"THROWN AWAY")
    terminal.wait_for(b"CANCELLED True")
    terminal.wait_for(b"p2p>")
    terminal.type(b"\x04")
    terminal.wait_for(b"LINE None")
    assert terminal.process.wait(timeout=20) == 0
    assert termios.tcgetattr(terminal.program_end) == terminal.settings
    os.close(terminal.descriptor)
    os.close(terminal.program_end)

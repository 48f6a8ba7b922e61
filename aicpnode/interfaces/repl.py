"""The prompt ``p2p>``: a person talking to one node, in its own process or attached to a daemon.

The prompt is a client of the command surface like any other; it knows names, arguments and how to print results, and
nothing of the node. Lines come from a ``LineSource``, so the same prompt works without a terminal.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from rich.console import Console
from rich.markup import escape

from aicpnode.errors import AicpError, UserError
from aicpnode.interfaces.control import CommandCaller, JsonObject
from aicpnode.interfaces.lines import LineSource
from aicpnode.interfaces.render import printable, render

PROMPT = "p2p> "
WORDS = (
    "stats", "peers", "members", "train", "stop", "test", "why", "health", "rounds", "blacklist", "propose",
    "endorse", "leave", "checkpoint",     "generate", "help", "quit",
)  # fmt: skip
"""The commands, for completion."""
GENERATE_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplCommand:
    """One word of the prompt. ``run`` gets the rest of the line."""

    usage: str
    help: str
    run: Callable[[str], Awaitable[None]]


class Repl:
    """Reads commands until quit or the end of the input and prints their results.

    ``attached`` says whether the node lives in another process: then quit only detaches. ``echo`` prints each line
    read, for transcripts of an input that is no terminal.
    """

    def __init__(
        self, caller: CommandCaller, lines: LineSource, *, console: Console, attached: bool, echo: bool = False
    ) -> None:
        self._caller = caller
        self._lines = lines
        self._console = console
        self._attached = attached
        self._echo = echo
        self._running: trio.CancelScope | None = None
        self.commands = self._commands()

    async def run(self) -> None:
        """Serve the prompt until quit or the end of the input."""
        self._console.print("Type help for the commands, quit or Ctrl-D to leave.", style="dim")
        while True:
            try:
                line = await self._lines.read()
            except KeyboardInterrupt:
                continue
            if line is None:
                return
            if self._echo:
                self._console.print(PROMPT + line, markup=False, highlight=False)
            word, _, rest = line.strip().partition(" ")
            if word in ("quit", "exit"):
                return
            if word:
                await self._run_command(word, rest.strip())

    def interrupt(self) -> bool:
        """Cancel the running command (Ctrl-C); False if none is running."""
        if self._running is None:
            return False
        self._running.cancel()
        return True

    async def _run_command(self, word: str, rest: str) -> None:
        command = self.commands.get(word)
        if command is None:
            near = difflib.get_close_matches(word, self.commands, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Type help for the list."
            self._console.print(f"Unknown command {word!r}. {hint}", style="red", markup=False)
            return
        with trio.CancelScope() as self._running:
            try:
                await command.run(rest)
            except UserError as error:
                self._console.print(str(error), style="red", markup=False)
            except AicpError as error:
                self._console.print(f"Failed: {error}", style="bold red", markup=False)
        if self._running.cancelled_caught:
            self._console.print("Cancelled.", style="yellow")
        self._running = None

    def _commands(self) -> dict[str, ReplCommand]:
        def entry(usage: str, help: str, run: Callable[[str], Awaitable[None]]) -> tuple[str, ReplCommand]:
            return usage.split()[0], ReplCommand(usage=usage, help=help, run=run)

        def plain(name: str, help: str) -> tuple[str, ReplCommand]:
            return entry(name, help, self._plain(name))

        leave = "detach from the node; it goes on" if self._attached else "stop the node and leave"
        commands = dict(
            [
                plain("stats", "where ledger, model and training stand"),
                plain("peers", "connected peers, and addresses being dialled"),
                plain("members", "the roster that votes"),
                entry("train [ROUNDS]", "contribute to training, for ever or for so many rounds", self._train),
                plain("stop", "stop contributing; the others go on"),
                entry("test", "run one agreed gradient round and show votes and times", self._test),
                plain("why", "what this node waits for, and on whom"),
                plain("health", "the checks this node makes of itself"),
                entry("rounds [N]", "the last N training rounds (default 10)", self._rounds),
                plain("blacklist", "banned members, and why"),
                entry("propose CHANGE [VALUE]", "propose a run-wide change", self._propose),
                entry("endorse [ID]", "endorse a change that waits; without ID: list them", self._endorse),
                plain("leave", "give up this node's membership"),
                plain("checkpoint", "write a checkpoint of the model now"),
                entry("generate TEXT", "continue TEXT with the present model", self._generate),
                entry("help", "this list", self._help),
                entry("quit", leave, self._help),
            ]
        )
        assert tuple(commands) == WORDS
        return commands

    def _plain(self, name: str) -> Callable[[str], Awaitable[None]]:
        async def run(rest: str) -> None:
            if rest:
                raise UserError(f"{name} takes no argument.")
            self._console.print(render(name, await self._caller.call(name)))

        return run

    async def _train(self, rest: str) -> None:
        rounds = _whole_number(rest, "train [ROUNDS]")
        result = await self._caller.call("train", {} if rounds is None else {"rounds": rounds})
        self._console.print(render("train", result))

    async def _rounds(self, rest: str) -> None:
        wanted = _whole_number(rest, "rounds [N]") or 10
        status = await self._caller.call("status")
        first = max(0, int(status.get("round") or 0) - wanted + 1)
        self._console.print(render("rounds", await self._caller.call("rounds", {"from": first})))

    async def _test(self, rest: str) -> None:
        started = time.monotonic()

        async def show(event: JsonObject) -> None:
            elapsed_ms = 1000 * (time.monotonic() - started)
            phase, detail = (escape(printable(str(event.get(key, "")))) for key in ("phase", "detail"))
            self._console.print(f"[dim]{elapsed_ms:9.1f} ms[/]  [cyan]{phase:<16}[/] {detail}", highlight=False)

        self._console.print(render("test", await self._caller.call("test", {}, emit=show)))

    async def _generate(self, rest: str) -> None:
        async def show(event: JsonObject) -> None:
            self._console.print(
                printable(str(event.get("text", ""))), end="", markup=False, highlight=False, soft_wrap=True
            )

        self._console.print(rest, end="", markup=False, highlight=False, style="bold", soft_wrap=True)
        try:
            result = await self._caller.call("generate", {"prompt": rest, "tokens": GENERATE_TOKENS}, emit=show)
        finally:
            self._console.print()
        speed, round_ = result.get("tokens_per_s"), result.get("round")
        if isinstance(speed, int | float):
            self._console.print(f"({speed:.0f} tokens/s, model of round {round_})", style="dim")

    async def _propose(self, rest: str) -> None:
        words = rest.split(maxsplit=2)
        if not words:
            raise UserError("propose what?", advice="stop, resume, remove MEMBER REASON, round-seconds N, ...")
        args = dict(zip(("kind", "value", "reason"), words, strict=False))
        self._console.print(render("propose", await self._caller.call("propose", args)))

    async def _endorse(self, rest: str) -> None:
        if rest:
            self._console.print(render("endorse", await self._caller.call("endorse", {"id": rest})))
        else:
            self._console.print(render("changes", await self._caller.call("changes")))

    async def _help(self, rest: str) -> None:
        for command in self.commands.values():
            self._console.print(f"  [cyan]{escape(command.usage):<16}[/] {escape(command.help)}", highlight=False)


def _whole_number(text: str, usage: str) -> int | None:
    words = text.split()
    if not words:
        return None
    if len(words) > 1 or not words[0].isascii() or not words[0].isdigit() or int(words[0]) < 1:
        raise UserError(f"{text!r} is not a positive whole number.", advice=f"Usage: {usage}")
    return int(words[0])

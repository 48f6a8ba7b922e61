"""The prompt over a real surface: its commands, its errors, Ctrl-C and the end of the input."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from rich.console import Console

from aicpnode.errors import UserError
from aicpnode.interfaces.client import ControlClient
from aicpnode.interfaces.control import CommandSurface, Emit, JsonObject
from aicpnode.interfaces.lines import StreamLines
from aicpnode.interfaces.repl import Repl


class ScriptedLines:
    """Lines given in advance; an exception class in the list is raised instead."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = list(lines)

    async def read(self) -> str | None:
        await trio.lowlevel.checkpoint()
        if not self._lines:
            return None
        line = self._lines.pop(0)
        if isinstance(line, str):
            return line
        raise line


def surface(calls: list[tuple[str, JsonObject]], started: trio.Event | None = None) -> CommandSurface:
    commands = CommandSurface()

    def plain(name: str, result: JsonObject) -> None:
        async def handler(args: JsonObject) -> JsonObject:
            calls.append((name, args))
            return result

        commands.register(name, handler)

    async def stop(args: JsonObject) -> JsonObject:
        raise UserError("This node does not train.", advice="Start a full node.")

    async def test(args: JsonObject, emit: Emit) -> JsonObject:
        await emit({"phase": "reveal", "detail": "3 of 4"})
        if started is not None:
            started.set()
            await trio.sleep_forever()
        return {
            "round": 7,
            "included": 4,
            "votes": [{"member": "ada", "ready": True, "entries": [{"author": "bob", "verdict": "yes"}]}],
            "phases": [{"name": "reveal", "ms": 12.5}],
            "model_hash_before": "aa" * 32,
            "model_hash_after": "bb" * 32,
        }

    async def generate(args: JsonObject, emit: Emit) -> JsonObject:
        calls.append(("generate", args))
        for piece in (" def", " [x]:"):
            await emit({"text": piece})
        return {"text": " def [x]:", "tokens_per_s": 99.0, "round": 7, "model_hash": "bb"}

    plain("stats", {"node_id": "ada", "round": 7, "roster": {"active": 3, "quorum": 3, "power": 3, "tolerates": 0}})
    plain("status", {"round": 7})
    plain("rounds", {"rounds": [{"round": 7, "loss": 2.5}]})
    plain("train", {"contributing": True, "until_round": 9})
    plain(
        "why",
        {"summary": "waiting for carol", "waits": [{"what": "quorum", "who": ["carol"], "since_s": 3, "next": "x"}]},
    )
    plain("peers", {"peers": [], "dialing": [{"address": "h:1", "attempts": 2, "error": "refused", "next_try_s": 4}]})
    plain("members", {"epoch": 2, "members": [{"index": 0, "name": "ada", "probation": {"seen": 1, "of": 2}}]})
    plain("health", {"healthy": False, "checks": [{"name": "disk", "ok": False, "detail": "full"}]})
    plain("checkpoint", {"path": "x.ckpt", "round": 7})
    commands.register("stop", stop)
    commands.register_stream("test", test)
    commands.register_stream("generate", generate)
    return commands


async def transcript(*lines: str | type[BaseException], calls: list[tuple[str, JsonObject]] | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=False)
    repl = Repl(surface([] if calls is None else calls), ScriptedLines(*lines), console=console, attached=False)
    await repl.run()
    return out.getvalue()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stats", "tolerates no failure"),
        ("peers", "dialing h:1: 2 attempts, refused"),
        ("members", "1/2"),
        ("train 2", "9"),
        ("why", "waiting for carol"),
        ("health", "not healthy"),
        ("rounds", "2.500"),
        ("checkpoint", "x.ckpt"),
        ("test", "bob: yes"),
        ("generate import", "import def [x]:\n(99 tokens/s"),
        ("help", "stop the node and leave"),
        ("stop", "This node does not train. Start a full node."),
        ("stats now", "stats takes no argument"),
        ("train many", "Usage: train [ROUNDS]"),
        ("statz", "Did you mean stats?"),
        ("zzzz", "Type help"),
    ],
)
async def test_command_prints(line: str, expected: str) -> None:
    assert expected in await transcript(line)


async def test_arguments_reach_the_node() -> None:
    calls: list[tuple[str, JsonObject]] = []
    await transcript("train", "train 3", "rounds 2", "generate a  b", "quit", "stats", calls=calls)
    assert calls == [
        ("train", {}),
        ("train", {"rounds": 3}),
        ("status", {}),
        ("rounds", {"from": 6}),
        ("generate", {"prompt": "a  b", "tokens": 256}),
    ]


async def test_interrupted_line_is_thrown_away_and_empty_lines_are_nothing() -> None:
    assert "tolerates" in await transcript(KeyboardInterrupt, "", "   ", "stats")


async def test_interrupt_cancels_the_running_command_only() -> None:
    started, out = trio.Event(), io.StringIO()
    repl = Repl(
        surface([], started), ScriptedLines("test", "stats"), console=Console(file=out, width=120), attached=False
    )
    assert not repl.interrupt()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(repl.run)
            await started.wait()
            assert repl.interrupt()
    assert "Cancelled." in out.getvalue()
    assert "tolerates" in out.getvalue()


async def test_attached_over_the_socket(tmp_path: Path) -> None:
    out = io.StringIO()
    async with trio.open_nursery() as nursery:
        path = await nursery.start(surface([]).serve, tmp_path)
        lines = ScriptedLines("stats", "test", "help")
        await Repl(ControlClient(path), lines, console=Console(file=out, width=120), attached=True, echo=True).run()
        nursery.cancel_scope.cancel()
    assert "p2p> stats" in out.getvalue()
    assert "bob: yes" in out.getvalue()
    assert "detach from the node" in out.getvalue()


@pytest.fixture
async def pipe() -> AsyncIterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            assert descriptor == writer


async def test_stream_lines_from_a_pipe(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = StreamLines(reader)
    os.write(writer, b"one\ntw")
    assert await lines.read() == "one"
    with trio.move_on_after(0.01) as waiting:
        await lines.read()
    assert waiting.cancelled_caught
    os.write(writer, b"o\r\nlast")
    assert await lines.read() == "two"
    os.close(writer)
    assert await lines.read() == "last"
    assert await lines.read() is None


async def test_stream_lines_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\n\ntwo\n")
    descriptor = os.open(path, os.O_RDONLY)
    lines = StreamLines(descriptor)
    assert [await lines.read() for _ in range(4)] == ["one", "", "two", None]
    os.close(descriptor)

"""The command surface: in the process, over its socket, and against callers that misbehave."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import trio
import trio.testing

from aicpnode.errors import NotAvailableYet, UserError
from aicpnode.interfaces import control
from aicpnode.interfaces.client import CommandFailed, ControlClient, NodeUnreachable, SyncControlClient
from aicpnode.interfaces.control import CommandSurface, Emit, JsonObject, encode_line, socket_path


class Playground:
    """A surface with one command of every sort, and what happened to them."""

    def __init__(self) -> None:
        self.cancelled = trio.Event()
        self.started = trio.Event()
        self.surface = CommandSurface()
        self.surface.register("echo", self._echo, help="the arguments")
        self.surface.register("refuse", self._refuse)
        self.surface.register("later", self._later)
        self.surface.register("break", self._break)
        self.surface.register("wait", self._wait)
        self.surface.register_stream("count", self._count)

    async def _echo(self, args: JsonObject) -> JsonObject:
        return {"args": args}

    async def _refuse(self, args: JsonObject) -> JsonObject:
        raise UserError("No.", advice="Ask otherwise.")

    async def _later(self, args: JsonObject) -> JsonObject:
        raise NotAvailableYet("blacklist")

    async def _break(self, args: JsonObject) -> JsonObject:
        raise KeyError("a defect")

    async def _wait(self, args: JsonObject) -> JsonObject:
        self.started.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    async def _count(self, args: JsonObject, emit: Emit) -> JsonObject:
        for number in range(args["to"]):
            await emit({"number": number})
        return {"counted": args["to"]}


async def served(nursery: trio.Nursery, data_dir: Path) -> tuple[Playground, Path]:
    playground = Playground()
    path = await nursery.start(playground.surface.serve, data_dir)
    return playground, path


async def raw(path: Path, data: bytes) -> JsonObject:
    stream = await trio.open_unix_socket(os.fspath(path))
    async with stream:
        await stream.send_all(data)
        answer = b""
        with trio.fail_after(5):
            while not answer.endswith(b"\n"):
                chunk = await stream.receive_some()
                assert chunk
                answer += chunk
    result: JsonObject = json.loads(answer)
    return result


async def test_call_in_process_returns_result_and_events() -> None:
    surface, seen = Playground().surface, []

    async def emit(event: JsonObject) -> None:
        seen.append(event)

    assert await surface.call("echo", {"a": 1}) == {"args": {"a": 1}}
    assert await surface.call("count", {"to": 2}, emit=emit) == {"counted": 2}
    assert seen == [{"number": 0}, {"number": 1}]
    assert await surface.call("count", {"to": 2}) == {"counted": 2}
    assert [command.name for command in surface.commands()][:3] == ["break", "count", "echo"]


async def test_call_unknown_command_names_the_known() -> None:
    with pytest.raises(UserError, match=r"Unknown command 'ecko'.*echo"):
        await Playground().surface.call("ecko")


async def test_socket_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        assert path == tmp_path / "control.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        nursery.cancel_scope.cancel()
    assert not path.exists()


async def test_client_gets_results_events_and_errors(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        client, seen = ControlClient(path), []

        async def emit(event: JsonObject) -> None:
            seen.append(event["number"])

        assert await client.call("echo", {"text": "ä"}) == {"args": {"text": "ä"}}
        assert await client.call("count", {"to": 500}, emit=emit) == {"counted": 500}
        assert seen == list(range(500))
        with pytest.raises(UserError) as refused:
            await client.call("refuse")
        assert (refused.value.message, refused.value.advice) == ("No.", "Ask otherwise.")
        with pytest.raises(UserError, match="not available yet"):
            await client.call("later")
        nursery.cancel_scope.cancel()


async def test_defect_in_a_command_is_reported_and_logged_and_the_node_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        with pytest.raises(CommandFailed, match=r"KeyError.*defect"):
            await ControlClient(path).call("break")
        assert "command break failed" in caplog.text
        assert await ControlClient(path).call("echo") == {"args": {}}
        nursery.cancel_scope.cancel()


async def test_sync_client_from_another_thread(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        seen: list[JsonObject] = []

        def use() -> JsonObject:
            client = SyncControlClient(path)
            with pytest.raises(UserError, match="Ask otherwise"):
                client.call("refuse")
            return client.call("count", {"to": 3}, on_event=seen.append)

        assert await trio.to_thread.run_sync(use) == {"counted": 3}
        assert len(seen) == 3
        nursery.cancel_scope.cancel()


async def test_hanging_up_cancels_the_command(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        playground, path = await served(nursery, tmp_path)
        async with trio.open_nursery() as caller:
            caller.start_soon(ControlClient(path).call, "wait")
            await playground.started.wait()
            caller.cancel_scope.cancel()
        with trio.fail_after(5):
            await playground.cancelled.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"nonsense\n", "not JSON"),
        (b"[" * 60_000 + b"\n", "not JSON"),
        (b"[]\n", "needs a command"),
        (b'{"command": 3}\n', "needs a command"),
        (b'{"command": "echo", "args": []}\n', "args"),
        (b"x" * (control.REQUEST_BYTES_MAX + 1), "longer than"),
    ],
)
async def test_bad_requests_are_answered(tmp_path: Path, request_line: bytes, expected: str) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        answer = await raw(path, request_line)
        assert expected in answer["error"]["message"]
        nursery.cancel_scope.cancel()


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        held = [await trio.open_unix_socket(os.fspath(path)) for _ in range(control.CONNECTIONS_MAX)]
        answer = await raw(path, b"")
        assert "Too many" in answer["error"]["message"]
        for stream in held:
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_silent_caller_is_dropped_after_the_deadline(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        stream = await trio.open_unix_socket(os.fspath(path))
        begun = trio.current_time()
        async with stream:
            assert await stream.receive_some() == b""
        assert trio.current_time() - begun >= control.REQUEST_DEADLINE_S
        nursery.cancel_scope.cancel()


async def test_second_server_is_refused_and_a_stale_socket_replaced(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        with pytest.raises(UserError, match="Another process serves"):
            await Playground().surface.serve(tmp_path)
        nursery.cancel_scope.cancel()
    path.write_text("left by a crash")
    async with trio.open_nursery() as nursery:
        _, path = await served(nursery, tmp_path)
        assert await ControlClient(path).call("echo") == {"args": {}}
        nursery.cancel_scope.cancel()


async def test_long_data_dir_moves_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setattr(control.platformdirs, "user_runtime_path", lambda name: tmp_path / "absent" / name)
    monkeypatch.setattr(control.tempfile, "gettempdir", lambda: os.fspath(runtime))
    data_dir = tmp_path / ("d" * 120)
    path = socket_path(data_dir)
    assert path.parent.parent == runtime
    if len(os.fsencode(path)) <= control.SOCKET_PATH_BYTES_MAX:
        async with trio.open_nursery() as nursery:
            _, served_path = await served(nursery, data_dir)
            assert served_path == path
            assert await ControlClient(path).call("echo") == {"args": {}}
            nursery.cancel_scope.cancel()


async def test_unreachable_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeUnreachable, match="No such file"):
        await ControlClient(tmp_path / "control.sock").call("status")
    with pytest.raises(NodeUnreachable, match="No such file"):
        SyncControlClient(tmp_path / "control.sock").call("status")


def test_encode_line_makes_non_finite_numbers_null() -> None:
    line = encode_line({"loss": float("nan"), "list": [1.0, float("inf")], "ok": 0.5})
    assert json.loads(line) == {"loss": None, "list": [1.0, None], "ok": 0.5}

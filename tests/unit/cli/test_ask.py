"""Commands that talk to a running node, against a real control socket in another thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from aicpnode.cli.app import run_app
from aicpnode.interfaces.control import CommandSurface, Emit, JsonObject
from aicpnode.interfaces.registry import serve_announced

STATUS: JsonObject = {"node_id": "ada", "round": 7, "height": 9, "paused": False, "diverged": False}


class FakeNode:
    """A command surface served under one name, with a status that tests may change."""

    def __init__(self, data_dir: Path, name: str) -> None:
        self.status = dict(STATUS, node_id=name, data_dir=str(data_dir))
        self.calls: list[tuple[str, JsonObject]] = []
        self._data_dir, self._name = data_dir, name
        self._ready = threading.Event()
        self._stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))

    def __enter__(self) -> FakeNode:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        surface = CommandSurface()

        async def status(args: JsonObject) -> JsonObject:
            return self.status

        async def noted(name: str, result: JsonObject, args: JsonObject) -> JsonObject:
            self.calls.append((name, args))
            return result

        async def generate(args: JsonObject, emit: Emit) -> JsonObject:
            self.calls.append(("generate", args))
            await emit({"text": " x"})
            return {"text": " x", "tokens_per_s": 1.0, "round": 7, "model_hash": "ab"}

        surface.register("status", status)
        surface.register("stats", status)
        surface.register("health", partial(noted, "health", {"healthy": False, "checks": []}))
        surface.register("why", partial(noted, "why", {"summary": "idle", "waits": []}))
        surface.register("peers", partial(noted, "peers", {"peers": []}))
        surface.register("members", partial(noted, "members", {"members": []}))
        surface.register("rounds", partial(noted, "rounds", {"rounds": []}))
        surface.register("checkpoint", partial(noted, "checkpoint", {"path": "f", "round": 7}))
        surface.register_stream("generate", generate)
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(serve_announced, surface, data_dir=self._data_dir, node_id=self._name, p2p="h:1", network="ab")
            )
            self._stop = partial(token.run_sync_soon, nursery.cancel_scope.cancel)
            self._ready.set()


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_state_path", lambda name: tmp_path / "state")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path / "a", "ada") as running:
        yield running


def last_json(capsys: pytest.CaptureFixture[str]) -> JsonObject:
    result: JsonObject = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


@pytest.mark.parametrize("command", ["status", "why", "peers", "members", "checkpoint", "rounds"])
def test_command_prints_for_people_and_as_json(
    command: str, node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app([command]) == 0
    assert capsys.readouterr().out.strip()
    assert run_app([command, "--json"]) == 0
    assert isinstance(last_json(capsys), dict)


def test_health_exits_1_if_a_check_fails(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["health", "--json"]) == 1
    assert last_json(capsys)["healthy"] is False


def test_status_check_codes(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["status", "--check"]) == 0
    node.status["paused"] = True
    assert run_app(["status", "--check"]) == 1
    node.status["diverged"] = True
    assert run_app(["status", "--check", "--json"]) == 2
    assert last_json(capsys)["state"] == "diverged"


def test_status_check_unreachable_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["status", "--check", "--json"]) == 3
    assert last_json(capsys)["state"] == "unreachable"
    assert run_app(["status"]) == 2
    assert "aicp-node run" in capsys.readouterr().err


def test_several_nodes_need_a_name(node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeNode(tmp_path / "b", "bob"):
        assert run_app(["status"]) == 2
        assert "2 nodes are running: ada" in capsys.readouterr().err
        assert run_app(["status", "--node", "bob", "--json"]) == 0
        assert last_json(capsys)["node_id"] == "bob"
        assert run_app(["status", "--node", str(tmp_path / "a"), "--json"]) == 0
        assert last_json(capsys)["node_id"] == "ada"


def test_options_reach_the_node(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["rounds", "--from", "5"]) == 0
    assert run_app(["generate", "def", "--tokens", "3", "--top-k", "2", "--seed", "4"]) == 0
    assert capsys.readouterr().out.endswith("def x\n")
    assert node.calls == [
        ("rounds", {"from": 5}),
        ("generate", {"prompt": "def", "tokens": 3, "temperature": 0.8, "top_k": 2, "top_p": 1.0, "seed": 4}),
    ]
    assert run_app(["generate", "def", "--json"]) == 0
    assert last_json(capsys)["text"] == " x"


def test_repl_attaches_over_a_pipe(
    node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    script.write_text("stats\nwhy\nquit\n")
    with script.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_app(["repl"]) == 0
    out = capsys.readouterr().out
    assert "Attached to ada." in out and "p2p> stats" in out and "idle" in out

"""Finding the one running node of this user."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trio

from aicpnode.errors import UserError
from aicpnode.interfaces.control import CommandSurface
from aicpnode.interfaces.registry import NoRunningNode, Registry, RunningNode, serve_announced


def entry(pid: int, name: str, socket: Path) -> RunningNode:
    return RunningNode(
        pid=pid,
        node_id=name,
        socket=os.fspath(socket),
        data_dir=os.fspath(socket.parent),
        p2p="127.0.0.1:1",
        network="00",
    )


async def test_find_by_name_pid_directory_or_being_alone(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "running")
    with pytest.raises(NoRunningNode, match="aicp-node run"):
        registry.find()
    async with trio.open_nursery() as nursery:
        first = await nursery.start(CommandSurface().serve, tmp_path / "1")
        second = await nursery.start(CommandSurface().serve, tmp_path / "2")
        with registry.announced(entry(101, "ada", first)):
            assert registry.find() == first
            with registry.announced(entry(102, "bob", second)):
                assert [node.node_id for node in registry.running()] == ["ada", "bob"]
                with pytest.raises(UserError, match=r"2 nodes are running: ada.*bob.*--node"):
                    registry.find()
                assert registry.find("bob") == second
                assert registry.find("101") == first
                assert registry.find(os.fspath(tmp_path / "2")) == second
                with pytest.raises(NoRunningNode, match=r"called eve.*ada"):
                    registry.find("eve")
            assert registry.find() == first
        nursery.cancel_scope.cancel()


def test_entries_of_dead_nodes_and_damaged_ones_are_removed(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    with registry.announced(entry(7, "gone", tmp_path / "control.sock")):
        (tmp_path / "8.json").write_text('{"pid": 8')
        assert registry.running() == []
        assert list(tmp_path.iterdir()) == []


async def test_serve_announced_lists_the_node_while_it_runs(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "running")
    serve = partial(serve_announced, CommandSurface(), data_dir=tmp_path, node_id="ada", p2p="h:1", network="ab")
    async with trio.open_nursery() as nursery:
        path = await nursery.start(partial(serve, registry=registry))
        assert [(node.node_id, node.pid, node.socket) for node in registry.running()] == [
            ("ada", os.getpid(), str(path))
        ]
        nursery.cancel_scope.cancel()
    assert registry.running() == []


async def test_node_without_a_writable_home_serves_and_is_found_by_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    registry = Registry(tmp_path / "file")
    serve = partial(serve_announced, CommandSurface(), data_dir=tmp_path, node_id="ada", p2p="h:1", network="ab")
    async with trio.open_nursery() as nursery:
        path = await nursery.start(partial(serve, registry=registry))
        assert "not listed" in caplog.text
        assert registry.find(os.fspath(tmp_path)) == path
        nursery.cancel_scope.cancel()

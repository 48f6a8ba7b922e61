"""The Python surface: nodes as context managers, two of them on real sockets in one process."""

from __future__ import annotations

import socket

import pytest
import trio

from aicpnode.errors import UserError
from aicpnode.events import BlockDecided
from aicpnode.node import Node
from aicpnode.storage.lock import DataDirLock


async def test_node_runs_inside_the_block_and_leaves_nothing_locked_behind_it(config, until) -> None:
    settings = config("solo")
    async with Node(settings) as node:
        await until(lambda: node.phase == "running")
        stats = node.stats()
        assert (stats["node_id"], stats["node_type"], stats["round"]) == ("solo", "lightweight", 0)
        assert node.health()["healthy"] is True
        assert node.why()["summary"].startswith("Idle: nobody trains. 1 member tolerates no failure")
        model_hash = stats["model_hash"]
    DataDirLock(settings.directory).close()
    async with Node(settings) as again:
        await until(lambda: again.phase == "running")
        assert again.stats()["model_hash"] == model_hash


async def test_events_tell_of_decisions_and_a_second_node_joins(config, until) -> None:
    async with Node(config("first")) as first, first.events() as events:
        await until(lambda: first.phase == "running")
        async with Node(config("second", bootstrap_peers=(str(first.address),))) as second:
            await until(lambda: second.phase == "running")
            with trio.fail_after(60):
                async for event in events:
                    if isinstance(event, BlockDecided) and event.operations:
                        break
            await until(lambda: second.stats()["roster"]["members"] == 2)
            await until(lambda: second.stats()["state_hash"] == first.stats()["state_hash"])
            assert {member["name"] for member in (await second.surface.call("members"))["members"]} == {
                "first",
                "second",
            }
            assert [peer["name"] for peer in (await first.surface.call("peers"))["peers"]] == ["second"]


async def test_stop_ends_the_wait_of_the_owner(config) -> None:
    async with Node(config("solo")) as node:
        with trio.fail_after(60):
            node.stop()
            await node.run_until_stopped()


async def test_lightweight_node_refuses_what_needs_torch(config, until) -> None:
    async with Node(config("solo")) as node:
        await until(lambda: node.phase == "running")
        for command in ("train", "checkpoint", "evaluate"):
            with pytest.raises(UserError):
                await node.surface.call(command)
        with pytest.raises(UserError, match="not available yet"):
            await node.surface.call("blacklist")
        with pytest.raises(UserError, match="whole node"):
            await node.surface.call("quit")


async def test_failed_start_gives_everything_back(config) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = config("solo", p2p_port=other.getsockname()[1])
        with pytest.raises(BaseExceptionGroup) as caught:
            async with Node(settings):
                raise AssertionError("it must not start")
        assert caught.group_contains(UserError, match="in use")
    DataDirLock(settings.directory).close()

"""The Python surface: nodes as context managers, two of them on real sockets in one process."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
import trio

from aicpnode.errors import UserError
from aicpnode.events import BlockDecided
from aicpnode.founding import found_run_folder
from aicpnode.genesis import Founder, write_genesis
from aicpnode.node import Node, start
from aicpnode.storage.lock import DataDirLock

FOUNDER = Founder(key=bytes(32), power=1, name="somebody")


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
        assert await node.surface.call("blacklist") == {"banned": [], "accused": []}
        with pytest.raises(UserError, match="last voting member"):
            await node.surface.call("leave")
        proposed = await node.surface.call("propose", {"kind": "round-seconds", "value": "12"})
        assert (proposed["in_effect"], proposed["change"]) == (True, "round-seconds 12")
        assert await node.surface.call("changes") == {"changes": []}
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


async def test_numbers_beyond_what_json_keeps_are_refused_by_every_command(config, until) -> None:
    async with Node(config("solo")) as node:
        await until(lambda: node.phase == "running")
        for command, args in (
            ("rounds", {"from": 10**23}),
            ("rounds", {"from": True}),
            ("probe", {"limit_s": float("nan")}),
            ("probe", {"limit_s": float("inf")}),
        ):
            with pytest.raises(UserError, match="number"):
                await node.surface.call(command, args)


async def test_a_genesis_whose_numbers_contradict_each_other_is_refused_before_anything_is_fetched(
    config, tmp_path, text
) -> None:
    _, genesis = found_run_folder(tmp_path / "run", name="bad", founders=[FOUNDER], data=text)
    for number, parameters in enumerate((5, 1 << 40)):
        path = tmp_path / f"bad-{number}.aicp"
        write_genesis(path, replace(genesis, parameters=parameters))
        with pytest.raises(UserError, match="The genesis names"):
            async with Node(config(f"newcomer-{number}", genesis=path)):
                pass


async def test_a_model_that_this_machine_cannot_hold_is_refused(config, tmp_path, text, monkeypatch) -> None:
    path, _ = found_run_folder(tmp_path / "run", name="large", founders=[FOUNDER], data=text)
    monkeypatch.setattr(start, "MODEL_COPIES", 1 << 40)
    with pytest.raises(UserError, match="of memory; this machine has"):
        async with Node(config("newcomer", genesis=path)):
            pass

"""What ``run`` tells at its start, and how it is stopped."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
import trio

from aicpnode.cli import run
from aicpnode.config import Encryption, NodeConfig
from aicpnode.interfaces.control import CommandSurface, JsonObject

STATUS: JsonObject = {
    "node_id": "ada", "key": "ab" * 32, "network": "cd" * 32, "p2p": "127.0.0.1:7777", "admission": "open",
    "phase": "running", "probation_rounds": 2, "roster": {"tolerates": 0},
}  # fmt: skip


async def announced(config: NodeConfig, status: JsonObject) -> None:
    surface = CommandSurface()

    async def answer(args: JsonObject) -> JsonObject:
        return status

    surface.register("status", answer)
    await run._announce(surface, config)


async def test_ready_line_and_invitation_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    await announced(NodeConfig(), STATUS)
    first, *rest = capsys.readouterr().out.splitlines()
    for part in ("ada", "ab" * 32, "127.0.0.1:7777", "cd" * 32):
        assert part in first
    assert f"aicp-node run --bootstrap 127.0.0.1:7777 --network {'cd' * 32}" in rest[0]
    assert "--p2p-host" in rest[1]
    assert "gets a vote after 2 rounds" in rest[2]


async def test_a_node_that_does_not_vote_yet_does_not_call_itself_ready(capsys: pytest.CaptureFixture[str]) -> None:
    await announced(NodeConfig(), {**STATUS, "phase": "loading the model"})
    out = capsys.readouterr().out
    assert out.startswith("started, loading the model: node ada")
    assert "ready" not in out


@pytest.mark.parametrize("encryption", ["on", "off"])
async def test_invitation_for_other_machines_names_a_reachable_host_and_warns(
    encryption: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "own_address", lambda: "198.51.100.7")
    config = NodeConfig(p2p_host="0.0.0.0", encryption=Encryption(encryption))
    await announced(config, {**STATUS, "p2p": "0.0.0.0:7778"})
    out = capsys.readouterr().out
    assert "--bootstrap 198.51.100.7:7778" in out
    assert ("not encrypted" in out) == (encryption == "off")


async def test_signal_stops_the_innermost_scope(capsys: pytest.CaptureFixture[str]) -> None:
    stopper = run.Stopper()
    reached = []
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(stopper.watch_signals)
            with stopper.stopping_here():
                with stopper.stopping_here():
                    os.kill(os.getpid(), signal.SIGTERM)
                    await trio.sleep_forever()
                await trio.lowlevel.checkpoint()
                reached.append("the outer scope, not cancelled")
            nursery.cancel_scope.cancel()
    assert reached
    assert "Stopping" in capsys.readouterr().err


async def test_closed_stdin_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    stopper = run.Stopper()
    with os.fdopen(reader) as stdin, trio.fail_after(5):
        monkeypatch.setattr("sys.stdin", stdin)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run._stop_at_end_of_stdin, stopper))
            with stopper.stopping_here():
                os.close(writer)
                await trio.sleep_forever()


def test_own_address_is_an_address() -> None:
    assert run.own_address().count(".") == 3

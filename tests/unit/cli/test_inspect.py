"""``inspect``: what a run needs, told before joining it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from aicpnode.cli import inspect_run
from aicpnode.cli.app import run_app
from aicpnode.founding import found_run_folder
from aicpnode.genesis import Founder, Genesis
from aicpnode.inspection import STORED_COPIES, describe_run, needs_of
from aicpnode.interfaces.render import render
from aicpnode.network import discovery
from aicpnode.network.peers import Address
from aicpnode.network.session import Hello

PEER = Hello(
    network_id=bytes(32), key=b"\xaa" * 32, node_type="full", name="ada", listen_port=1, head_height=77, nonce=bytes(16)
)


@pytest.fixture(scope="module")
def genesis(tmp_path_factory: pytest.TempPathFactory) -> Genesis:
    founders = [Founder(key=b"\xaa" * 32, name="ada")]
    _path, made = found_run_folder(tmp_path_factory.mktemp("run") / "run", name="a run", founders=founders, data=None)
    return made


def shown(result: dict[str, object]) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render("inspect", result))
    return capture.get()


def test_needs_grow_with_model_and_data(genesis: Genesis) -> None:
    small, large = needs_of(genesis), needs_of(replace(genesis, parameters=10 * genesis.parameters))
    data = sum(shard.size for shard in genesis.data.shards)
    assert small.download == data + 4 * genesis.parameters
    assert small.disk == data + STORED_COPIES * 4 * genesis.parameters
    assert large.memory == 10 * small.memory
    assert small.memory < small.training_memory


def test_description_says_what_there_is_and_what_does_not_fit(genesis: Genesis, tmp_path: Path) -> None:
    result = describe_run("host:1", PEER, genesis, data_dir=tmp_path / "not" / "there")
    assert result["network"] == genesis.network_id.hex()
    assert result["peer"]["height"] == 77
    assert result["machine_disk_bytes"] > 0
    text = shown(result)
    assert genesis.network_id.hex() in text and "ada" in text and "height 77" in text
    assert "more than there is" not in text
    assert "more than there is" in shown({**result, "machine_memory_bytes": 1000})


def test_command_prints_one_object(
    genesis: Genesis, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Address, bool]] = []

    async def answer(address: Address, *, timeout: float, encrypted: bool) -> tuple[Hello, bytes]:
        asked.append((address, encrypted))
        return PEER, genesis.encode()

    monkeypatch.setattr(discovery, "ask_genesis", answer)
    assert run_app(["inspect", "192.0.2.1:7777", "--json"]) == 0
    assert run_app(["inspect", "192.0.2.1:7777", "--encryption", "off"]) == 0
    assert asked == [(Address("192.0.2.1", 7777), True), (Address("192.0.2.1", 7777), False)]
    first = capsys.readouterr().out.splitlines()[0]
    assert json.loads(first)["parameters"] == genesis.parameters
    assert inspect_run.TIMEOUT_S > 0


@pytest.mark.parametrize("arguments", [["inspect", "nonsense"], ["inspect", "127.0.0.1:1"], ["inspect"]])
def test_what_cannot_be_asked_is_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(arguments) == 2
    assert capsys.readouterr().err


def test_peer_whose_genesis_makes_no_sense_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(address: Address, *, timeout: float, encrypted: bool) -> tuple[Hello, bytes]:
        return PEER, b"\x93\x01\x02\x03"

    monkeypatch.setattr(discovery, "ask_genesis", answer)
    assert run_app(["inspect", "192.0.2.1:7777"]) == 2
    assert "192.0.2.1:7777" in capsys.readouterr().err

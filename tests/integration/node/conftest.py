"""Whole nodes inside the test's own process, where a second process would show nothing more."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from aicpnode.config import NodeConfig

PATIENCE_S = 60.0
POLL_S = 0.02


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry in the user's own registry of running nodes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    words = random.Random(1)
    path.write_text(" ".join(words.choice(("one", "model", "agreed", "by", "hash")) for _ in range(24_000)))
    return path


@pytest.fixture
def config(tmp_path: Path, text: Path) -> Callable[..., NodeConfig]:
    """``config(name)``: a lightweight node with a directory of its own on a free port."""

    def make(name: str, **settings: Any) -> NodeConfig:
        given: dict[str, Any] = {"data_dir": tmp_path / name, "p2p_port": 0, "p2p_port_explicit": True}
        if "bootstrap_peers" not in settings:
            given["data"] = text
        return NodeConfig.lightweight(name, **{**given, **settings})

    return make


@pytest.fixture
def until() -> Callable[..., Any]:
    async def wait(condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the condition is the test's
                await trio.sleep(POLL_S)

    return wait

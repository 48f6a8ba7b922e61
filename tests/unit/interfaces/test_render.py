"""Results as people read them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from aicpnode.interfaces.control import JsonObject
from aicpnode.interfaces.render import duration, printable, render, size


def shown(command: str, result: JsonObject) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(render(command, result))
    return out.getvalue()


@pytest.mark.parametrize("command", ["status", "why", "peers", "members", "health", "rounds", "test", "checkpoint"])
def test_empty_result_is_shown_with_dashes_not_refused(command: str) -> None:
    assert "None" not in shown(command, {})


def test_status_tells_state_and_last_refusals() -> None:
    status: JsonObject = {
        "diverged": True,
        "training": {"available": True, "contributing": True, "until_round": 9, "loss": 2.34567, "share": 0.876},
        "proposals": {"accepted": 3, "last": [{"round": 4, "name": "eve", "verdict": "no", "reason": "malformed"}]},
    }
    text = shown("status", status)
    for part in ("diverged", "on until round 9", "2.346", "88 %", "3 accepted", "round 4 by eve: malformed"):
        assert part in text


def test_names_from_peers_cannot_steer_the_terminal_or_the_markup() -> None:
    text = shown("peers", {"peers": [{"name": "\x1b[2Jeve [red]x[/red]"}]})
    assert "\x1b[2J" not in text
    assert "[red]x[/red]" in text
    assert printable("a\u202e\u200b\ue000\u2028\ud800b") == "a" + 5 * "\N{REPLACEMENT CHARACTER}" + "b"
    assert printable("a\tb\nc\x1b\x9b\x07") == "a\tb\nc" + 3 * "\N{REPLACEMENT CHARACTER}"


def test_phases_of_a_tested_round_are_shown_with_their_own_duration() -> None:
    text = shown(
        "test", {"phases": [{"name": "training", "ms": 12.0}, {"name": "reveal", "ms": 512.25}, {"name": "x"}]}
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["training", "12.0", "12.0"] in rows
    assert ["reveal", "500.2", "512.2"] in rows
    assert ["x", "–", "–"] in rows


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "–"), (999, "999 B"), (12_345, "12.3 kB"), (5e6, "5.0 MB"), (7e9, "7.00 GB")]
)
def test_size(value: object, expected: str) -> None:
    assert size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "–"), (1.25, "1.2 s"), (75, "1 min 15 s"), (3700, "1 h 01 min")]
)
def test_duration(value: object, expected: str) -> None:
    assert duration(value) == expected

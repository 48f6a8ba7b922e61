"""The demo's numbers and pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from aicpnode.cluster import NodePlan
from aicpnode.config import Fault
from aicpnode.demo.chart import Series, chart
from aicpnode.demo.options import DemoOptions
from aicpnode.demo.plot import in_terminal, save_picture
from aicpnode.demo.result import DemoResult, by_round, summarise
from aicpnode.demo.show import Ending, go_on_commands, tell_ending, write_json
from aicpnode.errors import UserError
from aicpnode.interfaces.control import JsonObject

CONTRACT = {
    "nodes", "rounds", "seconds", "val_loss", "bigram_loss", "state_hashes", "accepted", "refused", "decision_ms_p50",
    "wire_bytes_per_round", "dense_bytes", "rss_mb", "training_share",
}  # fmt: skip


def status(**changes: object) -> JsonObject:
    return {
        "model_hash": "ab" * 32, "proposals": {"accepted": 8, "refused": 1}, "decision_ms_p50": 20.0,
        "wire_bytes_sent": 1000, "rss_mb": 300.0, "training": {"share": 0.9}, **changes,
    }  # fmt: skip


def result(folder: Path, statuses: list[JsonObject], *, byzantine: int = 0) -> DemoResult:
    options = DemoOptions(
        nodes=4, rounds=2, byzantine=byzantine, fault=Fault.GARBAGE if byzantine else None, directory=folder
    )
    rounds = [[{"round": 0, "loss": 5.0, "val_loss": 5.5}, {"round": 1, "loss": 3.0}], [{"round": 0, "loss": 4.0}]]
    return summarise(
        options, seconds=12.3, statuses=dict(enumerate(statuses)), rounds=rounds,
        evaluation={"val_loss": 2.0, "bigram_loss": 2.4}, parameters=1000,
    )  # fmt: skip


def plans(folder: Path, byzantine: int = 0) -> list[NodePlan]:
    return [
        NodePlan(
            index=i, name=f"node-{i}", directory=folder / f"node-{i}", port=1 + i,
            fault=Fault.GARBAGE if i >= 4 - byzantine else None, command=("true",),
        )
        for i in range(4)
    ]  # fmt: skip


def told(found: DemoResult, byzantine: int = 0) -> str:
    folder = found.options.directory
    out = io.StringIO()
    ending = Ending(result=found, sample="def f():\n    \x1b[2J", checkpoint=folder / "c.aicp")
    tell_ending(ending, plans(folder, byzantine), Console(file=out, width=120))
    return out.getvalue()


def test_json_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    found = result(tmp_path, [status()] * 4)
    value = found.to_json()
    assert set(value) >= CONTRACT
    assert value["val_loss"] == [5.5, 2.0]
    assert value["state_hashes"] == ["ab" * 32] * 4
    assert (value["accepted"], value["refused"], value["wire_bytes_per_round"]) == (8, 1, 2000)
    assert value["dense_bytes"] == 2 * 3 * 4 * 1000
    target = tmp_path / "result.json"
    write_json(found, str(target))
    assert json.loads(target.read_text()) == value
    with pytest.raises(UserError, match="cannot be written"):
        write_json(found, str(tmp_path / "absent" / "x.json"))


def test_losses_are_means_over_the_nodes_that_know(tmp_path: Path) -> None:
    assert result(tmp_path, [status()] * 4).training_loss == ((0.0, 4.5), (1.0, 3.0))
    assert by_round([[{"round": 3, "loss": None}]], "loss") == ()


def test_equal_hashes_are_said_loudly_and_the_picture_is_written(tmp_path: Path) -> None:
    found = result(tmp_path, [status()] * 4)
    text = told(found)
    assert found.equal and "EQUAL: All nodes" in text and "DIFFERENT" not in text
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "aicp-node generate --checkpoint" in text and "aicp-node run --repl --node-id node-0" in text
    assert "\x1b[2J" not in text


def test_different_hashes_are_said_loudly(tmp_path: Path) -> None:
    found = result(tmp_path, [status(), status(model_hash="cd" * 32), status(), status()])
    assert not found.equal
    assert "DIFFERENT: the nodes do not hold the same model." in told(found)


def test_byzantine_node_is_marked_and_not_counted(tmp_path: Path) -> None:
    found = result(tmp_path, [status(), status(), status(), status(model_hash="cd" * 32)], byzantine=1)
    text = told(found, byzantine=1)
    assert found.equal and "All 3 honest" in text and "Byzantine (garbage), not counted" in text
    assert len(found.to_json()["state_hashes"]) == 3


def test_node_that_told_nothing_is_not_equal(tmp_path: Path) -> None:
    assert not result(tmp_path, [status(model_hash=None)] * 4).equal
    assert not result(tmp_path, [status(), status(), status(model_hash=None), status()]).equal


def test_commands_to_go_on_with_are_quoted(tmp_path: Path) -> None:
    generate, _ = go_on_commands(tmp_path / "a b.aicp", plans(tmp_path)[0])
    assert generate.endswith(f"'{tmp_path}/a b.aicp' 'def '")


def test_chart_places_first_and_last_point() -> None:
    lines = chart([Series(name="x", style="red", points=((0, 1.0), (10, 0.0)))], width=10, height=4).plain.splitlines()
    assert lines[0].startswith("   1.00 │⠑") and lines[3].startswith("   0.00 │")
    assert lines[3].endswith("⠢") or lines[3].rstrip()[-1] > "⠀"
    assert lines[5].split() == ["0", "10"]
    assert "── x" in lines[6]


def test_chart_of_one_point_and_of_none() -> None:
    assert "2.50" in chart([Series(name="x", style="red", points=((3, 2.0),))]).plain
    assert chart([Series(name="x", style="red", points=())]).plain == ""


def test_terminal_plot_without_any_round(tmp_path: Path) -> None:
    found = summarise(
        DemoOptions(nodes=1, rounds=1, directory=tmp_path), seconds=1, statuses={0: status()}, rounds=[[]],
        evaluation={"val_loss": 2.0, "bigram_loss": 2.4}, parameters=1,
    )  # fmt: skip
    assert "bigram" in in_terminal(found, width=30).plain
    assert save_picture(found, tmp_path).exists()

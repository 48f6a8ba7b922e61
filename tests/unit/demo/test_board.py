"""What the demo shows while it runs, at a terminal and elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from aicpnode.cluster import NodePlan
from aicpnode.config import Fault
from aicpnode.demo.board import Board
from aicpnode.interfaces.control import JsonObject


def plans(count: int) -> list[NodePlan]:
    faults = [Fault.SILENT if i == 3 else None for i in range(count)]
    return [
        NodePlan(index=i, name=f"node-{i}", directory=Path("d"), port=1, fault=fault, command=())
        for i, fault in enumerate(faults)
    ]


def status(round_: int, **changes: object) -> JsonObject:
    training = {
        "contributing": True, "loss": 2.345678, "val_loss": None, "tokens_per_s": 1234.4, "inner_step": 7,
        "inner_steps": 50,
    }  # fmt: skip
    return {
        "round": round_, "peers": 3, "model_hash": "ab" * 32, "proposals": {"accepted": 4, "refused": 1},
        "training": training, **changes,
    }  # fmt: skip


def test_board_at_a_terminal_shows_a_row_for_each_node() -> None:
    out = io.StringIO()
    with Board(
        plans(5), rounds=10, console=Console(file=out, width=160, force_terminal=True, highlight=False)
    ) as board:
        board.show(
            {
                0: status(2),
                1: status(2, paused=True),
                2: status(1, diverged=True),
                3: status(2),
                4: status(2, training={"contributing": False}),
            },
            {3: "Byzantine: silent"},
        )
        board.say("[All] nodes are up.")
        board.show({0: status(3)}, {})
    text = out.getvalue()
    for part in ("node-0", "2.346", "1234", "abababababab", "step 7/50", "paused", "diverged", "Byzantine: silent",
                 "voting", "round 3 of 10", "no answer", "[All] nodes are up."):  # fmt: skip
        assert part in text


def test_board_elsewhere_prints_a_line_a_round() -> None:
    out = io.StringIO()
    with Board(plans(2), rounds=10, console=Console(file=out, width=160)) as board:
        board.show({}, {})
        for _ in range(3):
            board.show({0: status(1), 1: status(1)}, {})
        board.show({0: status(2), 1: status(1)}, {})
    lines = [line for line in out.getvalue().splitlines() if "round" in line]
    assert [line.split("round ")[1].split("  ")[0] for line in lines] == ["0/10", "1/10", "2/10"]
    assert "loss 2.346  validation –  2469 tokens/s  accepted 4  refused 1  peers 3,3" in lines[1]

"""What a demo may be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from aicpnode.config import Fault
from aicpnode.demo.options import DemoOptions, parse_byzantine
from aicpnode.errors import NotAvailableYet, UserError


def options(**values: object) -> DemoOptions:
    return DemoOptions(**{"nodes": 4, "rounds": 10, "directory": Path("d"), **values})  # type: ignore[arg-type]


def test_byzantine_nodes_are_the_last_ones() -> None:
    chosen = options(nodes=7, byzantine=2, fault=Fault.GARBAGE)
    assert (list(chosen.honest), chosen.tolerates, chosen.faults) == ([0, 1, 2, 3, 4], 2, 2)


@pytest.mark.parametrize(
    "values",
    [
        {"nodes": 0},
        {"nodes": 33},
        {"rounds": 0},
        {"kill_at": 9},
        {"kill_at": 0},
        {"byzantine": 2},
        {"byzantine": 1, "kill_at": 3},
        {"nodes": 3, "kill_at": 3},
    ],
)
def test_impossible_demo_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(UserError):
        options(**values)


def test_parse_byzantine() -> None:
    assert parse_byzantine(None) == (0, None)
    assert parse_byzantine("2:equivocate") == (2, Fault.EQUIVOCATE)
    for text in ("garbage", "0:garbage", "1:nonsense", "1", "-1:silent"):
        with pytest.raises(UserError):
            parse_byzantine(text)
    with pytest.raises(NotAvailableYet):
        parse_byzantine("1:sign_flip")

"""``bench consensus``: the fields of the contract, costs that take virtual time, and the same run for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from aicpnode.bench import consensus as bench
from aicpnode.bench.consensus import loopback
from aicpnode.bench.consensus.meter import MeasuringMeter, TransportCost, measure_transport
from aicpnode.bench.consensus.wide_area import Undecided, WideArea, measure

T = TypeVar("T")
CONTRACT = {
    "mode", "n", "proposals", "decision_ms_p50", "decision_ms_p99", "cpu_ms_per_decision_per_node", "messages", "bytes",
    "verifications",
}  # fmt: skip
FREE = TransportCost(message_ms=0.0, byte_ms=0.0)


class FixedMeter:
    """Every piece of work costs the same."""

    def __init__(self, cost_ms: float) -> None:
        self.cost_ms = cost_ms

    def time(self, what: str, work: Callable[[], T]) -> tuple[T, float, float]:
        return work(), self.cost_ms, self.cost_ms


def fixed(members: int, cost_ms: float, *, seed: int = 1, heights: int = 2) -> dict[str, float]:
    return measure(
        members=members, heights=heights, seed=seed, meter=FixedMeter(cost_ms), transport=FREE, on_disk=False
    )


def test_wide_area_row_has_the_fields_of_the_contract() -> None:
    meter = MeasuringMeter()
    row = measure(members=4, heights=2, seed=1, meter=meter, transport=measure_transport())
    assert set(row) >= CONTRACT
    assert (row["mode"], row["n"], row["proposals"], row["views"]) == ("simulated_wan", 4, 4, 0)
    assert 0 < row["decision_ms_p50"] <= row["decision_ms_p99"]
    assert row["cpu_ms_per_decision_per_node"] > 0
    assert {"persist", "handle SET", "receive BALLOT", "encode", "state hash"} <= set(meter.table())


def test_a_decision_takes_the_messages_that_the_protocol_needs() -> None:
    """Of each member a GRAD, BALLOT, PREPARE and COMMIT, of the leader a SET; each verified once by every other."""
    row = fixed(7, 0.01, heights=3)
    assert row["messages"] == 4 * 7 + 1
    assert row["verifications"] == pytest.approx((4 * 7 + 1) * 6, rel=0.1)
    assert row["fetches"] == 0


def test_the_same_seed_gives_the_same_run() -> None:
    assert fixed(4, 0.1) == fixed(4, 0.1)
    assert fixed(4, 0.1)["decision_ms_p50"] != fixed(4, 0.1, seed=2)["decision_ms_p50"]


def test_work_takes_virtual_time() -> None:
    cheap, dear = fixed(4, 0.0), fixed(4, 5.0)
    assert cheap["cpu_ms_per_decision_per_node"] == 0.0
    assert dear["decision_ms_p50"] > cheap["decision_ms_p50"] + 4 * 5.0, (
        "sign, check, write and send, one after another"
    )


def test_no_decision_is_faster_than_its_messages() -> None:
    """In Dallas, Washington, Sao Paulo and London, PREPARE and COMMIT each need two others, so at least 56.5 ms."""
    assert fixed(4, 0.0)["decision_ms_p50"] > 2 * 56.5


def test_members_that_write_to_disk_decide_too(tmp_path: Path) -> None:
    run = WideArea(members=4, seed=3, meter=MeasuringMeter(), transport=FREE)
    with ExitStack() as stack:
        run.start(tmp_path, stack)
        run.run_to(2)
    assert all((tmp_path / str(index) / "node.sqlite").stat().st_size > 0 for index in range(4))


def test_a_run_that_does_not_get_on_says_so() -> None:
    run = WideArea(members=4, seed=1, meter=FixedMeter(0.0), transport=FREE)
    with pytest.raises(Undecided, match="heights"):
        run.run_to(1)  # nobody was started


def test_all_rows_come_in_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def processes(*, members: int, decisions: int, report: Callable[[str], None]) -> dict[str, object]:
        asked.append(members)
        return {"mode": "loopback", "n": members, "decisions": decisions}

    monkeypatch.setattr(loopback, "measure", processes)
    result = bench.run(loopback_members=(4, 16), wide_area_members=(1, 4), decisions=9, heights=1)
    assert [(row["mode"], row["n"]) for row in result["rows"]] == [
        ("loopback", 4), ("loopback", 16), ("simulated_wan", 1), ("simulated_wan", 4),
    ]  # fmt: skip
    assert asked == [4, 16]
    assert set(result["costs"]) == {"1", "4"}


def test_loopback_row_has_the_fields_of_the_contract() -> None:
    def status(height: int, spent: float) -> dict[str, float]:
        counts = dict.fromkeys(("cpu_s", "messages_sent", "wire_bytes_sent", "verifications"), spent)
        return {"height": height, "decision_ms_p50": 12.0, "decision_ms_p99": 30.0, **counts}

    row = loopback._row(2, [status(3, 1.0)] * 2, [status(13, 6.0)] * 2, [200.0, 210.0, 230.0])
    assert set(row) >= CONTRACT
    assert (row["mode"], row["n"], row["decisions"]) == ("loopback", 2, 10)
    assert row["cpu_ms_per_decision_per_node"] == pytest.approx(500.0)
    assert (row["messages"], row["operation_ms_p50"]) == (1.0, 210.0)

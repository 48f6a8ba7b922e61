"""What ``bench consensus`` measures: real processes on loopback, and many members on a simulated wide-area network.

``loopback`` starts processes and asks them for their own figures. ``wide_area`` runs production replicas in virtual
time (``member``, ``wire``), where each piece of work costs what it takes on this machine (``meter``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aicpnode.bench.consensus import loopback, wide_area
from aicpnode.bench.consensus.meter import MeasuringMeter, measure_transport

LOOPBACK_MEMBERS = (4, 16)
WIDE_AREA_MEMBERS = (4, 16, 64, 100)
DECISIONS = 50
WIDE_AREA_HEIGHTS = 20


def run(
    *,
    loopback_members: Sequence[int] = LOOPBACK_MEMBERS,
    wide_area_members: Sequence[int] = WIDE_AREA_MEMBERS,
    decisions: int = DECISIONS,
    heights: int = WIDE_AREA_HEIGHTS,
    seed: int = 1,
    report: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """``rows``, one a mode and number of members, and ``costs``: what the simulated members were charged, in ms."""
    rows = [loopback.measure(members=members, decisions=decisions, report=report) for members in loopback_members]
    costs: dict[str, Any] = {}
    transport = measure_transport()
    for members in wide_area_members:
        meter = MeasuringMeter()
        report(f"{members} members in eight regions, simulated")
        rows.append(wide_area.measure(members=members, heights=heights, seed=seed, meter=meter, transport=transport))
        costs[str(members)] = meter.table()
    return {"rows": rows, "costs": costs, "socket_ms": transport.message_ms}

"""A member without torch: small, and in agreement with those that train."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil

ROUNDS = 2
RSS_MB_MAX = 120
READY = re.compile(r"^ready: node n2", re.MULTILINE)


def test_lightweight_member_is_small_without_torch_and_holds_the_same_model(found, record_property, capsys) -> None:
    cluster = found(3, arguments={2: ("--node-type", "lightweight")}, demo_model=True)
    lightweight = cluster.nodes[2]
    began = time.monotonic()
    lightweight.start()
    cluster.until(lambda: READY.search(lightweight.output()) is not None, "its ready line", [lightweight])
    seconds = time.monotonic() - began
    record_property("ready_s", round(seconds, 2))
    cluster.start(0, 1)
    cluster.until_round(ROUNDS)
    cluster.assert_equal_rounds(ROUNDS)
    assert len({node.status()["parameters"] for node in cluster.nodes}) == 1
    rss_mb = psutil.Process(lightweight.running.pid).memory_info().rss / (1 << 20)
    record_property("rss_mb", round(rss_mb, 1))
    with capsys.disabled():
        print(f"\nlightweight member: ready after {seconds:.2f} s, {rss_mb:.0f} MB")  # noqa: T201 - measured, not judged
    maps = Path(f"/proc/{lightweight.running.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert rss_mb < RSS_MB_MAX
    assert "libtorch" in Path(f"/proc/{cluster.nodes[0].running.pid}/maps").read_text(), "the check itself sees torch"
    assert lightweight.status()["training"]["contributing"] is False

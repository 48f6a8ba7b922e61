"""A newcomer to a long run starts from a snapshot of others, with real models on real sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.replication.takeover import SNAPSHOT_GAP
from aicpnode.training.presets import default_genesis

ROUNDS = 2 * SNAPSHOT_GAP + 50
"""So many that the bodies of the first ones are deleted: only a snapshot, early or late, leads to the present model."""
ROUND_MS = 100


@pytest.mark.slow
def test_newcomer_to_a_long_run_takes_over_a_certified_snapshot(found, launch, until) -> None:
    fast = replace(default_genesis().round, round_ms=ROUND_MS)
    cluster = found(1, arguments={0: ("--train-rounds", str(ROUNDS))}, round=fast)
    (founder,) = cluster.nodes
    founder.start()
    cluster.until_round(ROUNDS)
    given = ("--genesis", str(cluster.genesis_file), "--node-type", "lightweight", "--bootstrap", founder.address)
    newcomer = launch("late", *given)
    newcomer.start()
    until(lambda: newcomer.status().get("round") == ROUNDS, "it has the model", [founder, newcomer])
    assert newcomer.status()["model_hash"] == founder.status()["model_hash"]
    until(lambda: newcomer.status()["state_hash"] == founder.status()["state_hash"], "one state", [founder, newcomer])
    assert "took over the certified state after height" in newcomer.output()
    assert newcomer.terminate() == 0
    (base,) = newcomer.rows("SELECT height FROM states WHERE is_base = 1")[0]
    (first,) = newcomer.rows("SELECT min(height) FROM applied")[0]
    assert base > SNAPSHOT_GAP // 2 and first == base, "it holds no state that it computed before"
    newcomer.start()
    until(lambda: newcomer.status().get("round") == ROUNDS, "it replays from there", [founder, newcomer])
    assert newcomer.status()["model_hash"] == founder.status()["model_hash"]

"""Four founders train one model: every round ends with the same bits on all of them."""

from __future__ import annotations

import statistics

ROUNDS = 4


def test_four_processes_hold_equal_models_and_states_after_every_round(found, record_property) -> None:
    cluster = found(4, arguments={index: ("--train-rounds", str(ROUNDS)) for index in range(4)})
    cluster.start()
    cluster.until_round(ROUNDS)
    cluster.assert_equal_rounds(ROUNDS)
    statuses = [node.status() for node in cluster.nodes]
    assert all(status["proposals"]["accepted"] > 0 and status["proposals"]["refused"] == 0 for status in statuses)
    latencies = [status["decision_ms_p50"] for status in statuses]
    assert all(latency > 0 for latency in latencies)
    record_property("decision_ms_p50", statistics.median(latencies))
    record_property("decision_ms_p99", max(status["decision_ms_p99"] for status in statuses))
    assert [status["equivocations"] for status in statuses] == [0] * 4
    for node in cluster.nodes:
        assert node.terminate() == 0, node.output()
    by_height = [
        {height: rest for height, *rest in node.rows("SELECT height, round, state_hash, model_hash FROM applied")}
        for node in cluster.nodes
    ]
    common = set.intersection(*(set(states) for states in by_height))
    assert len(common) >= ROUNDS
    for height in sorted(common):
        assert all(states[height] == by_height[0][height] for states in by_height), f"height {height}"

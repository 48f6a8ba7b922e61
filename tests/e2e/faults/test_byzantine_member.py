"""One of four members misbehaves in earnest: the three honest ones train on, with equal bits."""

from __future__ import annotations

import pytest

ROUNDS = 4


@pytest.mark.parametrize("fault", ["garbage", "silent", "equivocate"])
def test_three_honest_members_stay_equal_beside_one_that_is(found, fault) -> None:
    cluster = found(4, arguments={3: ("--byzantine", fault)})
    honest = cluster.nodes[:3]
    cluster.start()
    cluster.until_round(ROUNDS, honest)
    assert cluster.compared_rounds(honest) >= ROUNDS
    statuses = [node.status() for node in honest]
    assert not any(status["diverged"] or status["paused"] for status in statuses)
    members = {member["name"]: member for member in honest[0].call("members")["members"]}
    assert all(members[node.name]["last_included_round"] is not None for node in honest)
    if fault == "equivocate":
        cluster.until(lambda: any(n.status()["equivocations"] > 0 for n in honest), "it is noticed", honest)
    else:
        assert members["n3"]["last_included_round"] is None
        assert all(status["equivocations"] == 0 for status in statuses)
    if fault == "garbage":
        refused = [entry for node in honest for entry in node.status()["proposals"]["last"] if entry["verdict"] == "no"]
        assert {entry["name"] for entry in refused} == {"n3"}
        assert all(entry["reason"] for entry in refused)

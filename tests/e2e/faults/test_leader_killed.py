"""The leader is killed: the others go on, and it comes back to the same model."""

from __future__ import annotations

KILL_AFTER_ROUND = 2
ROUNDS_WITHOUT = 2


def test_others_go_on_without_the_killed_leader_and_it_catches_up(found) -> None:
    cluster = found(4)
    cluster.start()
    cluster.until_round(KILL_AFTER_ROUND)
    leader_name = cluster.nodes[0].status()["leader"]
    leader = next(node for node in cluster.nodes if node.name == leader_name)
    others = [node for node in cluster.nodes if node is not leader]
    leader.kill()
    reached = max(node.status()["round"] for node in others)
    cluster.until_round(reached + ROUNDS_WITHOUT, others)
    roster = others[0].status()["roster"]
    assert (roster["active"], roster["tolerates"]) == (4, 1)
    leader.start()
    target = max(node.status()["round"] for node in others) + 1
    cluster.until_round(target)
    cluster.assert_equal_rounds(target - 1)
    assert [node.status()["equivocations"] for node in cluster.nodes] == [0] * 4

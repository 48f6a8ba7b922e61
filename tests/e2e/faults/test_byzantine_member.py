"""One of four members misbehaves in earnest: the three honest ones train on, with equal bits."""

from __future__ import annotations

import pytest

from aicpnode.identity import Identity

ROUNDS = 4


@pytest.mark.parametrize("fault", ["garbage", "silent", "equivocate"])
def test_three_honest_members_stay_equal_beside_one_that_is(found, fault) -> None:
    cluster = found(4, arguments={3: ("--byzantine", fault)})
    honest = cluster.nodes[:3]
    cluster.start()
    cluster.until_round(ROUNDS, honest)

    def included() -> dict[str, int | None]:
        return {member["name"]: member["last_included_round"] for member in honest[0].call("members")["members"]}

    def refused() -> list[dict[str, str]]:
        return [entry for node in honest for entry in node.status()["proposals"]["last"] if entry["verdict"] == "no"]

    cluster.until(lambda: None not in [included()[n.name] for n in honest], "all honest work is included", honest)
    if fault == "equivocate":
        cluster.until(lambda: all(banned(node) == ["n3"] for node in honest), "its lies ban it on all nodes", honest)
        cluster.until(lambda: all(node.status()["peers"] == 2 for node in honest), "its connections end", honest)
    else:
        assert [banned(node) for node in honest] == [[]] * 3
    if fault == "garbage":
        cluster.until(lambda: bool(refused()), "the garbage is refused", honest)
    cluster.assert_equal_rounds(ROUNDS, honest)
    statuses = [node.status() for node in honest]
    assert not any(status["diverged"] or status["paused"] for status in statuses)
    assert all(entry["reason"] for entry in refused())
    # Of the three that a ban leaves everyone is needed: who is late in a round is left out of it, and not for its work.
    late = ("late: ", "its body was not ", "too few members said yes")
    blamed = {entry["name"] for entry in refused() if not (fault == "equivocate" and entry["reason"].startswith(late))}
    assert blamed <= {"n3"}
    if fault != "equivocate":
        assert included()["n3"] is None
        assert all(status["equivocations"] == 0 for status in statuses)


def banned(node) -> list[str]:
    return [entry["name"] for entry in node.call("blacklist")["banned"]]


def test_equivocating_member_tells_two_peers_different_things_and_no_other_member_does(found, observe) -> None:
    cluster = found(4, arguments={3: ("--byzantine", "equivocate")})
    cluster.start()
    cluster.until_connected()
    keys = [founder.key for founder in cluster.genesis.roster]
    # It says one thing to every other peer in the order of their keys: these two come next to each other.
    first, second = (observe(cluster, identity) for identity in identities_below(min(keys), 2))
    cluster.until(lambda: bool(first.told_otherwise(second)), "the two were told different things", cluster.nodes)
    cluster.until_round(max(node.status()["round"] for node in cluster.nodes[:3]) + 2, cluster.nodes[:3])
    assert {slot[0] for slot in first.told_otherwise(second)} == {keys[3]}
    assert {slot[0] for slot in first.contradictions + second.contradictions} <= {keys[3]}
    cluster.assert_equal_rounds(2, cluster.nodes[:3])


def identities_below(key: bytes, count: int) -> list[Identity]:
    found: list[Identity] = []
    while len(found) < count:
        identity = Identity.generate()
        if identity.key < key:
            found.append(identity)
    return found

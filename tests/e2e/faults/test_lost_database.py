"""A member whose database is gone cannot know what it signed: it signs nothing until that cannot matter any more."""

from __future__ import annotations

from aicpnode.replication.recovery import SAFE_HEIGHTS

ROUND_BEFORE = 2


def test_member_without_its_database_votes_again_only_above_what_it_can_have_signed(found, observe) -> None:
    cluster = found(4)
    forgetful, others = cluster.nodes[3], cluster.nodes[:3]
    key = cluster.genesis.roster[3].key
    cluster.start()
    observer = observe(cluster)
    cluster.until_round(ROUND_BEFORE)
    forgetful.kill()
    observer.note_stored([raw for (raw,) in forgetful.rows("SELECT raw FROM votes")])
    (head,) = forgetful.rows("SELECT max(height) FROM ledger")[0]
    for file in forgetful.directory.glob("node.sqlite*"):
        file.unlink()
    signed_before = set(observer.votes_of(key))
    forgetful.start()
    cluster.until(
        lambda: "it follows until it is safe to vote" in forgetful.latest_output(), "it says so", cluster.nodes
    )

    def votes_again() -> list[int]:
        return [slot[2] for slot in observer.votes_of(key) if slot not in signed_before]

    cluster.until(lambda: bool(votes_again()), "it votes again", cluster.nodes)
    assert min(votes_again()) >= head + SAFE_HEIGHTS
    cluster.until_round(max(node.status()["round"] for node in others) + 1)
    cluster.assert_equal_rounds(ROUND_BEFORE)
    assert [node.status()["equivocations"] for node in cluster.nodes] == [0] * 4
    assert "votes again from height" in forgetful.latest_output()
    assert observer.contradictions == []


def test_member_without_its_database_says_whom_it_waits_for(found) -> None:
    cluster = found(4, node_type="lightweight")
    forgetful, others = cluster.nodes[3], cluster.nodes[:3]
    cluster.start()
    cluster.until_connected()
    others[0].call("probe")
    forgetful.kill()
    for node in others:
        node.kill()
    for file in forgetful.directory.glob("node.sqlite*"):
        file.unlink()
    forgetful.start()
    cluster.until(lambda: forgetful.status().get("phase") == "running", "it runs alone", [forgetful])
    why = forgetful.call("why")
    assert any("store of this member was lost" in wait["what"] for wait in why["waits"]), why
    assert {name for wait in why["waits"] for name in wait["who"]} >= {"n0", "n1", "n2"}
    assert forgetful.status()["height"] == 0

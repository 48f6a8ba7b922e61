"""What people do by hand: one node alone, others join it by its address only, and the run is steered at the prompt."""

from __future__ import annotations

import json

import pytest

JOINED_S = 240.0


def active(node) -> int:
    return node.status().get("roster", {}).get("active", 0)


@pytest.mark.slow
def test_run_grows_by_join_and_is_steered_from_one_prompt(launch, until, text, command) -> None:
    # All settings are those of plain `aicp-node run`, but for a text that is small.
    first = launch("first", "--data", str(text))
    first.start()
    until(lambda: first.status().get("phase") == "running", "the first node runs alone", [first])
    assert active(first) == 1
    joiners = [launch(name, "--bootstrap", first.address) for name in ("second", "third")]
    for joiner in joiners:
        joiner.start()
    nodes = [first, *joiners]
    until(lambda: all(active(node) == 3 for node in nodes), "all three are promoted", nodes, within_s=JOINED_S)
    for joiner in joiners:
        assert f"UNVERIFIED: trusting {first.address} for the genesis {first.status()['network']}" in joiner.output()

    began = first.status()["round"]
    assert first.call("train")["contributing"] is True

    def contributors(node) -> set[str]:
        return set(node.status().get("training", {}).get("contributors", ()))

    everybody = {node.name for node in nodes}
    until(lambda: all(contributors(node) == everybody for node in nodes), "the others follow", nodes)
    until(lambda: all(node.status()["round"] > began for node in nodes), "a round is trained", nodes)

    phases: list[str] = []
    tested = first.call("test", on_event=lambda event: phases.append(event["phase"]))
    assert {"all_grads", "verdict", "decided"} <= set(phases), phases
    assert {phase["name"] for phase in tested["phases"]} >= {"decided", "applied"}
    voters = {vote["member"] for vote in tested["votes"]}
    assert voters == everybody
    entries = [entry for vote in tested["votes"] for entry in vote["entries"]]
    assert entries and {entry["verdict"] for entry in entries} == {"yes"}
    assert tested["included"] >= 1 and tested["model_hash_before"] != tested["model_hash_after"]

    assert first.call("stop")["contributing"] is False
    until(lambda: all(contributors(node) == set() for node in nodes), "the followers stop with it", nodes)
    until(lambda: len({node.status()["model_hash"] for node in nodes}) == 1, "all hold one model", nodes)
    compared = [node.round_hashes() for node in nodes]
    for number in set.intersection(*(set(found) for found in compared)):
        assert len({found[number] for found in compared}) == 1, f"round {number}"

    # Three members tolerate no failure: one killed halts the network, and the others can say why.
    nodes[2].kill()
    left = nodes[:2]
    until(lambda: all(node.status()["paused"] for node in left), "the others notice", left)
    for node in left:
        why = node.call("why")
        assert "3 members tolerate no failure" in why["summary"], why
        assert any("third" in wait["who"] for wait in why["waits"]), why
    checked = command("status", "--node", "first", "--check")
    assert (checked.returncode, checked.stdout.strip()) == (1, "paused")
    spoken = command("why", "--node", "first")
    assert "third" in spoken.stdout and "3 members tolerate no failure" in spoken.stdout
    nodes[2].start()
    until(lambda: not any(node.status().get("paused", True) for node in nodes), "it goes on", nodes)
    assert command("status", "--node", "first", "--check").returncode == 0
    height = first.status()["height"]
    assert first.call("probe")["height"] > height
    asked = command("status", "--node", "second", "--json")
    assert json.loads(asked.stdout.splitlines()[-1])["roster"] == first.status()["roster"]


def test_four_members_go_on_without_one(found, command) -> None:
    cluster = found(4, node_type="lightweight")
    cluster.start()
    cluster.until_connected()
    missing, others = cluster.nodes[3], cluster.nodes[:3]
    missing.kill()

    def named(node) -> bool:
        return any(
            "n3" in wait["who"] and wait["next"] == "the others go on without" for wait in node.call("why")["waits"]
        )

    cluster.until(lambda: all(named(node) for node in others), "its absence is noticed", others)
    heights = [node.call("probe")["height"] for node in others]
    assert heights == sorted(heights)
    assert not any(node.status()["paused"] for node in others)
    assert "4 members tolerate 1 faulty or missing" in others[0].call("why")["summary"]
    assert command("status", "--node", "n0", "--check").returncode == 0

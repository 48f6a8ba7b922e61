"""A newcomer to a run that is under way: from an empty directory and one address to the same model."""

from __future__ import annotations

import json

from aicpnode.storage.blobs import Blobs

ROUNDS_BEFORE = 3


def test_newcomer_fetches_model_and_data_by_hash_and_replays_all_rounds(found, launch, until, command) -> None:
    cluster = found(3)
    cluster.start()
    cluster.until_round(ROUNDS_BEFORE)
    network = cluster.genesis.network_id
    seen = json.loads(command("inspect", cluster.nodes[0].address, "--json").stdout.splitlines()[-1])
    assert (seen["network"], seen["parameters"]) == (network.hex(), cluster.genesis.parameters)
    assert seen["peer"]["height"] >= ROUNDS_BEFORE
    newcomer = launch("newcomer", "--bootstrap", cluster.nodes[0].address, "--network", network.hex())
    assert not newcomer.directory.exists()
    newcomer.start()
    nodes = [*cluster.nodes, newcomer]
    until(lambda: newcomer.status().get("round", 0) >= ROUNDS_BEFORE, "it catches up", nodes)
    until(lambda: newcomer.status()["training"]["contributing"], "it joins and follows the others", nodes)
    until(lambda: newcomer.status()["proposals"]["mine_accepted"] > 0, "a proposal of it is accepted", nodes)
    hashes = newcomer.round_hashes()
    assert set(range(ROUNDS_BEFORE)) <= set(hashes), "it applied every round since the first"
    cluster.assert_equal_rounds(ROUNDS_BEFORE, nodes)
    assert "UNVERIFIED" not in newcomer.output()
    with Blobs(newcomer.directory / "blobs") as blobs:
        assert blobs.has(cluster.genesis.initial_model)
        assert all(blobs.has(shard.sha256) for shard in cluster.genesis.data.shards)
    members = {member["name"]: member["status"] for member in cluster.nodes[0].call("members")["members"]}
    assert members["newcomer"] in ("PROBATION", "ACTIVE")

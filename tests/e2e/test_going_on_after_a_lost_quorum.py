"""Half of the members are gone for good: the others found a run that goes on from the last agreed model."""

from __future__ import annotations

import json

from aicpnode.config import KEY_FILE
from aicpnode.identity import Identity

ROUNDS = 2


def test_survivors_found_a_run_that_trains_on_from_the_last_agreed_model(
    found, launch, until, command, tmp_path
) -> None:
    cluster = found(4)
    cluster.start()
    cluster.until_round(ROUNDS)
    for lost in cluster.nodes[2:]:
        lost.kill()
    survivor = cluster.nodes[0]
    until(lambda: survivor.status().get("paused") is True, "nothing can be decided any more", cluster.nodes[:2])
    waits = survivor.call("why")["waits"]
    assert {"n2", "n3"} <= {name for wait in waits for name in wait["who"]}
    for node in cluster.nodes[:2]:
        assert node.terminate() == 0
    (wanted, height) = survivor.rows(
        "SELECT hex(model_hash), height FROM applied WHERE snapshot IS NOT NULL ORDER BY height DESC LIMIT 1"
    )[0]

    names = ("p0", "p1")
    keys = [Identity.load_or_create(tmp_path / name / KEY_FILE).key for name in names]
    members = tmp_path / "members"
    members.write_text("\n".join(f"{key.hex()}:{name}" for key, name in zip(keys, names, strict=True)))
    made = command(
        "init", str(tmp_path / "again"), "--from-checkpoint", wanted, "--members", str(members),
        "--data-dir", str(survivor.directory), "--probation-rounds", "2", "--json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout.splitlines()[-1])
    assert told["lineage"]["network"] == cluster.genesis.network_id.hex()
    assert (told["lineage"]["height"], told["lineage"]["model_hash"]) == (height, wanted.lower())

    given = ("--genesis", told["genesis"], "--node-type", "training")
    first = launch("p0", *given)
    second = launch("p1", *given, "--bootstrap", first.address)
    for node in (first, second):
        node.start()
    until(
        lambda: all(node.status().get("round", 0) >= ROUNDS for node in (first, second)),
        "the new run trains",
        [first, second],
    )
    assert first.status()["network"] == told["network"]
    assert first.round_hashes()[0] == second.round_hashes()[0] != wanted.lower()

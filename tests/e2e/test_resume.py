"""Stopping cleanly and starting again: the same model, the same optimizer, and a checkpoint that needs no node."""

from __future__ import annotations

import json
import time

ROUNDS = 2
STOP_S = 15.0


def test_sigterm_writes_checkpoint_and_snapshot_from_which_the_node_goes_on(found, until, command) -> None:
    cluster = found(1, arguments={0: ("--train-rounds", str(ROUNDS))})
    (node,) = cluster.nodes
    node.start()
    cluster.until_round(ROUNDS)
    before = node.status()
    began = time.monotonic()
    assert node.terminate() == 0
    assert time.monotonic() - began < STOP_S
    assert "Traceback" not in node.output()
    checkpoint = max((node.directory / "checkpoints").glob("*.aicp"))
    height, snapshot = node.rows("SELECT height, snapshot FROM applied ORDER BY height DESC LIMIT 1")[0]
    assert snapshot is not None

    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs again", [node])
    after = node.status()
    assert after["model_hash"] == before["model_hash"]
    assert (after["round"], after["applied_height"] >= height) == (before["round"], True)
    resumed = f"resumed the optimizer from {checkpoint.name} (round {ROUNDS})"
    until(lambda: resumed in node.latest_output(), "the optimizer is taken from the checkpoint", [node])
    node.call("train", {"rounds": 1})
    cluster.until_round(ROUNDS + 1)
    assert node.status()["model_hash"] != before["model_hash"]
    assert node.terminate() == 0

    # The checkpoint alone suffices to generate; no node runs.
    generated = command("generate", "--checkpoint", str(checkpoint), "the ", "--tokens", "8", "--json")
    assert generated.returncode == 0, generated.stderr
    assert json.loads(generated.stdout.splitlines()[-1])["model_hash"] == before["model_hash"]


def test_quit_over_the_socket_ends_the_node_cleanly(found, until) -> None:
    (node,) = found(1, node_type="lightweight").nodes
    node.start()
    until(lambda: node.status().get("phase") == "running", "it runs", [node])
    assert node.call("quit", {"stop": True}) == {"stopping": True}
    assert node.wait() == 0
    assert "Traceback" not in node.output()

"""Members of real nodes change the run together, from the command line as users do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from aicpnode.config import KEY_FILE
from aicpnode.genesis import Admission
from aicpnode.identity import Identity

LIGHTWEIGHT = dict.fromkeys(range(4), ("--node-type", "lightweight"))


def command(*arguments: str) -> dict[str, Any]:
    """``aicp-node ... --json``, which must succeed; its last line."""
    done = subprocess.run(
        [sys.executable, "-m", "aicpnode", *arguments, "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def statuses(node) -> dict[str, str]:
    return {member["name"]: member["status"] for member in node.call("members")["members"]}


def test_change_removal_and_leaving_by_command(found) -> None:
    cluster = found(4, arguments=LIGHTWEIGHT)
    cluster.start()
    cluster.until_connected()
    nodes = cluster.nodes
    proposed = command("propose", "round-seconds", "45", "--node", "n0")
    assert (proposed["in_effect"], proposed["power"], proposed["needed"]) == (False, 1, 3)
    for endorser in nodes[1:3]:
        cluster.until(lambda e=endorser: bool(e.call("changes")["changes"]), "the change is known", [endorser])
        row = command("endorse", proposed["id"], "--node", endorser.name)
    assert row["in_effect"] is True
    cluster.until(lambda: not any(node.call("changes")["changes"] for node in nodes), "in effect everywhere", nodes)

    removal = command("propose", "remove", "n3", "--reason", "out of order", "--node", "n0")
    for endorser in nodes[1:3]:
        cluster.until(lambda e=endorser: bool(e.call("changes")["changes"]), "the removal is known", [endorser])
        command("endorse", removal["id"], "--node", endorser.name)
    cluster.until(lambda: all(statuses(node)["n3"] == "BANNED" for node in nodes[:3]), "banned", nodes[:3])
    (banned,) = command("blacklist", "--node", "n1")["banned"]
    assert (banned["name"], banned["reason"]) == ("n3", "removed by the members: out of order")
    cluster.until(lambda: all(node.status()["peers"] == 2 for node in nodes[:3]), "its connections end", nodes[:3])

    assert command("leave", "--node", "n2")["left"] is True
    cluster.until(lambda: all(statuses(node)["n2"] == "SUSPENDED" for node in nodes[:2]), "left", nodes[:2])
    assert nodes[0].call("probe")["height"] > 0, "the two that remain decide"


def test_guest_needs_its_invitation(found, launch) -> None:
    cluster = found(1, arguments=LIGHTWEIGHT, admission=Admission.INVITE)
    cluster.start()
    cluster.until_connected()
    host = cluster.nodes[0]
    network = cluster.genesis.network_id.hex()
    guest = launch("guest", "--node-type", "lightweight", "--bootstrap", host.address, "--network", network)
    guest.start()
    cluster.until(lambda: guest.status().get("phase") == "running", "it runs", [guest])
    cluster.until(lambda: "invitation" in str(guest.call("why")), "it says what it lacks", [guest])
    assert list(statuses(host)) == ["n0"]
    guest.terminate()
    key = Identity.load(guest.directory / KEY_FILE).key.hex()
    invitation = command("invite", key, "--node", "n0")["invitation"]
    guest.start(extra=("--invite", invitation))
    cluster.until(lambda: statuses(host).get("guest") == "ACTIVE", "it is admitted", [guest])

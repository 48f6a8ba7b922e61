"""What a node says of itself: the results of ``status``, ``members``, ``peers``, ``health`` and ``why``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psutil

from aicpnode.identity import short
from aicpnode.limits import resident_mb
from aicpnode.replication.explain import Wait, probation_wait, replica_waits, tolerance

if TYPE_CHECKING:
    from aicpnode.node.node import Node
    from aicpnode.replication.driver import Driver

UNREACHABLE_AFTER_S = 8.0
"""A member that is neither connected nor heard of for so long counts as missing: heads are announced every 5 s."""
DISK_FREE_BYTES_MIN = 256 << 20

JsonObject = dict[str, Any]


def percentile_ms(seconds: list[float], fraction: float) -> float | None:
    """The value below which ``fraction`` of the measurements lie, in milliseconds; None without measurements."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def names(node: Node) -> Mapping[bytes, str]:
    """Names for people: from the roster, then from the handshake."""
    known = {info.key: info.name for info in node.mesh.peers()}
    known.update({member.key: member.name for member in node.driver.ledger.roster.members})
    return known


def name_of(node: Node, key: bytes) -> str:
    found = names(node).get(key)
    return found or short(key)


def reachable(node: Node) -> dict[bytes, bool]:
    """For every member: whether it is connected, or was heard of (perhaps through others) a moment ago."""
    connected = {info.key for info in node.mesh.peers()}
    result = {}
    for member in node.driver.ledger.roster.members:
        heard = node.driver.last_heard_s(member.key)
        near = member.key == node.identity.key or member.key in connected
        result[member.key] = near or (heard is not None and heard < UNREACHABLE_AFTER_S)
    return result


def is_paused(node: Node) -> bool:
    """Whether nothing can be decided: reachable members hold less than a quorum, or no quorum answers for long."""
    if node.driver.is_paused:
        return True
    roster = node.driver.ledger.roster
    near = reachable(node)
    return sum(roster.power(key) for key, is_near in near.items() if is_near) < roster.quorum


def roster(driver: Driver) -> JsonObject:
    present = driver.ledger.roster
    return {
        "active": len(present.active),
        "members": len(present.members),
        "power": present.total_power,
        "quorum": present.quorum,
        "tolerates": present.faulty_power,
    }


def status(node: Node) -> JsonObject:
    driver, genesis = node.driver, node.genesis
    ledger, replica = driver.ledger, driver.replica
    traffic = node.mesh.statistics()
    times = driver.decision_seconds()
    leader = replica.roster.leader(replica.height, replica.view)
    return {
        "node_id": node.config.name,
        "key": node.identity.key.hex(),
        "network": node.network_id.hex(),
        "node_type": node.config.node_type.value,
        "version": version("aicp-node"),
        "uptime_s": time.monotonic() - node.started_s,
        "p2p": str(node.address),
        "data_dir": str(node.config.directory),
        "admission": genesis.admission.value,
        "probation_rounds": genesis.probation_rounds,
        "phase": node.phase,
        "height": driver.head,
        "applied_height": driver.applied_height,
        "view": replica.view,
        "step": replica.step.name,
        "leader": leader.name,
        "round": node.applied_round,
        "decided_round": ledger.round,
        "paused": is_paused(node),
        "diverged": replica.diverged,
        "behind": driver.is_behind,
        "taking_over": driver.takeover_progress,
        "model_hash": node.model_hash_hex,
        "state_hash": driver.state_hash.hex(),
        "roster": roster(driver),
        "training": training(node),
        "proposals": node.proposals(),
        "peers": len(node.mesh.peers()),
        "decision_ms_p50": percentile_ms(times, 0.5),
        "decision_ms_p99": percentile_ms(times, 0.99),
        "decisions": len(times),
        "wire_bytes_sent": traffic["bytes_sent"],
        "wire_bytes_received": traffic["bytes_received"],
        "rss_mb": resident_mb(),
        "cpu_s": sum(psutil.Process().cpu_times()[:2]),
        "pending_operations": len(replica.pool),
        "equivocations": driver.equivocations,
        "dropped_inputs": driver.dropped_inputs,
        "verifications": driver.verifications + traffic.get("envelops_verified", 0),
        "messages_sent": driver.messages_sent,
        "parameters": genesis.parameters,
    }


def training(node: Node) -> JsonObject:
    ledger = node.driver.ledger
    standing = ledger.standing(node.identity.key)
    figures = node.engine_statistics()
    until = None if standing is None or not ledger.contributes(node.identity.key) else standing.until_round
    return {
        "available": node.config.trains,
        "contributing": ledger.contributes(node.identity.key),
        "contributors": [member.name for member in ledger.contributors()],
        "wish": node.driver.intent.wish.name.lower(),
        "until_round": node.shown_until(until),
        "loss": figures.get("loss"),
        "val_loss": figures.get("val_loss"),
        "val_round": figures.get("val_round"),
        "tokens_per_s": figures.get("tokens_per_s"),
        "inner_step": figures.get("inner_step"),
        "inner_steps": figures.get("inner_steps"),
        "share": figures.get("share"),
    }


def members(node: Node) -> JsonObject:
    driver = node.driver
    ledger = driver.ledger
    near = reachable(node)
    connected = {info.key for info in node.mesh.peers()}
    result = []
    for member in ledger.roster.members:
        standing = ledger.standings[member.index]
        on_probation = member.status.name == "PROBATION"
        contributes = ledger.contributes(member.key)
        result.append(
            {
                "index": member.index,
                "key": member.key.hex(),
                "name": member.name,
                "status": member.status.name,
                "power": ledger.roster.power(member.key),
                "contributing": contributes,
                "until_round": node.shown_until(standing.until_round) if contributes else None,
                "last_included_round": None if standing.included_round < 0 else standing.included_round,
                "last_seen_s": 0.0 if member.key == node.identity.key else driver.last_heard_s(member.key),
                "connected": member.key in connected or member.key == node.identity.key,
                "reachable": near[member.key],
                "equivocated": member.key in driver.accused,
                "probation": (
                    {"seen": standing.probation_seen, "of": node.genesis.probation_rounds} if on_probation else None
                ),
            }
        )
    return {"epoch": ledger.roster.epoch, "members": result, "roster": roster(driver)}


def peers(node: Node) -> JsonObject:
    now = time.time()
    connected = [
        {
            "key": info.key.hex(),
            "name": info.name,
            "node_type": info.node_type,
            "address": None if info.address is None else str(info.address),
            "inbound": info.inbound,
            "connected_s": now - info.connected_since,
            "rtt_ms": info.rtt_ms,
            "bytes_sent": info.bytes_sent,
            "bytes_received": info.bytes_received,
            "head_height": info.head_height,
        }
        for info in node.mesh.peers()
    ]
    dialing = [
        {"address": str(address), "attempts": attempts, "error": error, "next_try_s": next_try_s}
        for address, attempts, error, next_try_s in node.mesh.dialing()
    ]
    return {"peers": connected, "dialing": dialing}


def health(node: Node) -> JsonObject:
    driver = node.driver
    checks = [
        _check("quorum reachable", not is_paused(node), tolerance(driver.replica)),
        _check("state certified", not driver.replica.diverged, f"height {driver.head}"),
        _check("caught up", not driver.is_behind, f"applied {driver.applied_height} of {driver.head}"),
        _check("model loaded", node.phase == "running", node.phase),
        _disk(node),
    ]
    return {"healthy": all(check["ok"] for check in checks), "checks": checks}


def _check(name: str, ok: bool, detail: str) -> JsonObject:
    return {"name": name, "ok": ok, "detail": detail}


def _disk(node: Node) -> JsonObject:
    free = psutil.disk_usage(str(node.config.directory)).free
    return _check("disk space", free >= DISK_FREE_BYTES_MIN, f"{free / (1 << 30):.1f} GiB free")


def why(node: Node) -> JsonObject:
    """Everything this node waits for, most decisive first."""
    driver = node.driver
    waits: list[Wait] = []
    near = reachable(node)
    unheard = set(driver.unheard()) if driver.is_paused else set()
    missing = [member.key for member in driver.ledger.roster.active if not near[member.key] or member.key in unheard]
    if missing:
        waits.append(_missing_members(node, missing))
    if driver.takeover_progress:
        waits.append(Wait(what=driver.takeover_progress, next="a lying or slow donor costs one attempt"))
    waits += node.start_waits()
    probation = probation_wait(driver.replica, node.identity.key, driver.invitation)
    if probation is not None:
        waits.append(probation)
    waits += replica_waits(driver.replica, lambda key: name_of(node, key))
    waits += node.participant_waits()
    waits += [
        Wait(what=f"an answer from {address}: {error or 'dialling'}", next=f"attempt {attempts + 1} in {next_s:.1f} s")
        for address, attempts, error, next_s in node.mesh.dialing()
    ]
    return {"waits": [wait.to_json() for wait in waits], "roster": roster(driver), "summary": _summary(node, waits)}


def _missing_members(node: Node, keys: list[bytes]) -> Wait:
    driver = node.driver
    paused = is_paused(node)
    consequence = "nothing can be decided until it is back" if len(keys) == 1 else "nothing can be decided without them"
    heard = [driver.last_heard_s(key) for key in keys]
    known = [seconds for seconds in heard if seconds is not None]
    return Wait(
        what="members that are not reachable" if len(keys) > 1 else "a member that is not reachable",
        who=tuple(name_of(node, key) for key in keys),
        since_s=min(known) if known else None,
        next=consequence if paused else "the others go on without",
    )


def _summary(node: Node, waits: list[Wait]) -> str:
    driver = node.driver
    if driver.replica.diverged:
        return "This node's state is not the certified one: it signs nothing until it has taken over that of others."
    sentence = tolerance(driver.replica)
    if is_paused(node):
        return f"Paused: less than a quorum is reachable. {sentence[:1].upper()}{sentence[1:]}."
    if not driver.ledger.contributors():
        idle = "Idle: nobody trains" if not driver.replica.pool else "Deciding operations; nobody trains"
        return f"{idle}. {sentence[:1].upper()}{sentence[1:]}."
    return f"Training round {driver.ledger.round}. {sentence[:1].upper()}{sentence[1:]}."


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None

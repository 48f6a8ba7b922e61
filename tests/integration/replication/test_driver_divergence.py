"""A state that is not the certified one: no signature any more, a dump, another state, and votes again above it."""

from __future__ import annotations

import json
from dataclasses import replace

from aicpnode.envelop.ledger_state import decode_ledger_state
from consensus.membership import LedgerState

ROUNDS = 400
SNAPSHOT_ROUNDS = 3
SETTINGS = {"snapshot_rounds": SNAPSHOT_ROUNDS}


def said(member, text: str) -> bool:
    return any(text in notice.text for notice in member.notices)


def is_cured(member) -> bool:
    return member.database.base_height() > 0 and not member.driver.replica.diverged and member.driver.is_applied


async def start_four(network, **deviation):
    members = [network.member(index, rounds=ROUNDS, settings=SETTINGS) for index in range(3)]
    deviant = network.member(3, rounds=ROUNDS, settings=SETTINGS, **deviation)
    await network.start_all([*members, deviant])
    return members, deviant


async def wait_cured(network, members, deviant) -> None:
    await network.until(lambda: is_cured(deviant), "another state is taken over", [deviant])
    since = len(network.hub.votes)
    await network.until(lambda: bool(network.hub.heights_voted(deviant.key, since=since)), "it votes again", [deviant])
    await network.until(lambda: deviant.driver.is_applied, "it follows", [deviant])
    assert not deviant.driver.replica.diverged
    network.assert_equal([*members, deviant])


async def test_corrupted_model_is_noticed_dumped_and_replaced_and_the_member_votes_again(make_network) -> None:
    network = make_network(4)
    members, deviant = await start_four(network)
    await network.until(lambda: deviant.driver.ledger.round > 2 * SNAPSHOT_ROUNDS, "snapshots", members)
    deviant.application.state = bytes(32)
    await network.until(lambda: said(deviant, "signs nothing any more"), "it notices", [deviant])
    await wait_cured(network, members, deviant)
    (dump,) = deviant.directory.glob("diverged-*")
    facts = json.loads((dump / "facts.json").read_text())
    height = facts["height"]
    assert dump.name == f"diverged-{height}"
    assert facts["own_state_hash"] != facts["certified_state_hash"]
    assert facts["certified_state_hash"] == members[0].states()[height][1].hex()
    ledger = decode_ledger_state((dump / "ledger.msgpack").read_bytes(), genesis=network.agreement.genesis)
    assert ledger.height == facts["ledger_height"] >= height
    assert (dump / "snapshot.bin").stat().st_size > 0
    assert len(list(dump.glob("block-*"))) == len(list(dump.glob("certificate-*"))) > 0
    assert deviant.driver._takeover.progress == ""


async def test_corrupted_ledger_is_replaced_too(make_network) -> None:
    network = make_network(4)
    members, deviant = await start_four(network)
    await network.until(lambda: deviant.driver.ledger.round > 2 * SNAPSHOT_ROUNDS, "snapshots", members)
    replica = deviant.driver.replica
    ledger: LedgerState = replica.ledger
    replica.ledger = ledger.with_standing(0, replace(ledger.standings[0], probation_seen=77))
    await network.until(lambda: said(deviant, "signs nothing any more"), "it notices", [deviant])
    await wait_cured(network, members, deviant)
    assert deviant.driver.ledger.standings[0].probation_seen == 0


async def test_member_whose_program_errs_in_one_round_takes_a_state_from_after_it(make_network) -> None:
    """The state before the round does not help: it would err again, and does, and then waits for a later one."""
    network = make_network(4)
    members, deviant = await start_four(network, lie_in_round=2 * SNAPSHOT_ROUNDS + 1)
    await network.until(lambda: said(deviant, "signs nothing any more"), "it notices", [deviant])
    await wait_cured(network, members, deviant)
    assert deviant.driver.ledger.round > 2 * SNAPSHOT_ROUNDS + 1


async def test_diverged_member_stays_mute_over_a_restart_until_it_has_another_state(make_network) -> None:
    network = make_network(4)
    members, deviant = await start_four(network)
    await network.until(lambda: deviant.driver.ledger.round > 2 * SNAPSHOT_ROUNDS, "snapshots", members)
    network.hub.parts = (frozenset(member.key for member in members), frozenset({deviant.key}))
    deviant.application.state = bytes(32)
    network.hub.parts = ()
    await network.until(lambda: deviant.driver._snapshots.diverged() is not None, "it is on disk", [deviant])
    await deviant.stop()
    votes = len(network.hub.votes)
    network.hub.parts = (frozenset(member.key for member in members), frozenset({deviant.key}))
    await deviant.start()
    assert deviant.driver.replica.diverged
    await network.until(lambda: members[0].driver.head > deviant.driver.head + 5, "the others go on", members)
    assert network.hub.heights_voted(deviant.key, since=votes) == []
    network.hub.parts = ()
    for member in members:
        network.hub.connect(member.key)
    await wait_cured(network, members, deviant)

"""Drivers decide operations and rounds together, and hold equal ledgers and states on their disks."""

from __future__ import annotations

import pytest

from aicpnode.errors import UserError
from aicpnode.replication.intent import Intent, Wish
from consensus.messages import OperationKind

ROUNDS = 12


async def test_four_drivers_decide_rounds_with_equal_states_on_every_disk(make_network) -> None:
    network = make_network(4)
    members = [network.member(index, rounds=ROUNDS) for index in range(4)]
    await network.start_all(members)
    await network.until(lambda: all(m.driver.ledger.round >= ROUNDS and m.driver.is_applied for m in members), "rounds")
    assert network.assert_equal(members) >= ROUNDS
    trained = members[0].application.applied
    assert [training.round for training in trained] == list(range(ROUNDS))
    assert len(trained[-1].included) == 4
    assert all(proposal.power == 1 for proposal in trained[-1].included)
    assert all(member.application.applied == trained for member in members)
    assert all(member.driver.equivocations == 0 for member in members)
    assert network.hub.faults == []


async def test_operations_are_decided_while_one_of_four_is_away(make_network) -> None:
    network = make_network(4)
    members = [network.member(index) for index in range(3)]
    await network.start_all(members)
    heights = [await members[turn % 3].driver.probe() for turn in range(9)]
    assert heights == sorted(heights)
    await network.until(lambda: len({m.driver.applied_height for m in members}) == 1, "all applied", members)
    assert network.assert_equal(members) >= 3


async def test_nothing_is_decided_without_a_quorum_and_it_goes_on_with_one(make_network) -> None:
    network = make_network(4)
    members = [network.member(index) for index in range(3)]
    await network.start_all(members[:2])
    members[0].driver.submit(OperationKind.CONTRIBUTE, 0)
    await network.until(lambda: members[1].key in network.hub.voters(height=1), "both vote", members[:2])
    assert members[0].driver.head == members[1].driver.head == 0
    await members[2].start()
    await network.until(lambda: all(member.driver.head >= 1 for member in members), "a decision", members)
    network.assert_equal(members)


async def test_probe_of_a_stranger_is_refused(make_network) -> None:
    network = make_network(1)
    stranger = network.member(1)
    await stranger.start()
    with pytest.raises(UserError, match="no member yet"):
        await stranger.driver.probe()


async def test_wish_of_the_owner_survives_a_restart(make_network) -> None:
    network = make_network(1)
    member = network.member(0)
    await member.start()
    wish = Intent(wish=Wish.ON, until_round=7)
    await member.driver.set_intent(wish)
    await network.until(lambda: member.driver.ledger.contributes(member.key), "it contributes", [member])
    await member.stop()
    await member.start()
    assert member.driver.intent == wish
    assert member.driver.ledger.contributes(member.key)

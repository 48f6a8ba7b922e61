"""Drivers that stop at any moment go on from their disks: nothing decided is lost, no slot is signed twice."""

from __future__ import annotations

import functools
import random

import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, encode

ROUNDS = 30
CRASHES = 12
SEED = 7
UPTIME_S = (0.0, 0.15)


async def test_drivers_that_crash_at_random_moments_go_on_from_their_disks(make_network) -> None:
    moments = random.Random(SEED)
    network = make_network(4)
    members = [network.member(index, rounds=200) for index in range(4)]
    await network.start_all(members)
    for _ in range(CRASHES):
        await trio.sleep(moments.uniform(*UPTIME_S))
        victim = moments.choice(members)
        await victim.stop()
        await trio.sleep(moments.uniform(*UPTIME_S))
        await victim.start()
    least = max(member.driver.head for member in members) + 3
    await network.until(lambda: all(m.driver.applied_height >= least for m in members), "more heights", members)
    assert network.assert_equal(members) >= least
    assert all(member.driver.equivocations == 0 and not member.driver.replica.diverged for member in members)


async def test_all_drivers_restarted_together_keep_what_was_decided(make_network) -> None:
    network = make_network(4)
    members = [network.member(index, rounds=5) for index in range(4)]
    await network.start_all(members)
    await network.until(
        lambda: all(m.driver.ledger.round == 5 and m.driver.is_applied for m in members), "rounds", members
    )
    await network.until(lambda: len({m.driver.head for m in members}) == 1, "one height", members)
    head, model = members[0].driver.head, members[0].application.state
    for member in members:
        await member.stop()
    await network.start_all(members)
    await network.until(lambda: all(m.driver.applied_height >= head for m in members), "replayed", members)
    assert [member.application.state for member in members] == [model] * 4
    assert await members[0].driver.probe() > head
    network.assert_equal(members)


async def test_case_C23_driver_whose_state_is_not_the_certified_one_signs_nothing_more(make_network) -> None:
    """Nobody has a snapshot to give it here, so it stays so."""
    network = make_network(4)
    settings = {"snapshot_rounds": 10 * ROUNDS}
    members = [network.member(index, rounds=ROUNDS, settings=settings) for index in range(3)]
    deviant = network.member(3, rounds=ROUNDS, lie_in_round=4, settings=settings)
    await network.start_all([*members, deviant])
    await network.until(lambda: all(m.driver.ledger.round >= ROUNDS for m in members), "rounds", members)
    await network.until(lambda: deviant.driver.replica.diverged, "it notices", [deviant])
    await network.until(lambda: any("signs nothing any more" in n.text for n in deviant.notices), "it says so")
    assert all(n.level == "error" for n in deviant.notices if "signs nothing any more" in n.text)
    assert max(network.hub.heights_voted(deviant.key)) < members[0].driver.head
    assert network.assert_equal(members) >= ROUNDS


async def test_driver_with_a_lost_database_votes_only_where_it_cannot_have_signed(make_network) -> None:
    network = make_network(4)
    members = [network.member(index, rounds=200) for index in range(4)]
    forgetful = members[3]
    await network.start_all(members)
    await network.until(lambda: forgetful.driver.head >= 10, "heights", members)
    await forgetful.stop()
    signed_until, votes_before = max(network.hub.heights_voted(forgetful.key)), len(network.hub.votes)
    forgetful.directory = forgetful.directory.with_name("new")
    forgetful.directory.mkdir()
    forgetful.has_lost_database = True
    await forgetful.start()
    assert forgetful.driver.amnesia is not None
    voted = functools.partial(network.hub.heights_voted, forgetful.key, since=votes_before)
    await network.until(lambda: bool(voted()), "it votes again", members)
    assert min(voted()) > signed_until
    assert any("votes again from height" in notice.text for notice in forgetful.notices)
    await network.until(lambda: forgetful.driver.is_applied, "it is caught up", members)
    network.assert_equal(members)


async def test_replayed_heads_do_not_end_amnesia_those_from_their_signers_do(make_network) -> None:
    """Anybody can replay an old head, and it has no date: three would end the silence too early."""
    network = make_network(4)
    members = [network.member(index) for index in range(3)]
    await network.start_all(members)
    await members[0].driver.probe()
    for member in members[1:]:
        await member.stop()
    forgetful = network.member(3, has_lost_database=True)
    await forgetful.start()
    await network.until(lambda: forgetful.driver.head == members[0].driver.head, "caught up", [forgetful])

    def head_of(member) -> bytes:
        envelop = Envelop(network_id=network.agreement.network_id, kind=Kind.HEAD, sender=member.key, height=0, body=())
        return encode(signing.seal(member.identity, envelop))

    for member in members[1:]:
        assert network.hub.carry(members[0].key, forgetful.key, head_of(member))
    assert forgetful.driver.amnesia is not None
    missing = forgetful.driver.amnesia.missing(forgetful.driver.ledger)
    assert set(missing) >= {member.key for member in members[1:]}
    assert forgetful.driver.replica.voting_from is None
    for member in members[1:]:
        await member.start()
    await network.until(lambda: forgetful.driver.replica.voting_from is not None, "its memory is settled", [forgetful])

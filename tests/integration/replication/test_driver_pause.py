"""The smaller side of a partition pauses and changes nothing; healed, it catches up and goes on."""

from __future__ import annotations

from consensus.messages import OperationKind

SETTINGS = {"pause_s_min": 0.5}


async def start_four(network, rounds: int = 400):
    members = [network.member(index, rounds=rounds, settings=SETTINGS) for index in range(4)]
    await network.start_all(members)
    await network.until(lambda: all(m.driver.ledger.round > 2 for m in members), "rounds", members)
    return members


def split(network, *parts) -> None:
    network.hub.parts = tuple(frozenset(member.key for member in part) for part in parts)


def heal(network, members) -> None:
    network.hub.parts = ()
    for member in members:
        network.hub.connect(member.key)


async def test_member_cut_off_pauses_changes_nothing_and_catches_up_when_healed(make_network) -> None:
    network = make_network(4)
    members = await start_four(network)
    *majority, lonely = members
    split(network, majority, [lonely])
    # What makes it speak: an operation of its own, which it cannot have decided.
    lonely.driver.submit(OperationKind.CONTRIBUTE, 1 << 40)
    await network.until(lambda: lonely.driver.is_paused, "it pauses", [lonely])
    await network.until(lambda: set(lonely.driver.unheard()) == {m.key for m in majority}, "all missing", [lonely])
    await network.until(lambda: any("PAUSED" in notice.text for notice in lonely.notices), "it says so", [lonely])
    await network.until(lambda: lonely.driver.is_applied, "all that was decided is applied", [lonely])
    assert lonely.application.pauses == [True]
    before, safety = lonely.states(), lonely.driver.replica.safety
    goal = majority[0].driver.head + 10
    await network.until(lambda: majority[0].driver.head >= goal, "the others go on", majority)
    assert lonely.states() == before and lonely.driver.replica.safety == safety
    assert lonely.driver.is_paused
    heal(network, members)
    await network.until(
        lambda: not lonely.driver.is_paused and lonely.driver.applied_height >= goal, "it catches up", [lonely]
    )
    assert lonely.application.pauses[:2] == [True, False]
    network.assert_equal(members)


async def test_halves_both_pause_and_decide_again_when_healed(make_network) -> None:
    network = make_network(4)
    members = await start_four(network)
    split(network, members[:2], members[2:])
    for member in members:
        member.driver.submit(OperationKind.CONTRIBUTE, 1 << 40)
    await network.until(lambda: all(member.driver.is_paused for member in members), "all pause", members)
    await network.until(lambda: all(member.driver.is_applied for member in members), "all is applied", members)
    heads = [member.driver.head for member in members]
    states = [member.states() for member in members]
    assert max(heads) - min(heads) <= 1
    heal(network, members)
    await network.until(lambda: all(m.driver.head > max(heads) + 2 for m in members), "they go on", members)
    assert all(set(before.items()) <= set(m.states().items()) for before, m in zip(states, members, strict=True))
    network.assert_equal(members)

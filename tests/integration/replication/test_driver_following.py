"""Members that follow: one ``train`` brings them in, and one ``stop`` ends what it began, at the first attempt."""

from __future__ import annotations

from aicpnode.envelop.kinds import decode_block
from aicpnode.replication.intent import WITHOUT_END, Intent, Wish
from consensus.messages import OperationKind

FOLLOWERS = 4


def contributions(member) -> list[tuple[bytes, int]]:
    """(signer, until_round) of every CONTRIBUTE in the ledger, in order."""
    operations = [operation for block in member.blocks().values() for operation in decode_block(block).body.operations]
    return [(op.signer, op.arguments[0]) for op in operations if op.kind is OperationKind.CONTRIBUTE]


async def test_followers_stop_with_the_one_they_followed_and_do_not_follow_each_other(make_network) -> None:
    network = make_network(1 + FOLLOWERS)
    members = [network.member(index, wish=Wish.FOLLOW) for index in range(1 + FOLLOWERS)]
    first = members[0]
    await network.start_all(members)
    await first.driver.set_intent(Intent(wish=Wish.ON))
    await network.until(lambda: len(contributions(first)) == 1 + FOLLOWERS, "all follow", members)
    await first.driver.set_intent(Intent(wish=Wish.OFF))
    await network.until(lambda: not any(m.driver.ledger.contributors() for m in members), "all stop", members)
    await network.until(lambda: all(m.driver.is_applied for m in members), "all applied", members)
    decided = contributions(first)
    for member in members:
        untils = [until for signer, until in decided if signer == member.key]
        assert untils == [WITHOUT_END, 0], f"{member.name} begins once and stops once"

    # The next call is followed again.
    await first.driver.set_intent(Intent(wish=Wish.ON))
    await network.until(lambda: len(first.driver.ledger.contributors()) == 1 + FOLLOWERS, "all follow", members)
    network.assert_equal(members)

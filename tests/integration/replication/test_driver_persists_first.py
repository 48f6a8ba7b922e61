"""What a driver sends is on its disk already, whatever it is and whoever asks (sections 5 and 9, invariant 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aicpnode.envelop.codec import decode
from aicpnode.envelop.kinds import VOTE_KINDS, parse_vote


async def test_case_C02_driver_sends_no_vote_before_it_is_on_its_disk(make_network: Callable[[int], Any]) -> None:
    """aptos-core 18298, telcoin 934: signing, writing and sending were three steps that a crash could come between."""
    network = make_network(3)
    members = {member.key: member for member in (network.member(index, rounds=3) for index in range(3))}
    carry, early, seen = network.hub.carry, [], set()

    def watched(sender: bytes, receiver: bytes, data: bytes) -> bool:
        envelop, attachment = decode(data)
        if envelop.kind in VOTE_KINDS and envelop.sender == sender:
            vote, database = parse_vote(envelop, attachment), members[sender].database
            seen.add(vote.kind)
            if envelop.height > database.head() and data not in database.votes(envelop.height):
                early.append(vote)
        return bool(carry(sender, receiver, data))

    network.hub.carry = watched
    await network.start_all(list(members.values()))
    await network.until(
        lambda: all(member.driver.ledger.round >= 3 for member in members.values()),
        "three rounds",
        list(members.values()),
    )
    assert early == []
    assert len(seen) == 4, "every kind of vote was sent"

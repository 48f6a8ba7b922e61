"""What a driver sends is on its disk already, whatever it is and whoever asks (sections 5 and 9, invariant 3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from aicpnode.envelop.codec import decode
from aicpnode.envelop.kinds import VOTE_KINDS, parse_vote
from consensus.messages import OperationKind

PATIENCE_S = 60.0


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


async def test_case_C04_vote_waits_for_the_write_however_long_it_takes(make_network: Callable[[int], Any]) -> None:
    """telcoin 934: the store wrote asynchronously, and the vote was broadcast meanwhile."""
    network = make_network(2)
    slow, other = (network.member(index) for index in range(2))
    await network.start_all([slow, other])
    store, may_write, asked = slow.driver._store, threading.Event(), threading.Event()
    persist = store.persist

    def persist_later(effects: list[Any]) -> None:
        asked.set()
        assert may_write.wait(PATIENCE_S)
        persist(effects)

    store.persist = persist_later
    try:
        slow.driver.submit(OperationKind.CONTRIBUTE, 9)
        await network.until(asked.is_set, "something to write")
        await network.until(lambda: other.key in network.hub.voters(1), "the other one has voted")
        assert slow.key not in network.hub.voters(1)
    finally:
        may_write.set()
    await network.until(lambda: slow.driver.head >= 1, "the operation is decided", [slow, other])
    assert slow.key in network.hub.voters(1)

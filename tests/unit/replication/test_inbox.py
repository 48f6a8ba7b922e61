"""The replica's inbox: fair between peers, bounded, own inputs first."""

from __future__ import annotations

import trio
import trio.testing

from aicpnode.replication.inbox import INPUTS_PER_PEER_MAX, PEERS_MAX, Inbox
from consensus.events import DeltaMeasured, HeadAnnounced, Input


def head(peer: int, height: int) -> HeadAnnounced:
    return HeadAnnounced(peer=bytes([peer]), height=height)


async def test_inbox_serves_peers_in_turn_however_much_one_sends() -> None:
    inbox = Inbox()
    for height in range(100):
        inbox.put_from(b"flood", head(1, height))
    inbox.put_from(b"honest", head(2, 7))
    assert head(2, 7) in await inbox.take(2)


async def test_inbox_gives_own_inputs_first_and_never_drops_them() -> None:
    inbox = Inbox()
    inbox.put_from(b"peer", head(1, 1))
    own: list[Input] = [DeltaMeasured(delta_ms=number) for number in range(2 * INPUTS_PER_PEER_MAX)]
    for event in own:
        inbox.put(event)
    assert await inbox.take(len(own)) == own
    assert await inbox.take(5) == [head(1, 1)]
    assert inbox.dropped == 0


async def test_inbox_keeps_the_order_of_each_peer() -> None:
    inbox = Inbox()
    for height in range(5):
        inbox.put_from(b"a", head(1, height))
        inbox.put_from(b"b", head(2, height))
    taken = await inbox.take(100)
    assert [event for event in taken if event.peer == b"\x01"] == [head(1, height) for height in range(5)]  # type: ignore[union-attr]


async def test_inbox_drops_and_counts_what_exceeds_the_share_of_a_peer() -> None:
    inbox = Inbox()
    for height in range(INPUTS_PER_PEER_MAX + 3):
        inbox.put_from(b"flood", head(1, height))
    for number in range(PEERS_MAX + 5):
        inbox.put_from(number.to_bytes(2, "big"), head(2, number))
    assert inbox.dropped == 3 + 6
    assert len(inbox) == INPUTS_PER_PEER_MAX + PEERS_MAX - 1


async def test_inbox_wakes_who_waits_for_the_first_input(autojump_clock: trio.testing.MockClock) -> None:
    inbox = Inbox()
    taken: list[Input] = []

    async def wait() -> None:
        taken.extend(await inbox.take(10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        inbox.put_from(b"peer", head(1, 1))
    assert taken == [head(1, 1)]

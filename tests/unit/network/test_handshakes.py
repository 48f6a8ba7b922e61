"""Slots for handshakes in progress, and the rule for two connections with one peer."""

from __future__ import annotations

import itertools

import pytest

from aicpnode.network.handshakes import HandshakeSlots, Settlement, settle

SMALL, LARGE = b"a" * 32, b"z" * 32


def test_one_more_than_the_slots_evicts_the_oldest():
    slots, evicted = HandshakeSlots(slots_max=3), []
    for number in range(5):
        slots.enter("10.0.0.1", lambda number=number: evicted.append(number))
    assert evicted == [0, 1] and len(slots) == 3 and slots.evicted == 2


def test_a_crowd_from_one_address_evicts_its_own():
    slots, evicted = HandshakeSlots(slots_max=10), []
    slots.enter("10.0.0.9", lambda: evicted.append("honest"))
    for number in range(500):
        slots.enter("6.6.6.6", lambda number=number: evicted.append(number))
    assert "honest" not in evicted and len(slots) == 10


def test_a_slot_that_is_left_is_free_and_left_only_once():
    slots = HandshakeSlots(slots_max=1)
    slot = slots.enter("a", lambda: pytest.fail("nobody needed the slot"))
    slots.leave(slot)
    slots.leave(slot)
    slots.enter("b", lambda: None)
    assert len(slots) == 1


def test_without_another_connection_the_new_one_stays():
    for me, peer in ((SMALL, LARGE), (LARGE, SMALL)):
        assert settle(me=me, peer=peer, dialing=False, connected_inbound=None, new_inbound=True) is Settlement.KEEP_NEW


def test_of_two_dials_at_once_both_sides_keep_that_of_the_smaller_key():
    decisions = {
        me: settle(me=me, peer=peer, dialing=True, connected_inbound=None, new_inbound=True)
        for me, peer in ((SMALL, LARGE), (LARGE, SMALL))
    }
    assert decisions == {SMALL: Settlement.KEEP_OLD, LARGE: Settlement.KEEP_NEW}


@pytest.mark.parametrize(
    ("me", "peer", "connected_inbound", "expected"),
    [
        (SMALL, LARGE, True, Settlement.KEEP_NEW),  # it dials again: it has lost its earlier dial
        (LARGE, SMALL, True, Settlement.KEEP_NEW),
        (SMALL, LARGE, False, Settlement.PROBE_OLD),  # its dial crossed ours, or it has lost ours
        (LARGE, SMALL, False, Settlement.KEEP_NEW),
    ],
)
def test_a_new_inbound_connection_against_an_established_one(me, peer, connected_inbound, expected):
    assert settle(me=me, peer=peer, dialing=False, connected_inbound=connected_inbound, new_inbound=True) is expected


def test_an_own_dial_never_replaces_what_is_established():
    for me, connected_inbound in itertools.product((SMALL, LARGE), (True, False)):
        peer = LARGE if me == SMALL else SMALL
        settlement = settle(me=me, peer=peer, dialing=False, connected_inbound=connected_inbound, new_inbound=False)
        assert settlement is Settlement.KEEP_OLD

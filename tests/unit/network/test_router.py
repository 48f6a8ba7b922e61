"""Envelops without sockets: verified once, relayed, delivered, and who is blamed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, encode
from aicpnode.envelop.signing import seal
from aicpnode.errors import MalformedError, RemoteError
from aicpnode.identity import Identity
from aicpnode.network.framing import Lane
from aicpnode.network.router import Router, lane_of

NETWORK = b"n" * 32
ME, ALICE, BOB, CAROL = (Identity(bytes((number,)) * 32) for number in range(1, 5))


class World:
    """A router with recorded surroundings: everybody is connected to everybody until ``links`` says otherwise."""

    def __init__(self, *, members: set[bytes] | None = None) -> None:
        self.links = {peer.key: {ME.key, ALICE.key, BOB.key, CAROL.key} for peer in (ALICE, BOB, CAROL)}
        self.sent: list[tuple[bytes, Lane, bytes]] = []
        self.charged: list[bytes] = []
        self.heard: list[tuple[Envelop, bytes, bytes]] = []
        self.router = Router(
            me=ME.key,
            network_id=NETWORK,
            links=lambda: self.links,
            send=lambda *message: self.sent.append(message) or True,
            charge=lambda key, _error: self.charged.append(key),
            is_member=lambda key: members is None or key in members,
        )
        self.router.subscribe([Kind.PREPARE, Kind.SET, Kind.OPERATION], lambda *message: self.heard.append(message))

    def refuse(self) -> None:
        def handler(*_message):
            raise RemoteError("refused by the handler")

        self.router.subscribe([Kind.PREPARE, Kind.SET, Kind.OPERATION], handler)


def envelop(sender=ALICE, *, kind=Kind.PREPARE, route=None, body=1, network_id=NETWORK) -> Envelop:
    return seal(sender, Envelop(network_id=network_id, kind=kind, sender=sender.key, route=route, body=body))


def test_a_message_is_delivered_with_its_attachment_and_where_it_came_from():
    world, message = World(), envelop(kind=Kind.SET)
    world.router.receive(BOB.key, encode(message, b"attached"), 0.0)
    assert world.heard == [(message, b"attached", BOB.key)]


def test_the_same_bytes_are_verified_once_and_delivered_again_only_from_their_sender(monkeypatch):
    verified = Counter()

    def counting(message, verify=signing.verify):
        verified["calls"] += 1
        return verify(message)

    monkeypatch.setattr(signing, "verify", counting)
    world, data = World(), encode(envelop())
    for peer in (ALICE, BOB, ALICE):
        world.router.receive(peer.key, data, 0.0)
    assert verified["calls"] == 1
    assert [peer for _, _, peer in world.heard] == [ALICE.key, ALICE.key]


def test_an_attachment_where_none_belongs_costs_the_peer_that_sent_it_and_goes_no_further():
    world = World()
    for kind in (Kind.PREPARE, Kind.HEAD, Kind.OPERATION, Kind.GRAD, Kind.GET_DECISIONS):
        with pytest.raises(MalformedError, match="an attachment to"):
            world.router.receive(BOB.key, encode(envelop(kind=kind), b"large junk"), 0.0)
    assert (world.heard, world.sent, world.charged) == ([], [], [])


def test_a_seen_message_with_another_signature_is_verified_again():
    world, message = World(), envelop()
    world.router.receive(ALICE.key, encode(message), 0.0)
    with pytest.raises(MalformedError, match="signature"):
        world.router.receive(BOB.key, encode(replace(message, signature=bytes(64))), 0.0)
    assert len(world.heard) == 1


def test_an_attachment_that_was_changed_on_the_way_is_no_repeat():
    world, message = World(), envelop(kind=Kind.SET)
    world.router.receive(ALICE.key, encode(message, b"a"), 0.0)
    world.router.receive(ALICE.key, encode(message, b"b"), 0.0)
    assert [attachment for _, attachment, _ in world.heard] == [b"a", b"b"]
    assert world.router.counts["verified"] == 2


def test_a_bad_message_is_not_remembered_as_seen():
    world, forged = World(), encode(replace(envelop(), signature=bytes(64)))
    for _ in range(2):
        with pytest.raises(MalformedError):
            world.router.receive(BOB.key, forged, 0.0)
    assert world.sent == []


def test_another_network_is_refused():
    world = World()
    with pytest.raises(MalformedError, match="another network"):
        world.router.receive(ALICE.key, encode(envelop(network_id=b"o" * 32)), 0.0)


def test_own_messages_that_come_back_are_dropped():
    world = World()
    world.router.receive(ALICE.key, encode(envelop(ME)), 0.0)
    assert world.heard == [] and world.router.counts["own_returned"] == 1


def test_a_missing_link_is_bridged_once_and_again_when_the_sender_repeats_itself():
    world, data = World(), encode(envelop())
    world.links[CAROL.key] = {ME.key, BOB.key}
    world.router.receive(ALICE.key, data, 0.0)
    assert world.sent == [(CAROL.key, Lane.VOTES, data)]
    world.router.receive(BOB.key, data, 5.0)  # a relay's copy is no reason to relay again
    world.router.receive(ALICE.key, data, 0.5)
    assert len(world.sent) == 1
    world.router.receive(ALICE.key, data, 1.5)
    assert len(world.sent) == 2


def test_a_message_for_another_node_is_passed_on_and_not_delivered():
    world, data = World(), encode(envelop(kind=Kind.OPERATION, route=CAROL.key))
    world.router.receive(ALICE.key, data, 0.0)
    assert world.heard == [] and [target for target, _, _ in world.sent] == [CAROL.key]


def test_a_message_for_this_node_is_delivered_and_not_passed_on():
    world = World()
    world.links[CAROL.key] = {ME.key}
    world.router.receive(ALICE.key, encode(envelop(kind=Kind.OPERATION, route=ME.key)), 0.0)
    assert len(world.heard) == 1 and world.sent == []


def test_a_schedule_is_neither_relayed_nor_delivered():
    world = World()
    world.router.receive(ALICE.key, encode(envelop(kind=Kind.OPERATION, route=("ring", 1))), 0.0)
    assert world.heard == [] and world.sent == []


def test_what_a_handler_refuses_costs_the_peer_that_signed_and_sent_it():
    world = World()
    world.refuse()
    with pytest.raises(RemoteError):
        world.router.receive(ALICE.key, encode(envelop()), 0.0)
    assert world.charged == []


def test_what_a_handler_refuses_is_charged_to_the_signer_not_to_the_relay():
    world = World()
    world.refuse()
    world.router.receive(BOB.key, encode(envelop()), 0.0)
    assert world.charged == [ALICE.key]


def test_a_relayed_attachment_that_a_handler_refuses_is_charged_to_nobody():
    world = World()
    world.refuse()
    world.router.receive(BOB.key, encode(envelop(kind=Kind.SET), b"who changed it?"), 0.0)
    assert world.charged == [] and world.router.counts["refused"] == 1


def test_of_strangers_only_operations_are_passed_on():
    world = World(members={BOB.key})
    world.links = {ALICE.key: {ME.key}, BOB.key: {ME.key}, CAROL.key: {ME.key}}
    world.router.receive(ALICE.key, encode(envelop(kind=Kind.HEAD, body=())), 0.0)
    assert world.sent == []
    world.router.receive(ALICE.key, encode(envelop(kind=Kind.OPERATION)), 0.0)
    assert {target for target, _, _ in world.sent} == {BOB.key, CAROL.key}


def test_a_bug_in_a_handler_propagates():
    world = World()

    def buggy(*_message):
        raise ZeroDivisionError

    world.router.subscribe([Kind.PREPARE], buggy)
    with pytest.raises(ZeroDivisionError):
        world.router.receive(ALICE.key, encode(envelop()), 0.0)


def test_a_kind_that_nobody_wants_is_counted():
    world = World()
    world.router.receive(ALICE.key, encode(envelop(kind=Kind.HEAD, route=ME.key)), 0.0)
    assert world.router.counts["unhandled"] == 1


def test_large_answers_do_not_travel_among_votes():
    assert {kind for kind in Kind if lane_of(kind) is Lane.BULK} == {
        Kind.BLOCK,
        Kind.DECISIONS,
        Kind.HEADERS,
        Kind.CHECKPOINT,
    }
    assert {lane_of(kind) for kind in Kind} == {Lane.BULK, Lane.VOTES}

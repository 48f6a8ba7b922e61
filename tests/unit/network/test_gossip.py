"""The seen-cache and the relay rule."""

from __future__ import annotations

import itertools

from aicpnode.network.gossip import RELAY_AGAIN_S, RELAY_DEGREE, SeenCache, relay_targets

KEYS = [bytes((number,)) * 32 for number in range(30)]
ME, SENDER, FAR, NEAR = KEYS[:4]


def test_seen_entries_expire():
    cache = SeenCache(ttl_s=10)
    cache.enter(b"a", 0.0)
    assert cache.hit(b"a", 9.9)
    assert not cache.hit(b"a", 10.0)
    assert len(cache) == 0


def test_seen_entries_are_bounded_and_the_oldest_goes():
    cache = SeenCache(entries_max=3)
    for number in range(4):
        cache.enter(bytes((number,)), float(number))
    assert [cache.hit(bytes((number,)), 4.0) for number in range(4)] == [False, True, True, True]


def test_a_repeat_is_relayed_again_only_after_a_while():
    cache = SeenCache()
    cache.enter(b"a", 0.0)
    assert not cache.may_relay_again(b"a", RELAY_AGAIN_S / 2)
    assert cache.may_relay_again(b"a", RELAY_AGAIN_S)
    assert not cache.may_relay_again(b"a", RELAY_AGAIN_S * 1.5)


def targets(links, *, route=None, from_peer=SENDER, me=ME):
    return relay_targets(me=me, sender=SENDER, from_peer=from_peer, route=route, links=links)


def test_among_peers_that_are_all_connected_nothing_is_relayed():
    assert targets({SENDER: {ME, NEAR}, NEAR: {ME, SENDER}}) == []


def test_a_peer_without_a_link_to_the_sender_gets_a_relay():
    assert targets({SENDER: {ME}, FAR: {ME}, NEAR: {ME, SENDER}}) == [FAR]


def test_a_peer_that_has_not_told_its_links_yet_gets_a_relay():
    assert targets({SENDER: {ME}, FAR: set()}) == [FAR]


def test_nothing_goes_back_where_it_came_from():
    assert targets({FAR: {ME}, NEAR: {ME, SENDER}}, from_peer=FAR) == []


def test_a_message_for_one_node_goes_to_that_node_only():
    links = {SENDER: {ME}, FAR: {ME}, NEAR: {ME}}
    assert targets(links, route=FAR) == [FAR]
    assert targets(links, route=ME) == []
    assert targets(links, route=b"unknown" + bytes(25)) == []
    assert targets(links, route=SENDER) == []


def test_of_many_that_see_a_missing_link_a_few_relay():
    """20 nodes are connected to everybody; only the link between SENDER and FAR is missing."""
    middle = KEYS[3:23]
    everybody = {*middle, SENDER, FAR}
    relays = []
    for me in middle:
        links = {key: everybody - {key} for key in everybody - {me}}
        links[SENDER] = everybody - {SENDER, FAR}
        links[FAR] = everybody - {SENDER, FAR}
        if targets(links, me=me) == [FAR]:
            relays.append(me)
    assert len(relays) == RELAY_DEGREE


def test_along_a_chain_every_node_passes_the_message_on():
    chain = KEYS[:6]
    neighbours = {key: set() for key in chain}
    for a, b in itertools.pairwise(chain):
        neighbours[a].add(b)
        neighbours[b].add(a)
    reached, waiting = set(), [(chain[0], chain[1])]
    while waiting:
        from_peer, me = waiting.pop()
        if me in reached:
            continue
        reached.add(me)
        links = {key: neighbours[key] for key in neighbours[me]}
        next_hops = relay_targets(me=me, sender=chain[0], from_peer=from_peer, route=None, links=links)
        waiting += [(me, target) for target in next_hops]
    assert reached == set(chain[1:])

"""Meshes on real sockets: how they find each other, keep each other, and whom they refuse."""

from __future__ import annotations

import hashlib
import socket

import pytest
import trio

from aicpnode.errors import UserError
from aicpnode.events import BootstrapUnreachable, PeerConnected, PeerDisconnected
from aicpnode.identity import Identity
from aicpnode.network import admission
from aicpnode.network.framing import FrameType
from aicpnode.network.handshakes import SessionLost
from aicpnode.network.peers import Address
from aicpnode.network.session import PROTOCOL_VERSION, RefusalCode


async def test_nodes_that_know_one_bootstrap_become_a_full_mesh(network):
    nodes = await network.start_full_mesh(5)

    for node in nodes:
        infos = {info.key: info for info in node.mesh.peers()}
        for other in nodes:
            if other is not node:
                assert infos[other.identity.key].address == other.address
                assert infos[other.identity.key].head_height == 7
    assert all(not node.mesh.dialing() for node in nodes)


async def test_the_mesh_lives_on_when_its_bootstrap_dies(network):
    bootstrap, *rest = await network.start_full_mesh(4)
    await bootstrap.stop()
    await network.until(lambda: all(len(node.mesh.peers()) == 2 for node in rest))
    newcomer = await network.start(Identity(b"n" * 32), rest[0].address)

    await network.until(lambda: len(newcomer.mesh.peers()) == 3)

    assert all(newcomer.sees(node) and node.sees(newcomer) for node in rest)


async def test_a_bootstrap_that_is_not_there_yet_is_retried_and_reported(network):
    early, late = network.identities(2)
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", placeholder.getsockname()[1])
    node = await network.start(early, address)
    await network.until(lambda: len(node.happened(BootstrapUnreachable)) >= 2)
    (dialled, attempts, error, next_try_s) = node.mesh.dialing()[0]

    assert dialled == address and attempts >= 2 and error == "connection refused" and next_try_s <= 30.0
    bootstrap = await network.start(late, port=address.port)
    await network.until(lambda: node.sees(bootstrap))
    assert node.mesh.dialing() == []


async def test_a_restarted_node_finds_its_peers_in_the_saved_table(network):
    store = network.store()
    first, second, third = network.identities(3)
    old = await network.start(third, peer_store=store)
    one = await network.start(first, old.address)
    two = await network.start(second, old.address)
    await network.until(lambda: {first.key, second.key} <= set(store.rows) and one.sees(two))
    await old.stop()
    await network.until(lambda: not one.sees(old) and not two.sees(old))

    new = await network.start(third, peer_store=store)
    await network.until(lambda: new.sees(one) and new.sees(two) and one.sees(new) and two.sees(new))


async def test_simultaneous_dials_leave_one_connection_on_both_sides(network):
    for identity_a, identity_b in (network.identities(2), network.identities(2)[::-1]):
        ports = []
        for _ in range(2):
            with socket.socket() as placeholder:
                placeholder.bind(("127.0.0.1", 0))
                ports.append(placeholder.getsockname()[1])
        addresses = [Address("127.0.0.1", port) for port in ports]
        a = await network.start(identity_a, addresses[1], port=ports[0])
        b = await network.start(identity_b, addresses[0], port=ports[1])
        await network.until(lambda: a.sees(b) and b.sees(a))  # noqa: B023
        envelop = a.envelop("through the one that is left")
        a.mesh.broadcast(envelop)
        await network.until(lambda: b.texts() != [])  # noqa: B023
        assert a.mesh.peers()[0].inbound != b.mesh.peers()[0].inbound
        await a.stop()
        await b.stop()


async def test_a_node_that_is_its_own_bootstrap_notices(network):
    (identity,) = network.identities(1)
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
    node = await network.start(identity, Address("127.0.0.1", port), Address("localhost", port), port=port)

    await network.until(lambda: node.mesh.dialing() == [])
    assert node.mesh.peers() == []
    assert node.happened(BootstrapUnreachable) == []


async def test_a_bootstrap_known_by_two_names_is_one_peer(network):
    first, second = network.identities(2)
    bootstrap = await network.start(first)
    port = bootstrap.address.port
    node = await network.start(second, Address("localhost", port), Address("127.0.0.1", port))

    await network.until(lambda: node.sees(bootstrap) and node.mesh.dialing() == [])
    assert len(node.mesh.peers()) == len(bootstrap.mesh.peers()) == 1


async def test_another_network_is_refused_with_both_ids(network):
    first, second = network.identities(2)
    other_id = hashlib.sha256(b"another network").digest()
    bootstrap = await network.start(first)
    stranger = await network.start(second, bootstrap.address, network_id=other_id)
    await network.until(lambda: stranger.happened(BootstrapUnreachable) != [])

    error = stranger.happened(BootstrapUnreachable)[0].error
    assert "wrong network" in error and network.network_id.hex() in error and other_id.hex() in error
    assert bootstrap.mesh.peers() == []


async def test_another_protocol_version_is_refused_with_both_versions(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    with pytest.raises(SessionLost) as lost:
        async with puppet(second, node.address, version=PROTOCOL_VERSION + 1):
            pass
    assert lost.value.code is RefusalCode.VERSION
    assert f"version {PROTOCOL_VERSION}" in lost.value.reason and f"version {PROTOCOL_VERSION + 1}" in lost.value.reason


async def test_a_second_node_with_the_same_key_is_told_so(network):
    (identity,) = network.identities(1)
    original = await network.start(identity)
    copy = await network.start(identity, original.address)

    await network.until(lambda: copy.happened(BootstrapUnreachable) != [])
    assert "same key" in copy.happened(BootstrapUnreachable)[0].error


async def test_an_explicit_port_in_use_is_an_error_with_advice(network):
    first, second = network.identities(2)
    node = await network.start(first)
    with pytest.raises(BaseException) as caught:
        await network.start(second, port=node.address.port)
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, UserError)
    assert error.message == f"port {node.address.port} on 127.0.0.1 is in use." and error.advice


async def test_a_default_port_in_use_moves_to_the_next_free_one(network):
    first, second = network.identities(2)
    node = await network.start(first)
    other = await network.start(second, port=node.address.port, explicit_port=False)
    assert node.address.port < other.address.port < node.address.port + 100


async def test_a_peer_that_stops_says_goodbye(network):
    one, two = await network.start_full_mesh(2)
    await two.stop()
    await network.until(lambda: one.happened(PeerDisconnected) != [])
    assert "shutting down" in one.happened(PeerDisconnected)[0].reason
    assert not one.sees(two)


async def test_a_crashed_peer_that_dials_again_replaces_its_dead_inbound_connection(network, puppet):
    first, second = network.identities(2)
    for mesh_identity, peer in ((first, second), (second, first)):
        node = await network.start(mesh_identity)
        async with puppet(peer, node.address):
            await network.until(lambda: len(node.mesh.peers()) == 1)  # noqa: B023
            async with puppet(peer, node.address) as again:
                await again.send(FrameType.PING, bytes(16))
                await again.receive(FrameType.PONG)
                assert len(node.happened(PeerConnected)) == 2
                assert len(node.mesh.peers()) == 1
        await node.stop()


async def test_a_crashed_peer_that_dials_in_replaces_an_outbound_connection_that_does_not_answer(network, puppet):
    smaller, larger = network.identities(2)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = Address("127.0.0.1", listeners[0].socket.getsockname()[1])
    node = await network.start(smaller, address)
    silent = await network.accept_and_fall_silent(listeners[0], larger)
    await network.until(lambda: len(node.mesh.peers()) == 1)
    assert not node.mesh.peers()[0].inbound

    async with puppet(larger, node.address) as again:
        await again.send(FrameType.PING, bytes(16))
        await again.receive(FrameType.PONG)
        assert node.mesh.peers()[0].inbound
    await silent.aclose()
    await listeners[0].aclose()


async def test_a_port_on_the_loopback_is_told_to_this_machine_only(network):
    (identity,) = network.identities(1)
    node = await network.start(identity)
    assert node.mesh._hello("127.0.0.1").listen_port == node.address.port
    assert node.mesh._hello("10.0.0.2").listen_port == 0
    open_node = await network.start(Identity(b"o" * 32), host="0.0.0.0")
    assert open_node.mesh._hello("10.0.0.2").listen_port == open_node.address.port


async def test_a_name_that_no_terminal_should_see_is_made_printable(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    rude = await network.start(second, node.address, node_name="\x1b[2J" + "x" * 100)
    await network.until(lambda: node.sees(rude))
    assert node.mesh.peers()[0].name == "?[2J" + "x" * 60


async def test_strangers_take_few_places_and_members_always_find_one(network, monkeypatch):
    monkeypatch.setattr(admission, "STRANGERS_MAX", 2)
    host, *others = network.identities(5)
    members = {host.key, others[3].key}
    node = await network.start(host, is_member=members.__contains__)
    for stranger in others[:2]:
        await network.start(stranger, node.address)
    await network.until(lambda: len(node.mesh.peers()) == 2)
    third = await network.start(others[2], node.address, is_member=lambda key: key == host.key)
    await network.until(lambda: any("no members" in error for _, _, error, _ in third.mesh.dialing()))
    await network.start(others[3], node.address)

    await network.until(lambda: others[3].key in node.peer_keys())

    assert third.identity.key not in node.peer_keys()

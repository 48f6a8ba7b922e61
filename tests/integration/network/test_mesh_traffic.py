"""Meshes on real sockets: Envelops delivered, relayed, and refused, and who pays for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from aicpnode.envelop.codec import MAX_WIRE_BYTES, Kind, encode
from aicpnode.errors import PENALTY_MALFORMED, RemoteError
from aicpnode.events import PeerConnected, PeerDisconnected
from aicpnode.network import admission
from aicpnode.network.discovery import encode_peers
from aicpnode.network.framing import FrameType, Lane
from aicpnode.network.handshakes import SessionLost
from aicpnode.network.peers import Address
from aicpnode.network.session import RefusalCode


async def test_a_broadcast_reaches_everybody_in_order_with_its_attachment(network):
    sender, *others = await network.start_full_mesh(3)
    for seq in range(50):
        message = sender.envelop(f"message {seq}", kind=Kind.SET)
        assert sender.mesh.broadcast(message, b"attachment %d" % seq) == 2

    for node in others:
        await network.until(lambda: len(node.heard) == 50)  # noqa: B023
        assert node.texts() == [f"message {seq}" for seq in range(50)]
        assert [attachment for _, attachment, _ in node.heard] == [b"attachment %d" % seq for seq in range(50)]
        assert {from_peer for _, _, from_peer in node.heard} == {sender.identity.key}


async def test_the_largest_envelop_arrives(network):
    sender, receiver = await network.start_full_mesh(2)
    envelop = sender.envelop("large", kind=Kind.DECISIONS, route=receiver.identity.key)
    attachment = bytes(MAX_WIRE_BYTES - len(encode(envelop)) - 3)
    assert sender.mesh.send(receiver.identity.key, envelop, attachment)
    await network.until(lambda: receiver.heard != [])
    assert receiver.heard[0][1] == attachment


async def test_what_is_sent_again_is_delivered_again_but_verified_once(network):
    sender, receiver = await network.start_full_mesh(2)
    envelop = sender.envelop("vote")
    for _ in range(3):
        sender.mesh.broadcast(envelop)
    await network.until(lambda: len(receiver.heard) == 3)
    assert receiver.mesh.statistics()["envelops_verified"] == 1
    assert receiver.mesh.statistics()["envelops_duplicates"] == 2


async def test_a_broadcast_is_relayed_where_a_link_is_missing(network):
    first, second, third, fourth = network.identities(4)
    network.close_link(third, fourth)
    one, two, three, four = await network.start_full_mesh(4)
    await network.until(lambda: links_are_known(one) and links_are_known(two))
    three.mesh.broadcast(three.envelop("hello"))

    await network.until(lambda: all(node.texts() for node in (one, two, four)))
    assert {from_peer for _, _, from_peer in four.heard} <= {first.key, second.key}
    await network.until(lambda: links_are_known(four))
    assert four.mesh.send(third.key, four.envelop("back", route=third.key))
    await network.until(lambda: "back" in three.texts())
    assert "back" not in one.texts() + two.texts()


def links_are_known(node):
    """``node`` has heard from each peer whom it is connected to."""
    return all(links for links in node.mesh._peers.links().values())


async def test_in_a_full_mesh_nothing_is_relayed(network):
    nodes = await network.start_full_mesh(4)
    await network.until(lambda: all(links_are_known(node) for node in nodes))
    await network.until(lambda: all(len(links) == 3 for node in nodes for links in node.mesh._peers.links().values()))
    for node in nodes:
        node.mesh.broadcast(node.envelop("vote"))
    await network.until(lambda: all(len(node.heard) == 3 for node in nodes))
    assert sum(node.mesh.statistics().get("envelops_relayed", 0) for node in nodes) == 0


async def test_send_to_a_stranger_is_refused(network):
    sender, _ = await network.start_full_mesh(2)
    assert not sender.mesh.send(b"s" * 32, sender.envelop("?"))
    assert not sender.mesh.send(b"s" * 32, sender.envelop("?", route=b"s" * 32))


async def test_a_wrong_signature_costs_the_peer_that_sent_it_until_it_is_banned(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    async with puppet(second, node.address) as peer:
        forger = await network.start(second)  # only to make an Envelop; it is not connected
        good = forger.envelop("vote")
        forged = encode(replace(good, signature=bytes(64)))
        await peer.send(FrameType.ENVELOP, encode(good), Lane.VOTES)
        await peer.send(FrameType.ENVELOP, forged, Lane.VOTES)  # the same signed part was seen just before
        await peer.send(FrameType.ENVELOP, forged, Lane.VOTES)
        goodbye = await peer.receive(FrameType.REFUSE)
        assert b"banned here" in goodbye.payload and b"signature" in goodbye.payload
    await network.until(lambda: node.mesh.peers() == [])
    assert node.texts() == ["vote"]
    with pytest.raises(SessionLost, match="banned here for") as lost:
        async with puppet(second, node.address):
            pass
    assert lost.value.code is RefusalCode.BANNED


async def test_an_envelop_of_another_network_is_refused(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    other = await network.start(second, network_id=b"o" * 32)
    async with puppet(second, node.address) as peer:
        await peer.send(FrameType.ENVELOP, encode(other.envelop("vote")), Lane.VOTES)
        await network.until(lambda: node.mesh.statistics()["faults"] == 1)
    assert node.heard == []


async def test_a_handler_that_refuses_a_relayed_message_blames_the_signer_not_the_relay(network):
    _, second, third = network.identities(3)
    network.close_link(second, third)
    relay, sender, receiver = await network.start_full_mesh(3)
    await network.until(lambda: links_are_known(relay))

    def refuse(*_message):
        raise RemoteError("nonsense inside", penalty=PENALTY_MALFORMED)

    receiver.mesh.subscribe([Kind.OPERATION], refuse)
    for seq in range(3):
        sender.mesh.broadcast(sender.envelop("nonsense", seq=seq))
    await network.until(lambda: receiver.mesh.statistics()["faults"] == 3)

    assert receiver.sees(relay)
    assert list(receiver.mesh._reputation.banned(trio.current_time())) == [second.key]


async def test_a_bug_in_a_handler_stops_the_node(network):
    class BugError(Exception):
        pass

    def buggy(*_message):
        raise BugError

    first, second = network.identities(2)
    with pytest.raises(BaseException) as caught:
        async with trio.open_nursery() as nursery:
            inner = type(network)(nursery)
            node = await inner.start(first)
            node.mesh.subscribe([Kind.OPERATION], buggy)
            sender = await network.start(second, node.address)
            await network.until(lambda: sender.sees(node))
            sender.mesh.broadcast(sender.envelop("boom"))
            await trio.sleep_forever()
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, BugError)


async def test_a_slow_reader_is_left_and_delays_nobody(network, puppet):
    sender_identity, reader_identity, slow_identity = network.identities(3)
    sender = await network.start(sender_identity)
    reader = await network.start(reader_identity, sender.address)
    async with puppet(slow_identity, sender.address) as slow:
        slow.stream.setsockopt(*_small_receive_buffer())
        await network.until(lambda: len(sender.mesh.peers()) == 2)
        for seq in range(12):  # 11 MB: more than what the kernel takes for somebody who does not read
            envelop = sender.envelop("bulk", kind=Kind.BLOCK, seq=seq)
            sender.mesh.broadcast(envelop, bytes(900_000))
            await network.until(lambda: len(reader.heard) == seq + 1)  # noqa: B023 - at its own pace
        await network.until(lambda: len(sender.mesh.peers()) == 1)
    (lost,) = sender.happened(PeerDisconnected)
    assert lost.key == slow_identity.key and "too slow" in lost.reason
    assert len(reader.heard) == 12


def _small_receive_buffer():
    return trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096


async def test_a_peer_that_answers_nothing_is_left_after_the_partition_timeout(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first, heartbeat_seconds=0.05, partition_timeout_seconds=0.3)
    async with puppet(second, node.address) as silent:
        await network.until(lambda: node.happened(PeerDisconnected) != [])
        assert "silent" in node.happened(PeerDisconnected)[0].reason
        goodbye = await silent.receive(FrameType.REFUSE)
        assert b"silent" in goodbye.payload


async def test_a_peer_that_answers_pings_stays_and_its_round_trip_is_known(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first, heartbeat_seconds=0.05, partition_timeout_seconds=0.3)
    async with puppet(second, node.address) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(peer.answer_pings)
        await trio.sleep(1.0)  # the time is the subject: three partition timeouts
        (info,) = node.mesh.peers()
        assert info.rtt_ms is not None and info.rtt_ms < 1000
        nursery.cancel_scope.cancel()


async def test_told_addresses_of_nobody_are_dialled_and_forgotten(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    async with puppet(second, node.address) as liar:
        await liar.send(FrameType.PEERS, encode_peers([(b"n" * 32, Address("127.0.0.1", 1))]))
        await network.until(lambda: node.mesh.dialing() != [])
        await network.until(lambda: node.mesh.dialing() == [])
        assert len(node.mesh.peers()) == 1


async def test_a_vote_overtakes_the_bodies_that_wait_before_it(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    async with puppet(second, node.address) as reader:
        reader.stream.setsockopt(*_small_receive_buffer())
        await network.until(lambda: len(node.mesh.peers()) == 1)
        queued = 0
        while node.mesh.send(second.key, node.envelop("bulk", kind=Kind.BLOCK, seq=queued), bytes(900_000)):
            queued += 1
        assert node.mesh.send(second.key, node.envelop("vote"))
        messages = [await reader.receive(FrameType.ENVELOP)]
        while messages[-1].lane is not Lane.VOTES:
            messages.append(await reader.receive(FrameType.ENVELOP))
    assert len(messages) < queued / 2


async def test_callbacks_are_told_who_comes_and_goes(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    log = []
    node.mesh.on_connect(lambda info: log.append(("connected", info.key, info.name, info.inbound, info.head_height)))
    node.mesh.on_disconnect(lambda info: log.append(("disconnected", info.key)))
    async with puppet(second, node.address, head_height=41):
        await network.until(lambda: len(log) == 1)
    await network.until(lambda: len(log) == 2)
    assert log == [("connected", second.key, "puppet", True, 41), ("disconnected", second.key)]


async def test_a_full_node_says_so(network, puppet, monkeypatch):
    monkeypatch.setattr(admission, "PEERS_MAX", 1)
    first, second, third = network.identities(3)
    node = await network.start(first)
    async with puppet(second, node.address):
        await network.until(lambda: len(node.mesh.peers()) == 1)
        with pytest.raises(SessionLost, match="full"):
            async with puppet(third, node.address):
                pass
        async with puppet(second, node.address):  # but who is in may come again
            await network.until(lambda: len(node.happened(PeerConnected)) == 2)

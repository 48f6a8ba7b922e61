"""Bodies on real sockets: pulled whole from whoever has them, past donors that stall, lie or leave."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from functools import partial

import pytest
import trio

from aicpnode.errors import UserError
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.network.body_messages import decode_want, encode_chunk, encode_have, encode_want
from aicpnode.network.discovery import fetch_genesis
from aicpnode.network.framing import FrameType, Lane
from aicpnode.network.handshakes import SessionLost
from aicpnode.network.peers import Address
from aicpnode.network.session import NO_NETWORK
from aicpnode.network.transfer import CHUNK_BYTES

BODY = random.Random(1).randbytes(10 * CHUNK_BYTES + 17)
DIGEST = hashlib.sha256(BODY).digest()


def holds(node, *bodies, namespace=Namespace.BLOB):
    """``node`` serves these bodies. Returns the digests it was asked for."""
    asked = []

    def provide(digest):
        asked.append(digest)
        return next((BodySource.of(body) for body in bodies if hashlib.sha256(body).digest() == digest), None)

    node.mesh.bodies.register(namespace, provide)
    return asked


def is_named(digest):
    return lambda body: hashlib.sha256(body).digest() == digest


async def fetch(node, body=BODY, **settings):
    digest = hashlib.sha256(body).digest()
    with trio.fail_after(15):
        return await node.mesh.bodies.fetch(
            Namespace.BLOB, digest, max_size=len(body), verify=is_named(digest), **settings
        )


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 << 20])
async def test_a_body_of_any_size_arrives(network, size):
    donor, asker = await network.start_full_mesh(2)
    body = random.Random(size).randbytes(size)
    holds(donor, body)
    assert await fetch(asker, body) == body
    statistics = asker.mesh.statistics()
    assert statistics["bodies_requests_in_flight"] == statistics["bodies_fetching"] == 0
    assert statistics["bytes_received"] < size * 1.01 + 2000


async def test_the_announcer_is_asked_and_nobody_else(network):
    nodes = await network.start_full_mesh(4)
    asked = [holds(node, BODY) for node in nodes[:3]]
    nodes[2].mesh.bodies.announce(Namespace.BLOB, DIGEST, len(BODY))
    await network.until(lambda: any(nodes[3].mesh.bodies._announced.values()))
    assert await fetch(nodes[3]) == BODY
    assert not asked[0] and not asked[1] and asked[2]


async def test_an_announcement_reaches_those_who_come_later(network):
    first, second = network.identities(2)
    donor = await network.start(first)
    donor.mesh.bodies.announce(Namespace.BLOB, DIGEST, len(BODY))
    later = await network.start(second, donor.address)
    await network.until(lambda: (Namespace.BLOB, DIGEST) in later.mesh.bodies._announced.get(first.key, ()))


async def test_a_body_that_nobody_has_yet_is_waited_for(network):
    donor, asker = await network.start_full_mesh(2)
    bodies = []
    donor.mesh.bodies.register(Namespace.BLOB, lambda _: BodySource.of(bodies[0]) if bodies else None)
    got = []
    async with trio.open_nursery() as nursery:

        async def ask():
            got.append(await fetch(asker))

        nursery.start_soon(ask)
        await network.until(lambda: any(wait.donors_failed for wait in asker.mesh.bodies.waits()))
        (wait,) = asker.mesh.bodies.waits()
        assert wait.digest == DIGEST and wait.received == 0 and wait.total is None
        bodies.append(BODY)
        donor.mesh.bodies.announce(Namespace.BLOB, DIGEST, len(BODY))
    assert got == [BODY] and asker.mesh.bodies.waits() == []


async def test_equal_fetches_share_one_transfer(network):
    donor, asker = await network.start_full_mesh(2)
    holds(donor, BODY)
    got = []
    async with trio.open_nursery() as nursery:

        async def ask():
            got.append(await fetch(asker))

        for _ in range(5):
            nursery.start_soon(ask)
    assert got == [BODY] * 5
    assert donor.mesh.statistics()["bodies_served_bytes"] == len(BODY)


async def test_a_cancelled_fetch_leaves_nothing_and_passes_its_turn_on(network, puppet):
    asker_identity, stalling, donor_identity = network.identities(3)
    asker = await network.start(asker_identity)
    async with puppet(stalling, asker.address), trio.open_nursery() as nursery:
        await network.until(lambda: len(asker.mesh.peers()) == 1)
        first = trio.CancelScope()

        async def ask_and_be_cancelled():
            with first:
                await fetch(asker)

        got = []

        async def ask():
            got.append(await fetch(asker))

        nursery.start_soon(ask_and_be_cancelled)
        await network.until(lambda: asker.mesh.statistics()["bodies_requests_in_flight"] == 1)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        donor = await network.start(donor_identity, asker.address)
        holds(donor, BODY)
    assert got == [BODY]
    assert asker.mesh.statistics()["bodies_requests_in_flight"] == 0


async def test_the_second_donor_serves_when_the_first_stalls(network, puppet):
    asker_identity, donor_identity, stalling = network.identities(3)
    asker = await network.start(asker_identity)
    donor = await network.start(donor_identity, asker.address)
    holds(donor, BODY)
    async with puppet(stalling, asker.address) as stalled:
        await network.until(lambda: len(asker.mesh.peers()) == 2)
        started_s = trio.current_time()
        assert await fetch(asker, prefer=[stalling.key]) == BODY
        assert trio.current_time() - started_s < 3.0
        await stalled.receive(FrameType.WANT)


async def test_a_donor_that_answers_nothing_holds_up_no_number_of_fetches(network, puppet):
    """Requests that it leaves unanswered count against its own budget only, also when nobody wants them any more."""
    asker_identity, donor_identity, stalling = network.identities(3)
    asker = await network.start(asker_identity)
    donor = await network.start(donor_identity, asker.address)
    bodies = [random.Random(number).randbytes(3 * CHUNK_BYTES) for number in range(60)]
    holds(donor, *bodies)
    async with puppet(stalling, asker.address):
        await network.until(lambda: len(asker.mesh.peers()) == 2)
        for batch in (bodies[:30], bodies[30:]):
            async with trio.open_nursery() as nursery:
                for body in batch:
                    nursery.start_soon(partial(fetch, asker, body, prefer=[stalling.key]))
    assert asker.mesh.statistics()["bodies_fetched"] == 60
    assert asker.mesh.statistics()["bodies_requests_in_flight"] == 0


async def test_the_second_donor_serves_when_the_first_leaves_in_the_middle(network, puppet):
    asker_identity, donor_identity, leaving = network.identities(3)
    asker = await network.start(asker_identity)
    donor = await network.start(donor_identity, asker.address)
    holds(donor, BODY)
    got = []
    async with trio.open_nursery() as nursery, puppet(leaving, asker.address) as peer:
        await network.until(lambda: len(asker.mesh.peers()) == 2)

        async def ask():
            got.append(await fetch(asker, prefer=[leaving.key]))

        nursery.start_soon(ask)
        for _ in range(3):
            request, _, _, offset, length = decode_want((await peer.receive(FrameType.WANT)).payload)
            data = BODY[offset : offset + length]
            await peer.send(FrameType.CHUNK, encode_chunk(request, len(BODY), data), Lane.BULK)
    assert got == [BODY]
    assert donor.mesh.statistics()["bodies_served_bytes"] < len(BODY)


async def test_a_donor_that_lies_is_penalised_and_the_next_one_asked(network, puppet):
    asker_identity, donor_identity, lying = network.identities(3)
    asker = await network.start(asker_identity)
    donor = await network.start(donor_identity, asker.address)
    holds(donor, BODY)
    async with puppet(lying, asker.address) as liar, trio.open_nursery() as nursery:
        await network.until(lambda: len(asker.mesh.peers()) == 2)

        async def lie():
            while True:
                want = await liar.receive(FrameType.WANT)
                request, _, _, _, length = decode_want(want.payload)
                await liar.send(FrameType.CHUNK, encode_chunk(request, len(BODY), bytes(length)), Lane.BULK)

        nursery.start_soon(lie)
        assert await fetch(asker, prefer=[lying.key]) == BODY
        nursery.cancel_scope.cancel()
    assert asker.mesh.statistics()["bodies_refuted"] == 1
    assert asker.mesh._reputation.score(lying.key, trio.current_time()) < 60
    assert asker.mesh._reputation.score(donor_identity.key, trio.current_time()) == 100


async def test_a_donor_that_lies_about_the_size_spoils_nothing(network, puppet):
    asker_identity, donor_identity, lying = network.identities(3)
    asker = await network.start(asker_identity)
    donor = await network.start(donor_identity, asker.address)
    holds(donor, BODY)
    for told in (len(BODY) * 2, CHUNK_BYTES * 2, 1 << 60):
        async with puppet(lying, asker.address) as liar, trio.open_nursery() as nursery:
            await network.until(lambda: len(asker.mesh.peers()) == 2)

            async def lie_once(liar=liar, told=told):
                want = await liar.receive(FrameType.WANT)
                request, _, _, _, length = decode_want(want.payload)
                await liar.send(FrameType.CHUNK, encode_chunk(request, told, bytes(length)), Lane.BULK)

            nursery.start_soon(lie_once)
            with trio.fail_after(15):
                body = await asker.mesh.bodies.fetch(
                    Namespace.BLOB, DIGEST, max_size=len(BODY) * 3, verify=is_named(DIGEST), prefer=[lying.key]
                )
            assert body == BODY
        await network.until(lambda: len(asker.mesh.peers()) == 1)
    assert donor.mesh._reputation.score(asker_identity.key, trio.current_time()) == 100


async def test_announcements_of_one_peer_are_bounded(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    async with puppet(second, node.address) as peer:
        for number in range(3000):
            await peer.send(FrameType.HAVE, encode_have(2, number.to_bytes(32, "big"), 1), Lane.ANNOUNCEMENTS)
        last = (2, (2999).to_bytes(32, "big"))
        await network.until(lambda: last in node.mesh.bodies._announced[second.key])
        assert len(node.mesh.bodies._announced[second.key]) == 1024


async def test_a_peer_that_asks_without_reading_is_bounded_and_charged(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    holds(node, BODY)
    async with puppet(second, node.address) as peer:
        with suppress(trio.BrokenResourceError):  # it is thrown out in the middle
            for number in range(1000):
                await peer.send(FrameType.WANT, encode_want(number, 2, DIGEST, 0, CHUNK_BYTES))
    await network.until(lambda: node.mesh.statistics()["banned"] == 1)


async def test_the_genesis_is_fetched_without_knowing_the_network(network):
    genesis = b"the genesis of the test network" * 5000
    (identity,) = network.identities(1)
    node = await network.start(identity, network_id=hashlib.sha256(genesis).digest())
    holds(node, genesis, namespace=Namespace.GENESIS)
    assert await fetch_genesis(node.address, timeout=10) == genesis
    assert node.mesh.peers() == []
    await network.until(lambda: node.mesh.statistics()["guests"] == 0)


async def test_a_genesis_that_is_not_what_the_network_id_says_is_refused(network):
    (identity,) = network.identities(1)
    node = await network.start(identity)
    node.mesh.bodies.register(Namespace.GENESIS, lambda _: BodySource.of(b"something else"))
    with pytest.raises(UserError, match="not the genesis of its network"):
        await fetch_genesis(node.address, timeout=10)


async def test_a_node_without_its_genesis_says_so(network):
    (identity,) = network.identities(1)
    node = await network.start(identity)
    with pytest.raises(UserError, match="does not give its genesis"):
        await fetch_genesis(node.address, timeout=10)


async def test_a_genesis_is_not_fetched_where_nobody_listens():
    with pytest.raises(UserError, match="connection refused"):
        await fetch_genesis(Address("127.0.0.1", 1), timeout=10)


async def test_a_genesis_is_not_waited_for_longer_than_said():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = Address("127.0.0.1", listeners[0].socket.getsockname()[1])
    with pytest.raises(UserError, match="no answer within"):
        await fetch_genesis(address, timeout=0.1)
    await listeners[0].aclose()


async def test_a_guest_gets_no_other_body(network, puppet):
    first, second = network.identities(2)
    node = await network.start(first)
    holds(node, BODY)
    async with puppet(second, node.address, network_id=NO_NETWORK) as guest:
        await guest.send(FrameType.WANT, encode_want(0, Namespace.BLOB, DIGEST, 0, CHUNK_BYTES))
        assert b"only the genesis" in (await guest.receive(FrameType.REFUSE)).payload


async def test_guests_are_bounded(network, puppet):
    identity, *others = network.identities(18)
    node = await network.start(identity)
    async with trio.open_nursery() as nursery:

        async def visit(other, task_status):
            async with puppet(other, node.address, network_id=NO_NETWORK):
                task_status.started()
                await trio.sleep_forever()

        for other in others[:16]:
            await nursery.start(visit, other)
        with pytest.raises(SessionLost, match="too many"):
            async with puppet(others[16], node.address, network_id=NO_NETWORK):
                pass
        nursery.cancel_scope.cancel()

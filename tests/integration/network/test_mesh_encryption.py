"""Encrypted sessions between real meshes: what somebody on the way learns and can do, and nodes that differ."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from aicpnode.events import BootstrapUnreachable
from aicpnode.network.peers import Address

CHUNK_BYTES = 4096


class Wiretap:
    """A machine on the way from whoever dials it to ``target``. It hears every byte, and may change some."""

    def __init__(self, target: Address) -> None:
        self.heard = bytearray()
        self.change: Callable[[bytes], bytes] = bytes
        self._target = target

    async def serve(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream(self._target.host, self._target.port)
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, near, far, nursery.cancel_scope)
            nursery.start_soon(self._pass_on, far, near, nursery.cancel_scope)

    async def _pass_on(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(CHUNK_BYTES):
                self.heard += data
                await target.send_all(self.change(bytes(data)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # either end may go first: then both are let go
        scope.cancel()


@asynccontextmanager
async def wiretap(target: Address) -> AsyncIterator[tuple[Wiretap, Address]]:
    tap = Wiretap(target)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, tap.serve, [listener])
        yield tap, Address("127.0.0.1", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_somebody_on_the_way_learns_neither_who_talks_nor_what_is_said(network) -> None:
    first, second = network.identities(2)
    one = await network.start(first)
    async with wiretap(one.address) as (tap, address):
        other = await network.start(second, address)
        await network.until(lambda: one.sees(other) and other.sees(one))
        said = other.envelop("between the two of us")
        other.mesh.broadcast(said)
        await network.until(lambda: one.texts() == ["between the two of us"])
        for secret in (first.key, second.key, one.mesh.network_id, said.signature, b"between the two", b"node "):
            assert secret not in tap.heard
    assert len(tap.heard) > 500


async def test_plain_sessions_work_and_hide_nothing(network) -> None:
    first, second = network.identities(2)
    one = await network.start(first, encrypted=False)
    async with wiretap(one.address) as (tap, address):
        other = await network.start(second, address, encrypted=False)
        await network.until(lambda: one.sees(other) and other.sees(one))
        assert first.key in tap.heard and second.key in tap.heard


async def test_change_on_the_way_ends_the_session_and_bans_nobody(network) -> None:
    first, second = network.identities(2)
    one = await network.start(first)
    async with wiretap(one.address) as (tap, address):
        other = await network.start(second, address)
        await network.until(lambda: one.sees(other) and other.sees(one))
        tap.change = lambda data: data[:-1] + bytes((data[-1] ^ 1,))
        other.mesh.broadcast(other.envelop("changed on the way"))
        await network.until(lambda: not one.sees(other) or not other.sees(one))
        tap.change = bytes
        await network.until(lambda: one.sees(other) and other.sees(one))
        assert one.texts() == []


async def test_nodes_that_differ_say_so(network) -> None:
    first, second, third = network.identities(3)
    encrypting, plain = await network.start(first), await network.start(second, encrypted=False)
    for identity, target, encrypted in ((third, encrypting, False), (third, plain, True)):
        node = await network.start(identity, target.address, encrypted=encrypted)

        def told(node=node) -> bool:
            errors = [event.error for event in node.happened(BootstrapUnreachable)]
            return any("both need the same encryption" in error for error in errors)

        await network.until(told)
        assert not node.sees(target) and not target.sees(node)
        await node.stop()

"""Meshes on real loopback sockets, and puppets: peers whose every byte the test decides."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from aicpnode.envelop.codec import Envelop, Kind
from aicpnode.envelop.signing import seal
from aicpnode.events import Event, EventBus
from aicpnode.identity import Identity
from aicpnode.network.framing import FrameType, Lane, Message, encode_message
from aicpnode.network.handshakes import shake_hands
from aicpnode.network.mesh import Mesh
from aicpnode.network.peers import Address
from aicpnode.network.session import NONCE_BYTES, Hello, Role, Session

NETWORK_ID = hashlib.sha256(b"the genesis of the test network").digest()
PATIENCE_S = 15.0
"""No test waits so long unless it fails."""


class MemoryStore:
    """A peer table in memory."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Any] = {}

    def put_peer(self, key: bytes, address: str, last_seen_unix: int, score: int) -> None:
        self.rows[key] = _Row(key, address)

    def peers(self) -> Sequence[Any]:
        return list(self.rows.values())


@dataclass(frozen=True)
class _Row:
    key: bytes
    address: str


@dataclass
class Running:
    """One running mesh and what it heard."""

    mesh: Mesh
    identity: Identity
    address: Address
    events: list[Event]
    scope: trio.CancelScope
    stopped: trio.Event
    heard: list[tuple[Envelop, bytes, bytes]] = field(default_factory=list)

    def peer_keys(self) -> set[bytes]:
        return {info.key for info in self.mesh.peers()}

    def sees(self, other: Running) -> bool:
        """Connected, and knows whom the other is connected to."""
        return other.identity.key in self.peer_keys()

    def texts(self) -> list[Any]:
        return [envelop.body for envelop, _, _ in self.heard]

    def happened(self, event_type: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, event_type)]

    def envelop(self, text: str, *, kind: Kind = Kind.OPERATION, route: Any = None, seq: int = 0) -> Envelop:
        network_id = self.mesh.network_id
        fields = Envelop(network_id=network_id, kind=kind, sender=self.identity.key, seq=seq, route=route, body=text)
        return seal(self.identity, fields)

    async def stop(self) -> None:
        self.scope.cancel()
        await self.stopped.wait()


class Network:
    """Starts meshes and puppets; ``closed_links`` are pairs of keys that do not talk to each other."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.network_id = NETWORK_ID
        self.closed_links: set[frozenset[bytes]] = set()

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        """Wait for ``condition``; the polling interval delays a test, it never decides one."""
        with trio.fail_after(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the condition is the test's, not an event of ours
                await trio.sleep(0.002)

    @staticmethod
    def identities(count: int) -> list[Identity]:
        """Fixed identities in ascending order of their keys."""
        return sorted((Identity(bytes((i,)) * 32) for i in range(1, count + 1)), key=lambda identity: identity.key)

    async def start_full_mesh(self, count: int, **settings: Any) -> list[Running]:
        """``count`` meshes that are all connected, as far as ``closed_links`` allow."""
        first, *others = self.identities(count)
        running = [await self.start(first, **settings)]
        for identity in others:
            running.append(await self.start(identity, running[0].address, **settings))

        def connected() -> bool:
            return all(a.sees(b) or self.closed(a, b) for a in running for b in running if a is not b)

        await self.until(connected)
        return running

    def close_link(self, a: Identity, b: Identity) -> None:
        self.closed_links.add(frozenset((a.key, b.key)))

    def closed(self, a: Running, b: Running) -> bool:
        return frozenset((a.identity.key, b.identity.key)) in self.closed_links

    def store(self) -> MemoryStore:
        return MemoryStore()

    async def accept_and_fall_silent(self, listener: trio.SocketListener, identity: Identity) -> trio.SocketStream:
        """Accept one session as ``identity`` and then never read or write again, like a machine without power."""
        stream = await listener.accept()
        session = Session(role=Role.ACCEPTER, identity=identity, hello=puppet_hello(identity))
        _, last_bytes = await shake_hands(stream, session, accept_anybody)
        await stream.send_all(last_bytes)
        return stream

    async def start(self, identity: Identity, *bootstrap: Address, **settings: Any) -> Running:
        events = EventBus()
        arguments: dict[str, Any] = {
            "network_id": NETWORK_ID,
            "node_type": "full",
            "node_name": f"node {identity.key[:2].hex()}",
            "host": "127.0.0.1",
            "port": 0,
            "explicit_port": True,
            "head_height": lambda: 7,
            "rng": random.Random(identity.key),
            "blacklisted": lambda key: frozenset((key, identity.key)) in self.closed_links,
        }
        mesh = Mesh(identity=identity, bootstrap=bootstrap, events=events, **{**arguments, **settings})
        heard: list[Event] = []
        scope, stopped = trio.CancelScope(), trio.Event()

        async def observe() -> None:
            async for event in events.subscribe():
                heard.append(event)

        async def run(task_status: trio.TaskStatus[Address]) -> None:
            try:
                with scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(observe)
                        await mesh.run(task_status)
            finally:
                stopped.set()

        address = await self._nursery.start(run)
        running = Running(mesh, identity, address, heard, scope, stopped)
        mesh.subscribe(Kind, lambda *message: running.heard.append(message))
        return running


@dataclass
class Puppet:
    """One session of a peer under the test's control. It reads only when told to, and answers nothing by itself."""

    stream: trio.SocketStream
    session: Session

    async def send(self, frame_type: FrameType, payload: bytes, lane: Lane = Lane.CONTROL) -> None:
        for frame in encode_message(frame_type, lane, payload):
            await self.stream.send_all(self.session.outgoing(frame))

    async def receive(self, *wanted: FrameType) -> Message:
        """The next message of one of these types; others are passed over. EndOfChannel at the end."""
        with trio.fail_after(PATIENCE_S):
            while True:
                message = self.session.frames.next_message()
                if message is None:
                    data = await self.stream.receive_some(65536)
                    if not data:
                        raise trio.EndOfChannel
                    self.session.frames.receive_data(self.session.incoming(bytes(data)))
                elif message.type in wanted:
                    return message

    async def answer_pings(self) -> None:
        """Stay alive until cancelled."""
        while True:
            ping = await self.receive(FrameType.PING)
            await self.send(FrameType.PONG, ping.payload)


async def accept_anybody(_peer: Hello) -> None:
    return None


def puppet_hello(identity: Identity, **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "network_id": NETWORK_ID,
        "key": identity.key,
        "node_type": "full",
        "name": "puppet",
        "listen_port": 0,
        "head_height": 0,
        "nonce": secrets.token_bytes(NONCE_BYTES),
    }
    return Hello(**{**fields, **changes})


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with trio.open_nursery() as nursery:
        yield Network(nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
def puppet():
    """``puppet(identity, address, **changes of the HELLO)``: a session; SessionLost if the mesh refuses it."""

    @asynccontextmanager
    async def open_puppet(identity: Identity, address: Address, **hello: Any) -> AsyncIterator[Puppet]:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            session = Session(role=Role.INITIATOR, identity=identity, hello=puppet_hello(identity, **hello))
            _, last_bytes = await shake_hands(stream, session, accept_anybody)
            await stream.send_all(last_bytes)
            yield Puppet(stream, session)

    return open_puppet

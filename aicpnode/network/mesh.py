"""A node's place in the network: everything of this room put together under one nursery.

The mesh listens, dials whom the schedule says, opens sessions, and keeps one connection for each peer's key. What
arrives goes to the router (Envelops), to ``bodies`` (large bodies) or to the dialer (who else is there). Handlers are
called from the reader of a peer, in order, and must not block; a RemoteError they raise costs the peer, any other
exception is our own fault and stops the node. Sending never blocks.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio

from aicpnode.envelop.codec import HASH_BYTES, SIGNATURE_BYTES, Envelop, Kind, encode
from aicpnode.errors import MalformedError, RemoteError
from aicpnode.events import EventBus, Notice, PeerConnected, PeerDisconnected
from aicpnode.identity import Identity, short
from aicpnode.network.admission import Admission
from aicpnode.network.bodies import Bodies
from aicpnode.network.connection import Connection, Payload
from aicpnode.network.dialer import Dialer, Dialled
from aicpnode.network.discovery import Origin, decode_peers, encode_peers
from aicpnode.network.framing import FrameType, Lane, Message
from aicpnode.network.handshakes import SessionLost
from aicpnode.network.listener import accept_forever, bound_address, open_listeners
from aicpnode.network.peer_table import Peer, PeerTable
from aicpnode.network.peers import Address, PeerInfo, PeerStore
from aicpnode.network.reputation import Reputation
from aicpnode.network.router import Handler, Router, lane_of
from aicpnode.network.saved_peers import PeerSaver, Row, load_saved_peers
from aicpnode.network.session import (
    NAME_BYTES_MAX,
    NO_NETWORK,
    NONCE_BYTES,
    Hello,
    RefusalCode,
    Session,
    printable,
)

GUEST_S = 30.0
TICK_S = 0.25
TELL_PEERS_S = 30.0
TELL_PEERS_PAUSE_S = 0.05
TELL_PEERS_PAUSE_S_PER_PEER = 0.01
"""Changes are told together, so that a mesh of n that forms does not send n messages of n entries at once."""
RELAYS_OF_A_DIRECT_MESSAGE = 2

log = logging.getLogger(__name__)


class Mesh:
    """Connections to all reachable peers of one network."""

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        node_type: str,
        node_name: str,
        host: str,
        port: int,
        explicit_port: bool,
        bootstrap: Sequence[Address],
        head_height: Callable[[], int],
        events: EventBus,
        peer_store: PeerStore | None = None,
        heartbeat_seconds: float = 5.0,
        partition_timeout_seconds: float = 15.0,
        blacklisted: Callable[[bytes], bool] = lambda _key: False,
        is_member: Callable[[bytes], bool] = lambda _key: True,
        encrypted: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        """``port`` 0 is any free port. ``blacklisted`` says whom the ledger excludes, ``is_member`` whom it
        knows: strangers get few places, and of theirs only operations are passed on."""
        assert len(network_id) == HASH_BYTES and network_id != NO_NETWORK
        assert 0 < heartbeat_seconds < partition_timeout_seconds
        self.key = identity.key
        self.network_id = network_id
        self._identity = identity
        self._node_type = node_type
        self._node_name = printable(node_name, NAME_BYTES_MAX)
        self._host, self._port, self._explicit_port = host, port, explicit_port
        self._bootstrap = tuple(bootstrap)
        self._head_height = head_height
        self._events = events
        self._store = peer_store
        self._heartbeat_s = heartbeat_seconds
        self._partition_timeout_s = partition_timeout_seconds
        rng = random.Random(secrets.randbits(64)) if rng is None else rng
        self._listen_port, self._bound_to_loopback = 0, False
        self._peers = PeerTable()
        self._guests: dict[bytes, Connection] = {}
        self._reputation = Reputation()
        self._admission = Admission(
            identity=identity,
            hello=self._hello,
            peers=self._peers.keys,
            guests=self._guests.keys,
            connection_of=self._peers.connection_of,
            banned_for_s=lambda key: self._reputation.banned_for_s(key, trio.current_time()),
            blacklisted=blacklisted,
            is_member=is_member,
            encrypted=encrypted,
        )
        self._counts: Counter[str] = Counter()
        self._connect_callbacks: list[Callable[[PeerInfo], None]] = []
        self._disconnect_callbacks: list[Callable[[PeerInfo], None]] = []
        self._peers_changed = trio.Event()
        self._dialer = Dialer(
            me=identity.key, rng=rng, connected=self._peers.keys, open_session=self._open_session, events=events
        )
        self._saver = None if peer_store is None else PeerSaver(peer_store, self._rows_to_save)
        self._router = Router(
            me=identity.key,
            network_id=network_id,
            links=self._peers.links,
            send=lambda key, lane, data: self._send_frame(key, FrameType.ENVELOP, lane, data),
            charge=self._charge,
            is_member=is_member,
        )
        self.bodies = Bodies(send=self._send_frame, connected=self._peers.keys, penalise=self._charge, rng=rng)

    # What others use

    def subscribe(self, kinds: Iterable[Kind], handler: Handler) -> None:
        """Call ``handler(envelop, attachment, from_peer_key)`` for verified Envelops of these kinds, repeats too."""
        self._router.subscribe(kinds, handler)

    def on_connect(self, callback: Callable[[PeerInfo], None]) -> None:
        self._connect_callbacks.append(callback)

    def leave(self, key: bytes, reason: str) -> None:
        """End the connection to ``key``, if there is one: the members exclude it."""
        if key in self._peers:
            self._peers[key].connection.close(RefusalCode.BANNED, reason)

    def on_disconnect(self, callback: Callable[[PeerInfo], None]) -> None:
        self._disconnect_callbacks.append(callback)

    def send(self, peer_key: bytes, envelop: Envelop, attachment: bytes = b"") -> bool:
        """Queue a sealed Envelop for one peer. True if it was queued.

        If the peer is not connected and the Envelop is routed to it, it goes to peers that are connected to it.
        """
        assert len(envelop.signature) == SIGNATURE_BYTES, "only sealed Envelops are sent"
        data, lane = encode(envelop, attachment), lane_of(envelop.kind)
        if peer_key in self._peers:
            return self._send_frame(peer_key, FrameType.ENVELOP, lane, data)
        if envelop.route != peer_key:
            return False
        relays = self._peers.linked_to(peer_key)[:RELAYS_OF_A_DIRECT_MESSAGE]
        return sum(self._send_frame(relay, FrameType.ENVELOP, lane, data) for relay in relays) > 0

    def broadcast(self, envelop: Envelop, attachment: bytes = b"") -> int:
        """Queue a sealed Envelop for every connected peer. Returns for how many it was queued."""
        assert len(envelop.signature) == SIGNATURE_BYTES, "only sealed Envelops are sent"
        data, lane = encode(envelop, attachment), lane_of(envelop.kind)
        return sum(self._send_frame(key, FrameType.ENVELOP, lane, data) for key in list(self._peers))

    def peers(self) -> list[PeerInfo]:
        """The connected peers, longest first."""
        return sorted((peer.info() for peer in self._peers.values()), key=lambda info: info.connected_since)

    def dialing(self) -> list[tuple[Address, int, str, float]]:
        """Addresses that are not connected: (address, attempts, last error, seconds to the next try)."""
        return [(state.address, state.attempts, state.last_error, state.next_try_s) for state in self._dialer.waiting()]

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is under way now."""
        connections = self._peers.connections()
        now_s = trio.current_time()
        return {
            "peers": len(self._peers),
            "guests": len(self._guests),
            "handshakes": len(self._admission.slots),
            "handshakes_evicted": self._admission.slots.evicted,
            "bytes_sent": self._counts["bytes_sent"] + sum(c.bytes_sent for c in connections),
            "bytes_received": self._counts["bytes_received"] + sum(c.bytes_received for c in connections),
            "bytes_queued": sum(c.queued_bytes() for c in connections),
            "messages_dropped": self._counts["dropped"] + sum(c.dropped for c in connections),
            "banned": len(self._reputation.banned(now_s)),
            **{name: self._counts[name] for name in ("connects", "disconnects", "faults", "accept_errors", "refused")},
            **{f"envelops_{name}": count for name, count in self._router.counts.items()},
            **{f"bodies_{name}": count for name, count in self.bodies.statistics().items()},
        }

    async def run(self, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Live in the network until cancelled. Started with the address bound. UserError if it cannot listen."""
        listeners = await open_listeners(self._host, self._port, explicit_port=self._explicit_port)
        address = bound_address(listeners[0])
        self._listen_port, self._bound_to_loopback = address.port, address.is_loopback
        for bootstrap in self._bootstrap:
            self._dialer.add(bootstrap, origin=Origin.BOOTSTRAP, key=None)
        if self._store is not None:
            for key, saved in await trio.to_thread.run_sync(load_saved_peers, self._store):
                self._dialer.add(saved, origin=Origin.MET, key=key)
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(accept_forever, listener, nursery, self._serve_inbound, self._accept_failed)
            nursery.start_soon(self._dialer.run)
            nursery.start_soon(self._tick_forever)
            nursery.start_soon(self._tell_peers_forever)
            if self._saver is not None:
                nursery.start_soon(self._saver.run)
            task_status.started(address)

    # Sessions and connections

    def _hello(self, remote_host: str) -> Hello:
        """How this node introduces itself to somebody at ``remote_host``, to whom a loopback port is no use."""
        reachable = not self._bound_to_loopback or Address(remote_host, 1).is_loopback
        return Hello(
            network_id=self.network_id,
            key=self.key,
            node_type=self._node_type,
            name=self._node_name,
            listen_port=self._listen_port if reachable else 0,
            head_height=self._head_height(),
            nonce=bytes(NONCE_BYTES),
        )

    async def _serve_inbound(self, stream: trio.SocketStream) -> None:
        """One accepted connection, from the handshake to its end."""
        try:
            remote_host = _remote_host(stream)
            answered = await self._admission.answer(stream, remote_host)
        except OSError:
            answered = None  # it was gone before it was looked at
        except SessionLost as lost:
            self._counts["refused"] += 1
            log.info("no session with %s: %s", remote_host, lost.reason)
            answered = None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        if answered is None:
            await trio.aclose_forcefully(stream)
            return
        session, hello, last_bytes = answered
        connection = self._connection(stream, session, hello, remote_host, inbound=True)
        if hello.network_id == NO_NETWORK:
            await self._serve_guest(connection, last_bytes)
        else:
            address = Address(remote_host, hello.listen_port) if hello.listen_port else None
            await self._serve_peer(connection, address, last_bytes)

    async def _open_session(self, address: Address) -> Dialled:
        """Dial and introduce this node. OSError or SessionLost if there is no session."""
        stream = await trio.open_tcp_stream(address.host, address.port)
        try:
            remote_host = _remote_host(stream)
            session, hello, last_bytes = await self._admission.introduce(stream, remote_host)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        connection = self._connection(stream, session, hello, remote_host, inbound=False)
        serve = partial(self._serve_peer, connection, Address(remote_host, address.port), last_bytes)
        return Dialled(key=hello.key, serve=serve)

    def _connection(
        self, stream: trio.SocketStream, session: Session, hello: Hello, remote_host: str, *, inbound: bool
    ) -> Connection:
        return Connection(
            stream=stream,
            session=session,
            peer=hello,
            remote_host=remote_host,
            inbound=inbound,
            heartbeat_s=self._heartbeat_s,
            partition_timeout_s=self._partition_timeout_s,
            head_height=self._head_height,
            on_message=self._on_message,
            on_fault=self._on_fault,
        )

    async def _serve_peer(self, connection: Connection, address: Address | None, last_bytes: bytes) -> None:
        peer = self._register(connection, address)
        reason = "this node is shutting down"
        try:
            reason = await connection.run(last_bytes)
        finally:
            self._unregister(peer, reason)
            self._counts["bytes_sent"] += connection.bytes_sent
            self._counts["bytes_received"] += connection.bytes_received
            self._counts["dropped"] += connection.dropped

    async def _serve_guest(self, connection: Connection, last_bytes: bytes) -> None:
        """Somebody who has no genesis yet: for a while, and for nothing else."""
        key = connection.peer.key
        self._guests[key] = connection
        try:
            with trio.move_on_after(GUEST_S):
                await connection.run(last_bytes)
        finally:
            if self._guests.get(key) is connection:
                del self._guests[key]
            self.bodies.guest_left(key)

    def _register(self, connection: Connection, address: Address | None) -> Peer:
        hello = connection.peer
        existing = self._peers.get(hello.key)
        if existing is not None:
            self._unregister(existing, "replaced by a new connection of the same peer")
        peer = Peer(connection=connection, address=address, connected_since=time.time())
        self._peers[hello.key] = peer
        self._counts["connects"] += 1
        if address is not None:
            self._dialer.add(address, origin=Origin.MET, key=hello.key)
        if self._saver is not None:
            self._saver.changed()
        self._peers_changed.set()
        log.info("connected to %s (%s) at %s", hello.name, short(hello.key), address)
        self._events.publish(PeerConnected(key=hello.key, name=hello.name, address=str(address or "")))
        self.bodies.peer_connected(hello.key)
        for callback in self._connect_callbacks:
            callback(peer.info())
        return peer

    def _unregister(self, peer: Peer, reason: str) -> None:
        """Forget a peer's connection and end it, if that has not happened yet."""
        key = peer.hello.key
        if self._peers.get(key) is not peer:
            return
        info = peer.info()
        del self._peers[key]
        peer.connection.close(RefusalCode.REPLACED, reason)
        self._counts["disconnects"] += 1
        self._dialer.disconnected(key)
        self._peers_changed.set()
        log.info("disconnected from %s (%s): %s", peer.hello.name, short(key), reason)
        self._events.publish(PeerDisconnected(key=key, name=peer.hello.name, reason=reason))
        self.bodies.peer_disconnected(key)
        for callback in self._disconnect_callbacks:
            callback(info)

    # What arrives

    def _on_message(self, connection: Connection, message: Message) -> None:
        key = connection.peer.key
        if self._guests.get(key) is connection:
            self.bodies.handle(key, message, guest=True)
            return
        peer = self._peers.get(key)
        if peer is None or peer.connection is not connection:
            return
        match message.type:
            case FrameType.ENVELOP:
                self._router.receive(key, message.payload, trio.current_time())
            case FrameType.HAVE | FrameType.WANT | FrameType.CHUNK | FrameType.NOT_FOUND:
                self.bodies.handle(key, message, guest=False)
            case FrameType.PEERS:
                entries = decode_peers(message.payload)
                peer.links = frozenset(linked for linked, _ in entries)
                self._dialer.told(entries, connection.remote_host)
            case _:
                raise MalformedError(f"a {message.type.name} message after the handshake")

    def _on_fault(self, connection: Connection, error: RemoteError) -> None:
        key = connection.peer.key
        if self._guests.get(key) is connection:
            connection.close(RefusalCode.MALFORMED, error.reason)
        else:
            self._charge(key, error)

    def _charge(self, key: bytes, error: RemoteError) -> None:
        """A fault of ``key``, whether it is connected or not."""
        self._counts["faults"] += 1
        log.info("fault of %s: %s (penalty %d)", short(key), error.reason, error.penalty)
        if self._reputation.penalise(key, error.penalty, trio.current_time()):
            text = f"{short(key)} is banned here for a while; its last fault: {error.reason}"
            log.warning(text)
            self._events.publish(Notice(level="warning", text=text))
            if key in self._peers:
                self._peers[key].connection.close(RefusalCode.BANNED, f"banned here: {error.reason}")

    def _accept_failed(self, error: OSError) -> None:
        self._counts["accept_errors"] += 1
        count = self._counts["accept_errors"]
        if count & (count - 1) == 0:
            text = f"connections cannot be accepted now ({error.strerror or error}); seen {count} times"
            log.warning(text)
            self._events.publish(Notice(level="warning", text=text))

    # What goes out

    def _send_frame(
        self, peer: bytes, frame_type: FrameType, lane: Lane, payload: Payload, *, size: int | None = None
    ) -> bool:
        connection = self._peers.connection_of(peer) or self._guests.get(peer)
        return connection is not None and connection.send_nowait(frame_type, lane, payload, size=size)

    async def _tick_forever(self) -> None:
        interval_s = min(TICK_S, self._heartbeat_s / 4)
        while True:
            before_s = trio.current_time()
            await trio.sleep(interval_s)
            elapsed_s = min(trio.current_time() - before_s, 2 * interval_s)
            for connection in (*self._peers.connections(), *self._guests.values()):
                connection.tick(elapsed_s)

    async def _tell_peers_forever(self) -> None:
        while True:
            with trio.move_on_after(TELL_PEERS_S):
                await self._peers_changed.wait()
            await trio.sleep(TELL_PEERS_PAUSE_S + TELL_PEERS_PAUSE_S_PER_PEER * len(self._peers))
            self._peers_changed = trio.Event()
            payload = encode_peers(self._peers.addresses())
            for key in list(self._peers):
                self._send_frame(key, FrameType.PEERS, Lane.CONTROL, payload)

    def _rows_to_save(self) -> list[Row]:
        now_s = trio.current_time()
        return [
            (key, str(address), int(self._reputation.score(key, now_s)))
            for key, address in self._peers.addresses()
            if address is not None
        ]


def _remote_host(stream: trio.SocketStream) -> str:
    """The IP address of the other side. OSError if the connection is gone already."""
    return str(stream.socket.getpeername()[0])

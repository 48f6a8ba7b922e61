"""Whom to dial and when; how peers tell each other of peers; how a newcomer gets the genesis.

``DialSchedule`` and the PEERS codec are pure. A node dials its bootstraps, the peers of its stored table and those that
peers tell it of, until it is connected to everybody. Bootstraps and peers met before are retried for ever, with
exponential backoff and jitter; an address that is only hearsay is forgotten after a few failures and heard of again
from whoever can reach it. No peer is special: when all bootstraps are dead the rest keep each other.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum

import trio

from aicpnode.envelop.codec import KEY_BYTES, pack, unpack
from aicpnode.errors import MalformedError, RemoteError, UserError
from aicpnode.identity import Identity
from aicpnode.network.body_messages import decode_chunk, encode_want
from aicpnode.network.connection import RECEIVE_BYTES
from aicpnode.network.framing import PAYLOAD_BYTES_MAX, FrameType, Lane, Message, encode_frame
from aicpnode.network.handshakes import Refusal, SessionLost, shake_hands
from aicpnode.network.listener import describe_dial_error
from aicpnode.network.peers import Address
from aicpnode.network.session import NO_NETWORK, NONCE_BYTES, Hello, Role, Session
from aicpnode.network.transfer import CHUNK_BYTES

BACKOFF_S_MIN = 0.25
BACKOFF_S_MAX = 30.0
HEARSAY_ATTEMPTS_MAX = 4
TARGETS_MAX = 512
POLITE_DELAY_S = 0.5
"""Both ends of a missing link learn of each other at once; the one with the larger key lets the other dial first."""
PEERS_TOLD_MAX = 160
"""Entries in one PEERS message; it must fit into a frame."""
ADDRESS_MAX = 80
"""Characters of an address in PEERS: the longest IPv6 address with a scope, and a port."""
GENESIS_NAMESPACE = 3
GENESIS_BYTES_MAX = 4 << 20


class Origin(IntEnum):
    """Why an address is known; the larger value wins."""

    HEARSAY = 0
    MET = 1
    BOOTSTRAP = 2


@dataclass(slots=True)
class _Target:
    address: Address
    origin: Origin
    key: bytes | None
    next_try_s: float
    attempts: int = 0
    last_error: str = ""
    dialing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DialState:
    """One address that is not connected, for ``why`` and ``peers``. ``next_try_s`` is seconds from now."""

    address: Address
    attempts: int
    last_error: str
    next_try_s: float
    bootstrap: bool


class DialSchedule:
    """The addresses worth dialling. The caller tells the time and who is connected."""

    def __init__(self, *, me: bytes, rng: random.Random) -> None:
        self._me = me
        self._rng = rng
        self._targets: dict[Address, _Target] = {}
        self._own: set[Address] = set()

    def __len__(self) -> int:
        return len(self._targets)

    def add(self, address: Address, *, origin: Origin, key: bytes | None, now_s: float) -> None:
        """Learn of an address; ``key`` is who is said (HEARSAY) or was seen (MET) to listen there."""
        if address in self._own or key == self._me:
            return
        target = self._targets.get(address)
        if target is None:
            if len(self._targets) >= TARGETS_MAX and not self._make_room(origin):
                return
            polite = origin is Origin.HEARSAY and key is not None and self._me > key
            self._targets[address] = _Target(address, origin, key, now_s + (POLITE_DELAY_S if polite else 0.0))
            return
        if origin > target.origin:
            target.origin = origin
        if key is not None and (origin is not Origin.HEARSAY or target.key is None):
            target.key = key

    def due(self, now_s: float, *, connected: Collection[bytes], limit: int) -> list[Address]:
        """Up to ``limit`` addresses to dial now, bootstraps first; they count as being dialled."""
        ready = [
            target
            for target in self._targets.values()
            if not target.dialing and target.next_try_s <= now_s and target.key not in connected
        ]
        ready.sort(key=lambda target: (-target.origin, target.next_try_s))
        for target in ready[:limit]:
            target.dialing = True
        return [target.address for target in ready[:limit]]

    def next_due_s(self, *, connected: Collection[bytes]) -> float | None:
        """When ``due`` will have something, None if never as things stand."""
        times = [t.next_try_s for t in self._targets.values() if not t.dialing and t.key not in connected]
        return min(times, default=None)

    def succeeded(self, address: Address, key: bytes) -> None:
        """A session with ``key`` was opened at ``address``, or would have been but for one that exists."""
        target = self._targets[address]
        target.dialing, target.attempts, target.last_error, target.key = False, 0, "", key
        target.origin = max(target.origin, Origin.MET)

    def failed(self, address: Address, error: str, now_s: float) -> tuple[int, float, bool]:
        """A dial failed. Returns (attempts so far, seconds until the next, whether it is a bootstrap)."""
        target = self._targets[address]
        target.dialing, target.last_error = False, error
        target.attempts += 1
        delay_s = min(BACKOFF_S_MIN * 2 ** min(target.attempts - 1, 16), BACKOFF_S_MAX)
        delay_s *= self._rng.uniform(0.5, 1.0)
        target.next_try_s = now_s + delay_s
        if target.origin is Origin.HEARSAY and target.attempts >= HEARSAY_ATTEMPTS_MAX:
            del self._targets[address]
        return target.attempts, delay_s, target.origin is Origin.BOOTSTRAP

    def disconnected(self, key: bytes, now_s: float) -> None:
        """The session with ``key`` ended: dial again soon; the larger key waits, so that both do not at once."""
        for target in self._targets.values():
            if target.key == key and not target.dialing:
                polite_s = POLITE_DELAY_S if self._me > key else 0.0
                target.next_try_s = now_s + polite_s + self._rng.uniform(0.5, 1.0) * BACKOFF_S_MIN

    def is_self(self, address: Address) -> None:
        """This node answered at ``address``: never dial it again."""
        self._targets.pop(address, None)
        self._own.add(address)

    def waiting(self, now_s: float, *, connected: Collection[bytes]) -> list[DialState]:
        """What is not connected, soonest first."""
        states = [
            DialState(
                address=target.address,
                attempts=target.attempts,
                last_error=target.last_error,
                next_try_s=0.0 if target.dialing else max(0.0, target.next_try_s - now_s),
                bootstrap=target.origin is Origin.BOOTSTRAP,
            )
            for target in self._targets.values()
            if target.key not in connected
        ]
        return sorted(states, key=lambda state: (state.next_try_s, state.address))

    def _make_room(self, origin: Origin) -> bool:
        """Forget the least promising address of no higher origin."""
        candidates = [t for t in self._targets.values() if not t.dialing and t.origin <= min(origin, Origin.MET)]
        if not candidates:
            return False
        worst = max(candidates, key=lambda target: (-target.origin, target.attempts))
        del self._targets[worst.address]
        return True


def encode_peers(entries: Iterable[tuple[bytes, Address | None]]) -> bytes:
    """The payload of PEERS: ``[[key, address text or ""], ...]``, those that the teller is connected to."""
    told = [(key, "" if address is None else str(address)) for key, address in entries][:PEERS_TOLD_MAX]
    payload = pack(told)
    assert len(payload) <= PAYLOAD_BYTES_MAX
    return payload


def decode_peers(payload: bytes) -> list[tuple[bytes, str]]:
    """(key, address text or "") of each entry; the texts of interest are parsed by ``Address.from_peer``.

    MalformedError on anything that ``encode_peers`` does not produce.
    """
    value = unpack(payload, max_bytes=PAYLOAD_BYTES_MAX)
    if not isinstance(value, tuple) or len(value) > PEERS_TOLD_MAX:
        raise MalformedError(f"PEERS is an array of at most {PEERS_TOLD_MAX} entries")
    entries: list[tuple[bytes, str]] = []
    for item in value:
        if not isinstance(item, tuple) or len(item) != 2:
            raise MalformedError("an entry of PEERS is a key and an address")
        key, text = item
        if not isinstance(key, bytes) or len(key) != KEY_BYTES or not isinstance(text, str) or len(text) > ADDRESS_MAX:
            raise MalformedError("an entry of PEERS is a key and an address")
        entries.append((key, text))
    return entries


async def fetch_genesis(address: Address, *, timeout: float, encrypted: bool = True) -> bytes:
    """The encoded genesis of ``ask_genesis`` alone."""
    _peer, genesis = await ask_genesis(address, timeout=timeout, encrypted=encrypted)
    return genesis


async def ask_genesis(address: Address, *, timeout: float, encrypted: bool = True) -> tuple[Hello, bytes]:
    """Who answers at ``address``, and the encoded genesis of its network, within ``timeout`` seconds.

    The SHA-256 of the genesis is the network id which that node told; that it is the right network is only that node's
    word. UserError if it cannot be had.
    """
    try:
        with trio.move_on_after(timeout):
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                return await _fetch_genesis_from(stream, encrypted=encrypted)
        reason = f"no answer within {timeout:g} s"
    except OSError as error:
        reason = describe_dial_error(error)
    except SessionLost as lost:
        reason = lost.reason
    except RemoteError as error:
        reason = error.reason
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        reason = "the connection broke"
    raise UserError(
        f"the genesis cannot be fetched from {address}: {reason}.",
        advice="Check that an aicp-node runs there and can be reached, or give a genesis with --genesis FILE.",
    )


async def _fetch_genesis_from(stream: trio.abc.HalfCloseableStream, *, encrypted: bool) -> tuple[Hello, bytes]:
    identity = Identity.generate()  # a guest's key is used for this one session
    hello = Hello(
        network_id=NO_NETWORK,
        key=identity.key,
        node_type="",
        name="",
        listen_port=0,
        head_height=0,
        nonce=secrets.token_bytes(NONCE_BYTES),
    )
    session = Session(role=Role.INITIATOR, identity=identity, hello=hello, encrypted=encrypted)
    peer, last_bytes = await shake_hands(stream, session, _accept_anybody)
    await stream.send_all(last_bytes)
    network_id, body, total = peer.network_id, bytearray(), 1
    while len(body) < total:
        want = encode_want(len(body) // CHUNK_BYTES, GENESIS_NAMESPACE, network_id, len(body), CHUNK_BYTES)
        await stream.send_all(session.outgoing(encode_frame(FrameType.WANT, Lane.CONTROL, want)))
        _, total, data = decode_chunk((await _next_answer(stream, session)).payload)
        if not data or total > GENESIS_BYTES_MAX or len(body) + len(data) > total:
            raise MalformedError("it sent no genesis")
        body += data
    if hashlib.sha256(body).digest() != network_id:
        raise MalformedError(f"what it sent is not the genesis of its network {network_id.hex()}")
    return peer, bytes(body)


async def _accept_anybody(_peer: Hello) -> Refusal | None:
    return None


async def _next_answer(stream: trio.abc.ReceiveStream, session: Session) -> Message:
    """The next CHUNK; pings and the like are passed over."""
    while True:
        message = session.frames.next_message()
        if message is None:
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise MalformedError("it closed the connection")
            session.frames.receive_data(session.incoming(bytes(data)))
        elif message.type is FrameType.CHUNK:
            return message
        elif message.type in (FrameType.NOT_FOUND, FrameType.REFUSE):
            raise MalformedError("it does not give its genesis")

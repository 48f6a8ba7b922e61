"""Serving bodies: what this node holds, announced in a few bytes and sent in the chunks that peers ask for.

A chunk is read only when its turn to be sent has come, so that serving holds no memory however slow the peers are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from aicpnode.errors import PENALTY_MISBEHAVED, MalformedError, RemoteError
from aicpnode.network.body_messages import decode_want, encode_chunk, encode_have, encode_not_found
from aicpnode.network.connection import Payload
from aicpnode.network.framing import FrameType, Lane

SERVED_PER_PEER_MAX = 32
"""Chunks that one peer may have asked for and not received yet."""
OWN_ANNOUNCEMENTS_MAX = 64
"""The latest own announcements are repeated to every new peer."""


class Namespace(IntEnum):
    """What kind of hash names a body. The numbers are part of the protocol."""

    GRADIENT = 1
    BLOB = 2
    GENESIS = 3
    SNAPSHOT = 4
    """Ledger states and models of stored snapshots, by their SHA-256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySource:
    """A body held here. ``read(offset, length)`` returns exactly these bytes, fast (memory or a mapped file)."""

    size: int
    read: Callable[[int, int], bytes]

    @classmethod
    def of(cls, body: bytes | memoryview) -> BodySource:
        """A body in memory, or mapped into it."""
        return cls(size=len(body), read=lambda offset, length: bytes(body[offset : offset + length]))


Provider = Callable[[bytes], BodySource | None]


class SendFrame(Protocol):
    """Queue one message for a peer, never blocking; ``size`` in bytes goes with a payload that is made later."""

    def __call__(
        self, peer: bytes, frame_type: FrameType, lane: Lane, payload: Payload, *, size: int | None = None
    ) -> bool: ...


class BodyServer:
    """The bodies held here, for the connected peers and for guests."""

    def __init__(self, *, send: SendFrame, connected: Callable[[], Collection[bytes]]) -> None:
        self.served_bytes = 0
        self._send = send
        self._connected = connected
        self._providers: dict[int, Provider] = {}
        self._announced: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._pending: Counter[bytes] = Counter()
        """Peer -> chunks queued for it."""

    def register(self, namespace: int, provider: Provider) -> None:
        """Serve the bodies of ``namespace``; the provider returns None for what this node does not hold."""
        assert namespace not in self._providers, "one provider for each namespace"
        self._providers[namespace] = provider

    def announce(self, namespace: int, digest: bytes, size: int) -> None:
        """Tell all peers, and those who come soon, that this node holds a body of ``size`` bytes."""
        self._announced[namespace, digest] = size
        self._announced.move_to_end((namespace, digest))
        while len(self._announced) > OWN_ANNOUNCEMENTS_MAX:
            self._announced.popitem(last=False)
        for peer in self._connected():
            self._send(peer, FrameType.HAVE, Lane.ANNOUNCEMENTS, encode_have(namespace, digest, size))

    def peer_connected(self, peer: bytes) -> None:
        for (namespace, digest), size in self._announced.items():
            self._send(peer, FrameType.HAVE, Lane.ANNOUNCEMENTS, encode_have(namespace, digest, size))

    def peer_left(self, peer: bytes) -> None:
        self._pending.pop(peer, None)

    def handle_want(self, peer: bytes, payload: bytes, *, guest: bool) -> None:
        """Queue the chunk that ``peer`` asks for, or say that it is not here. A guest may ask for the genesis only."""
        request, namespace, digest, offset, length = decode_want(payload)
        if guest and namespace != Namespace.GENESIS:
            raise MalformedError("only the genesis may be asked for without a network id")
        if self._pending[peer] >= SERVED_PER_PEER_MAX:
            raise RemoteError("asks for more chunks than it receives", penalty=PENALTY_MISBEHAVED)
        provider = self._providers.get(namespace)
        source = None if provider is None else provider(digest)
        if source is None:
            self._send(peer, FrameType.NOT_FOUND, Lane.CONTROL, encode_not_found(request))
            return
        # Behind the end there is an empty chunk: the asker may have been told a wrong size by somebody else.
        count = max(0, min(length, source.size - offset))

        def read() -> bytes:
            if self._pending[peer] > 0:
                self._pending[peer] -= 1
            data = source.read(offset, count)
            assert len(data) == count, "a provider returns the bytes it is asked for"
            self.served_bytes += count
            return encode_chunk(request, source.size, data)

        if self._send(peer, FrameType.CHUNK, Lane.BULK, read, size=count):
            self._pending[peer] += 1
        else:
            self._send(peer, FrameType.NOT_FOUND, Lane.CONTROL, encode_not_found(request))

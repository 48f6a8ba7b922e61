"""With whom this node has a session: everybody of its network, once, unless it is full or they are banned.

Holds what the handshakes of a mesh share: the slots of those in progress, the nonces by which a node recognises itself,
and the keys it is proving itself to. The rule for two connections with one peer is ``handshakes.settle``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import replace

import trio

from aicpnode.identity import Identity
from aicpnode.network.connection import Connection
from aicpnode.network.handshakes import PROBE_S, HandshakeSlots, Refusal, Settlement, settle, shake_hands
from aicpnode.network.session import NO_NETWORK, NONCE_BYTES, Hello, RefusalCode, Role, Session

PEERS_MAX = 128
STRANGERS_MAX = 28
"""Of these, so that keys that cost nothing never take the places of members."""
GUESTS_MAX = 16
"""Sessions of those who come for the genesis."""


class Admission:
    """Runs handshakes in both directions and decides about whoever proved a key."""

    def __init__(
        self,
        *,
        identity: Identity,
        hello: Callable[[str], Hello],
        peers: Callable[[], Collection[bytes]],
        guests: Callable[[], Collection[bytes]],
        connection_of: Callable[[bytes], Connection | None],
        banned_for_s: Callable[[bytes], float],
        blacklisted: Callable[[bytes], bool],
        is_member: Callable[[bytes], bool],
        encrypted: bool,
    ) -> None:
        """``hello`` introduces this node to whoever is at an IP address, as of now; its nonce is replaced."""
        self.slots = HandshakeSlots()
        self._identity = identity
        self._hello = hello
        self._peers = peers
        self._guests = guests
        self._connection_of = connection_of
        self._banned_for_s = banned_for_s
        self._blacklisted = blacklisted
        self._is_member = is_member
        self._encrypted = encrypted
        self._nonces: set[bytes] = set()
        self._proving_to: set[bytes] = set()
        """Keys to which this node has proved its own in a dial that is not decided yet."""

    async def answer(
        self, stream: trio.abc.HalfCloseableStream, remote_host: str
    ) -> tuple[Session, Hello, bytes] | None:
        """The handshake of an accepted connection. SessionLost if it fails, None if others needed its slot more."""
        session = self._session(Role.ACCEPTER, remote_host)
        with trio.CancelScope() as evicted:
            slot = self.slots.enter(remote_host, evicted.cancel)
            try:
                hello, last_bytes = await shake_hands(stream, session, self._decide_inbound)
                return session, hello, last_bytes
            finally:
                self.slots.leave(slot)
        return None

    async def introduce(self, stream: trio.abc.HalfCloseableStream, remote_host: str) -> tuple[Session, Hello, bytes]:
        """The handshake of a connection that this node dialled. SessionLost if it fails."""
        session = self._session(Role.INITIATOR, remote_host)
        self._nonces.add(session.nonce)
        proved_to: list[bytes] = []

        async def decide(hello: Hello) -> Refusal | None:
            refusal = self._decide_outbound(hello)
            if refusal is None:
                self._proving_to.add(hello.key)
                proved_to.append(hello.key)
            return refusal

        try:
            hello, last_bytes = await shake_hands(stream, session, decide)
            return session, hello, last_bytes
        finally:
            self._nonces.discard(session.nonce)
            self._proving_to.difference_update(proved_to)

    def _session(self, role: Role, remote_host: str) -> Session:
        hello = replace(self._hello(remote_host), nonce=secrets.token_bytes(NONCE_BYTES))
        return Session(
            role=role,
            identity=self._identity,
            hello=hello,
            is_own_nonce=self._nonces.__contains__,
            encrypted=self._encrypted,
        )

    def _decide_outbound(self, hello: Hello) -> Refusal | None:
        if hello.key in self._peers() or hello.key in self._proving_to:
            return Refusal(code=RefusalCode.DUPLICATE, reason="already connected")
        return self._unwanted(hello)

    async def _decide_inbound(self, hello: Hello) -> Refusal | None:
        if hello.network_id == NO_NETWORK:
            if len(self._guests()) >= GUESTS_MAX or hello.key in self._guests() or hello.key in self._peers():
                return Refusal(code=RefusalCode.FULL, reason="too many ask for the genesis now; try again")
            return None
        refusal = self._unwanted(hello)
        while refusal is None:
            existing = self._connection_of(hello.key)
            settlement = settle(
                me=self._identity.key,
                peer=hello.key,
                dialing=hello.key in self._proving_to,
                connected_inbound=None if existing is None else existing.inbound,
                new_inbound=True,
            )
            if settlement is Settlement.KEEP_NEW:
                return None
            if existing is None or settlement is Settlement.KEEP_OLD or await existing.answers(PROBE_S):
                return Refusal(code=RefusalCode.DUPLICATE, reason="already connected")
            if self._connection_of(hello.key) is existing:
                return None
        return refusal

    def _unwanted(self, hello: Hello) -> Refusal | None:
        banned_s = self._banned_for_s(hello.key)
        if banned_s > 0:
            return Refusal(code=RefusalCode.BANNED, reason=f"banned here for {banned_s:.0f} s more")
        if self._blacklisted(hello.key):
            return Refusal(code=RefusalCode.BANNED, reason="blacklisted by the members")
        if len(self._peers()) >= PEERS_MAX and hello.key not in self._peers():
            return Refusal(code=RefusalCode.FULL, reason=f"full: {PEERS_MAX} peers")
        if not self._is_member(hello.key) and hello.key not in self._peers():
            strangers = sum(not self._is_member(key) for key in self._peers())
            if strangers >= STRANGERS_MAX:
                return Refusal(code=RefusalCode.FULL, reason=f"full: {STRANGERS_MAX} peers that are no members")
        return None

"""Opening sessions: the driver of one handshake, the slots that bound them all, and which of two connections stays.

``HandshakeSlots`` and ``settle`` are pure; ``shake_hands`` is the trio driver of the session's state machine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

import trio

from aicpnode.errors import RemoteError
from aicpnode.network.connection import RECEIVE_BYTES, send_last_words
from aicpnode.network.session import (
    Hello,
    PeerAuthenticated,
    RefusalCode,
    Session,
    SessionEstablished,
    SessionEvent,
    SessionRefused,
)

HANDSHAKE_S = 5.0
HANDSHAKES_MAX = 64
"""Inbound handshakes in progress; one more evicts the oldest of the most crowded address."""
PROBE_S = 1.0
"""How long an existing connection has to answer when its peer seems to come back."""


class SessionLost(Exception):
    """The handshake ended without a session. ``code`` is None if the connection broke or time ran out.

    ``peer_key`` is the other side's, if it got as far as proving it.
    """

    def __init__(self, reason: str, *, code: RefusalCode | None = None, peer_key: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.peer_key = peer_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    code: RefusalCode
    reason: str


Decide = Callable[[Hello], Awaitable[Refusal | None]]
"""May this peer, which has proved its key, have a session? None is yes."""


async def shake_hands(stream: trio.abc.HalfCloseableStream, session: Session, decide: Decide) -> tuple[Hello, bytes]:
    """Run the handshake within ``HANDSHAKE_S``. Returns the peer and the last bytes, which the connection sends first.

    Nothing is awaited between an accepter's ``decide`` and the return. SessionLost on any failure, in the words of
    whichever side refused.
    """
    with trio.move_on_after(HANDSHAKE_S):
        try:
            while True:
                match await _next_event(stream, session):
                    case PeerAuthenticated(peer=peer):
                        refusal = await decide(peer)
                        if refusal is not None:
                            session.refuse(refusal.code, refusal.reason)
                            await send_last_words(stream, session.data_to_send())
                            raise SessionLost(refusal.reason, code=refusal.code, peer_key=peer.key)
                        session.accept()
                    case SessionEstablished(peer=peer):
                        return peer, session.data_to_send()
                    case SessionRefused(code=code, reason=reason):
                        key = None if session.peer is None else session.peer.key
                        raise SessionLost(reason, code=code, peer_key=key)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise SessionLost("the connection broke during the handshake") from None
    raise SessionLost(f"no handshake within {HANDSHAKE_S:g} s")


async def _next_event(stream: trio.abc.HalfCloseableStream, session: Session) -> SessionEvent:
    while True:
        try:
            event = session.next_event()
        except RemoteError as error:
            await send_last_words(stream, session.data_to_send())
            raise SessionLost(error.reason, code=getattr(error, "code", RefusalCode.MALFORMED)) from error
        if event is not None:
            return event
        await stream.send_all(session.data_to_send())
        data = await stream.receive_some(RECEIVE_BYTES)
        if not data:
            raise SessionLost("the other side closed the connection during the handshake")
        session.receive_data(bytes(data))


class HandshakeSlots:
    """Inbound handshakes in progress, bounded; silent strangers push out one another, not honest peers."""

    def __init__(self, *, slots_max: int = HANDSHAKES_MAX) -> None:
        self._slots_max = slots_max
        self._slots: OrderedDict[int, tuple[str, Callable[[], None]]] = OrderedDict()
        self._next_id = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._slots)

    def enter(self, host: str, evict: Callable[[], None]) -> int:
        """Take a slot for a connection from ``host``; ``evict`` is called if another needs it more."""
        if len(self._slots) >= self._slots_max:
            hosts = [taken_by for taken_by, _ in self._slots.values()]
            crowded = max(hosts, key=hosts.count)
            oldest = next(slot for slot, (taken_by, _) in self._slots.items() if taken_by == crowded)
            self._slots.pop(oldest)[1]()
            self.evicted += 1
        self._next_id += 1
        self._slots[self._next_id] = (host, evict)
        return self._next_id

    def leave(self, slot: int) -> None:
        self._slots.pop(slot, None)


class Settlement(Enum):
    KEEP_NEW = auto()
    KEEP_OLD = auto()
    PROBE_OLD = auto()
    """Keep the old connection if it answers at once, else the new one."""


def settle(*, me: bytes, peer: bytes, dialing: bool, connected_inbound: bool | None, new_inbound: bool) -> Settlement:
    """Which connection with ``peer`` stays when a new one has been authenticated.

    ``connected_inbound`` says who dialled the existing connection, None if there is none; ``dialing`` that this node
    has proved its key to ``peer`` in a dial of its own that is not decided yet. Both sides come to the same result:
    of two dials at once, that of the smaller key stays. A peer that dials again although its earlier dial is still
    connected here has lost that one (it crashed, or its address changed), so its new one stays.
    """
    if connected_inbound is None:
        return Settlement.KEEP_OLD if dialing and me < peer else Settlement.KEEP_NEW
    if not new_inbound:
        return Settlement.KEEP_OLD
    if connected_inbound or peer < me:
        return Settlement.KEEP_NEW
    return Settlement.PROBE_OLD

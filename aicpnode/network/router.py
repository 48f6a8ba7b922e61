"""What happens to an Envelop that a peer sent: decoded, verified once, passed on where a link is missing, delivered.

Synchronous and without sockets: the mesh calls ``receive`` from the reader of a peer. Blame goes to whoever could have
known: bytes that no honest node passes on (malformed, wrong network, bad signature) cost the peer that sent them; a
well-signed message whose content a handler refuses costs its signer, never the honest peer that only relayed it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, decode
from aicpnode.errors import MalformedError, RemoteError
from aicpnode.network.framing import Lane
from aicpnode.network.gossip import SeenCache, relay_targets

Handler = Callable[[Envelop, bytes, bytes], None]
"""(envelop, attachment, key of the peer it came from)."""

BULK_KINDS = frozenset({Kind.BLOCK, Kind.DECISIONS, Kind.CHECKPOINT, Kind.HEADERS})
"""Answers that may be large and are asked for again if lost: they do not delay votes, and never end a connection."""

ATTACHING_KINDS = frozenset({Kind.BALLOT, Kind.SET}) | BULK_KINDS
"""Only these carry an attachment. It is unsigned: what is wrong with it may be the doing of whoever passed it on."""


def lane_of(kind: Kind) -> Lane:
    return Lane.BULK if kind in BULK_KINDS else Lane.VOTES


class Router:
    """Delivers and relays Envelops. ``send`` queues encoded bytes for a connected peer; ``charge`` penalises a key."""

    def __init__(
        self,
        *,
        me: bytes,
        network_id: bytes,
        links: Callable[[], Mapping[bytes, Collection[bytes]]],
        send: Callable[[bytes, Lane, bytes], bool],
        charge: Callable[[bytes, RemoteError], None],
        is_member: Callable[[bytes], bool] = lambda _key: True,
    ) -> None:
        """``is_member``: whose messages are passed on to others; of strangers only their operations are."""
        self._me = me
        self._network_id = network_id
        self._links = links
        self._send = send
        self._charge = charge
        self._is_member = is_member
        self._seen = SeenCache()
        self._handlers: dict[Kind, list[Handler]] = {}
        self.counts: Counter[str] = Counter()

    def subscribe(self, kinds: Iterable[Kind], handler: Handler) -> None:
        for kind in kinds:
            self._handlers.setdefault(kind, []).append(handler)

    def receive(self, from_peer: bytes, data: bytes, now_s: float) -> None:
        """Handle one Envelop in wire form. RemoteError is the fault of ``from_peer``."""
        envelop, attachment = decode(data)
        if envelop.network_id != self._network_id:
            raise MalformedError("an Envelop of another network")
        if attachment and envelop.kind not in ATTACHING_KINDS:
            raise MalformedError(f"an attachment to {envelop.kind.name}, which has none")
        if envelop.sender == self._me:
            self.counts["own_returned"] += 1
            return
        message_hash = hashlib.sha256(data).digest()
        if self._seen.hit(message_hash, now_s):
            self.counts["duplicates"] += 1
            if from_peer != envelop.sender:
                return  # only its sender repeats a message on purpose
            again = self._seen.may_relay_again(message_hash, now_s)
        else:
            if not signing.verify(envelop):
                raise MalformedError("an Envelop with a wrong signature")
            self.counts["verified"] += 1
            self._seen.enter(message_hash, now_s)
            again = True
        if again:
            self._relay(envelop, from_peer, data)
        if envelop.route is None or envelop.route == self._me:
            self._deliver(envelop, attachment, from_peer)

    def _relay(self, envelop: Envelop, from_peer: bytes, data: bytes) -> None:
        if not self._is_member(envelop.sender) and envelop.kind is not Kind.OPERATION and envelop.route is None:
            return
        if isinstance(envelop.route, tuple):
            return  # schedules are executed by the collectives, not flooded
        targets = relay_targets(
            me=self._me, sender=envelop.sender, from_peer=from_peer, route=envelop.route, links=self._links()
        )
        for target in targets:
            if self._send(target, lane_of(envelop.kind), data):
                self.counts["relayed"] += 1

    def _deliver(self, envelop: Envelop, attachment: bytes, from_peer: bytes) -> None:
        handlers = self._handlers.get(envelop.kind, ())
        self.counts["delivered" if handlers else "unhandled"] += 1
        for handler in handlers:
            try:
                handler(envelop, attachment, from_peer)
            except RemoteError as error:
                self.counts["refused"] += 1
                if from_peer == envelop.sender:
                    raise
                if envelop.kind not in ATTACHING_KINDS:
                    self._charge(envelop.sender, error)

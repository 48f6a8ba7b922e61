"""Certified headers and snapshots for those who ask: what this node holds, one request at a time.

Everything given out can be checked by whoever gets it, so it goes to members and strangers alike. Heights below this
node's base have headers but no blocks here; others may have them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, Packable, Value, pack
from aicpnode.envelop.ledger_state import HEADERS_PER_REPLY_MAX, link_content
from aicpnode.identity import Identity
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.replication.application import Application
from aicpnode.replication.snapshot_store import SnapshotStore
from aicpnode.replication.transport import Transport

HEADERS_REPLY_BYTES = 512 << 10
SERVE_QUEUE_MAX = 64
"""Requests that wait; the oldest gives way."""


class Donor:
    """``subscribe`` once, ``run`` until cancelled."""

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        transport: Transport,
        application: Application,
        store: SnapshotStore,
    ) -> None:
        self._identity = identity
        self._network_id = network_id
        self._transport = transport
        self._application = application
        self._store = store
        self._waiting: OrderedDict[tuple[bytes, Kind], tuple[bytes, int]] = OrderedDict()
        self._wakeup = trio.Event()

    def subscribe(self) -> None:
        self._transport.subscribe([Kind.GET_HEADERS, Kind.GET_SNAPSHOT], self._on_request)
        self._transport.bodies.register(Namespace.SNAPSHOT, self._provide)

    def _on_request(self, envelop: Envelop, _attachment: bytes, peer: bytes) -> None:
        self._waiting[peer, envelop.kind] = (envelop.sender, envelop.height)
        if len(self._waiting) > SERVE_QUEUE_MAX:
            self._waiting.popitem(last=False)
        self._wakeup.set()

    async def run(self) -> None:
        while True:
            while not self._waiting:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
            (_peer, kind), (to, height) = self._waiting.popitem(last=False)
            if kind is Kind.GET_HEADERS:
                links = await trio.to_thread.run_sync(self._links, max(1, height))
                self._answer(Kind.HEADERS, to, height, (), links)
            else:
                offers = await trio.to_thread.run_sync(self._store.offers, self._application.snapshot_size)
                body = tuple(offer.to_value() for offer in offers if offer.height >= height)
                self._answer(Kind.SNAPSHOT, to, height, cast(Value, body))

    def _links(self, height: int) -> bytes:
        links = self._store.links(height, most=HEADERS_PER_REPLY_MAX, max_bytes=HEADERS_REPLY_BYTES)
        return pack(cast(Packable, tuple(link_content(link) for link in links)))

    def _provide(self, digest: bytes) -> BodySource | None:
        """Only what is offered: other blobs of this node are nobody's business."""
        ledger = self._store.ledger_body(digest)
        if ledger is not None:
            return BodySource.of(ledger)
        size = self._application.snapshot_size(digest) if self._store.has(digest) else None
        if size is None:
            return None
        return BodySource(size=size, read=lambda at, length: self._application.read_snapshot(digest, at, length))

    def _answer(self, kind: Kind, to: bytes, height: int, body: Value, attachment: bytes = b"") -> None:
        envelop = Envelop(
            network_id=self._network_id, kind=kind, sender=self._identity.key, height=height, route=to, body=body
        )
        self._transport.send(to, signing.seal(self._identity, envelop), attachment)

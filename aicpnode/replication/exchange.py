"""Blocks and decisions that peers ask for and get: catching up, and a body that a certificate names.

What a peer claims is checked by the replica against certificates; here it is only kept from costing much: one request
for each connection is served at a time, and answers count only from those that were asked (or, a single decision, from
a member that sees this one stuck).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import cast

import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, Packable, Value, pack, unpack
from aicpnode.envelop.kinds import DECISIONS_PER_REPLY_MAX, decode_block, decode_commit_certificate, encode_block
from aicpnode.errors import MalformedError
from aicpnode.identity import Identity
from aicpnode.replication.inbox import Inbox
from aicpnode.replication.transport import Transport
from aicpnode.storage.database import Database
from consensus.events import BlockReceived, DecisionReceived
from consensus.replica import Replica

ASKED_KEPT = 128
"""Peers whose answers are expected."""
SERVE_QUEUE_MAX = 64
DECISIONS_REPLY_BYTES = 512 << 10


class DecisionExchange:
    """Asks and answers for one member."""

    def __init__(
        self,
        *,
        identity: Identity,
        network_id: bytes,
        database: Database,
        transport: Transport,
        inbox: Inbox,
        replica: Callable[[], Replica],
    ) -> None:
        self._identity = identity
        self._network_id = network_id
        self._database = database
        self._transport = transport
        self._inbox = inbox
        self._replica = replica
        self._to_serve: OrderedDict[bytes, tuple[bytes, int, int]] = OrderedDict()
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        self._wakeup = trio.Event()

    def subscribe(self) -> None:
        self._transport.subscribe([Kind.GET_DECISIONS, Kind.GET_BLOCK], self._on_request)
        self._transport.subscribe([Kind.DECISIONS, Kind.BLOCK], self._on_answer)

    def ask_decisions(self, target: bytes, height: int) -> None:
        """For the decided blocks from ``height`` on."""
        self._note_asked(target)
        self._ask(Kind.GET_DECISIONS, target, height, (DECISIONS_PER_REPLY_MAX,))

    def ask_block(self, target: bytes, height: int, block_id: bytes) -> None:
        """For an undecided block that a certificate names."""
        self._note_asked(target)
        self._ask(Kind.GET_BLOCK, target, height, (block_id,))

    def _note_asked(self, target: bytes) -> None:
        self._asked.pop(target, None)
        self._asked[target] = None
        if len(self._asked) > ASKED_KEPT:
            self._asked.popitem(last=False)

    def _on_request(self, envelop: Envelop, attachment: bytes, peer: bytes) -> None:
        if envelop.kind is Kind.GET_DECISIONS:
            self.serve_later(peer, envelop.sender, envelop.height, DECISIONS_PER_REPLY_MAX)
            return
        body = envelop.body
        if not isinstance(body, tuple) or len(body) != 1 or not isinstance(body[0], bytes):
            raise MalformedError("GET_BLOCK names one block id")
        block = self._replica().block(body[0])
        if block is not None and block.height == envelop.height:
            self._ask(Kind.BLOCK, envelop.sender, envelop.height, body, encode_block(block))
        else:
            self.serve_later(peer, envelop.sender, envelop.height, 1)

    def _on_answer(self, envelop: Envelop, attachment: bytes, peer: bytes) -> None:
        """Blocks and decisions: of whom they were asked, or a single decision of a member that sees this one stuck."""
        height = self._replica().height
        asked = envelop.sender in self._asked
        if not asked and self._replica().roster.by_key(envelop.sender) is None:
            return
        if envelop.kind is Kind.BLOCK:
            if asked and envelop.height == height:
                self._inbox.put_from(peer, BlockReceived(block=decode_block(attachment)))
            return
        items = unpack(attachment)
        if not isinstance(items, tuple) or len(items) > (DECISIONS_PER_REPLY_MAX if asked else 1):
            raise MalformedError("DECISIONS carry an array of pairs, as many as were asked for")
        # What is decided here already is not even decoded: whoever repeats old decisions costs next to nothing.
        for item in items[max(0, height - envelop.height) :] if envelop.height <= height else ():
            if not isinstance(item, tuple) or len(item) != 2:
                raise MalformedError("a decision is a block and its certificate")
            block, certificate = item
            if not isinstance(block, bytes) or not isinstance(certificate, bytes):
                raise MalformedError("a decision is two byte strings")
            event = DecisionReceived(block=decode_block(block), certificate=decode_commit_certificate(certificate))
            self._inbox.put_from(peer, event)

    def serve_later(self, peer: bytes, to: bytes, height: int, count: int) -> None:
        """One request for each connection; the newest replaces it, and the oldest gives way when there are many."""
        if height < 1:
            return
        self._to_serve[peer] = (to, height, count)
        if len(self._to_serve) > SERVE_QUEUE_MAX:
            self._to_serve.popitem(last=False)
        self._wakeup.set()

    async def run(self) -> None:
        """Answer requests, one after the other, until cancelled."""
        while True:
            while not self._to_serve:
                self._wakeup = trio.Event()
                await self._wakeup.wait()
            _peer, (to, height, count) = self._to_serve.popitem(last=False)
            found = await trio.to_thread.run_sync(self._database.decisions, height, DECISIONS_REPLY_BYTES)
            items = tuple((block, certificate) for _height, block, certificate in found[:count])
            if items:
                self._ask(Kind.DECISIONS, to, height, (len(items),), pack(cast(Packable, items)))

    def _ask(self, kind: Kind, target: bytes, height: int, body: Value, attachment: bytes = b"") -> None:
        envelop = Envelop(
            network_id=self._network_id,
            kind=kind,
            sender=self._identity.key,
            height=height,
            route=target,
            body=body,
        )
        self._transport.send(target, signing.seal(self._identity, envelop), attachment)

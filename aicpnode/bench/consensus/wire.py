"""Messages of the simulated members as the bytes that the nodes send, and what they cost.

Each message is encoded once for real, and taken once by a production router: decoded, its signature verified, parsed.
Every receiver is charged what that took, plus what a message on a socket costs. A message that is sent again is
recognised by the router's cache and charged as the repetition it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aicpnode.bench.consensus.meter import Meter, TransportCost
from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, Packable, Value, encode, pack
from aicpnode.envelop.kinds import (
    decode_block,
    decode_commit_certificate,
    encode_block,
    encode_commit_certificate,
    parse_vote,
    vote_attachment,
    vote_envelop,
)
from aicpnode.identity import Identity
from aicpnode.network.framing import HEADER_BYTES
from aicpnode.network.router import Router
from consensus.events import BlockReceived, Decide, DecisionReceived, Input, Received
from consensus.messages import Block, Vote

OBSERVER = bytes(32)
"""The router's own key: nobody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grad:
    """A member's commitment to its proposal of a round."""

    round: int
    author: bytes
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A peer asks for a block by its id, or (``block_id`` None) for the decision of ``height``."""

    asker: bytes
    height: int
    block_id: bytes | None


Content = Input | Request | Grad


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """One message on its way. Milliseconds of processor time: to make it, to send it once, to receive it."""

    content: Content
    envelop: Envelop
    size_bytes: int
    encode_ms: float
    send_ms: float
    receive_ms: float
    repeated: bool


class Wire:
    """Turns what members say into packets."""

    def __init__(self, *, network_id: bytes, keys: list[bytes], meter: Meter, transport: TransportCost) -> None:
        self._network_id = network_id
        self._meter = meter
        self._transport = transport
        links = {key: frozenset(keys) for key in keys}
        self._router = Router(
            me=OBSERVER,
            network_id=network_id,
            links=lambda: links,
            send=lambda _key, _lane, _data: False,
            charge=lambda _key, _error: None,
        )

    def vote(self, vote: Vote, now_ms: float) -> Packet:
        def make() -> tuple[Envelop, bytes]:
            return vote_envelop(vote, self._network_id), vote_attachment(vote)

        return self._packet(make, lambda envelop, attachment: Received(message=parse_vote(envelop, attachment)), now_ms)

    def grad(self, author: Identity, round_: int, digest: bytes, now_ms: float) -> Packet:
        make = self._sealed(author, Kind.GRAD, round_, None, (digest, len(digest)))
        content = Grad(round=round_, author=author.key, digest=digest)
        return self._packet(make, lambda _envelop, _attachment: content, now_ms)

    def request(self, asker: Identity, target: bytes, height: int, block_id: bytes | None, now_ms: float) -> Packet:
        kind, body = (Kind.GET_DECISIONS, (1,)) if block_id is None else (Kind.GET_BLOCK, (block_id,))
        content = Request(asker=asker.key, height=height, block_id=block_id)
        make = self._sealed(asker, kind, height, target, cast(Value, body))
        return self._packet(make, lambda _envelop, _attachment: content, now_ms)

    def block(self, donor: Identity, asker: bytes, name: bytes, block: Block, now_ms: float) -> Packet:
        make = self._sealed(donor, Kind.BLOCK, block.height, asker, (name,), lambda: encode_block(block))
        return self._packet(make, lambda _envelop, attachment: BlockReceived(block=decode_block(attachment)), now_ms)

    def decision(self, donor: Identity, asker: bytes, decided: Decide, now_ms: float) -> Packet:
        block, certificate = encode_block(decided.block), encode_commit_certificate(decided.certificate)
        attachment = pack(cast(Packable, ((block, certificate),)))
        make = self._sealed(donor, Kind.DECISIONS, decided.block.height, asker, (1,), lambda: attachment)

        def read(_envelop: Envelop, _attachment: bytes) -> Input:
            return DecisionReceived(block=decode_block(block), certificate=decode_commit_certificate(certificate))

        return self._packet(make, read, now_ms)

    def _sealed(
        self,
        sender: Identity,
        kind: Kind,
        height: int,
        route: bytes | None,
        body: Value,
        attachment: Callable[[], bytes] = bytes,
    ) -> Callable[[], tuple[Envelop, bytes]]:
        def make() -> tuple[Envelop, bytes]:
            envelop = Envelop(
                network_id=self._network_id, kind=kind, sender=sender.key, height=height, route=route, body=body
            )
            return signing.seal(sender, envelop), attachment()

        return make

    def _packet(
        self,
        make: Callable[[], tuple[Envelop, bytes]],
        read: Callable[[Envelop, bytes], Content],
        now_ms: float,
    ) -> Packet:
        def encoded() -> tuple[Envelop, bytes, bytes]:
            envelop, attachment = make()
            return envelop, attachment, encode(envelop, attachment)

        (envelop, attachment, data), encode_ms, _ = self._meter.time("encode", encoded)
        name = envelop.kind.name

        def received() -> Content:
            self._router.receive(envelop.sender, data, now_ms / 1000)
            assert envelop.identity, "the driver notes it as verified"
            return read(envelop, attachment)

        before = self._router.counts["verified"]
        content, receive_ms, _ = self._meter.time(f"receive {name}", received)
        transport_ms = self._transport.of(len(data))
        return Packet(
            content=content,
            envelop=envelop,
            size_bytes=len(data) + HEADER_BYTES,
            encode_ms=encode_ms,
            send_ms=transport_ms,
            receive_ms=receive_ms + transport_ms,
            repeated=self._router.counts["verified"] == before,
        )

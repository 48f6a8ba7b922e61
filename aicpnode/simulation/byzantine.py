"""Members that misbehave on real sockets: a layer between an otherwise honest node and its network.

``demo --byzantine`` starts such nodes in earnest: they hold a key, they are members, and what they send is properly
signed. The honest part of the node does not know what leaves in its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, cast

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, Packable, content_id
from aicpnode.envelop.kinds import VOTE_KINDS, parse_vote, vote_attachment, vote_envelop
from aicpnode.genesis import Genesis
from aicpnode.gradients.participant import run_format
from aicpnode.gradients.proposal import Header, body_root, build_package, proposal_digest
from aicpnode.identity import Identity
from aicpnode.network.bodies import Bodies, BodySource, Namespace, Provider, Verify
from aicpnode.network.peers import PeerInfo
from consensus.messages import Ballot, Block, Commit, Prepare, SetMessage, Vote, block_id
from consensus.types import HASH_BYTES, NIL, NO_VIEW

GARBAGE_KEPT_ROUNDS = 4
GARBAGE_TOKENS = 1


class Misbehaviour(Enum):
    GARBAGE = "garbage"
    """Its proposals have an honest header over random bytes."""
    SILENT = "silent"
    """It is connected and listens, and says nothing."""
    EQUIVOCATE = "equivocate"
    """It tells half of its peers something else in the same slot: votes, blocks, and commitments to proposals."""


class Network(Protocol):
    """What a node's consensus and gradients use of the mesh."""

    @property
    def bodies(self) -> Bodies: ...

    def send(self, peer: bytes, envelop: Envelop, attachment: bytes = b"") -> bool: ...

    def broadcast(self, envelop: Envelop, attachment: bytes = b"") -> int: ...

    def subscribe(self, kinds: Iterable[Kind], handler: Callable[[Envelop, bytes, bytes], None]) -> None: ...

    def on_connect(self, callback: Callable[[PeerInfo], None]) -> None: ...

    def peers(self) -> list[PeerInfo]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Disguise:
    """Whose name is misused: its key, the run, and the hash of the model that it holds just now."""

    identity: Identity
    genesis: Genesis
    base_hash: Callable[[], bytes]


class MisbehavingNetwork:
    """The mesh as a misbehaving member uses it."""

    def __init__(self, network: Network, kind: Misbehaviour, disguise: Disguise, *, seed: int = 0) -> None:
        self._network = network
        self._kind = kind
        self._disguise = disguise
        self._random = random.Random(seed)
        self._garbage: dict[bytes, bytes] = {}
        self._swapped: dict[int, Envelop] = {}
        self.bodies = _MisbehavingBodies(network.bodies, kind, self._garbage)

    def send(self, peer: bytes, envelop: Envelop, attachment: bytes = b"") -> bool:
        if self._kind is Misbehaviour.SILENT and envelop.kind in (*VOTE_KINDS, Kind.GRAD, Kind.OPERATION):
            return False
        return self._network.send(peer, envelop, attachment)

    def broadcast(self, envelop: Envelop, attachment: bytes = b"") -> int:
        match self._kind:
            case Misbehaviour.SILENT:
                return 0
            case Misbehaviour.GARBAGE if envelop.kind is Kind.GRAD:
                return self._network.broadcast(self._garbage_grad(envelop))
            case Misbehaviour.EQUIVOCATE if envelop.kind in (*VOTE_KINDS, Kind.GRAD):
                return self._broadcast_two(envelop, attachment)
        return self._network.broadcast(envelop, attachment)

    def subscribe(self, kinds: Iterable[Kind], handler: Callable[[Envelop, bytes, bytes], None]) -> None:
        self._network.subscribe(kinds, handler)

    def on_connect(self, callback: Callable[[PeerInfo], None]) -> None:
        self._network.on_connect(callback)

    # ---- garbage

    def _garbage_grad(self, honest: Envelop) -> Envelop:
        """A commitment to random bytes in place of an honest proposal; the same one each time it is repeated."""
        if honest.height not in self._swapped:
            package = self._garbage_package(honest.height)
            digest = proposal_digest(package[4 : 4 + int.from_bytes(package[:4], "little")])
            self._garbage[digest] = package
            while len(self._garbage) > GARBAGE_KEPT_ROUNDS:
                del self._garbage[next(iter(self._garbage))]
            unsigned = replace(honest, body=(digest, len(package)), signature=b"")
            self._swapped = {honest.height: signing.seal(self._disguise.identity, unsigned)}
        return self._swapped[honest.height]

    def _garbage_package(self, round_number: int) -> bytes:
        run = run_format(self._disguise.genesis)
        layout = run.parameters.layout
        body = self._random.randbytes(run.chunks * layout.record_bytes)
        header = Header(
            network_id=run.network_id,
            round=round_number,
            base_hash=self._disguise.base_hash(),
            author=self._disguise.identity.key,
            k=run.parameters.k,
            bits=run.parameters.bits,
            chunks=run.chunks,
            offsets_hash=self._random.randbytes(HASH_BYTES),
            body_root=body_root(body, layout),
            tokens=GARBAGE_TOKENS,
        )
        return build_package(header.encode(), body)

    # ---- equivocation

    def _broadcast_two(self, envelop: Envelop, attachment: bytes) -> int:
        other, other_attachment = self._other_content(envelop, attachment)
        sent = 0
        for position, peer in enumerate(sorted(info.key for info in self._network.peers())):
            said = (other, other_attachment) if position % 2 else (envelop, attachment)
            sent += self._network.send(peer, *said)
        return sent

    def _other_content(self, envelop: Envelop, attachment: bytes) -> tuple[Envelop, bytes]:
        """Another content in the same slot, signed by the same key."""
        identity = self._disguise.identity
        if envelop.kind is Kind.GRAD:
            unsigned = replace(envelop, body=(self._stable_id(envelop), 1000), signature=b"")
            return signing.seal(identity, unsigned), b""
        vote = other_vote(parse_vote(envelop, attachment), self._stable_id(envelop))
        unsigned = replace(vote_envelop(vote, envelop.network_id), signature=b"")
        return signing.seal(identity, unsigned), vote_attachment(vote)

    def _stable_id(self, envelop: Envelop) -> bytes:
        """32 bytes that stay the same when the same message is repeated."""
        return random.Random(envelop.identity).randbytes(HASH_BYTES)


def other_vote(vote: Vote, some_id: bytes) -> Vote:
    """What an equivocator says instead of ``vote``, unsigned."""
    if isinstance(vote, Prepare):
        return replace(vote, block_id=some_id if vote.block_id == NIL else NIL, valid_view=NO_VIEW)
    if isinstance(vote, Commit):
        return replace(vote, block_id=some_id if vote.block_id == NIL else NIL)
    if isinstance(vote, Ballot):
        entries = tuple(replace(entry, accepted=False) for entry in vote.entries)
        return replace(vote, ready=not vote.ready, entries=entries)
    assert isinstance(vote, SetMessage)
    if vote.block is None:
        return replace(vote, block_id=some_id)
    header = replace(vote.block.header, next_roster_hash=some_id)
    return replace(vote, block=Block(header=header, body=vote.block.body), block_id=block_id(_Hasher(), header))


class _Hasher:
    """``content_id`` alone, for naming a block."""

    def content_id(self, domain: str, content: object) -> bytes:
        return content_id(domain, cast(Packable, content))


class _MisbehavingBodies:
    """Serves garbage for garbage; a silent member serves nothing."""

    def __init__(self, bodies: Bodies, kind: Misbehaviour, garbage: dict[bytes, bytes]) -> None:
        self._bodies = bodies
        self._kind = kind
        self._garbage = garbage

    def register(self, namespace: int, provider: Provider) -> None:
        def provide(digest: bytes) -> BodySource | None:
            if self._kind is Misbehaviour.SILENT:
                return None
            if namespace == Namespace.GRADIENT and digest in self._garbage:
                return BodySource.of(self._garbage[digest])
            return provider(digest)

        self._bodies.register(namespace, provide)

    def announce(self, namespace: int, digest: bytes, size: int) -> None:
        if self._kind is not Misbehaviour.SILENT:
            self._bodies.announce(namespace, digest, size)

    async def fetch(
        self, namespace: int, digest: bytes, *, max_size: int, verify: Verify, prefer: Iterable[bytes] = ()
    ) -> bytes:
        return await self._bodies.fetch(namespace, digest, max_size=max_size, verify=verify, prefer=tuple(prefer))

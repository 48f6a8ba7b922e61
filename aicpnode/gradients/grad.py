"""The GRAD message: an author commits to one proposal of a round by its digest and size.

Its Envelop has the round as height, seq 0, route everyone, and the body ``(digest, size)`` (consensus specification,
section 2). The proposal itself travels later, as a body of the GRADIENT namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aicpnode.envelop.codec import EVERYONE, HASH_BYTES, Envelop, Kind
from aicpnode.envelop.signing import seal
from aicpnode.errors import MalformedError
from aicpnode.identity import Identity
from aicpnode.network.bodies import BodyExchange

PACKAGE_BYTES_MAX = 1 << 40
"""No size in a GRAD is larger; what fits the run's format is judged later."""


class GradientMesh(Protocol):
    """What is needed of ``network.mesh.Mesh``."""

    @property
    def bodies(self) -> BodyExchange: ...

    def broadcast(self, envelop: Envelop, attachment: bytes = b"") -> int: ...

    def subscribe(self, kinds: Iterable[Kind], handler: Callable[[Envelop, bytes, bytes], None]) -> None: ...


def sealed_grad(identity: Identity, *, network_id: bytes, round: int, digest: bytes, size: int) -> Envelop:
    """The own GRAD of a round, signed."""
    envelop = Envelop(
        network_id=network_id,
        kind=Kind.GRAD,
        sender=identity.key,
        height=round,
        route=EVERYONE,
        body=(digest, size),
    )
    return seal(identity, envelop)


def read_grad(envelop: Envelop) -> tuple[bytes, int]:
    """(digest, size in bytes) of a GRAD. MalformedError if its body is anything else."""
    match envelop.body:
        case (bytes(digest), int(size)) if len(digest) == HASH_BYTES and type(size) is int:
            if 0 < size <= PACKAGE_BYTES_MAX:
                return digest, size
    raise MalformedError("a GRAD's body is the digest and the size of a proposal")

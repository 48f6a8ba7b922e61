"""Signatures for simulations: a keyed hash that only the holder of a simulated secret can make, at a tenth of the cost.

Byzantine members hold their own secrets only, so they can lie but not forge. The slot rule is the production one: an
honest key signs one content per slot, and breaking it is an AssertionError.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import replace

from aicpnode.envelop.codec import content_id
from consensus.evidence import Grad
from consensus.messages import Ballot, Commit, Invitation, Operation, Prepare, SetMessage, Vote, VoteT

SIGNATURES_CACHED = 1 << 14
Signed = Ballot | SetMessage | Prepare | Commit | Grad | Operation | Invitation


def simulated_key(index: int) -> bytes:
    return hashlib.sha256(b"simulated key %d" % index).digest()


@functools.lru_cache(maxsize=SIGNATURES_CACHED)
def signature_of(message: Signed, network_id: bytes) -> bytes:
    """64 bytes that stand for the signer's signature over network, kind, height and fields."""
    match message:
        case Operation():
            kind, height = 7, message.sequence
        case Invitation():
            kind, height = 14, 0
        case _:
            kind, height = int(message.kind), message.height
    content = (network_id, kind, message.signer, height, message.fields())
    return hashlib.sha512(b"signed" + repr(content).encode()).digest()


class SimulatedCrypto:
    """One member's crypto. Its slots are those of this run and, after ``restart``, of the disk: as in production."""

    def __init__(self, key: bytes, network_id: bytes, *, honest: bool = True) -> None:
        self.key = key
        self.network_id = network_id
        self.honest = honest
        self.slots: dict[tuple[int, int, int], Vote] = {}

    def restart(self, votes: Iterable[Vote]) -> None:
        """What was signed but never became durable is forgotten; it never left either."""
        self.slots = {(int(vote.kind), vote.height, vote.view): vote for vote in votes}

    def sign(self, message: VoteT) -> VoteT:
        assert message.signer == self.key, "a member signs for itself"
        signed = replace(message, signature=signature_of(message, self.network_id))
        slot = (int(message.kind), message.height, message.view)
        stored = self.slots.get(slot)
        assert not self.honest or stored is None or stored == signed, f"two contents in slot {slot}"
        self.slots[slot] = signed
        return signed

    def sign_operation(self, operation: Operation) -> Operation:
        return replace(operation, signature=signature_of(operation, self.network_id))

    def verify(self, message: Signed) -> bool:
        return message.signature == signature_of(message, self.network_id)

    def content_id(self, domain: str, content: object) -> bytes:
        return content_id(domain, content)  # type: ignore[arg-type]

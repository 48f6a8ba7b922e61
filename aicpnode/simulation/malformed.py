"""Bytes that were changed on the way, read as the network reads them (invariant 12).

A message is encoded as it travels, a few bytes are changed, and the production's decoders read it again: they either
refuse it with MalformedError or return a message. Any other exception is a violation. What is returned arrives only if
its signature still holds, as it does when only an attachment was hit.
"""

from __future__ import annotations

import random

from aicpnode.envelop import codec, kinds
from aicpnode.errors import MalformedError
from aicpnode.simulation.crypto import signature_of
from aicpnode.simulation.member import Violation
from consensus.messages import Block, CommitCert, Operation, Vote

CHANGES_MAX = 4
INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0x90, 0x9F, 0xC0, 0xC2, 0xC4, 0xCF, 0xD3, 0xDC, 0xFF)
"""Bytes that mean something in msgpack."""


def garbled(message: Vote | Operation, network_id: bytes, rng: random.Random) -> Vote | Operation | None:
    """What arrives of ``message`` when its bytes are changed; None if nothing does."""
    if isinstance(message, Operation):
        envelop, attachment = kinds.operation_envelop(message, network_id), b""
    else:
        envelop, attachment = kinds.vote_envelop(message, network_id), kinds.vote_attachment(message)
    if attachment and rng.random() < 0.7:
        data = codec.encode(envelop, changed(attachment, rng))
    else:
        data = changed(codec.encode(envelop, attachment), rng)
    arrived = _read(data)
    if arrived is None or arrived.signature != signature_of(arrived, network_id):
        return None
    return arrived


def _read(data: bytes) -> Vote | Operation | None:
    try:
        envelop, attachment = codec.decode(data)
        if envelop.kind is codec.Kind.OPERATION:
            return kinds.parse_operation(envelop, attachment)
        return kinds.parse_vote(envelop, attachment)
    except MalformedError:
        return None
    except Exception as error:
        raise Violation(f"invariant 12: {type(error).__name__} on {data.hex()}: {error}") from error


def garbled_decision(block: Block, certificate: CommitCert, rng: random.Random) -> tuple[Block, CommitCert] | None:
    """The same for what somebody gets who catches up."""
    first, second = kinds.encode_block(block), kinds.encode_commit_certificate(certificate)
    if rng.random() < 0.5:
        first = changed(first, rng)
    else:
        second = changed(second, rng)
    try:
        return kinds.decode_block(first), kinds.decode_commit_certificate(second)
    except MalformedError:
        return None
    except Exception as error:
        raise Violation(f"invariant 12: {type(error).__name__} on {first.hex()}, {second.hex()}: {error}") from error


def changed(data: bytes, rng: random.Random) -> bytes:
    """A few bytes replaced, flipped, left out, doubled or cut off."""
    mutable = bytearray(data)
    for _ in range(rng.randint(1, CHANGES_MAX)):
        at = rng.randrange(len(mutable)) if mutable else 0
        match rng.randrange(6) if mutable else 4:
            case 0:
                mutable[at] ^= 1 << rng.randrange(8)
            case 1:
                mutable[at] = rng.choice(INTERESTING)
            case 2:
                del mutable[at : at + rng.randint(1, 8)]
            case 3:
                mutable[at:at] = mutable[at : at + rng.randint(1, 40)]
            case 4:
                mutable[at:at] = rng.randbytes(rng.randint(1, 4))
            case _:
                del mutable[at:]
    return bytes(mutable)


__all__ = ["changed", "garbled", "garbled_decision"]

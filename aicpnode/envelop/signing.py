"""One signature per message: Ed25519 over the domain tag and the exact bytes of the signed part.

Nothing is encoded again to verify, so what was signed and what is hashed are the bytes that travelled.
"""

from __future__ import annotations

from dataclasses import replace

from aicpnode.envelop.codec import Envelop
from aicpnode.identity import Identity
from aicpnode.identity import verify as verify_signature

DOMAIN = b"aicp/envelop/1"


def signing_bytes(signed_part: bytes) -> bytes:
    """What the signature covers: the domain tag, then the signed part (an array, so the two cannot run together)."""
    return DOMAIN + signed_part


def seal(identity: Identity, envelop: Envelop) -> Envelop:
    """``envelop`` with the signature of ``identity``, which must be its sender."""
    assert envelop.sender == identity.key, "an Envelop is signed by its sender"
    signature = identity.sign(signing_bytes(envelop.signed_part()))
    return replace(envelop, signature=signature)


def verify(envelop: Envelop) -> bool:
    """True iff the signature is the sender's over exactly these bytes. Never raises; about 55 us."""
    return verify_signature(envelop.sender, signing_bytes(envelop.signed_part()), envelop.signature)

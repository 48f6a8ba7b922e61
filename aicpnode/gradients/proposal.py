"""What a node offers to a round: a header that commits to a body of chunk records.

Theory (gradients specification, sections 1 and 2). The sender adds its decayed residual to the pseudo-gradient,
encodes the sum, and keeps what the encoding lost as the next residual (error feedback). The header names the run, the
round, the base model, the author, the format and the Merkle root of the body; its digest is what GRAD commits to, so
header and body can be revealed later. The two travel and are stored together as one package.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from aicpnode.envelop.codec import HASH_BYTES, KEY_BYTES, pack, unpack
from aicpnode.envelop.merkle import merkle_root
from aicpnode.errors import AicpError, MalformedError
from aicpnode.gradients.state import RoundParameters
from kernels import dispatch
from kernels.codec import CHUNK, Float32Array, RecordLayout

HEADER_VERSION = 1
HEADER_FIELDS = 11
HEADER_BYTES_MAX = 512
DIGEST_DOMAIN = b"aicp-grad-1"
RECORDS_A_LEAF = 64
RESIDUAL_DECAY = np.float32(0.95)
TOKENS_MAX = (1 << 40) - 1
PACKAGE_PREFIX_BYTES = 4


class NonFiniteDelta(AicpError):
    """The pseudo-gradient holds a NaN or an infinity: nothing is proposed and the residual stays as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a proposal says about itself. Hashes and keys are 32 bytes; ``tokens`` is informative only."""

    network_id: bytes
    round: int
    base_hash: bytes
    author: bytes
    k: int
    bits: int
    chunks: int
    offsets_hash: bytes
    body_root: bytes
    tokens: int
    version: int = HEADER_VERSION

    def encode(self) -> bytes:
        """Canonical msgpack array, in the order of the specification."""
        return pack(
            (
                self.version,
                self.network_id,
                self.round,
                self.base_hash,
                self.author,
                self.k,
                self.bits,
                self.chunks,
                self.offsets_hash,
                self.body_root,
                self.tokens,
            )
        )


def decode_header(data: bytes) -> Header:
    """A header from its canonical bytes. MalformedError on wrong types or ranges; the values are not judged here."""
    fields = unpack(data, max_bytes=HEADER_BYTES_MAX)
    if not isinstance(fields, tuple) or len(fields) != HEADER_FIELDS:
        raise MalformedError(f"a proposal header has {HEADER_FIELDS} fields")
    version, network_id, round, base_hash, author, k, bits, chunks, offsets_hash, body_root, tokens = fields
    return Header(
        version=_unsigned(version),
        network_id=_bytes(network_id, HASH_BYTES),
        round=_unsigned(round),
        base_hash=_bytes(base_hash, HASH_BYTES),
        author=_bytes(author, KEY_BYTES),
        k=_unsigned(k),
        bits=_unsigned(bits),
        chunks=_unsigned(chunks),
        offsets_hash=_bytes(offsets_hash, HASH_BYTES),
        body_root=_bytes(body_root, HASH_BYTES),
        tokens=_unsigned(tokens),
    )


def _unsigned(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedError("a number of a proposal header is not an unsigned integer")
    return value


def _bytes(value: object, length: int) -> bytes:
    if not isinstance(value, bytes) or len(value) != length:
        raise MalformedError(f"a hash or key of a proposal header does not have {length} bytes")
    return value


def proposal_digest(header: bytes) -> bytes:
    """What GRAD commits to: SHA-256 of the domain and the header's bytes."""
    return hashlib.sha256(DIGEST_DOMAIN + header).digest()


def body_root(body: bytes | memoryview, layout: RecordLayout) -> bytes:
    """Merkle root of a body; a leaf holds RECORDS_A_LEAF records."""
    return merkle_root(body, RECORDS_A_LEAF * layout.record_bytes)


def package_bytes_max(chunks: int, layout: RecordLayout) -> int:
    """The largest package of a proposal in this format."""
    return PACKAGE_PREFIX_BYTES + HEADER_BYTES_MAX + chunks * layout.record_bytes


def package_bytes_min(chunks: int, layout: RecordLayout) -> int:
    """The smallest package of a proposal in this format: a header is never empty."""
    return PACKAGE_PREFIX_BYTES + 1 + chunks * layout.record_bytes


def build_package(header: bytes, body: bytes | memoryview) -> bytes:
    """Header length (u32, little-endian), header, body."""
    assert 0 < len(header) <= HEADER_BYTES_MAX
    return b"".join((len(header).to_bytes(PACKAGE_PREFIX_BYTES, "little"), header, body))


def split_package(package: bytes | memoryview) -> tuple[Header, bytes, memoryview]:
    """(header, the header's bytes, body) of a package. MalformedError if it has no proper header."""
    view = memoryview(package)
    length = int.from_bytes(view[:PACKAGE_PREFIX_BYTES], "little")
    start = PACKAGE_PREFIX_BYTES + length
    if len(view) < PACKAGE_PREFIX_BYTES or not 0 < length <= HEADER_BYTES_MAX or start > len(view):
        raise MalformedError("a proposal package begins with the length of its header")
    raw = bytes(view[PACKAGE_PREFIX_BYTES:start])
    return decode_header(raw), raw, view[start:]


def is_package_of(package: bytes | memoryview, digest: bytes, layout: RecordLayout) -> bool:
    """True iff this is the package that ``digest`` commits to. It may still be a bad proposal. Never raises."""
    try:
        header, raw, body = split_package(package)
    except MalformedError:
        return False
    return proposal_digest(raw) == digest and body_root(body, layout) == header.body_root


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedProposal:
    """A proposal ready to be stored and sent. ``residual``: float32[chunks * CHUNK], for the author's next round."""

    header: Header
    package: bytes
    digest: bytes
    residual: Float32Array


def encode_proposal(
    delta: Float32Array,
    residual: Float32Array,
    *,
    parameters: RoundParameters,
    network_id: bytes,
    round: int,
    base_hash: bytes,
    author: bytes,
    offsets_hash: bytes,
    tokens: int,
) -> EncodedProposal:
    """Encode ``0.95 * residual + delta``, both float32[chunks * CHUNK]; neither is changed.

    Raises NonFiniteDelta if the sum holds a NaN or an infinity.
    """
    assert delta.shape == residual.shape
    with np.errstate(over="ignore", invalid="ignore"):
        e = residual * RESIDUAL_DECAY
        e += delta
    if not np.isfinite(e).all():
        raise NonFiniteDelta("the pseudo-gradient holds a NaN or an infinity.")
    kernels = dispatch.pick(e.size)
    body = kernels.encode(e, k=parameters.k, bits=parameters.bits).tobytes()
    header = Header(
        network_id=network_id,
        round=round,
        base_hash=base_hash,
        author=author,
        k=parameters.k,
        bits=parameters.bits,
        chunks=e.size // CHUNK,
        offsets_hash=offsets_hash,
        body_root=body_root(body, parameters.layout),
        tokens=min(tokens, TOKENS_MAX),
    )
    raw = header.encode()
    return EncodedProposal(header=header, package=build_package(raw, body), digest=proposal_digest(raw), residual=e)

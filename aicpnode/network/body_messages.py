"""The four messages by which bodies are announced and pulled, as bytes. Integers are little-endian."""

from __future__ import annotations

from aicpnode.envelop.codec import HASH_BYTES
from aicpnode.errors import MalformedError
from aicpnode.network.transfer import CHUNK_BYTES


def encode_have(namespace: int, digest: bytes, size: int) -> bytes:
    """namespace u8, digest 32 bytes, size u64 LE."""
    return bytes((namespace,)) + digest + size.to_bytes(8, "little")


def decode_have(payload: bytes) -> tuple[int, bytes, int]:
    if len(payload) != 1 + HASH_BYTES + 8:
        raise MalformedError("a HAVE of the wrong length")
    return payload[0], payload[1:33], int.from_bytes(payload[33:], "little")


def encode_want(request: int, namespace: int, digest: bytes, offset: int, length: int) -> bytes:
    """request u32, namespace u8, digest 32 bytes, offset u64, length u32; LE."""
    return b"".join(
        (
            request.to_bytes(4, "little"),
            bytes((namespace,)),
            digest,
            offset.to_bytes(8, "little"),
            length.to_bytes(4, "little"),
        )
    )


def decode_want(payload: bytes) -> tuple[int, int, bytes, int, int]:
    if len(payload) != 4 + 1 + HASH_BYTES + 8 + 4:
        raise MalformedError("a WANT of the wrong length")
    length = int.from_bytes(payload[45:], "little")
    if length > CHUNK_BYTES:
        raise MalformedError(f"a WANT for {length} bytes; a chunk has at most {CHUNK_BYTES}")
    return (
        int.from_bytes(payload[:4], "little"),
        payload[4],
        payload[5:37],
        int.from_bytes(payload[37:45], "little"),
        length,
    )


def encode_chunk(request: int, total: int, data: bytes) -> bytes:
    """request u32, size of the whole body u64; LE; then the bytes."""
    return request.to_bytes(4, "little") + total.to_bytes(8, "little") + data


def decode_chunk(payload: bytes) -> tuple[int, int, bytes]:
    if not 12 <= len(payload) <= 12 + CHUNK_BYTES:
        raise MalformedError("a CHUNK of the wrong length")
    return int.from_bytes(payload[:4], "little"), int.from_bytes(payload[4:12], "little"), payload[12:]


def encode_not_found(request: int) -> bytes:
    """request u32 LE."""
    return request.to_bytes(4, "little")


def decode_not_found(payload: bytes) -> int:
    if len(payload) != 4:
        raise MalformedError("a NOT_FOUND of the wrong length")
    return int.from_bytes(payload, "little")

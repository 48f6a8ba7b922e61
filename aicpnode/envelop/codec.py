"""Values as canonical msgpack, and the Envelop that carries them.

One value has one encoding: integers, lengths and strings in their shortest form, no maps, no floats, no extensions.
``unpack`` therefore accepts exactly the bytes that ``pack`` would produce, which is checked by producing them again;
so a hash over bytes is a hash over meaning, and no peer can make two byte strings of one message. Before anything is
allocated, the structure is walked once without building it, so that memory stays linear in the bytes received.

The Envelop (network specification, section 1) has a signed part, an array of
``[version, network_id, kind, sender, seq, height, route, body]``, or ``[..., route, body_digest, body_size]`` where the
body travels apart. On the wire and on disk it is ``[signed part, signature, attachment]``, three byte strings; the
attachment is unsigned, bound by ids inside the signed part, and no part of the identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any, TypeAlias, cast

import msgpack  # type: ignore[import-untyped]

from aicpnode.errors import MalformedError

VERSION = 1
HASH_BYTES = 32
KEY_BYTES = 32
SIGNATURE_BYTES = 64
INT_MIN = -(1 << 63)
INT_MAX = (1 << 64) - 1
COUNTER_MAX = (1 << 63) - 1
"""Largest seq, height and body size: what SQLite and signed 64-bit languages can hold."""

MAX_DEPTH = 16
"""Arrays within arrays; the deepest honest message has 7."""
MAX_VALUE_BYTES = 1 << 20
MAX_WIRE_BYTES = 1 << 20
MAX_INLINE_BODY_BYTES = 32 << 10
"""A larger body travels apart and is named by its digest."""
MAX_SIGNED_PART_BYTES = MAX_INLINE_BODY_BYTES + (1 << 10)
MAX_ROUTE_ITEMS = 64
MAX_ROUTE_NAME_BYTES = 32

Value: TypeAlias = "bool | int | bytes | str | tuple[Value, ...] | None"
"""What ``unpack`` returns: immutable and hashable."""
Packable: TypeAlias = "bool | int | bytes | str | Sequence[Packable] | None"
"""What ``pack`` takes; sequences are tuples or lists."""
Route: TypeAlias = "bytes | tuple[Value, ...] | None"
"""None is everyone, 32 bytes are one node's key, a tuple ``(name, ...)`` is a schedule."""
EVERYONE: None = None


def pack(value: Packable) -> bytes:
    """The canonical encoding of ``value``. TypeError or ValueError if it has none: our own fault, never a peer's."""
    _check_value(value)
    try:
        return cast(bytes, msgpack.packb(value, use_bin_type=True))
    except OverflowError as error:
        raise ValueError("integer beyond 64 bits") from error


def unpack(data: bytes, *, max_bytes: int = MAX_VALUE_BYTES) -> Value:
    """The value whose canonical encoding is ``data``; arrays come back as tuples. MalformedError on all other bytes.

    ``max_bytes`` is compared before anything is parsed. Time and memory are linear in the length of ``data``.
    """
    length = len(data)
    if length > max_bytes:
        raise MalformedError(f"{length} bytes where at most {max_bytes} are allowed")
    if length == 0:
        raise MalformedError("no bytes where a value was expected")
    try:
        # Announced array lengths are believed only once their items were seen: skip() builds nothing.
        scanner = msgpack.Unpacker(None, max_buffer_size=length)
        scanner.feed(data)
        scanner.skip()
        if scanner.tell() != length:
            raise MalformedError("bytes after the end of the value")
        value = msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=True, max_map_len=0, max_ext_len=0)
        _check_value(value)
        canonical = msgpack.packb(value, use_bin_type=True)
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError) as error:
        raise MalformedError(f"not a value: {str(error) or type(error).__name__}") from error
    if canonical != data:
        raise MalformedError("not the canonical encoding of its value")
    return cast(Value, value)


def _check_value(value: object) -> None:
    """Only the types that have one canonical encoding, and not too deep. TypeError or ValueError otherwise.

    Level by level, because a call for each value would cost several times the encoding.
    """
    level: list[Any] = [(value,)]
    for _depth in range(MAX_DEPTH + 1):
        kinds = set(map(type, chain.from_iterable(level))) - _LEAF_TYPES
        # Exactly these arrays: msgpack's extension type is a subclass of tuple. An IntEnum stands for its number.
        for kind in kinds - _ARRAY_TYPES:
            if not issubclass(kind, int):
                raise TypeError(f"{kind.__name__} has no canonical encoding")
        if not kinds & _ARRAY_TYPES:
            return
        level = [item for item in chain.from_iterable(level) if type(item) in _ARRAY_TYPES]
    raise ValueError(f"arrays nested deeper than {MAX_DEPTH}")


_LEAF_TYPES = frozenset({bytes, str, bool, int, type(None)})
_ARRAY_TYPES = frozenset({tuple, list})


def digest(data: bytes | memoryview) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()


def content_id(domain: str, value: Packable) -> bytes:
    """The name of a value: SHA-256(domain in UTF-8 | 0x00 | canonical encoding), 32 bytes.

    The domain keeps a name made for one purpose from standing for another.
    """
    return hashlib.sha256(domain.encode() + b"\x00" + pack(value)).digest()


class Kind(IntEnum):
    """What an Envelop says. The first six are consensus messages; their numbers stand inside what is signed."""

    GRAD = 1
    VERDICT = 2
    BALLOT = 3
    SET = 4
    PREPARE = 5
    COMMIT = 6
    OPERATION = 7
    HEAD = 8
    GET_DECISIONS = 9
    DECISIONS = 10
    GET_BLOCK = 11
    BLOCK = 12
    CHECKPOINT = 13
    INVITATION = 14
    GET_HEADERS = 15
    HEADERS = 16
    GET_SNAPSHOT = 17
    SNAPSHOT = 18


CONSENSUS_KINDS = frozenset({Kind.GRAD, Kind.VERDICT, Kind.BALLOT, Kind.SET, Kind.PREPARE, Kind.COMMIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelop:
    """One message. Either ``body`` is given, or ``body_digest`` (SHA-256) and ``body_size`` (bytes) of a body apart.

    Constructing one with impossible fields raises ValueError; ``decode`` turns that into the peer's MalformedError.
    """

    network_id: bytes
    kind: Kind
    sender: bytes
    seq: int = 0
    height: int = 0
    route: Route = EVERYONE
    body: Value = None
    body_digest: bytes | None = None
    body_size: int | None = None
    signature: bytes = b""
    _signed_part: bytes = field(init=False, default=b"", repr=False, compare=False)
    _identity: bytes = field(init=False, default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_fields(self)

    def signed_part(self) -> bytes:
        """The exact bytes that the signature covers: those received, or else the canonical encoding (made once)."""
        if not self._signed_part:
            head = (VERSION, self.network_id, int(self.kind), self.sender, self.seq, self.height, self.route)
            tail = (self.body,) if self.body_digest is None else (self.body_digest, self.body_size)
            encoded = pack(head + tail)
            if len(encoded) > MAX_SIGNED_PART_BYTES:
                raise ValueError(f"a body above {MAX_INLINE_BODY_BYTES} bytes travels apart, not inside an Envelop")
            object.__setattr__(self, "_signed_part", encoded)
        return self._signed_part

    @property
    def identity(self) -> bytes:
        """SHA-256 of the signed part: (sender, content), never the signature's bytes."""
        if not self._identity:
            object.__setattr__(self, "_identity", digest(self.signed_part()))
        return self._identity


def from_signed_part(signed_part: bytes, signature: bytes) -> Envelop:
    """The Envelop with these exact signed bytes. MalformedError if they are not canonical or not allowed.

    The signature is carried, not verified: see ``signing.verify``.
    """
    value = unpack(signed_part, max_bytes=MAX_SIGNED_PART_BYTES)
    if not isinstance(value, tuple) or len(value) not in (8, 9):
        raise MalformedError("an Envelop's signed part is an array of 8 or 9 fields")
    version, network_id, kind, sender, seq, height, route = value[:7]
    if type(version) is not int or version != VERSION:
        raise MalformedError(f"unknown Envelop version {version!r:.32}")
    if type(kind) is not int or kind not in _KINDS:
        raise MalformedError(f"unknown Envelop kind {kind!r:.32}")
    if len(signature) != SIGNATURE_BYTES:
        raise MalformedError("a signature has 64 bytes")
    apart = len(value) == 9
    try:
        envelop = Envelop(
            network_id=cast(bytes, network_id),
            kind=_KINDS[kind],
            sender=cast(bytes, sender),
            seq=cast(int, seq),
            height=cast(int, height),
            route=cast(Route, route),
            body=None if apart else value[7],
            body_digest=cast("bytes | None", value[7]) if apart else None,
            body_size=cast("int | None", value[8]) if apart else None,
            signature=signature,
        )
    except ValueError as error:
        raise MalformedError(f"Envelop: {error}") from error
    object.__setattr__(envelop, "_signed_part", bytes(signed_part))
    return envelop


def encode(envelop: Envelop, attachment: bytes = b"") -> bytes:
    """The wire and disk form, ``[signed part, signature, attachment]``. ValueError above MAX_WIRE_BYTES."""
    data = b"".join(
        (b"\x93", _encode_bytes(envelop.signed_part()), _encode_bytes(envelop.signature), _encode_bytes(attachment))
    )
    if len(data) > MAX_WIRE_BYTES:
        raise ValueError(f"an Envelop of {len(data)} bytes; at most {MAX_WIRE_BYTES} may travel")
    return data


def decode(data: bytes, *, max_bytes: int = MAX_WIRE_BYTES) -> tuple[Envelop, bytes]:
    """The Envelop and its attachment from the wire form. MalformedError on anything that ``encode`` does not produce.

    The signature is carried, not verified: see ``signing.verify``.
    """
    if len(data) > max_bytes:
        raise MalformedError(f"an Envelop of {len(data)} bytes where at most {max_bytes} are allowed")
    if data[:1] != b"\x93":
        raise MalformedError("an Envelop is an array of three byte strings")
    signed_part, offset = _decode_bytes(data, 1, MAX_SIGNED_PART_BYTES)
    signature, offset = _decode_bytes(data, offset, SIGNATURE_BYTES)
    attachment, offset = _decode_bytes(data, offset, max_bytes)
    if offset != len(data):
        raise MalformedError("bytes after the end of an Envelop")
    return from_signed_part(signed_part, signature), attachment


_KINDS = {int(kind): kind for kind in Kind}


def _check_fields(envelop: Envelop) -> None:
    """ValueError for an Envelop that must not exist. Types are checked too: the values may come from a peer."""
    _require(_is_bytes(envelop.network_id, HASH_BYTES), "network_id has 32 bytes")
    _require(_is_bytes(envelop.sender, KEY_BYTES), "sender is a key of 32 bytes")
    _require(_is_counter(envelop.seq), "seq is an integer from 0 to 2^63-1")
    _require(_is_counter(envelop.height), "height is an integer from 0 to 2^63-1")
    _require(_is_route(envelop.route), "route is nil, a key, or (name, ...)")
    if envelop.body_digest is None:
        _require(envelop.body_size is None, "body_size without body_digest")
        _require(envelop.body is not None, "neither a body nor its digest")
    else:
        _require(envelop.body is None, "both a body and its digest")
        _require(_is_bytes(envelop.body_digest, HASH_BYTES), "body_digest has 32 bytes")
        _require(_is_counter(envelop.body_size), "body_size is an integer from 0 to 2^63-1")
    if envelop.kind in CONSENSUS_KINDS:
        _require(envelop.seq == 0 and envelop.route is EVERYONE, "a consensus message has seq 0 and goes to everyone")


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ValueError(fault)


def _is_bytes(value: object, length: int) -> bool:
    return isinstance(value, bytes) and len(value) == length


def _is_counter(value: object) -> bool:
    return type(value) is int and 0 <= value <= COUNTER_MAX


def _is_route(route: object) -> bool:
    if route is EVERYONE or _is_bytes(route, KEY_BYTES):
        return True
    if not isinstance(route, tuple) or not 1 <= len(route) <= MAX_ROUTE_ITEMS:
        return False
    name = route[0]
    return isinstance(name, str) and 1 <= len(name.encode()) <= MAX_ROUTE_NAME_BYTES


def _encode_bytes(data: bytes) -> bytes:
    """One msgpack byte string, by hand: msgpack would copy a large attachment three times."""
    length = len(data)
    if length < 1 << 8:
        return b"\xc4" + length.to_bytes(1, "big") + data
    if length < 1 << 16:
        return b"\xc5" + length.to_bytes(2, "big") + data
    return b"\xc6" + length.to_bytes(4, "big") + data


def _decode_bytes(data: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
    """The byte string at ``offset`` and the offset after it; its length must stand in the shortest form."""
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4}.get(data[offset] if offset < len(data) else 0, 0)
    start = offset + 1 + width
    if width == 0 or start > len(data):
        raise MalformedError("an Envelop is an array of three byte strings")
    length = int.from_bytes(data[offset + 1 : start], "big")
    if width > 1 and length < 1 << (4 * width):
        raise MalformedError("a length that is not in its shortest form")
    if length > max_bytes or start + length > len(data):
        raise MalformedError("a byte string is longer than allowed or cut short")
    return bytes(data[start : start + length]), start + length

"""Which Ed25519 signatures count (case C26): libraries differ, so the rules are written down as vectors.

The vectors are made here by arithmetic on the curve alone (RFC 8032, section 5.1, and small-order points as in
"Taming the many EdDSAs", Chalkias, Garillot and Nikolaenko, 2020), never by the library that is being tested. They are
kept in ``vectors/ed25519.json``; another library, or another version of it, must give the same verdicts.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import pytest

from aicpnode.identity import Identity, verify

VECTORS = Path(__file__).with_name("vectors") / "ed25519.json"
ROOT = Path(__file__).resolve().parents[3]
SEED = b"\x26" * 32

# ---- the curve, in integers

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, PRIME) % PRIME
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(one: Point, two: Point) -> Point:
    (x1, y1), (x2, y2) = one, two
    product = CURVE_D * x1 * x2 * y1 * y2 % PRIME
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, PRIME) % PRIME
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, PRIME) % PRIME
    return (x, y)


def times(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point, scalar = add(point, point), scalar >> 1
    return result


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decode(data: bytes) -> Point:
    value = int.from_bytes(data, "little")
    y, sign = value & (2**255 - 1), value >> 255
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return (PRIME - x if (x & 1) != sign else x, y)


BASE = decode((4 * pow(5, -1, PRIME) % PRIME).to_bytes(32, "little"))
EIGHT = decode(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"))
"""A point of order 8."""


def hashed(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % ORDER


# ---- the vectors


class Vector(TypedDict):
    why: str
    key: str
    message: str
    signature: str
    accepted: bool


def _vector(why: str, accepted: bool, key: bytes, message: bytes, commitment: bytes, scalar: int) -> Vector:
    signature = commitment + scalar.to_bytes(32, "little")
    return {
        "why": why,
        "key": key.hex(),
        "message": message.hex(),
        "signature": signature.hex(),
        "accepted": accepted,
    }


def vectors() -> list[Vector]:
    """The same list every time: all from one seed, with messages chosen by counting up."""
    digest = hashlib.sha512(SEED).digest()
    secret = (int.from_bytes(digest[:32], "little") & (2**254 - 8)) | 2**254
    key, message = encode(times(secret, BASE)), b"which signatures count"
    nonce = hashed(digest[32:], message)
    commitment = encode(times(nonce, BASE))
    scalar = (nonce + hashed(commitment, key, message) * secret) % ORDER
    found = [_vector("an honest signature", True, key, message, commitment, scalar)]
    found += [
        _vector(f"malleated: S + {n} L", False, key, message, commitment, scalar + n * ORDER) for n in (1, 2, 7, 14)
    ]
    for order in (1, 2, 4, 8):
        small = encode(times(8 // order, EIGHT))
        forged = f"key of order {order}: R and S fit {{}} message"
        found.append(_vector(forged.format("every"), False, small, message, encode(NEUTRAL), 0))
        of_key = hashed(small, key, message) * secret % ORDER
        found.append(_vector(f"R of order {order}, made by the owner", False, key, message, small, of_key))
    mixed = encode(add(times(secret, BASE), EIGHT))
    for wanted, accepted in ((True, True), (False, False)):
        text = next(
            text
            for text in (b"mixed order %d" % number for number in range(1000))
            if (hashed(encode(times(hashed(digest[32:], text), BASE)), mixed, text) % 8 == 0) is wanted
        )
        nonce = hashed(digest[32:], text)
        commitment = encode(times(nonce, BASE))
        scalar = (nonce + hashed(commitment, mixed, text) * secret) % ORDER
        rule = "fits with and without the cofactor" if accepted else "fits only if the cofactor is multiplied in"
        found.append(_vector(f"key of mixed order: {rule}", accepted, mixed, text, commitment, scalar))
    return found


def test_case_C26_vectors_are_the_kept_ones() -> None:
    assert VECTORS.read_text() == as_text(), "the kept vectors are not those that this file makes"


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()) if VECTORS.exists() else [], ids=lambda v: v["why"])
def test_case_C26_signature_counts_as_written_down(vector: Vector) -> None:
    key, message, signature = (bytes.fromhex(vector[name]) for name in ("key", "message", "signature"))  # type: ignore[literal-required]
    assert verify(key, message, signature) is vector["accepted"]


def test_case_C26_own_signatures_are_those_of_the_arithmetic() -> None:
    """The same bytes from two independent ways: the library's signing is the standard's, too."""
    honest = vectors()[0]
    identity = Identity(SEED)
    assert identity.key.hex() == honest["key"]
    assert identity.sign(bytes.fromhex(honest["message"])).hex() == honest["signature"]


def test_case_C26_library_is_pinned() -> None:
    pins = (ROOT / "scripts" / "constraints.txt").read_text().lower().splitlines()
    assert f"pynacl=={version('pynacl')}" in pins


def as_text() -> str:
    return json.dumps(vectors(), indent=1) + "\n"


if __name__ == "__main__":
    VECTORS.write_text(as_text())

"""Merkle trees as the gradients specification (section 2) has them.

Leaf = SHA-256(0x00 | data), node = SHA-256(0x01 | left | right), and an odd node moves up unchanged: no leaf can pass
for a node, and no tree equals another tree with a leaf repeated. No data is one empty leaf. The number of leaves is
not part of the root; whoever checks a proof knows it from the size that was signed with the root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

HASH_BYTES = 32
MAX_PROOF_HASHES = 64


def leaf_hash(data: bytes | memoryview) -> bytes:
    """SHA-256(0x00 | data)."""
    hasher = hashlib.sha256(b"\x00")
    hasher.update(data)
    return hasher.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 | left | right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def leaf_hashes(data: bytes | memoryview, leaf_bytes: int) -> list[bytes]:
    """The leaves of ``data`` cut into pieces of ``leaf_bytes``, the last one possibly shorter. Copies nothing."""
    assert leaf_bytes > 0, "a leaf holds at least one byte"
    view = memoryview(data).cast("B")
    if len(view) == 0:
        return [leaf_hash(b"")]
    return [leaf_hash(view[start : start + leaf_bytes]) for start in range(0, len(view), leaf_bytes)]


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes, at least one."""
    assert leaves, "a tree has at least one leaf"
    level = list(leaves)
    while len(level) > 1:
        level = _level_above(level)
    return level[0]


def merkle_root(data: bytes | memoryview, leaf_bytes: int) -> bytes:
    """The root of ``data`` cut into leaves of ``leaf_bytes`` bytes."""
    return root(leaf_hashes(data, leaf_bytes))


def proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings from leaf ``index`` up to the root; a node that moves up unchanged has none."""
    assert 0 <= index < len(leaves), "the index of a leaf"
    siblings = []
    level = list(leaves)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            siblings.append(level[sibling])
        level = _level_above(level)
        index //= 2
    return tuple(siblings)


def verify_proof(
    expected_root: bytes, data: bytes | memoryview, *, index: int, leaf_count: int, siblings: Sequence[bytes]
) -> bool:
    """True iff ``data`` is leaf ``index`` of the tree of ``leaf_count`` leaves with that root. Never raises.

    ``leaf_count`` must come from a trusted place (a signed size). Proofs with hashes missing or left over are False.
    """
    if not 0 <= index < leaf_count or len(siblings) > MAX_PROOF_HASHES:
        return False
    current = leaf_hash(data)
    width = leaf_count
    remaining = iter(siblings)
    while width > 1:
        if index ^ 1 < width:
            sibling = next(remaining, b"")
            if len(sibling) != HASH_BYTES:
                return False
            current = node_hash(sibling, current) if index & 1 else node_hash(current, sibling)
        index //= 2
        width = (width + 1) // 2
    return next(remaining, None) is None and current == expected_root


def _level_above(level: list[bytes]) -> list[bytes]:
    above = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    if len(level) % 2:
        above.append(level[-1])
    return above

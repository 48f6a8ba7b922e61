"""Roots against trees written out by hand, and proofs that must not pass."""

from __future__ import annotations

import hashlib

import pytest

from aicpnode.envelop.merkle import leaf_hash, leaf_hashes, merkle_root, node_hash, proof, root, verify_proof


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


A, B, C, D, E = (sha(b"\x00" + letter) for letter in (b"aa", b"bb", b"cc", b"dd", b"e"))


def node(left: bytes, right: bytes) -> bytes:
    return sha(b"\x01" + left + right)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", sha(b"\x00")),
        (b"aa", A),
        (b"aabb", node(A, B)),
        (b"aabbcc", node(node(A, B), C)),
        (b"aabbccdd", node(node(A, B), node(C, D))),
        (b"aabbccdde", node(node(node(A, B), node(C, D)), E)),
        (b"aabbccddaabb", node(node(node(A, B), node(C, D)), node(A, B))),
        (b"aabbccddaabbcc", node(node(node(A, B), node(C, D)), node(node(A, B), C))),
    ],
)
def test_root_is_the_tree_by_hand(data: bytes, expected: bytes) -> None:
    assert merkle_root(data, 2) == expected
    assert merkle_root(memoryview(bytearray(data)), 2) == expected


def test_roots_are_the_golden_ones() -> None:
    data = bytes(range(256)) * 5
    assert merkle_root(b"", 64).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert merkle_root(data, 64).hex() == "5060f5868be8a60cd89be969fb81ecd1954c544c5de215618a407015c52aa6a1"
    assert merkle_root(data, 100).hex() == "f832810280a79c10ca58c3bdf9111aaec8bb822ad9fc5aeb0a41cf4ab1dba0bd"
    assert merkle_root(data, 2000).hex() == "01ea4d9d2a2cfeecfe9ff1f6ef59c44b9e5eabe03e79014fb448e193a65ebd84"


def test_repeated_last_leaf_is_another_tree() -> None:
    """A tree that pairs an odd node with itself gives both the same root (CVE-2012-2459)."""
    assert merkle_root(b"aabbcc", 2) != merkle_root(b"aabbcccc", 2)


def test_leaf_cannot_stand_for_a_node() -> None:
    assert merkle_root(b"\x01" + A + B, 65) != node_hash(A, B)
    assert leaf_hash(A + B) != node_hash(A, B)


def test_memory_of_numbers_is_read_as_bytes() -> None:
    words = memoryview(bytearray(b"aabbccdd")).cast("I")
    assert merkle_root(words, 2) == merkle_root(b"aabbccdd", 2)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 33])
def test_every_leaf_has_a_proof_for_its_place_alone(count: int) -> None:
    pieces = [bytes([i]) * 4 for i in range(count)]
    leaves = leaf_hashes(b"".join(pieces), 4)
    tree_root = root(leaves)
    for index, piece in enumerate(pieces):
        siblings = proof(leaves, index)
        assert verify_proof(tree_root, piece, index=index, leaf_count=count, siblings=siblings)
        assert not verify_proof(tree_root, b"zzzz", index=index, leaf_count=count, siblings=siblings)
        assert not verify_proof(bytes(32), piece, index=index, leaf_count=count, siblings=siblings)
        assert not verify_proof(tree_root, piece, index=index, leaf_count=count, siblings=(*siblings, bytes(32)))
        assert not verify_proof(tree_root, piece, index=count, leaf_count=count, siblings=siblings)
        assert not verify_proof(tree_root, piece, index=-1, leaf_count=count, siblings=siblings)
        for other in range(count):
            if other != index:
                assert not verify_proof(tree_root, piece, index=other, leaf_count=count, siblings=siblings)
        for place in range(len(siblings)):
            shorter = siblings[:place] + siblings[place + 1 :]
            assert not verify_proof(tree_root, piece, index=index, leaf_count=count, siblings=shorter)


def test_proof_of_strange_hashes_is_false() -> None:
    leaves = leaf_hashes(b"aabb", 2)
    assert not verify_proof(root(leaves), b"aa", index=0, leaf_count=2, siblings=(b"short",))
    assert not verify_proof(root(leaves), b"aa", index=0, leaf_count=2, siblings=(bytes(32),) * 10_000)
    assert not verify_proof(root(leaves), b"aa", index=0, leaf_count=0, siblings=())

"""Merkle trees of all sizes against a recursive definition."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from aicpnode.envelop.merkle import leaf_hashes, merkle_root, proof, root, verify_proof


def split_root(leaves: list[bytes]) -> bytes:
    """RFC 6962's recursion: split at the largest power of two below the count. The same tree as odd nodes moving up."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha256(b"\x01" + split_root(leaves[:split]) + split_root(leaves[split:])).digest()


@given(st.binary(max_size=700), st.integers(1, 64))
def test_root_is_the_one_of_the_recursive_definition(data: bytes, leaf_bytes: int) -> None:
    pieces = [data[i : i + leaf_bytes] for i in range(0, len(data), leaf_bytes)] or [b""]
    leaves = [hashlib.sha256(b"\x00" + piece).digest() for piece in pieces]
    assert leaf_hashes(data, leaf_bytes) == leaves
    assert merkle_root(data, leaf_bytes) == root(leaves) == split_root(leaves)


@given(st.integers(1, 200), st.data())
def test_proof_holds_for_its_leaf_and_for_no_other_place(count: int, data: st.DataObject) -> None:
    pieces = [i.to_bytes(2, "big") for i in range(count)]
    leaves = leaf_hashes(b"".join(pieces), 2)
    index = data.draw(st.integers(0, count - 1))
    other = data.draw(st.integers(0, count - 1))
    siblings = proof(leaves, index)
    holds = verify_proof(root(leaves), pieces[index], index=other, leaf_count=count, siblings=siblings)
    assert holds == (other == index)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 40), st.data())
def test_root_depends_on_every_bit(data: bytes, leaf_bytes: int, draw: st.DataObject) -> None:
    position = draw.draw(st.integers(0, len(data) * 8 - 1))
    mutated = bytearray(data)
    mutated[position // 8] ^= 1 << (position % 8)
    assert merkle_root(bytes(mutated), leaf_bytes) != merkle_root(data, leaf_bytes)

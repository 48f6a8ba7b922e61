from __future__ import annotations

import hashlib

import numpy as np

from aicpnode.training.batching import batch_offsets, offsets_digest

NETWORK = bytes(range(32))


def test_offsets_are_pinned() -> None:
    # Evaluators compute other authors' batches: another value here is another protocol.
    offsets = batch_offsets(
        network_id=NETWORK, round_number=3, author_index=1, step=7, batch_size=4, positions=1_000_000
    )
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [508598, 116892, 119376, 241159]


def test_every_part_of_the_name_of_a_batch_matters() -> None:
    name = {"round_number": 3, "author_index": 1, "step": 7}
    fixed = {"batch_size": 8, "positions": 1 << 40}
    seen = {batch_offsets(network_id=NETWORK, **name, **fixed).tobytes()}
    seen.add(batch_offsets(network_id=bytes(32), **name, **fixed).tobytes())
    for key in name:
        seen.add(batch_offsets(network_id=NETWORK, **{**name, key: 99}, **fixed).tobytes())
    assert len(seen) == 5


def test_digest_is_of_the_ordered_little_endian_offsets() -> None:
    first, second = np.array([1, 2], dtype=np.int64), np.array([3], dtype=np.int64)
    expected = hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in (1, 2, 3))).digest()
    assert offsets_digest([first, second]) == expected
    assert offsets_digest([second, first]) != expected
    assert offsets_digest([first.astype(">i8"), second]) == expected

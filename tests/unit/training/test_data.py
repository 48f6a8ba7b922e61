from __future__ import annotations

import hashlib

import numpy as np
import pytest

from aicpnode.errors import UserError
from aicpnode.genesis import Shard, Split
from aicpnode.training.data import Dataset, Text

WHOLE = np.random.default_rng(1).integers(0, 256, 1000).astype(np.uint8)
TEXT = Text([WHOLE[:300], WHOLE[300:300], WHOLE[300:301], WHOLE[301:]])


def test_a_window_may_cross_shards() -> None:
    assert len(TEXT) == 1000
    for offset, length in [(0, 1000), (299, 3), (300, 1), (301, 699), (250, 100), (999, 1)]:
        assert np.array_equal(TEXT.window(offset, length), WHOLE[offset : offset + length])


def test_windows_make_a_batch() -> None:
    offsets = np.array([0, 295, 990], dtype=np.int64)
    batch = TEXT.windows(offsets, 10)
    assert batch.dtype == np.int64
    assert np.array_equal(batch, np.stack([WHOLE[o : o + 10] for o in offsets]))


def test_a_window_outside_is_our_own_fault() -> None:
    with pytest.raises(AssertionError):
        TEXT.window(995, 6)


def shard(name: str, content: bytes, split: Split) -> Shard:
    return Shard(name=name, sha256=hashlib.sha256(content).digest(), size=len(content), split=split)


def test_a_data_set_is_read_from_blobs_by_digest() -> None:
    contents = {"a": b"first", "b": b"second", "c": b"held out"}
    blobs = {hashlib.sha256(c).digest(): memoryview(c) for c in contents.values()}
    shards = [shard(n, c, Split.VALIDATION if n == "c" else Split.TRAIN) for n, c in contents.items()]
    data = Dataset.load(shards, blobs.__getitem__)
    assert data.train.window(0, 11).tobytes() == b"firstsecond"
    assert data.validation.window(0, 8).tobytes() == b"held out"


@pytest.mark.parametrize("found", [b"sEcond", b"secon", b""])
def test_a_damaged_shard_is_refused_by_name(found: bytes) -> None:
    with pytest.raises(UserError, match=r"shard b .* damaged"):
        Dataset.load([shard("b", b"second", Split.TRAIN)], lambda _: memoryview(found))

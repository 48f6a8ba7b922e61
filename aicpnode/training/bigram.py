"""The bigram model of the same split: the line that a language model worth its name lies below.

Counts of byte pairs in the training text, interpolated with the single-byte model, which is smoothed by adding
one: ``p(b | a) = (count(a, b) + p(b)) / (count(a) + 1)``. Numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aicpnode.training.data import Text

BYTE_VALUES = 256


def bigram_loss(train: Text, validation: Text) -> float:
    """Cross entropy of the validation text, first byte excluded, in nats a byte."""
    assert len(validation) >= 2
    pairs = _pair_counts(train).astype(np.float64)
    single = pairs.sum(axis=0) + 1.0
    single /= single.sum()
    probability = (pairs + single) / (pairs.sum(axis=1, keepdims=True) + 1.0)
    measured = _pair_counts(validation)
    return float(-(measured * np.log(probability)).sum() / measured.sum())


def _pair_counts(text: Text) -> npt.NDArray[np.int64]:
    """Returns int64[256, 256]: how often byte b follows byte a, across the borders of shards too."""
    counts = np.zeros(BYTE_VALUES * BYTE_VALUES, dtype=np.int64)
    last = -1
    for part in text.parts:
        if last >= 0:
            counts[last * BYTE_VALUES + int(part[0])] += 1
        codes = part[:-1].astype(np.int64) * BYTE_VALUES + part[1:]
        counts += np.bincount(codes, minlength=counts.size)
        last = int(part[-1])
    return counts.reshape(BYTE_VALUES, BYTE_VALUES)

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from aicpnode.training.bigram import bigram_loss
from aicpnode.training.data import Text


def text(*parts: bytes) -> Text:
    return Text([np.frombuffer(part, dtype=np.uint8) for part in parts])


def test_loss_equals_a_plain_computation() -> None:
    train, validation = b"abracadabra", b"abcab"
    single = {b: (train[1:].count(b) + 1) / (len(train) - 1 + 256) for b in range(256)}

    def probability(a: int, b: int) -> float:
        pairs = list(pairwise(train))
        return (pairs.count((a, b)) + single[b]) / (sum(first == a for first, _ in pairs) + 1)

    expected = -np.mean([math.log(probability(a, b)) for a, b in pairwise(validation)])
    assert bigram_loss(text(train), text(validation)) == pytest.approx(float(expected))


def test_shards_do_not_change_the_counts() -> None:
    whole = bigram_loss(text(b"abracadabra"), text(b"cadab"))
    assert bigram_loss(text(b"abr", b"a", b"cadabra"), text(b"ca", b"dab")) == pytest.approx(whole)


def test_an_unseen_text_costs_about_the_uniform_loss_and_a_repeated_one_nothing() -> None:
    assert bigram_loss(text(b"ab" * 500), text(bytes(range(100, 200)))) > 5
    assert bigram_loss(text(b"ab" * 5000), text(b"ab" * 50)) < 0.01

from __future__ import annotations

from aicpnode.genesis import Split
from aicpnode.training.corpus import build_corpus
from aicpnode.training.presets import DEMO_ROUNDS, default_genesis


def test_the_preset_is_a_model_that_can_be_built() -> None:
    preset = default_genesis()
    assert preset.config.parameters < 1_000_000
    assert preset.training.sequence_length <= preset.model.context
    assert preset.round.fault() is None
    assert preset.model.fault() is None


def test_decay_is_over_the_planned_rounds_or_none() -> None:
    assert default_genesis().training.decay_rounds == 0
    assert default_genesis(decay_rounds=DEMO_ROUNDS).training.decay_rounds == DEMO_ROUNDS


def test_the_corpus_fits_the_genesis() -> None:
    data = default_genesis().data(tuple(shard.record for shard in build_corpus()))
    assert data.fault() is None
    assert {shard.split for shard in data.shards} == set(Split)

"""``bench training`` on a tiny model: the fields of the contract, with numbers that are possible."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from aicpnode.bench import training as bench
from aicpnode.model.config import TransformerConfig
from aicpnode.training.data import Dataset, Text
from aicpnode.training.presets import default_genesis

CONTRACT = {
    "val_loss", "tokens_per_s", "plain_loop_tokens_per_s", "bf16_speedup", "generate_tokens_per_s",
    "transformers_generate_tokens_per_s", "training_share",
}  # fmt: skip


def test_bench_training_reports_the_fields_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = default_genesis()
    preset = dataclasses.replace(
        preset,
        model=dataclasses.replace(preset.model, layers=1, heads=2, kv_heads=2, width=16, ffn_width=16, context=16),
        training=dataclasses.replace(preset.training, batch_size=2, sequence_length=16, inner_steps=2),
    )
    text = Text([np.frombuffer(b"def f(x):\n    return x\n" * 500, dtype=np.uint8)])
    subject = bench.Subject(
        preset=preset,
        config=TransformerConfig.from_spec(preset.model),
        dataset=Dataset(train=text, validation=text),
    )
    monkeypatch.setattr(bench.Subject, "default", lambda: subject)
    said: list[str] = []
    result = bench.run(seconds=0.2, threads=1, report=said.append)
    assert set(result) >= CONTRACT
    assert 0 < result["val_loss"] < 6
    assert 0 < result["training_share"] <= 1
    for name in ("tokens_per_s", "plain_loop_tokens_per_s", "bf16_speedup", "generate_tokens_per_s"):
        assert result[name] > 0
    assert len(said) == 4

"""A tiny run for the training tests: a model of 12 thousand parameters on text that it can learn in seconds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from aicpnode.genesis import TrainingSpec
from aicpnode.model.config import TransformerConfig
from aicpnode.training.data import Dataset, Text
from aicpnode.training.step import Trainer

NETWORK = bytes(range(32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyRun:
    config: TransformerConfig
    training: TrainingSpec
    dataset: Dataset
    network_id: bytes = NETWORK

    def trainer(self, **changes: int) -> Trainer:
        micro = changes.pop("micro_batch_size", 0)
        return Trainer(
            config=self.config,
            training=dataclasses.replace(self.training, **changes),
            dataset=self.dataset,
            network_id=self.network_id,
            micro_batch_size=micro,
        )


@pytest.fixture(scope="session")
def tiny() -> TinyRun:
    text = np.frombuffer(b"".join(b"line %d: the same words again\n" % i for i in range(800)), dtype=np.uint8)
    return TinyRun(
        config=TransformerConfig(layers=1, heads=2, width=16, ffn_width=32, context=16),
        training=TrainingSpec(
            inner_steps=4,
            batch_size=6,
            sequence_length=16,
            inner_lr_micro=5000,
            warmup_steps=3,
            decay_rounds=10,
            weight_decay_milli=100,
            beta1_milli=900,
            beta2_milli=950,
            clip_milli=1000,
        ),
        dataset=Dataset(train=Text([text[:9000], text[9000:20000]]), validation=Text([text[20000:]])),
    )

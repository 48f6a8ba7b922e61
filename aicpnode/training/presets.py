"""The model and the training that a new run gets when nobody says otherwise. Torch-free.

Sized for the demo: four processes that share two cores, and a validation loss well below the bigram line within four
minutes. tests/benchmarks/RESULTS.md has the measurements that led here, under "Demo preset".
"""

from __future__ import annotations

from dataclasses import dataclass

from aicpnode.genesis import ConsensusSpec, DataSpec, ModelSpec, RoundSpec, Rule, Shard, TrainingSpec
from aicpnode.model.config import TransformerConfig

DEMO_ROUNDS = 24
"""Rounds of the demo, over which its learning rate decays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The parts of a genesis that say what is trained and how; the writer adds who, and on which text."""

    model: ModelSpec
    training: TrainingSpec
    round: RoundSpec
    consensus: ConsensusSpec

    @property
    def config(self) -> TransformerConfig:
        return TransformerConfig.from_spec(self.model)

    def data(self, shards: tuple[Shard, ...]) -> DataSpec:
        return DataSpec(shards=shards)


def default_genesis(*, decay_rounds: int | None = None) -> Preset:
    """The embedded default. ``decay_rounds``: how long the run is meant to be; None for no end in view."""
    return Preset(
        # 434,816 parameters. Wider (192) or deeper (3 or 4 layers) models learned less in the same processor time.
        model=ModelSpec(layers=2, heads=4, kv_heads=4, width=128, ffn_width=352, context=128, norm_eps_nano=10_000),
        training=TrainingSpec(
            inner_steps=50,
            batch_size=8,
            sequence_length=128,
            inner_lr_micro=4000,
            warmup_steps=50,
            decay_rounds=decay_rounds or 0,
            weight_decay_milli=100,
            beta1_milli=900,
            beta2_milli=950,
            clip_milli=1000,
        ),
        # A round ends when all proposals are in, in 3 to 5 s; the limit is for slow machines and lost members.
        round=RoundSpec(round_ms=10_000, k=410, bits=2, rule=Rule.CENTERED_CLIP),
        consensus=ConsensusSpec(),
    )

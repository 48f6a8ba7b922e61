from __future__ import annotations

import dataclasses

import numpy as np

from aicpnode.model.config import TransformerConfig
from aicpnode.model.initial import initial_theta

CONFIG = TransformerConfig(layers=2, heads=2, width=64, ffn_width=96, context=16, tied=False)


def test_initial_theta_has_the_layout_s_length_and_is_finite() -> None:
    theta = initial_theta(CONFIG, seed=1)
    assert theta.dtype == np.float32
    assert theta.shape == (CONFIG.parameters,)
    assert np.isfinite(theta).all()


def test_the_seed_decides() -> None:
    assert np.array_equal(initial_theta(CONFIG, seed=1), initial_theta(CONFIG, seed=1))
    assert not np.array_equal(initial_theta(CONFIG, seed=1), initial_theta(CONFIG, seed=2))


def test_gains_are_one_and_residual_projections_are_smaller() -> None:
    theta = initial_theta(CONFIG, seed=1)
    spread = {t.name: theta[t.start : t.stop].std() for t in CONFIG.layout}
    for tensor in CONFIG.layout:
        if len(tensor.shape) == 1:
            assert (theta[tensor.start : tensor.stop] == 1.0).all()
    assert abs(spread["embed"] / 0.02 - 1) < 0.05
    assert abs(spread["blocks.0.attention.out"] / spread["blocks.0.attention.query"] - 0.5) < 0.05


def test_depth_shrinks_residual_projections() -> None:
    deep = dataclasses.replace(CONFIG, layers=8)
    tensor = next(t for t in deep.layout if t.name == "blocks.7.feed_forward.down")
    part = initial_theta(deep, seed=1)[tensor.start : tensor.stop]
    assert abs(part.std() * np.sqrt(96) * 4 - 1) < 0.05

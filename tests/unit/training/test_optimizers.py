from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from aicpnode.model.config import TransformerConfig
from aicpnode.model.initial import initial_theta
from aicpnode.model.transformer import Transformer
from aicpnode.training.optimizers import FlatAdamW, FlatParameters

CONFIG = TransformerConfig(layers=1, heads=2, width=16, ffn_width=24, context=8)
OPTIONS = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "clip": 1.0}


def build(**changes: float) -> tuple[Transformer, FlatParameters, FlatAdamW]:
    model = Transformer(CONFIG)
    flat = FlatParameters(model)
    flat.load(initial_theta(CONFIG, seed=1))
    return model, flat, FlatAdamW(flat, matrix_parameters=CONFIG.matrix_parameters, **{**OPTIONS, **changes})


def backward(model: Transformer, seed: int) -> None:
    batch = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(seed))
    torch.autograd.backward(model.loss_sum(batch[:, :-1], batch[:, 1:]) / 16)


def test_steps_equal_those_of_torch_on_separate_tensors() -> None:
    model, flat, optimizer = build()
    plain = Transformer(CONFIG)
    plain.load_theta(initial_theta(CONFIG, seed=1))
    parameters = dict(plain.named_parameters())
    matrices = [p for p in parameters.values() if p.ndim == 2]
    gains = [p for p in parameters.values() if p.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    for step in range(5):
        rate = 1e-2 / (step + 1)
        optimizer.zero_gradients()
        backward(model, step)
        assert optimizer.step(rate)
        reference.zero_grad()
        backward(plain, step)
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
    np.testing.assert_allclose(flat.read(), plain.read_theta(), atol=2e-6)
    assert np.array_equal(model.read_theta(), flat.read())


def test_clipping_bounds_the_norm_and_can_be_off() -> None:
    for clip, expected in ((0.5, 0.5), (0.0, 8.0), (100.0, 8.0)):
        _, flat, optimizer = build(clip=clip)
        flat.gradients[:64] = 1.0
        optimizer.step(0.0)
        assert float(torch.linalg.vector_norm(flat.gradients)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing_and_is_not_counted(poison: float) -> None:
    # Case T9: neither the schedule nor the moments may advance.
    model, flat, optimizer = build()
    backward(model, 1)
    optimizer.step(1e-2)
    before, state = flat.read(), optimizer.state()
    flat.gradients[5] = poison
    assert not optimizer.step(1e-2)
    assert np.array_equal(flat.read(), before)
    after = optimizer.state()
    assert after.steps == state.steps == 1
    assert np.array_equal(after.first_moment, state.first_moment)
    assert np.array_equal(after.second_moment, state.second_moment)


def test_a_restored_optimizer_goes_on_as_if_it_had_never_stopped() -> None:
    model, flat, optimizer = build()
    for seed in range(3):
        optimizer.zero_gradients()
        backward(model, seed)
        optimizer.step(1e-2)
    saved, theta = optimizer.state(), flat.read()
    other_model, other_flat, other = build()
    other_flat.load(theta)
    other.restore(saved)
    assert other.steps == 3
    for each_model, each_optimizer in ((model, optimizer), (other_model, other)):
        each_optimizer.zero_gradients()
        backward(each_model, 9)
        each_optimizer.step(1e-2)
    assert np.array_equal(flat.read(), other_flat.read())
    assert np.array_equal(saved.first_moment, dataclasses.replace(saved).first_moment)


def test_saved_state_does_not_change_with_later_steps() -> None:
    model, _, optimizer = build()
    assert not optimizer.state().first_moment.any()
    backward(model, 1)
    optimizer.step(1e-2)
    saved = optimizer.state()
    copy = saved.first_moment.copy()
    backward(model, 2)
    optimizer.step(1e-2)
    assert np.array_equal(saved.first_moment, copy)


def test_restoring_a_fresh_state_starts_afresh() -> None:
    model, flat, optimizer = build()
    fresh = optimizer.state()
    backward(model, 1)
    optimizer.step(1e-2)
    first = flat.read()
    flat.load(initial_theta(CONFIG, seed=1))
    optimizer.restore(fresh)
    optimizer.zero_gradients()
    backward(model, 1)
    optimizer.step(1e-2)
    assert np.array_equal(flat.read(), first)

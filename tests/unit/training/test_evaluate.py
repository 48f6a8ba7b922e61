from __future__ import annotations

import numpy as np
import pytest
import torch

from aicpnode.model.initial import initial_theta
from aicpnode.model.transformer import Transformer
from aicpnode.training import evaluate
from aicpnode.training.data import Text
from aicpnode.training.evaluate import validation_loss


@pytest.fixture
def model(tiny) -> Transformer:
    result = Transformer(tiny.config)
    result.load_theta(initial_theta(tiny.config, seed=1))
    return result


def test_loss_is_the_mean_over_the_windows(tiny, model: Transformer) -> None:
    text = Text([np.arange(50, dtype=np.uint8)])
    result = validation_loss(model, text)
    assert result is not None
    assert result.tokens == 48
    tokens = torch.arange(49).view(1, -1)
    with torch.inference_mode():
        sums = [float(model.loss_sum(tokens[:, i : i + 16], tokens[:, i + 1 : i + 17])) for i in (0, 16, 32)]
    assert result.loss == pytest.approx(sum(sums) / 48)


def test_the_size_of_a_pass_does_not_change_the_value(
    tiny, model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = validation_loss(model, tiny.dataset.validation)
    monkeypatch.setattr(evaluate, "EVALUATION_BATCH_TOKENS", 48)
    parts = validation_loss(model, tiny.dataset.validation)
    assert whole is not None
    assert parts is not None
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_a_part_is_spread_over_the_text(tiny, model: Transformer) -> None:
    seen: list[int] = []

    class Watched(Text):
        def windows(self, offsets: np.ndarray, length: int) -> np.ndarray:
            seen.extend(offsets.tolist())
            return super().windows(offsets, length)

    text = Watched(tiny.dataset.validation.parts)
    result = validation_loss(model, text, tokens_max=64)
    assert result is not None
    assert result.tokens == 64
    assert len(seen) == 4
    assert seen[0] == 0
    assert seen[-1] > len(text) // 2
    again = validation_loss(model, text, tokens_max=64)
    assert again == result


def test_a_text_shorter_than_the_context_is_one_window(model: Transformer) -> None:
    result = validation_loss(model, Text([np.arange(5, dtype=np.uint8)]), tokens_max=1)
    assert result is not None
    assert result.tokens == 4


def test_a_stopped_measurement_has_no_value(tiny, model: Transformer) -> None:
    assert validation_loss(model, tiny.dataset.validation, should_stop=lambda: True) is None


def test_no_gradients_are_left_behind(tiny, model: Transformer) -> None:
    validation_loss(model, tiny.dataset.validation, tokens_max=32)
    assert all(parameter.grad is None for parameter in model.parameters())

"""Validation loss: the mean cross entropy of text that nobody trains on, in nats a byte.

The windows are fixed by the text and their number alone, so the values of different nodes and rounds compare. Each
window starts without memory of the text before it, which makes the measure a little pessimistic. Gradients are
off; the model has no dropout to switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from aicpnode.model.transformer import Transformer
from aicpnode.training.data import Text

EVALUATION_BATCH_TOKENS = 4096
"""Tokens in one forward pass: bounds memory, changes no result beyond rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """``loss`` is the mean over ``tokens`` predicted tokens, in nats a token."""

    loss: float
    tokens: int


def validation_loss(
    model: Transformer, text: Text, *, tokens_max: int = 0, should_stop: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """Measures on about ``tokens_max`` tokens in evenly spread windows, 0 meaning the whole text.

    None if ``should_stop``, asked before each forward pass, said so. The last, shorter window of the whole text is
    left out unless it is the only one.
    """
    assert len(text) >= 2
    length = min(model.config.context, len(text) - 1)
    available = (len(text) - 1) // length
    count = available if tokens_max == 0 else max(1, min(available, tokens_max // length))
    starts = np.arange(count, dtype=np.int64) * available // count * length
    rows = max(1, EVALUATION_BATCH_TOKENS // length)
    total = 0.0
    with torch.inference_mode():
        for first in range(0, count, rows):
            if should_stop():
                return None
            batch = torch.from_numpy(text.windows(starts[first : first + rows], length + 1)).to(model.device)
            total += model.loss_sum(batch[:, :-1], batch[:, 1:]).item()
    return Evaluation(loss=total / (count * length), tokens=count * length)

"""Generation: one token at a time, from the model's distribution, with a cache of keys and values.

The prompt goes through the model in one pass and fills the cache; after that a pass has one position. When the
context is full, the last half of the text is fed again from position 0: rotary phases are relative, but the cache
holds keys already turned by their old positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aicpnode.errors import UserError
from aicpnode.model import tokenizer
from aicpnode.model.transformer import Transformer

TEMPERATURE_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn. UserError if a value makes no sense."""

    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token (greedy)."""
    top_k: int = 0
    """Draw among the k most likely tokens only; 0 means all."""
    top_p: float = 1.0
    """Draw among the fewest tokens whose probabilities reach p (Holtzman et al. 2019)."""
    seed: int = 0
    """The same seed, model and prompt give the same text on one machine."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= TEMPERATURE_MAX:
            raise UserError(f"temperature is {self.temperature}.", advice=f"Choose 0 to {TEMPERATURE_MAX:g}.")
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}.", advice="Choose 0 (all tokens) or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p is {self.top_p}.", advice="Choose a number above 0 and up to 1.")


def generate(model: Transformer, prompt: bytes, *, tokens: int, sampling: Sampling) -> Iterator[bytes]:
    """Yields the text after ``prompt``, a byte at a time, ``tokens`` times; stop asking to stop early.

    Only the last ``context`` bytes of the prompt are seen. An empty prompt stands for the start of a file.
    """
    if tokens < 0:
        raise UserError(f"Cannot generate {tokens} tokens.", advice="Choose 0 or more.")
    return _stream(model, prompt, tokens, sampling)


def _stream(model: Transformer, prompt: bytes, tokens: int, sampling: Sampling) -> Iterator[bytes]:
    context = model.config.context
    history = tokenizer.encode(prompt)[-context:] or [tokenizer.TEXT_START]
    random = torch.Generator().manual_seed(sampling.seed)
    cache = model.new_cache()
    pending = history
    for _ in range(tokens):
        if cache.length + len(pending) > context:
            pending = history = history[-max(1, context // 2) :]
            cache = model.new_cache()
        with torch.inference_mode():
            logits = model(torch.tensor([pending], device=model.device), cache)[0, -1]
            token = choose(logits, sampling, random)
        pending = [token]
        history.append(token)
        yield tokenizer.decode(pending)


def choose(logits_V: Tensor, sampling: Sampling, random: torch.Generator) -> int:
    """Draws one token from the logits of one position, float[V]; ``random`` lives on the CPU."""
    scores = logits_V.float().cpu()
    if sampling.temperature == 0.0:
        return int(scores.argmax())
    scores, order = torch.sort(scores / sampling.temperature, descending=True, stable=True)
    if sampling.top_k:
        scores = scores[: sampling.top_k]
    probabilities = torch.softmax(scores, dim=0)
    if sampling.top_p < 1.0:
        # A token stays if those before it have not reached p: the first always does.
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities[before < sampling.top_p]
    return int(order[int(torch.multinomial(probabilities, 1, generator=random))])

"""``bench training``: what this machine trains and generates, against a plain PyTorch loop on the same model.

One process, the default model and the embedded corpus. The plain loop is what one would write without this project:
the same transformer under ``torch.optim.AdamW`` on random batches. Figures on a busy machine compare with each other
only; what cannot be measured here is null.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from aicpnode.model.config import TransformerConfig
from aicpnode.model.generate import Sampling, generate
from aicpnode.model.initial import initial_theta
from aicpnode.model.transformer import Transformer
from aicpnode.training.corpus import build_corpus
from aicpnode.training.data import Dataset
from aicpnode.training.evaluate import validation_loss
from aicpnode.training.presets import Preset, default_genesis
from aicpnode.training.step import Trainer

SECONDS_DEFAULT = 20.0
WARM_UP_STEPS = 3
VALIDATION_TOKENS = 65_536
GENERATE_TOKENS = 256
NETWORK_ID = bytes(32)
SEED = 1

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: the default model on the embedded corpus."""

    preset: Preset
    config: TransformerConfig
    dataset: Dataset

    @classmethod
    def default(cls) -> Subject:
        """The default model and corpus."""
        preset = default_genesis()
        texts = build_corpus()
        contents = {text.record.sha256: text.content for text in texts}
        dataset = Dataset.load([text.record for text in texts], lambda digest: memoryview(contents[digest]))
        return cls(preset=preset, config=preset.config, dataset=dataset)


def run(
    *, seconds: float = SECONDS_DEFAULT, threads: int | None = None, report: Report = lambda line: None
) -> dict[str, Any]:
    """Measure for about ``seconds`` each way; returns the fields of the contract.

    ``threads`` defaults to all processors. ``report`` gets a sentence before each measurement.
    """
    subject = Subject.default()
    threads = threads or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    report(f"training as a node does, {threads} threads")
    ours, share, theta = _our_tokens_per_s(subject, seconds, threads)
    model = Transformer(subject.config)
    model.load_theta(theta)
    evaluation = validation_loss(model, subject.dataset.validation, tokens_max=VALIDATION_TOKENS)
    assert evaluation is not None
    report("training as a plain PyTorch loop does")
    plain = _plain_tokens_per_s(subject, seconds, bf16=False)
    report("the same in bfloat16")
    bf16 = _plain_tokens_per_s(subject, seconds, bf16=True)
    report("generating")
    return {
        "parameters": subject.config.parameters,
        "threads": threads,
        "val_loss": evaluation.loss,
        "tokens_per_s": ours,
        "plain_loop_tokens_per_s": plain,
        "bf16_speedup": bf16 / plain,
        "generate_tokens_per_s": _generate_tokens_per_s(model),
        "transformers_generate_tokens_per_s": _transformers_tokens_per_s(subject.config),
        "training_share": share,
    }


def _our_tokens_per_s(subject: Subject, seconds: float, threads: int) -> tuple[float, float, np.ndarray[Any, Any]]:
    """Tokens a second of the inner loop, its share of the time, and the vector that came out, float32[P]."""
    trainer = Trainer(
        config=subject.config,
        training=subject.preset.training,
        dataset=subject.dataset,
        network_id=NETWORK_ID,
        threads=threads,
    )
    theta = initial_theta(subject.config, SEED)
    trainer.inner_loop(theta, round_number=0, author_index=0, steps=WARM_UP_STEPS)
    began, tokens, training_s, number = time.perf_counter(), 0, 0.0, 0
    while time.perf_counter() - began < seconds:
        result = trainer.inner_loop(theta, round_number=number, author_index=0)
        theta = theta - result.delta
        tokens, training_s, number = tokens + result.tokens, training_s + result.seconds, number + 1
    return tokens / training_s, training_s / (time.perf_counter() - began), theta


def _plain_tokens_per_s(subject: Subject, seconds: float, *, bf16: bool) -> float:
    """Tokens a second of a plain loop over random windows."""
    training, text = subject.preset.training, subject.dataset.train
    model = Transformer(subject.config)
    model.load_theta(initial_theta(subject.config, SEED))
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=training.inner_lr_micro / 1e6,
        betas=(training.beta1_milli / 1e3, training.beta2_milli / 1e3),
        weight_decay=training.weight_decay_milli / 1e3,
    )
    random = np.random.default_rng(SEED)
    batch_tokens = training.batch_size * training.sequence_length

    def step() -> None:
        offsets = random.integers(0, len(text) - training.sequence_length, training.batch_size)
        windows = torch.from_numpy(text.windows(offsets, training.sequence_length + 1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model.loss_sum(windows[:, :-1], windows[:, 1:]) / batch_tokens
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_milli / 1e3)
        optimizer.step()

    for _ in range(WARM_UP_STEPS):
        step()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    return steps * batch_tokens / (time.perf_counter() - began)


def _generate_tokens_per_s(model: Transformer) -> float:
    def tokens() -> int:
        return sum(
            len(piece) for piece in generate(model, b"def ", tokens=GENERATE_TOKENS, sampling=Sampling(seed=SEED))
        )

    return _rate(tokens)


def _transformers_tokens_per_s(config: TransformerConfig) -> float | None:
    """The transformers package's own generation with a Llama of the same shape; None if it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    transformers: Any = importlib.import_module("transformers")
    shape = transformers.LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.width,
        intermediate_size=config.ffn_width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=GENERATE_TOKENS + 8,
    )
    model = transformers.LlamaForCausalLM(shape).eval()
    prompt = torch.tensor([list(b"def ")])
    sample = partial(
        model.generate, prompt, max_new_tokens=GENERATE_TOKENS, min_new_tokens=GENERATE_TOKENS, do_sample=True
    )
    return _rate(lambda: int(sample().shape[1]) - prompt.shape[1])


def _rate(work: Callable[[], int]) -> float:
    """Tokens a second of the second of two runs."""
    work()
    began = time.perf_counter()
    return work() / (time.perf_counter() - began)

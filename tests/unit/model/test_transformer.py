from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aicpnode.model.attention import RotaryTable
from aicpnode.model.config import TransformerConfig
from aicpnode.model.initial import initial_theta
from aicpnode.model.transformer import Transformer

CONFIG = TransformerConfig(layers=2, heads=4, kv_heads=2, width=32, ffn_width=48, context=24, tied=False)


def make(config: TransformerConfig = CONFIG, *, seed: int = 1) -> Transformer:
    model = Transformer(config)
    theta = initial_theta(config, seed)
    # Larger than at the start of a run, so that a mistake anywhere shows in the logits.
    model.load_theta(theta + np.float32(0.05) * np.cos(np.arange(theta.size, dtype=np.float32)))
    return model


def tokens(length: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(3))


def reference_logits(model: Transformer, tokens_BT: torch.Tensor) -> torch.Tensor:
    """The same function written out in float64: explicit loops over heads, rotation by cosines and sines."""
    config = model.config
    weight = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    batch, length = tokens_BT.shape
    half, width = config.head_width // 2, config.head_width

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * gain

    def rotate(x_BTD: torch.Tensor) -> torch.Tensor:
        out = x_BTD.clone()
        for position in range(length):
            for pair in range(half):
                phase = position * config.rope_theta ** (-pair / half)
                a, b = x_BTD[:, position, 2 * pair], x_BTD[:, position, 2 * pair + 1]
                out[:, position, 2 * pair] = a * math.cos(phase) - b * math.sin(phase)
                out[:, position, 2 * pair + 1] = a * math.sin(phase) + b * math.cos(phase)
        return out

    x = weight["embed"][tokens_BT]
    hidden = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
    for block in range(config.layers):
        at = f"blocks.{block}."
        h = norm(x, weight[at + "attention_norm"])
        heads = []
        for head in range(config.heads):
            source = head // (config.heads // config.kv_heads)
            q = rotate(h @ weight[at + "attention.query"][head * width : (head + 1) * width].T)
            k = rotate(h @ weight[at + "attention.key"][source * width : (source + 1) * width].T)
            v = h @ weight[at + "attention.value"][source * width : (source + 1) * width].T
            heads.append(torch.softmax(q @ k.transpose(1, 2) / math.sqrt(width) + hidden, dim=-1) @ v)
        x = x + torch.cat(heads, dim=-1) @ weight[at + "attention.out"].T
        h = norm(x, weight[at + "feed_forward_norm"])
        gate, up = h @ weight[at + "feed_forward.gate"].T, h @ weight[at + "feed_forward.up"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ weight[at + "feed_forward.down"].T
    output = weight["embed" if config.tied else "head"]
    assert x.shape == (batch, length, config.width)
    return norm(x, weight["final_norm"]) @ output.T


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_a_plain_reference(tied: bool) -> None:
    model = make(dataclasses.replace(CONFIG, tied=tied))
    batch = tokens(24)
    with torch.inference_mode():
        logits = model(batch)
    torch.testing.assert_close(logits.double(), reference_logits(model, batch), atol=1e-4, rtol=1e-4)


def test_parameters_are_those_of_the_layout() -> None:
    model = make()
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {t.name: t.shape for t in CONFIG.layout}


def test_theta_survives_loading_and_reading() -> None:
    theta = initial_theta(CONFIG, seed=5)
    theta.flags.writeable = False
    model = Transformer(CONFIG)
    model.load_theta(theta)
    assert np.array_equal(model.read_theta(), theta)
    assert np.array_equal(model.embed.detach().numpy().ravel(), theta[: 256 * 32])


def test_a_position_sees_nothing_after_it() -> None:
    model = make()
    batch = tokens(20)
    changed = batch.clone()
    changed[:, 12:] = (changed[:, 12:] + 7) % 256
    with torch.inference_mode():
        before, after = model(batch), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12], after[:, 12])


@pytest.mark.parametrize("pieces", [[1] * 20, [7, 1, 1, 5, 6], [20], [19, 1]])
def test_cached_logits_equal_uncached_ones(pieces: list[int]) -> None:
    # Case T6: one query over a cache must see every key, several must see each other causally.
    model = make()
    batch = tokens(20)
    cache = model.new_cache(batch=2)
    with torch.inference_mode():
        whole = model(batch)
        parts = [model(piece, cache) for piece in batch.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)
    assert cache.length == 20


def test_rotary_phases_stay_float32_when_the_model_is_cast() -> None:
    # Case T2: in bfloat16 the positions 256 and 257 have the same phase.
    config = dataclasses.replace(CONFIG, context=512)
    exact, cast = make(config), make(config).to(torch.bfloat16)
    table = cast._rotary.turns
    assert table.dtype == torch.complex64
    assert torch.equal(table, exact._rotary.turns)
    assert not torch.equal(table[256], table[257])
    with torch.inference_mode():
        assert cast(tokens(8)).dtype == torch.bfloat16


def test_rotation_depends_on_the_distance_alone() -> None:
    table = RotaryTable(CONFIG, torch.device("cpu"))
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(1))
    products = [float((table.rotate(q, start + 3) * table.rotate(k, start)).sum().detach()) for start in (0, 5, 20)]
    assert products == pytest.approx([products[0]] * 3, abs=1e-5)


def test_grouped_heads_repeat_each_head_in_place() -> None:
    # Case T7: with equal key heads inside a group, grouped attention is ordinary attention.
    grouped = make()
    full = Transformer(dataclasses.replace(CONFIG, kv_heads=4))
    full.load_state_dict(
        {
            name: value.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
            if name.endswith(("attention.key", "attention.value"))
            else value
            for name, value in grouped.state_dict().items()
        }
    )
    with torch.inference_mode():
        torch.testing.assert_close(grouped(tokens(16)), full(tokens(16)))


def test_loss_is_the_sum_over_tokens() -> None:
    model = make()
    batch = tokens(11)
    with torch.inference_mode():
        total = model.loss_sum(batch[:, :-1], batch[:, 1:])
        each = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
    assert each.shape == (20,)
    torch.testing.assert_close(total, each.sum())


def test_evaluation_and_training_mode_are_one_function() -> None:
    # Case T3: there is no dropout to forget.
    model = make()
    with torch.inference_mode():
        assert torch.equal(model.train()(tokens(9)), model.eval()(tokens(9)))

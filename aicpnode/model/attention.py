"""Causal grouped-query attention with rotary positions, and the cache that decoding keeps.

Shape suffixes: B batch, T query positions, S key positions, H query heads, K key heads, D head width, C width.
Rotary phases are made and applied in float32 whatever type the model has: in bfloat16 position 256 and position
257 have the same phase (Su et al. 2021; the rounding is a fault that several code bases shipped).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aicpnode.model.config import TransformerConfig


class RotaryTable:
    """Unit complex numbers ``exp(i * position * frequency)``, complex64[context, D/2].

    Not a module buffer: a cast of the model to another type must not reach it.
    """

    def __init__(self, config: TransformerConfig, device: torch.device) -> None:
        pairs = config.head_width // 2
        frequencies = float(config.rope_theta) ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        phases = torch.outer(torch.arange(config.context, dtype=torch.float64), frequencies)
        self.turns = torch.polar(torch.ones_like(phases), phases).to(torch.complex64).to(device)

    def rotate(self, x_BTHD: Tensor, start: int) -> Tensor:
        """Turns each pair (2d, 2d + 1) of position ``start + t`` by its phase; the dtype stays as it is.

        One complex product reads and writes each number once; on a CPU it takes a third of the time of the
        usual cosines and sines, which matters in a model this narrow.
        """
        turns = self.turns[start : start + x_BTHD.shape[1], None, :]
        pairs = torch.view_as_complex(x_BTHD.float().reshape(*x_BTHD.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x_BTHD.dtype)


class LayerCache:
    """Keys and values of one block's past positions: [B, K, context, D], filled from the left."""

    def __init__(self, config: TransformerConfig, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (batch, config.kv_heads, config.context, config.head_width)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    def extend(self, k_BKTD: Tensor, v_BKTD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Stores the new positions at ``start`` and returns all keys and values up to the last of them."""
        stop = start + k_BKTD.shape[2]
        assert stop <= self._keys.shape[2], "the cache is full: the caller must slide the window"
        self._keys[:, :, start:stop] = k_BKTD
        self._values[:, :, start:stop] = v_BKTD
        return self._keys[:, :, :stop], self._values[:, :, :stop]


class Attention(nn.Module):
    """Projections to queries, keys and values; rotary positions; scaled dot products; output projection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._group = config.heads // config.kv_heads
        self._head_width = config.head_width
        kv_width = config.kv_heads * config.head_width
        self.query = nn.Parameter(torch.empty(config.width, config.width))
        self.key = nn.Parameter(torch.empty(kv_width, config.width))
        self.value = nn.Parameter(torch.empty(kv_width, config.width))
        self.out = nn.Parameter(torch.empty(config.width, config.width))

    def forward(self, x_BTC: Tensor, rotary: RotaryTable, cache: LayerCache | None, start: int) -> Tensor:
        """``start`` is the position of the first of the T tokens; without a cache it must be 0."""
        batch, length, width = x_BTC.shape
        heads = (batch, length, -1, self._head_width)
        q_BHTD = rotary.rotate(F.linear(x_BTC, self.query).view(heads), start).transpose(1, 2)
        k_BKSD = rotary.rotate(F.linear(x_BTC, self.key).view(heads), start).transpose(1, 2)
        v_BKSD = F.linear(x_BTC, self.value).view(heads).transpose(1, 2)
        if cache is not None:
            k_BKSD, v_BKSD = cache.extend(k_BKSD, v_BKSD, start)
        if self._group > 1:
            # Query head h belongs to key head h // group: repeat each head in place, not the whole list.
            k_BKSD = k_BKSD.repeat_interleave(self._group, dim=1)
            v_BKSD = v_BKSD.repeat_interleave(self._group, dim=1)
        if start == 0:
            mixed_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BKSD, v_BKSD, is_causal=length > 1)
        else:
            # is_causal aligns the first query with the first key, which is wrong over a cache: the mask is explicit.
            mask_TS = _causal_mask(length, k_BKSD.shape[2], x_BTC.device) if length > 1 else None
            mixed_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BKSD, v_BKSD, attn_mask=mask_TS)
        return F.linear(mixed_BHTD.transpose(1, 2).reshape(batch, length, width), self.out)


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """bool[T, S], true where a query may look; the last query is the last key's own position."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(diagonal=keys - queries)

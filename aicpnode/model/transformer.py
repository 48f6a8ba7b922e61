"""The transformer: embedding, blocks of attention and gated feed-forward, norm, output projection.

The network agrees on one flat float32 vector; this module cuts it into tensors by the layout of its
configuration. Pre-norm blocks with RMSNorm (Zhang and Sennrich 2019) and SwiGLU (Shazeer 2020). There is no
dropout, so training and evaluation compute the same function.
Shape suffixes: B batch, T positions, C width, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aicpnode.model.attention import Attention, LayerCache, RotaryTable
from aicpnode.model.config import TransformerConfig


class FeedForward(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(config.ffn_width, config.width))
        self.up = nn.Parameter(torch.empty(config.ffn_width, config.width))
        self.down = nn.Parameter(torch.empty(config.width, config.ffn_width))

    def forward(self, x_BTC: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x_BTC, self.gate)) * F.linear(x_BTC, self.up), self.down)


class Block(nn.Module):
    """Attention and gated feed-forward, each behind a norm and beside a residual path."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._eps = config.norm_eps
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.Parameter(torch.empty(config.width))
        self.feed_forward_norm = nn.Parameter(torch.empty(config.width))

    def forward(self, x_BTC: Tensor, rotary: RotaryTable, cache: LayerCache | None, start: int) -> Tensor:
        x_BTC = x_BTC + self.attention(rms_norm(x_BTC, self.attention_norm, self._eps), rotary, cache, start)
        return x_BTC.add(self.feed_forward(rms_norm(x_BTC, self.feed_forward_norm, self._eps)))


class Cache:
    """What decoding keeps of one sequence: a LayerCache for each block, and the number of positions in them."""

    def __init__(self, config: TransformerConfig, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = [LayerCache(config, batch, dtype, device) for _ in range(config.layers)]
        self.length = 0


class Transformer(nn.Module):
    """``Transformer(config)`` has undefined weights until ``load_theta``."""

    def __init__(self, config: TransformerConfig, device: str | torch.device = "cpu") -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocab, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.Parameter(torch.empty(config.width))
        if not config.tied:
            self.head = nn.Parameter(torch.empty(config.vocab, config.width))
        self.to(device)
        self._rotary = RotaryTable(config, self.device)

    @property
    def device(self) -> torch.device:
        return self.embed.device

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Returns logits [B, T, V]. With a cache the tokens follow those already in it, and are added to it."""
        start = 0 if cache is None else cache.length
        length = tokens_BT.shape[1]
        assert start + length <= self.config.context, "more positions than the context holds"
        x_BTC = F.embedding(tokens_BT, self.embed)
        for number, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, self._rotary, None if cache is None else cache.layers[number], start)
        if cache is not None:
            cache.length = start + length
        return F.linear(rms_norm(x_BTC, self.final_norm, self.config.norm_eps), self._output)

    def loss_sum(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum, not mean, of the cross entropy in nats over all positions (float32 scalar).

        Sums of parts add up to the sum of the whole, so gradient accumulation equals one large batch.
        """
        logits_BTV: Tensor = self(inputs_BT)
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="sum")

    def new_cache(self, batch: int = 1) -> Cache:
        return Cache(self.config, batch, self.embed.dtype, self.device)

    def load_theta(self, theta: npt.NDArray[np.float32]) -> None:
        """Copies the flat vector float32[P] into the tensors, cast to the type that they have."""
        assert theta.dtype == np.float32 and theta.shape == (self.config.parameters,)
        by_name = dict(self.named_parameters())
        # Torch has no read-only tensors and warns when given such memory, so the copy is made in numpy.
        source = torch.from_numpy(theta if theta.flags.writeable else theta.copy())
        with torch.no_grad():
            for tensor in self.config.layout:
                by_name[tensor.name].copy_(source[tensor.start : tensor.stop].view(tensor.shape))

    def read_theta(self) -> npt.NDArray[np.float32]:
        """Returns a new flat vector float32[P]."""
        by_name = dict(self.named_parameters())
        theta = np.empty(self.config.parameters, dtype=np.float32)
        for tensor in self.config.layout:
            part = by_name[tensor.name].detach().to(device="cpu", dtype=torch.float32)
            theta[tensor.start : tensor.stop] = part.reshape(-1).numpy()
        return theta

    @property
    def _output(self) -> Tensor:
        return self.embed if self.config.tied else self.head


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Divides by the root mean square of the last dimension, then applies the gain."""
    return F.rms_norm(x, (x.shape[-1],), gain, eps)

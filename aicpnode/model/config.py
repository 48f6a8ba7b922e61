"""Shape of the transformer, and the order in which its tensors lie in the one flat parameter vector.

A configuration comes from the genesis, so its values are integers only. The layout is part of the agreed
model: every node must cut the same flat vector into the same tensors, which is why it has a hash. All matrices
stand before all norm gains, so that weight decay applies to one contiguous part of the vector. Torch-free: the
genesis writer and a node that does not train use this file.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from aicpnode.errors import UserError
from aicpnode.genesis import ModelKind, ModelSpec

LAYERS_MAX = 256
WIDTH_MAX = 65_536
CONTEXT_MAX = 1_048_576
VOCABULARY_MAX = 4_194_304
LAYOUT_DOMAIN = b"aicp-layout-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """One tensor of the model: ``start`` is its first coordinate in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder-only transformer: RoPE, RMSNorm, grouped-query attention, SwiGLU; no biases, no dropout."""

    layers: int
    """Blocks of attention and feed-forward."""
    heads: int
    """Query heads; the width of one is ``width // heads``, even because RoPE turns pairs."""
    width: int
    """Features of a position between blocks."""
    ffn_width: int
    """Features inside the gated feed-forward part."""
    context: int
    """Longest sequence, in tokens."""
    vocab: int = 256
    """Number of tokens; 256 is one token a byte."""
    kv_heads: int = 0
    """Key and value heads, a divisor of ``heads``; 0 means as many as query heads."""
    rope_theta: int = 10_000
    """Base of the rotary frequencies."""
    tied: bool = True
    """The output projection is the embedding matrix."""
    norm_eps_nano: int = 10_000
    """Added to the mean square in RMSNorm, in 1e-9."""

    def __post_init__(self) -> None:
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        limits = (
            ("layers", self.layers, LAYERS_MAX),
            ("heads", self.heads, WIDTH_MAX),
            ("kv_heads", self.kv_heads, WIDTH_MAX),
            ("width", self.width, WIDTH_MAX),
            ("ffn_width", self.ffn_width, 4 * WIDTH_MAX),
            ("context", self.context, CONTEXT_MAX),
            ("vocab", self.vocab, VOCABULARY_MAX),
            ("rope_theta", self.rope_theta, 1 << 40),
            ("norm_eps_nano", self.norm_eps_nano, 1_000_000_000),
        )
        for name, value, limit in limits:
            if not 1 <= value <= limit:
                raise UserError(f"Model {name} is {value}.", advice=f"It must lie between 1 and {limit}.")
        if self.width % (2 * self.heads) != 0:
            raise UserError(
                f"Model width {self.width} does not give {self.heads} heads of even width.",
                advice="Make the width a multiple of twice the number of heads.",
            )
        if self.heads % self.kv_heads != 0:
            raise UserError(
                f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly.",
                advice="Make heads a multiple of kv_heads.",
            )

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> TransformerConfig:
        """Reads the genesis' values. UserError for a kind of model, or a shape, that this node cannot build."""
        if spec.kind is not ModelKind.TRANSFORMER:
            raise UserError(f"A model of kind {spec.kind} cannot be built.", advice="Use a newer version of aicp-node.")
        return cls(
            layers=spec.layers,
            heads=spec.heads,
            width=spec.width,
            ffn_width=spec.ffn_width,
            context=spec.context,
            vocab=spec.vocab,
            kv_heads=spec.kv_heads,
            rope_theta=spec.rope_theta,
            tied=spec.tied,
            norm_eps_nano=spec.norm_eps_nano,
        )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def norm_eps(self) -> float:
        return self.norm_eps_nano * 1e-9

    @property
    def layout(self) -> tuple[TensorLayout, ...]:
        """All trainable tensors in their declared order: embedding, matrices by block, output, then norm gains."""
        kv_width = self.kv_heads * self.head_width
        shapes: list[tuple[str, tuple[int, ...]]] = [("embed", (self.vocab, self.width))]
        for block in range(self.layers):
            shapes += [
                (f"blocks.{block}.attention.query", (self.width, self.width)),
                (f"blocks.{block}.attention.key", (kv_width, self.width)),
                (f"blocks.{block}.attention.value", (kv_width, self.width)),
                (f"blocks.{block}.attention.out", (self.width, self.width)),
                (f"blocks.{block}.feed_forward.gate", (self.ffn_width, self.width)),
                (f"blocks.{block}.feed_forward.up", (self.ffn_width, self.width)),
                (f"blocks.{block}.feed_forward.down", (self.width, self.ffn_width)),
            ]
        if not self.tied:
            shapes.append(("head", (self.vocab, self.width)))
        for block in range(self.layers):
            shapes += [
                (f"blocks.{block}.attention_norm", (self.width,)),
                (f"blocks.{block}.feed_forward_norm", (self.width,)),
            ]
        shapes.append(("final_norm", (self.width,)))
        tensors: list[TensorLayout] = []
        start = 0
        for name, shape in shapes:
            tensors.append(TensorLayout(name=name, shape=shape, start=start))
            start = tensors[-1].stop
        return tuple(tensors)

    @property
    def parameters(self) -> int:
        """Length P of the flat vector."""
        return self.layout[-1].stop

    @property
    def matrix_parameters(self) -> int:
        """Length of the leading part that holds matrices; norm gains (never decayed) are the rest."""
        return min(tensor.start for tensor in self.layout if len(tensor.shape) == 1)

    @property
    def layout_hash(self) -> bytes:
        """SHA-256 over the domain tag and one line ``name dimension dimension`` for each tensor."""
        lines = "".join(f"{t.name} {' '.join(map(str, t.shape))}\n" for t in self.layout)
        return hashlib.sha256(LAYOUT_DOMAIN + b"\x00" + lines.encode("ascii")).digest()

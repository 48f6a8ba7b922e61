"""The initial model, as the writer of a genesis makes it. Numpy only.

Only the writer runs this; everybody else fetches the result by the hash that the genesis names, so a numpy that
draws other numbers from the same seed does no harm. Residual projections start smaller by the square root of
twice the depth, so that the signal keeps its size through the blocks (Radford et al. 2019, section 2.3).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from aicpnode.model.config import TensorLayout, TransformerConfig

EMBEDDING_DEVIATION: Final = 0.02


def initial_theta(config: TransformerConfig, seed: int) -> npt.NDArray[np.float32]:
    """Returns the flat vector, float32[P], in layout order; the same seed gives the same vector with one numpy."""
    generator = np.random.Generator(np.random.Philox(seed))
    theta = np.empty(config.parameters, dtype=np.float32)
    for tensor in config.layout:
        part = theta[tensor.start : tensor.stop]
        if len(tensor.shape) == 1:
            part.fill(1.0)
        else:
            generator.standard_normal(out=part, dtype=np.float32)
            part *= np.float32(_deviation(tensor, config))
    assert np.isfinite(theta).all()
    return theta


def _deviation(tensor: TensorLayout, config: TransformerConfig) -> float:
    if tensor.name in ("embed", "head"):
        return EMBEDDING_DEVIATION
    deviation = 1.0 / math.sqrt(tensor.shape[1])
    if tensor.name.endswith((".out", ".down")):
        deviation /= math.sqrt(2 * config.layers)
    return deviation

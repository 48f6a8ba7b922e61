"""What an optimizer remembers between rounds, as plain arrays. Torch-free, so that checkpoints can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptimizerState:
    """AdamW's two moments, float32[P] in layout order, and the number of steps taken (skipped ones not counted)."""

    first_moment: FloatArray
    second_moment: FloatArray
    steps: int

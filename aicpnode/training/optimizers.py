"""AdamW over one flat parameter vector.

The model's tensors, their gradients and the optimizer's moments are views of four flat arrays in layout order:
loading the agreed model, taking the difference and clipping by the norm are single operations, and the fused
kernel makes one pass over memory. Matrices lie first, so weight decay is a property of one slice
(Loshchilov and Hutter 2019; norm gains are not decayed).
"""

from __future__ import annotations

import numpy as np
import torch

from aicpnode.model.transformer import Transformer
from aicpnode.training.optimizer_state import FloatArray, OptimizerState

ADAM_EPS = 1e-8


class FlatParameters:
    """Rebinds a model's parameters and gradients to views of two flat float32 tensors."""

    def __init__(self, model: Transformer) -> None:
        config = model.config
        self.values = torch.zeros(config.parameters, device=model.device)
        self.gradients = torch.zeros_like(self.values)
        by_name = dict(model.named_parameters())
        assert set(by_name) == {tensor.name for tensor in config.layout}
        for tensor in config.layout:
            parameter = by_name[tensor.name]
            assert parameter.dtype == torch.float32
            parameter.data = self.values[tensor.start : tensor.stop].view(tensor.shape)
            parameter.grad = self.gradients[tensor.start : tensor.stop].view(tensor.shape)

    def load(self, theta: FloatArray) -> None:
        """Copies float32[P] in; every tensor of the model changes with it."""
        self.values.copy_(torch.from_numpy(theta if theta.flags.writeable else theta.copy()))

    def read(self) -> FloatArray:
        """Returns a copy, float32[P]."""
        return np.array(self.values.cpu().numpy())


class FlatAdamW:
    """Decoupled weight decay on the matrices, none on the gains; gradients clipped by their global norm."""

    def __init__(
        self,
        flat: FlatParameters,
        *,
        matrix_parameters: int,
        weight_decay: float,
        beta1: float,
        beta2: float,
        clip: float,
    ) -> None:
        self._flat = flat
        self._clip = clip
        self._parts = []
        groups = []
        decays = (weight_decay, 0.0)
        for part, decay in zip((slice(0, matrix_parameters), slice(matrix_parameters, None)), decays, strict=True):
            parameter = torch.nn.Parameter(flat.values[part])
            parameter.data = flat.values[part]
            parameter.grad = flat.gradients[part]
            self._parts.append(parameter)
            groups.append({"params": [parameter], "weight_decay": decay})
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=(beta1, beta2), eps=ADAM_EPS, fused=True)
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps taken; a skipped step is not one."""
        return self._steps

    def zero_gradients(self) -> None:
        self._flat.gradients.zero_()

    def step(self, rate: float) -> bool:
        """Clips and applies the gradients. False, with nothing changed, if their norm is not finite."""
        norm = float(torch.linalg.vector_norm(self._flat.gradients))
        if not np.isfinite(norm):
            return False
        if self._clip > 0.0 and norm > self._clip:
            self._flat.gradients.mul_(self._clip / norm)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._steps += 1
        return True

    def state(self) -> OptimizerState:
        """A copy that later steps do not change; zeros before the first step."""
        moments = {name: np.zeros(self._flat.values.numel(), dtype=np.float32) for name in ("exp_avg", "exp_avg_sq")}
        if self._steps:
            for name, array in moments.items():
                array[:] = torch.cat([self._adam.state[part][name] for part in self._parts]).cpu().numpy()
        return OptimizerState(first_moment=moments["exp_avg"], second_moment=moments["exp_avg_sq"], steps=self._steps)

    def restore(self, state: OptimizerState) -> None:
        """Continues from ``state``; its arrays are copied."""
        parameters = self._flat.values.numel()
        assert state.first_moment.shape == state.second_moment.shape == (parameters,) and state.steps >= 0
        self._adam.state.clear()
        self._steps = state.steps
        if state.steps == 0:
            return
        start = 0
        for part in self._parts:
            stop = start + part.numel()
            self._adam.state[part] = {
                "step": torch.tensor(float(state.steps), device=part.device),
                "exp_avg": torch.tensor(state.first_moment[start:stop], device=part.device),
                "exp_avg_sq": torch.tensor(state.second_moment[start:stop], device=part.device),
            }
            start = stop

"""One author's part of a round: H inner steps from the agreed model, and the difference they make.

This is local training in the sense of DiLoCo (Douillard et al. 2023): ``delta = theta0 - thetaH``, a gradient
as it were, which the gradients room encodes and the network aggregates. The batches follow from (network, round,
author, step); the optimizer's moments stay on this node from round to round. Everything here is synchronous and
float32; it runs in a worker thread, one call at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from aicpnode.errors import UserError
from aicpnode.genesis import TrainingSpec
from aicpnode.model.config import TransformerConfig
from aicpnode.model.transformer import Transformer
from aicpnode.training.batching import Offsets, batch_offsets, offsets_digest
from aicpnode.training.data import Dataset
from aicpnode.training.optimizer_state import FloatArray, OptimizerState
from aicpnode.training.optimizers import FlatAdamW, FlatParameters
from aicpnode.training.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerResult:
    """What one call of ``Trainer.inner_loop`` did."""

    delta: FloatArray
    """``theta0 - thetaH``, float32[P] in layout order; zeros if no step was taken."""
    losses: npt.NDArray[np.float32]
    """Mean loss of each step's batch before the step, nats a token, float32[steps]."""
    steps: int
    """Batches used; fewer than asked for if ``should_stop`` said so."""
    skipped: int
    """Of those, steps that changed nothing because the gradient was not finite."""
    tokens: int
    """Predicted tokens."""
    offsets_hash: bytes
    """SHA-256 of the ordered offsets of the batches used."""
    seconds: float
    """Wall time."""


class Trainer:
    """Holds the training copy of the model and the optimizer; one call at a time, others wait."""

    def __init__(
        self,
        *,
        config: TransformerConfig,
        training: TrainingSpec,
        dataset: Dataset,
        network_id: bytes,
        device: str = "cpu",
        threads: int = 1,
        micro_batch_size: int = 0,
    ) -> None:
        """``threads`` holds for the whole process: torch keeps one number.

        ``micro_batch_size`` windows are in memory at a time, 0 meaning the whole batch; it changes no result beyond
        rounding.
        """
        if not 1 <= training.sequence_length <= config.context:
            raise UserError(f"Sequences of {training.sequence_length} tokens do not fit a context of {config.context}.")
        self._positions = len(dataset.train) - training.sequence_length
        if self._positions <= 0:
            raise UserError(
                f"The training text has {len(dataset.train)} bytes; one sequence needs {training.sequence_length + 1}.",
                advice="Use a genesis with more text or shorter sequences.",
            )
        torch.set_num_threads(threads)
        self.training = training
        self._dataset = dataset
        self._network_id = network_id
        self._micro_batch_size = micro_batch_size or training.batch_size
        self._model = Transformer(config, device)
        self._flat = FlatParameters(self._model)
        self._optimizer = FlatAdamW(
            self._flat,
            matrix_parameters=config.matrix_parameters,
            weight_decay=training.weight_decay_milli / 1e3,
            beta1=training.beta1_milli / 1e3,
            beta2=training.beta2_milli / 1e3,
            clip=training.clip_milli / 1e3,
        )
        self._schedule = Schedule(
            peak=training.inner_lr_micro / 1e6,
            warmup_steps=training.warmup_steps,
            decay_rounds=training.decay_rounds,
        )
        self._busy = threading.Lock()

    def inner_loop(
        self,
        theta0: FloatArray,
        *,
        round_number: int,
        author_index: int,
        steps: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[int, float], None] = lambda step, loss: None,
    ) -> InnerResult:
        """Trains ``steps`` (default: the genesis' number) steps from ``theta0``, float32[P], which is not changed.

        ``should_stop`` is asked before each step; ``on_step(steps done, loss)`` is called after it. Both are called
        in this thread.
        """
        with self._busy:
            started = time.perf_counter()
            self._flat.load(theta0)
            batches: list[Offsets] = []
            losses: list[float] = []
            skipped = 0
            for step in range(self.training.inner_steps if steps is None else steps):
                if should_stop():
                    break
                batches.append(self._offsets(round_number, author_index, step))
                losses.append(self._accumulate(batches[-1]))
                rate = self._schedule.rate(own_step=self._optimizer.steps, round_number=round_number)
                if not self._optimizer.step(rate):
                    skipped += 1
                on_step(step + 1, losses[-1])
            return InnerResult(
                delta=theta0 - self._flat.read(),
                losses=np.array(losses, dtype=np.float32),
                steps=len(batches),
                skipped=skipped,
                tokens=sum(offsets.size for offsets in batches) * self.training.sequence_length,
                offsets_hash=offsets_digest(batches),
                seconds=time.perf_counter() - started,
            )

    def state(self) -> OptimizerState:
        """What a checkpoint keeps: the moments and the step count. The data position follows from the round."""
        with self._busy:
            return self._optimizer.state()

    def restore(self, state: OptimizerState) -> None:
        with self._busy:
            self._optimizer.restore(state)

    def _offsets(self, round_number: int, author_index: int, step: int) -> Offsets:
        return batch_offsets(
            network_id=self._network_id,
            round_number=round_number,
            author_index=author_index,
            step=step,
            batch_size=self.training.batch_size,
            positions=self._positions,
        )

    def _accumulate(self, offsets: Offsets) -> float:
        """Puts the gradient of the mean loss over all tokens of the batch into the flat gradients; returns that loss.

        Each part contributes its sum divided by the tokens of the whole, so parts of any size give the gradient of
        one large batch.
        """
        self._optimizer.zero_gradients()
        length = self.training.sequence_length
        tokens = offsets.size * length
        total = 0.0
        for start in range(0, offsets.size, self._micro_batch_size):
            windows = self._dataset.train.windows(offsets[start : start + self._micro_batch_size], length + 1)
            batch = torch.from_numpy(windows).to(self._model.device)
            loss = self._model.loss_sum(batch[:, :-1], batch[:, 1:]) / tokens
            torch.autograd.backward(loss)
            total += loss.item()
        return total

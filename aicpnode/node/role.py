"""What a node that trains has besides: data, trainer, engine, checkpoints. Importing this module imports torch."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from aicpnode.errors import UserError
from aicpnode.events import Notice
from aicpnode.model.config import TransformerConfig
from aicpnode.model.generate import Sampling
from aicpnode.training.checkpoint import CheckpointRefused, checkpoints, read_checkpoint
from aicpnode.training.data import Dataset
from aicpnode.training.engine import AgreedModel, Engine
from aicpnode.training.evaluate import Evaluation
from aicpnode.training.step import Trainer

if TYPE_CHECKING:
    from aicpnode.node.node import Node

log = logging.getLogger(__name__)


class TrainingRole:
    """Built in a worker thread once the data is here; ``run`` trains until cancelled."""

    def __init__(self, node: Node) -> None:
        self._node = node
        genesis = node.genesis
        device = _device(node.config.device)
        self.config = TransformerConfig.from_spec(genesis.model)
        self.dataset = Dataset.load(genesis.data.shards, node.blobs.open_map)
        trainer = Trainer(
            config=self.config,
            training=genesis.training,
            dataset=self.dataset,
            network_id=node.network_id,
            device=device,
            threads=node.config.max_cpu_threads or 1,
        )
        self.engine = Engine(
            participant=node.participant,
            trainer=trainer,
            config=self.config,
            dataset=self.dataset,
            agreed=self._agreed,
            contributors=lambda: len(node.driver.ledger.contributors()),
            events=node.bus,
            device=device,
        )
        self._saving = trio.Lock()
        self._training = trio.CancelScope()
        self._restore()

    def _agreed(self) -> AgreedModel:
        node = self._node
        state = node.participant.state
        return AgreedModel(
            round_number=state.round,
            height=node.driver.applied_height,
            model_hash=state.model_hash,
            state_hash=node.driver.state_hash,
            theta=state.values,
        )

    def _restore(self) -> None:
        """Go on with the optimizer of the newest checkpoint that is whole; the model itself comes from the ledger."""
        for path in reversed(checkpoints(self._node.config.checkpoints)):
            try:
                checkpoint = read_checkpoint(path, network_id=self._node.network_id)
            except CheckpointRefused as error:
                log.warning("%s", error)
                continue
            self.engine.restore(checkpoint)
            log.info("resumed the optimizer from %s (round %d)", path.name, checkpoint.round_number)
            return

    async def run(self) -> None:
        """Train until cancelled or stopped."""
        with self._training:
            await self.engine.run()

    def stop(self) -> None:
        """End training: the step that is under way is the last one."""
        self._training.cancel()

    async def checkpoint(self) -> Path:
        """Write one now; waits for a running round's optimizer."""
        async with self._saving:
            path = await self.engine.checkpoint(
                self._node.config.checkpoints, self._node.identity, self._node.network_id
            )
        self._node.bus.publish(Notice(level="info", text=f"checkpoint {path.name}"))
        return path

    async def evaluate(self, tokens: int) -> tuple[Evaluation, float]:
        return await self.engine.evaluate(tokens), await self.engine.bigram()

    def generate(self, prompt: bytes, tokens: int, sampling: Sampling) -> AsyncIterator[bytes]:
        return self.engine.generate(prompt, tokens=tokens, sampling=sampling)


def _device(wanted: str) -> str:
    """``auto`` is the first GPU if torch sees one. UserError for a device that is not there."""
    import torch

    if wanted == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"torch sees no GPU, but --device is {wanted}.", advice="Use --device cpu or auto.")
    return wanted

"""The trio side of training: rounds come in, proposals go out, and the numbers that people look at are kept.

The loop waits for a round, trains in a worker thread, hands the difference to the participant, and in its turn
measures the validation loss of the model that the round started from. That measurement comes after the proposal,
when this node would only wait for the others. Training ends early, with a shorter but honest difference, when the
round's time for it is over; it is thrown away when the network has gone on to another round meanwhile.
A thread cannot be cancelled, so every loop in one asks a flag that a cancellation sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import trio

from aicpnode.errors import UserError
from aicpnode.events import EventBus, InnerStep, Notice, ValidationMeasured
from aicpnode.identity import Identity
from aicpnode.model.config import TransformerConfig
from aicpnode.model.generate import Sampling, generate
from aicpnode.model.transformer import Transformer
from aicpnode.training.background import run_in_background
from aicpnode.training.bigram import bigram_loss
from aicpnode.training.checkpoint import Checkpoint, write_checkpoint
from aicpnode.training.data import Dataset
from aicpnode.training.evaluate import Evaluation, validation_loss
from aicpnode.training.optimizer_state import FloatArray
from aicpnode.training.step import InnerResult, Trainer

ROTATION_TOKENS = 16_384
"""Validation tokens measured in a round by the node whose turn it is."""
STEP_EVENT_INTERVAL_S = 0.25
GENERATE_PIECE_TOKENS = 8
"""Tokens made in one visit to a worker thread."""
GENERATIONS_MAX = 4
"""Texts generated at once; each holds a copy of the model."""

Result = TypeVar("Result")


class Task(Protocol):
    """One round's work, as ``gradients.participant.RoundTask`` gives it."""

    @property
    def round(self) -> int: ...
    @property
    def theta(self) -> FloatArray: ...
    @property
    def author_index(self) -> int: ...
    @property
    def stop_at(self) -> float: ...


TaskT = TypeVar("TaskT", bound=Task)


class Rounds(Protocol[TaskT]):
    """What the engine needs of ``gradients.participant.Participant``."""

    async def wait_round(self, after: int) -> TaskT:
        """Returns the first round later than ``after`` that this node contributes to."""
        ...

    async def wait_over(self, round: int) -> None:
        """Returns once training for ``round`` is useless."""
        ...

    async def submit(self, task: TaskT, delta: FloatArray, *, offsets_hash: bytes, tokens: int) -> bytes | None:
        """Proposes; returns the digest, or None if there could be no proposal."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgreedModel:
    """The model that the network agrees on now."""

    round_number: int
    """The round that is computed on it, which is how many rounds it has behind it."""
    height: int
    model_hash: bytes
    state_hash: bytes
    theta: FloatArray
    """float32[P]; not changed by anyone."""


@dataclass(slots=True)
class _Figures:
    round: int = 0
    loss: float | None = None
    val_loss: float | None = None
    val_round: int = 0
    tokens_per_s: float = 0.0
    tokens: int = 0
    inner_step: int = 0
    inner_steps: int = 0
    skipped_steps: int = 0
    proposed: int = 0
    overtaken: int = 0
    training_s: float = 0.0
    started: float | None = None


class Engine:
    """Trains for as long as ``run`` runs; measures and generates at any time."""

    def __init__(
        self,
        *,
        participant: Rounds[TaskT],
        trainer: Trainer,
        config: TransformerConfig,
        dataset: Dataset,
        agreed: Callable[[], AgreedModel],
        contributors: Callable[[], int],
        events: EventBus,
        device: str = "cpu",
    ) -> None:
        """``agreed`` returns the present model, ``contributors`` how many members contribute (for the rotation)."""
        self._loop = partial(self._train_rounds, participant)
        self._trainer = trainer
        self._config = config
        self._dataset = dataset
        self._agreed = agreed
        self._contributors = contributors
        self._events = events
        self._device = device
        self._figures = _Figures()
        self._evaluator: Transformer | None = None
        self._evaluating = trio.Lock()
        self._bigram: float | None = None
        self._generations = 0

    async def run(self) -> None:
        """Takes part in every round that this node contributes to, until cancelled."""
        await self._loop()

    def statistics(self) -> dict[str, float | int | None]:
        """Losses in nats a token; ``share`` is the part of the time since the first round that went to training."""
        figures = self._figures
        wall = 0.0 if figures.started is None else time.perf_counter() - figures.started
        return {
            "round": figures.round,
            "loss": figures.loss,
            "val_loss": figures.val_loss,
            "val_round": figures.val_round,
            "tokens_per_s": figures.tokens_per_s,
            "tokens": figures.tokens,
            "inner_step": figures.inner_step,
            "inner_steps": figures.inner_steps,
            "skipped_steps": figures.skipped_steps,
            "proposed": figures.proposed,
            "overtaken": figures.overtaken,
            "share": min(1.0, figures.training_s / wall) if wall > 0 else 0.0,
        }

    async def evaluate(self, tokens: int = 0) -> Evaluation:
        """Validation loss of the agreed model on about ``tokens`` tokens, 0 meaning the whole validation text."""
        if tokens < 0:
            raise UserError(f"Cannot evaluate {tokens} tokens.", advice="Choose 0 (the whole text) or more.")
        model = self._agreed()
        evaluation = await self._measure(model.theta, tokens)
        self._record(model.round_number, evaluation)
        return evaluation

    async def bigram(self) -> float:
        """The loss of the bigram model of the same split; computed once."""
        if self._bigram is None:
            data = self._dataset
            self._bigram = await trio.to_thread.run_sync(bigram_loss, data.train, data.validation)
        return self._bigram

    async def generate(self, prompt: bytes, *, tokens: int, sampling: Sampling) -> AsyncIterator[bytes]:
        """Yields pieces of text that the agreed model, as it is now, writes after ``prompt``."""
        if self._generations >= GENERATIONS_MAX:
            raise UserError(f"{GENERATIONS_MAX} texts are being generated already.", advice="Try again in a moment.")
        self._generations += 1
        try:
            stream = await trio.to_thread.run_sync(self._open_stream, prompt, tokens, sampling)
            while piece := await trio.to_thread.run_sync(_next_piece, stream):
                yield piece
        finally:
            self._generations -= 1

    async def checkpoint(
        self, folder: Path, identity: Identity, network_id: bytes, *, residual: FloatArray | None = None
    ) -> Path:
        """Writes the agreed model and this node's optimizer, and the residual if given. Waits for a running round."""
        model = self._agreed()

        def write() -> Path:
            checkpoint = Checkpoint(
                network_id=network_id,
                round_number=model.round_number,
                height=model.height,
                model_hash=model.model_hash,
                state_hash=model.state_hash,
                config=self._config,
                theta=model.theta,
                residual=residual,
                optimizer=self._trainer.state(),
            )
            return write_checkpoint(folder, identity, checkpoint)

        return await trio.to_thread.run_sync(write)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues with the optimizer of a checkpoint, if it has one; the model itself is the network's affair."""
        if checkpoint.optimizer is not None:
            self._trainer.restore(checkpoint.optimizer)

    async def _train_rounds(self, participant: Rounds[TaskT]) -> None:
        after = -1
        while True:
            task = await participant.wait_round(after)
            after = task.round
            result = await self._train(participant, task)
            if result is None:
                self._figures.overtaken += 1
                continue
            self._account(task.round, result)
            if result.steps == result.skipped:
                text = f"round {task.round}: no proposal, {result.steps} steps taken, {result.skipped} not finite"
                self._events.publish(Notice(level="warning", text=text))
                continue
            digest = await participant.submit(
                task, result.delta, offsets_hash=result.offsets_hash, tokens=result.tokens
            )
            if digest is not None:
                self._figures.proposed += 1
            if (task.round + task.author_index) % max(1, self._contributors()) == 0:
                self._record(task.round, await self._measure(task.theta, ROTATION_TOKENS))

    async def _train(self, participant: Rounds[TaskT], task: TaskT) -> InnerResult | None:
        """None if the network began another round, or paused, before this node was done."""
        if self._figures.started is None:
            self._figures.started = time.perf_counter()
        self._figures.round = task.round
        self._figures.inner_steps = self._trainer.training.inner_steps
        self._figures.inner_step = 0
        deadline = time.monotonic() + task.stop_at - trio.current_time()
        overtaken = False
        reporter = _Reporter(partial(self._stepped, task.round))

        def train(stopped: Callable[[], bool]) -> InnerResult:
            return self._trainer.inner_loop(
                task.theta,
                round_number=task.round,
                author_index=task.author_index,
                should_stop=lambda: stopped() or time.monotonic() >= deadline,
                on_step=reporter,
            )

        async def wait_overtaken() -> None:
            nonlocal overtaken
            await participant.wait_over(task.round)
            overtaken = True

        result = await _in_thread(train, until=wait_overtaken)
        return None if overtaken else result

    def _stepped(self, round_number: int, step: int, loss: float) -> None:
        if round_number != self._figures.round:
            return  # reported late, after the round was left
        self._figures.inner_step = step
        self._figures.loss = loss
        steps = self._figures.inner_steps
        self._events.publish(InnerStep(round=round_number, step=step, steps=steps, loss=loss))

    def _account(self, round_number: int, result: InnerResult) -> None:
        figures = self._figures
        figures.inner_step = result.steps
        figures.tokens += result.tokens
        figures.training_s += result.seconds
        figures.skipped_steps += result.skipped
        if result.steps:
            figures.loss = float(np.mean(result.losses))
            figures.tokens_per_s = result.tokens / max(result.seconds, 1e-9)

    def _record(self, round_number: int, evaluation: Evaluation) -> None:
        self._figures.val_loss = evaluation.loss
        self._figures.val_round = round_number
        self._events.publish(ValidationMeasured(round=round_number, loss=evaluation.loss, tokens=evaluation.tokens))

    async def _measure(self, theta: FloatArray, tokens: int) -> Evaluation:
        def measure(stopped: Callable[[], bool]) -> Evaluation | None:
            if self._evaluator is None:
                self._evaluator = Transformer(self._config, self._device)
            self._evaluator.load_theta(theta)
            return validation_loss(self._evaluator, self._dataset.validation, tokens_max=tokens, should_stop=stopped)

        async with self._evaluating:
            evaluation = await _in_thread(measure)
        assert evaluation is not None, "only a cancellation stops a measurement"
        return evaluation

    def _open_stream(self, prompt: bytes, tokens: int, sampling: Sampling) -> Iterator[bytes]:
        model = Transformer(self._config, self._device)
        model.load_theta(self._agreed().theta)
        return generate(model, prompt, tokens=tokens, sampling=sampling)


class _Reporter:
    """Carries steps from the worker thread to the event loop, never waiting and not more often than is readable."""

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report = report
        self._token = trio.lowlevel.current_trio_token()
        self._next = 0.0

    def __call__(self, step: int, loss: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + STEP_EVENT_INTERVAL_S
            self._token.run_sync_soon(self._report, step, loss)


async def _in_thread(
    work: Callable[[Callable[[], bool]], Result], until: Callable[[], Awaitable[None]] = trio.sleep_forever
) -> Result:
    """Runs ``work(stopped)`` in a thread and waits for its end; a cancellation, or ``until``'s end, makes
    ``stopped()`` true."""
    flag = threading.Event()

    async def watch() -> None:
        try:
            await until()
        finally:
            flag.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        result = await run_in_background(partial(work, flag.is_set))
        # What was done before a cancellation arrived is not returned: the caller is being cancelled too.
        await trio.lowlevel.checkpoint_if_cancelled()
        nursery.cancel_scope.cancel()
    return result


def _next_piece(stream: Iterator[bytes]) -> bytes:
    """The next few tokens; empty at the end."""
    return b"".join(islice(stream, GENERATE_PIECE_TOKENS))

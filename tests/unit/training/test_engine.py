from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from aicpnode.errors import UserError
from aicpnode.events import EventBus, InnerStep, Notice, ValidationMeasured
from aicpnode.identity import Identity
from aicpnode.model.generate import Sampling
from aicpnode.model.initial import initial_theta
from aicpnode.training import engine as subject
from aicpnode.training.checkpoint import read_checkpoint
from aicpnode.training.engine import AgreedModel, Engine

ROUND_S = 60.0


@dataclasses.dataclass(frozen=True)
class Task:
    round: int
    theta: np.ndarray
    author_index: int
    stop_at: float


class Network:
    """Plays the participant: the test begins rounds and sees what is submitted."""

    def __init__(self, theta: np.ndarray) -> None:
        self.theta = theta
        self.current = -1
        self.round_s = ROUND_S
        self.submitted: list[tuple[Task, np.ndarray, bytes, int]] = []
        self.accepts = True
        self.paused = False
        self._changed = trio.Condition()

    async def begin(self, number: int) -> None:
        async with self._changed:
            self.current = number
            self._changed.notify_all()

    async def pause(self, paused: bool) -> None:
        async with self._changed:
            self.paused = paused
            self._changed.notify_all()

    async def wait_over(self, round: int) -> None:
        async with self._changed:
            while self.current <= round and not self.paused:
                await self._changed.wait()

    async def wait_round(self, after: int) -> Task:
        async with self._changed:
            while self.current <= after or self.paused:
                await self._changed.wait()
        return Task(self.current, self.theta, 1, trio.current_time() + self.round_s)

    async def submit(self, task: Task, delta: np.ndarray, *, offsets_hash: bytes, tokens: int) -> bytes | None:
        async with self._changed:
            self.submitted.append((task, delta, offsets_hash, tokens))
            self._changed.notify_all()
        return b"d" * 32 if self.accepts else None

    async def wait_submitted(self, count: int) -> None:
        with trio.fail_after(30):
            async with self._changed:
                while len(self.submitted) < count:
                    await self._changed.wait()


class Stage:
    def __init__(self, tiny, **changes: int) -> None:
        self.theta = initial_theta(tiny.config, seed=1)
        self.theta.flags.writeable = False
        self.network = Network(self.theta)
        self.events = EventBus()
        self.seen = self.events.subscribe()
        self.trainer = tiny.trainer(**changes)
        self.engine = Engine(
            participant=self.network,
            trainer=self.trainer,
            config=tiny.config,
            dataset=tiny.dataset,
            agreed=lambda: AgreedModel(
                round_number=7, height=9, model_hash=b"m" * 32, state_hash=b"s" * 32, theta=self.theta
            ),
            contributors=lambda: 4,
            events=self.events,
        )

    async def next_event(self, kind: type) -> object:
        with trio.fail_after(30):
            async for event in self.seen:
                if isinstance(event, kind):
                    return event
        raise AssertionError("the bus was closed")


async def test_each_round_is_trained_and_submitted(tiny) -> None:
    stage = Stage(tiny)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        for count, number in enumerate((0, 1, 4), start=1):
            await stage.network.begin(number)
            await stage.network.wait_submitted(count)
        nursery.cancel_scope.cancel()
    assert [task.round for task, *_ in stage.network.submitted] == [0, 1, 4]
    expected = tiny.trainer().inner_loop(stage.theta, round_number=0, author_index=1)
    _, delta, offsets_hash, tokens = stage.network.submitted[0]
    assert np.array_equal(delta, expected.delta)
    assert (offsets_hash, tokens) == (expected.offsets_hash, expected.tokens)
    figures = stage.engine.statistics()
    assert figures["round"] == 4
    assert figures["inner_step"] == figures["inner_steps"] == 4
    assert figures["tokens"] == 3 * expected.tokens
    assert figures["proposed"] == 3
    assert figures["loss"] is not None
    assert figures["tokens_per_s"] > 0
    assert 0 < figures["share"] <= 1


async def test_validation_is_measured_when_it_is_this_author_s_turn(tiny) -> None:
    stage = Stage(tiny)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        for count, number in enumerate((0, 1, 2, 3), start=1):
            await stage.network.begin(number)
            await stage.network.wait_submitted(count)
        event = await stage.next_event(ValidationMeasured)
        nursery.cancel_scope.cancel()
    # Author 1 of 4: (3 + 1) % 4 == 0, and not before.
    assert event.round == 3
    assert event.loss == pytest.approx(stage.engine.statistics()["val_loss"])


async def test_steps_are_reported_while_training(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "STEP_EVENT_INTERVAL_S", 0.0)
    stage = Stage(tiny)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        await stage.network.begin(0)
        steps = [await stage.next_event(InnerStep) for _ in range(4)]
        nursery.cancel_scope.cancel()
    assert [(event.round, event.step, event.steps) for event in steps] == [(0, n, 4) for n in (1, 2, 3, 4)]


def hold_training(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[bool]]:
    """Makes the trainer run until it is told to stop; the event is set once it runs."""
    running, stopped = threading.Event(), []
    real = stage.trainer.inner_loop

    def inner_loop(theta, *, round_number, author_index, should_stop, on_step):
        running.set()
        while not should_stop():
            pass
        stopped.append(True)
        return real(theta, round_number=round_number, author_index=author_index, steps=1)

    monkeypatch.setattr(stage.trainer, "inner_loop", inner_loop)
    return running, stopped


async def test_a_cancellation_ends_the_thread(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tiny)
    running, stopped = hold_training(stage, monkeypatch)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.engine.run)
            await stage.network.begin(0)
            await trio.to_thread.run_sync(running.wait)
            nursery.cancel_scope.cancel()
    assert stopped == [True]
    assert stage.network.submitted == []


async def test_training_for_a_round_that_is_over_is_stopped_and_thrown_away(
    tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tiny)
    running, _ = hold_training(stage, monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        await stage.network.begin(0)
        await trio.to_thread.run_sync(running.wait)
        stage.network.round_s = 0.0
        await stage.network.begin(1)
        await stage.network.wait_submitted(1)
        nursery.cancel_scope.cancel()
    assert [task.round for task, *_ in stage.network.submitted] == [1]
    assert stage.engine.statistics()["overtaken"] == 1


async def test_training_is_dropped_when_nothing_can_be_decided(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tiny)
    running, _ = hold_training(stage, monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        await stage.network.begin(0)
        await trio.to_thread.run_sync(running.wait)
        await stage.network.pause(True)
        stage.network.round_s = 0.0
        await stage.network.begin(1)
        await trio.testing.wait_all_tasks_blocked()
        assert stage.network.submitted == []
        await stage.network.pause(False)
        await stage.network.wait_submitted(1)
        nursery.cancel_scope.cancel()
    assert [task.round for task, *_ in stage.network.submitted] == [1]
    assert stage.engine.statistics()["overtaken"] == 1


async def test_a_slow_machine_submits_what_it_has_when_time_is_up(tiny) -> None:
    stage = Stage(tiny, inner_steps=1_000_000)
    stage.network.round_s = 0.3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        await stage.network.begin(0)
        await stage.network.wait_submitted(1)
        nursery.cancel_scope.cancel()
    steps = stage.engine.statistics()["inner_step"]
    assert 0 < steps < 1_000_000
    assert stage.network.submitted[0][3] == steps * 6 * 16


async def test_no_step_means_no_proposal_and_a_notice(tiny) -> None:
    stage = Stage(tiny)
    stage.network.round_s = -1.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        await stage.network.begin(0)
        notice = await stage.next_event(Notice)
        nursery.cancel_scope.cancel()
    assert "no proposal" in notice.text
    assert stage.network.submitted == []


async def test_a_proposal_that_was_not_made_is_not_counted(tiny) -> None:
    stage = Stage(tiny)
    stage.network.accepts = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.engine.run)
        await stage.network.begin(0)
        await stage.network.wait_submitted(1)
        nursery.cancel_scope.cancel()
    assert stage.engine.statistics()["proposed"] == 0


async def test_evaluation_of_the_agreed_model(tiny) -> None:
    stage = Stage(tiny)
    part, whole = await stage.engine.evaluate(64), await stage.engine.evaluate()
    assert part.tokens == 64
    assert whole.tokens > 1000
    assert stage.engine.statistics()["val_loss"] == pytest.approx(whole.loss)
    assert stage.engine.statistics()["val_round"] == 7
    assert await stage.engine.bigram() == await stage.engine.bigram() < 2.0
    with pytest.raises(UserError):
        await stage.engine.evaluate(-1)


async def test_generation_streams_the_agreed_model_s_text(tiny) -> None:
    stage = Stage(tiny)
    sampling = Sampling(temperature=0.0)
    pieces = [piece async for piece in stage.engine.generate(b"line", tokens=19, sampling=sampling)]
    assert [len(piece) for piece in pieces] == [8, 8, 3]
    again = b"".join([piece async for piece in stage.engine.generate(b"line", tokens=19, sampling=sampling)])
    assert b"".join(pieces) == again


async def test_generations_at_once_are_bounded(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "GENERATIONS_MAX", 1)
    stage = Stage(tiny)
    sampling = Sampling()
    first = stage.engine.generate(b"", tokens=20, sampling=sampling)
    await anext(first)
    second = stage.engine.generate(b"", tokens=20, sampling=sampling)
    with pytest.raises(UserError, match="already"):
        await anext(second)
    await first.aclose()
    assert len([piece async for piece in stage.engine.generate(b"", tokens=1, sampling=sampling)]) == 1


async def test_a_checkpoint_holds_the_agreed_model_and_the_own_optimizer(tiny, tmp_path: Path) -> None:
    stage, identity = Stage(tiny), Identity(bytes(32))
    stage.trainer.inner_loop(stage.theta, round_number=0, author_index=1)
    path = await stage.engine.checkpoint(tmp_path, identity, tiny.network_id)
    saved = read_checkpoint(path, network_id=tiny.network_id)
    assert (saved.round_number, saved.height, saved.config) == (7, 9, tiny.config)
    assert np.array_equal(saved.theta, stage.theta)
    fresh = Stage(tiny)
    fresh.engine.restore(saved)
    expected = stage.trainer.inner_loop(stage.theta, round_number=1, author_index=1)
    again = fresh.trainer.inner_loop(stage.theta, round_number=1, author_index=1)
    assert np.array_equal(again.delta, expected.delta)

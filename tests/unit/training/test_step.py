from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from aicpnode.errors import UserError
from aicpnode.model.initial import initial_theta
from aicpnode.training.batching import batch_offsets, offsets_digest


@pytest.fixture
def theta(tiny) -> np.ndarray:
    result = initial_theta(tiny.config, seed=1)
    result.flags.writeable = False
    return result


def test_inner_loop_returns_the_difference_that_its_steps_made(tiny, theta: np.ndarray) -> None:
    before = theta.copy()
    result = tiny.trainer().inner_loop(theta, round_number=0, author_index=0)
    assert np.array_equal(theta, before)
    assert result.delta.dtype == np.float32
    assert result.delta.shape == theta.shape
    assert np.abs(result.delta).max() > 1e-4
    assert (result.steps, result.skipped, result.tokens) == (4, 0, 4 * 6 * 16)
    assert result.losses.dtype == np.float32
    assert result.losses.shape == (4,)
    assert result.seconds > 0


def test_training_learns(tiny, theta: np.ndarray) -> None:
    trainer = tiny.trainer(inner_steps=60, decay_rounds=0)
    result = trainer.inner_loop(theta, round_number=0, author_index=0)
    assert result.losses[-5:].mean() < 0.7 * result.losses[:3].mean()


def test_the_same_round_and_author_give_the_same_result(tiny, theta: np.ndarray) -> None:
    one, same, other = (tiny.trainer().inner_loop(theta, round_number=2, author_index=author) for author in (1, 1, 2))
    assert np.array_equal(one.delta, same.delta)
    assert one.offsets_hash == same.offsets_hash
    assert other.offsets_hash != one.offsets_hash


def test_offsets_hash_is_of_the_prescribed_batches(tiny, theta: np.ndarray) -> None:
    result = tiny.trainer().inner_loop(theta, round_number=5, author_index=3)
    batches = [
        batch_offsets(
            network_id=tiny.network_id, round_number=5, author_index=3, step=step, batch_size=6, positions=20000 - 16
        )
        for step in range(4)
    ]
    assert result.offsets_hash == offsets_digest(batches)


def test_stopping_early_counts_what_was_done(tiny, theta: np.ndarray) -> None:
    done: list[int] = []
    result = tiny.trainer().inner_loop(
        theta,
        round_number=0,
        author_index=0,
        should_stop=lambda: len(done) == 2,
        on_step=lambda step, loss: done.append(step),
    )
    assert done == [1, 2]
    assert result.steps == len(result.losses) == 2
    two = tiny.trainer().inner_loop(theta, round_number=0, author_index=0, steps=2)
    assert result.offsets_hash == two.offsets_hash
    assert np.array_equal(result.delta, two.delta)
    none = tiny.trainer().inner_loop(theta, round_number=0, author_index=0, should_stop=lambda: True)
    assert (none.steps, none.tokens, none.delta.any()) == (0, 0, False)


@pytest.mark.parametrize("micro", [1, 4, 5])
def test_accumulated_parts_equal_one_large_batch(tiny, theta: np.ndarray, micro: int) -> None:
    # Case T1, with parts of unequal size too: 4 + 2 and 5 + 1.
    whole = tiny.trainer().inner_loop(theta, round_number=0, author_index=0)
    parts = tiny.trainer(micro_batch_size=micro).inner_loop(theta, round_number=0, author_index=0)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
    np.testing.assert_allclose(parts.delta, whole.delta, rtol=5e-2, atol=5e-5)
    assert parts.offsets_hash == whole.offsets_hash


def test_moments_stay_between_rounds_and_survive_a_restore(tiny, theta: np.ndarray) -> None:
    # Case T10: after a restore the same round gives the same batches and the same difference.
    trainer = tiny.trainer()
    trainer.inner_loop(theta, round_number=0, author_index=0)
    saved = trainer.state()
    assert saved.steps == 4
    second = trainer.inner_loop(theta, round_number=1, author_index=0)
    fresh = tiny.trainer().inner_loop(theta, round_number=1, author_index=0)
    assert not np.array_equal(second.delta, fresh.delta)
    restored = tiny.trainer()
    restored.restore(saved)
    again = restored.inner_loop(theta, round_number=1, author_index=0)
    assert np.array_equal(again.delta, second.delta)
    assert again.offsets_hash == second.offsets_hash


def test_a_model_that_is_not_finite_skips_every_step(tiny, theta: np.ndarray) -> None:
    poisoned = theta.copy()
    poisoned[-1] = np.nan
    trainer = tiny.trainer()
    result = trainer.inner_loop(poisoned, round_number=0, author_index=0)
    assert result.skipped == result.steps == 4
    assert trainer.state().steps == 0


def test_the_thread_number_holds_in_worker_threads(tiny) -> None:
    tiny.trainer()
    seen: list[int] = []
    worker = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    worker.start()
    worker.join()
    assert seen == [1]


def test_sequences_that_do_not_fit_are_refused(tiny) -> None:
    with pytest.raises(UserError, match="context"):
        tiny.trainer(sequence_length=17)

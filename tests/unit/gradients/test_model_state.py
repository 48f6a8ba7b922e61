"""The agreed state: hash, history, step, snapshot."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from aicpnode.envelop.codec import pack
from aicpnode.errors import MalformedError
from aicpnode.gradients import state as states
from aicpnode.gradients.state import AggregationHistory, ModelState, RoundParameters
from kernels.aggregate import Rule
from kernels.codec import CHUNK, SparseProposal

P = 5000
PARAMETERS = RoundParameters(k=41, bits=2)


def vector():
    return (np.arange(P, dtype=np.float32) - 2500) * np.float32(2.0**-12)


def first_state(**options):
    return states.initial_state(vector(), parameters=P, **{"momentum_q16": 0, "norm_cap": 0, **options})


def proposal(scale=1000, seed=0):
    rng = np.random.default_rng(seed)
    order = rng.random((2, CHUNK)).argsort(axis=1)[:, :41]
    values = rng.integers(-scale, scale, (2, 41), endpoint=True)
    return SparseProposal(indices=np.sort(order, axis=1).astype(np.uint16), values=values.astype(np.int32))


def plain_proposal(seed):
    """The same on every version of numpy."""
    indices = np.array([[j * 99 + seed for j in range(41)]] * 2, dtype=np.uint16)
    values = [[(j * 7919 + seed * 104729) % 2_000_001 - 1_000_000 for j in range(row, row + 41)] for row in (0, 50)]
    return SparseProposal(indices=indices, values=np.array(values, dtype=np.int32))


def test_model_hash_is_that_of_the_specification():
    state = first_state(momentum_q16=58982)
    padded = np.zeros(2 * CHUNK, dtype="<f4")
    padded[:P] = vector()
    leaf = hashlib.sha256(b"\0" + padded.tobytes()).digest()  # 32 KiB: one leaf
    momentum_leaf = hashlib.sha256(b"\0" + bytes(8 * CHUNK)).digest()
    expected = hashlib.sha256(b"aicp-model-1" + P.to_bytes(8, "little") + b"\1" + leaf + momentum_leaf).digest()
    assert state.model_hash == expected
    without = hashlib.sha256(b"aicp-model-1" + P.to_bytes(8, "little") + b"\0" + leaf).digest()
    assert first_state().model_hash == without


def test_model_hash_has_leaves_of_64_kib():
    parameters = 5 * CHUNK
    theta = np.arange(parameters, dtype=np.float32)
    data = theta.astype("<f4").tobytes()
    left, right = (hashlib.sha256(b"\0" + part).digest() for part in (data[:65536], data[65536:]))
    root = hashlib.sha256(b"\1" + left + right).digest()
    expected = hashlib.sha256(b"aicp-model-1" + parameters.to_bytes(8, "little") + b"\0" + root).digest()
    assert states.model_hash(theta, None, parameters) == expected


def test_model_hash_golden():
    state = first_state()
    for seed in range(3):
        state = states.next_state(state, [plain_proposal(10 * seed + i) for i in range(4)], PARAMETERS)
    assert state.model_hash.hex() == GOLDEN


def test_initial_state_refuses_what_is_not_finite_or_has_another_size():
    for wrong in (np.nan, np.inf):
        broken = vector()
        broken[7] = wrong
        with pytest.raises(ValueError, match="not finite"):
            states.initial_state(broken, parameters=P, momentum_q16=0, norm_cap=0)
    with pytest.raises(ValueError, match="expected float32"):
        states.initial_state(vector()[:-1], parameters=P, momentum_q16=0, norm_cap=0)


def test_state_is_immutable():
    state = first_state(momentum_q16=58982)
    for array in (state.theta, state.momentum, state.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert state.values.size == P


def test_step_leaves_the_old_state_alone():
    state = first_state()
    before = state.theta.tobytes()
    after = states.next_state(state, [proposal()], PARAMETERS)
    assert state.theta.tobytes() == before != after.theta.tobytes()
    assert after.round == state.round + 1
    assert after.history.counts == (1,)
    assert after.history.norm > 0


def test_empty_round_changes_only_the_round():
    state = states.next_state(first_state(), [proposal()], PARAMETERS)
    after = states.next_state(state, [], PARAMETERS)
    assert after.model_hash == state.model_hash
    assert after.history == state.history
    assert after.round == state.round + 1


def test_a_round_with_few_proposals_takes_no_full_step():
    usual = replace_history(first_state(), AggregationHistory(counts=(4, 4, 4, 1)))
    alone = states.next_state(first_state(), [proposal()], PARAMETERS)
    damped = states.next_state(usual, [proposal()], PARAMETERS)
    moved = np.abs(alone.theta - first_state().theta).sum()
    assert np.abs(damped.theta - first_state().theta).sum() == pytest.approx(moved / 4, rel=1e-3)


def test_norm_grows_at_most_twofold_from_round_to_round():
    history = AggregationHistory(norm=1 << 30)
    state = replace_history(first_state(), history)
    after = states.next_state(state, [proposal(scale=1 << 22)], PARAMETERS)
    assert after.history.norm == 1 << 31


def test_history_keeps_eight_counts_and_ignores_a_zero_norm():
    history = AggregationHistory()
    for count in range(1, 12):
        history = history.after(norm=count, count=count)
    assert history == AggregationHistory(norm=11, counts=tuple(range(4, 12)))
    assert history.after(norm=0, count=3).norm == 11
    assert history.full_count(2) == 7
    assert history.full_count(9) == 9
    assert AggregationHistory().full_count(2) == 2
    assert history.encode() == pack((11, tuple(range(4, 12))))


def test_norm_cap_of_the_genesis_limits_the_first_round():
    state = states.next_state(first_state(norm_cap=1 << 20), [proposal()], PARAMETERS)
    assert state.history.norm == 1 << 21


@pytest.mark.parametrize("momentum_q16", [0, 58982])
def test_snapshot_restores_every_bit(momentum_q16):
    parameters = RoundParameters(k=41, bits=2, momentum_q16=momentum_q16, rule=Rule.CLIP)
    state = first_state(momentum_q16=momentum_q16)
    for seed in range(3):
        state = states.next_state(state, [proposal(seed=seed), proposal(seed=seed + 9)], parameters)
    restored = states.decode_snapshot(states.encode_snapshot(state))
    assert states.encode_snapshot(restored) == states.encode_snapshot(state)
    assert (restored.round, restored.history, restored.model_hash) == (3, state.history, state.model_hash)
    more = [proposal(seed=77)]
    assert states.next_state(restored, more, parameters).model_hash == (
        states.next_state(state, more, parameters).model_hash
    )


def test_snapshot_with_any_fault_is_refused():
    good = states.encode_snapshot(first_state())
    header_bytes = int.from_bytes(good[:4], "little")
    faults = [
        b"",
        good[:3],
        good[:-1],
        good + b"\0",
        good[: 4 + header_bytes],
        (1 << 30).to_bytes(4, "little") + good[4:],
        bytes(4) + good[4:],
        good[:-1] + bytes([good[-1] ^ 1]),
        good[:5] + bytes([good[5] ^ 1]) + good[6:],
        with_header((1, P, 0, -1, (), False, bytes(32))),
        with_header((1, P, 0, 0, (0,), False, bytes(32))),
        with_header((1, P, 0, 0, (1,) * 9, False, bytes(32))),
        with_header((2, P, 0, 0, (), False, bytes(32))),
        with_header((1, 0, 0, 0, (), False, bytes(32))),
        with_header((1, P, 0, 0, (), 0, bytes(32))),
        with_header((1, P)),
    ]
    for fault in faults:
        with pytest.raises(MalformedError):
            states.decode_snapshot(fault)


def with_header(values):
    header = pack(values)
    return len(header).to_bytes(4, "little") + header + bytes(8 * CHUNK)


def test_initial_blob_has_exactly_the_parameters():
    data = states.array_bytes(vector())
    assert states.vector_from_bytes(data, P).tobytes() == vector().tobytes()
    with pytest.raises(MalformedError):
        states.vector_from_bytes(bytes(data)[:-4], P)


@pytest.mark.parametrize("wrong", [{"k": 40}, {"bits": 3}, {"learning_rate_q16": 0}, {"momentum_q16": 1 << 16}])
def test_round_parameters_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        replace(PARAMETERS, **wrong)


def replace_history(state, history):
    return ModelState(
        parameters=state.parameters, round=state.round, theta=state.theta, momentum=state.momentum, history=history
    )


GOLDEN = "add060d234ab56be1b2b3eb24b68d9b999bfe59d0f053246a18b357aaf2d5295"


def test_a_tiny_proposal_that_is_let_in_alone_lowers_the_norm_of_later_rounds_by_half_at_most():
    history = AggregationHistory(norm=1 << 30, counts=(4,))
    assert history.after(norm=17, count=1).norm == 1 << 29
    assert history.after(norm=0, count=1).norm == 1 << 30
    assert history.after(norm=3 << 29, count=4).norm == 3 << 29


def test_the_round_after_a_tiny_proposal_that_was_let_in_alone_still_moves_the_model_as_before():
    honest, tiny = [plain_proposal(seed) for seed in range(4)], proposal(scale=1, seed=9)
    usual = states.next_state(first_state(), honest, PARAMETERS)
    after = states.next_state(usual, [tiny], PARAMETERS)
    assert after.history.norm == usual.history.norm // 2
    assert states.next_state(after, honest, PARAMETERS).history.norm >= usual.history.norm - 1


def test_case_C33_huge_proposal_let_in_alone_moves_the_model_by_twice_the_last_norm_at_most():
    usual = states.next_state(first_state(), [plain_proposal(seed) for seed in range(4)], PARAMETERS)
    alone = replace_history(usual, AggregationHistory(norm=usual.history.norm))
    after = states.next_state(alone, [proposal(scale=1 << 22, seed=9)], PARAMETERS)
    moved = np.linalg.norm(after.theta.astype(np.float64) - usual.theta)
    assert moved * 2.0**40 <= 2 * usual.history.norm * 1.001

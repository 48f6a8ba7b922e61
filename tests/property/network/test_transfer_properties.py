"""One pull among donors that stall, lie, leave or answer late: an honest one is enough, and never blamed."""

from __future__ import annotations

import heapq
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.network.transfer import CHUNK_BYTES, Transfer

BEHAVIOURS = ["stall", "wrong bytes", "wrong size", "wrong length", "absent", "slow", "dies"]
TIME_LIMIT_S = 600.0


def reply(behaviour, body, offset, length, asked_before, rng):
    """(delay, total, data) of an answer, None for NOT_FOUND, or "silence"."""
    data, delay_s = body[offset : offset + length], rng.uniform(0.001, 0.05)
    total = len(body)
    if behaviour == "stall" or (behaviour == "dies" and asked_before > 2):
        return "silence"
    if behaviour == "absent":
        return None
    if behaviour == "wrong bytes":
        data = bytes(len(data))
    if behaviour == "wrong size":
        total += CHUNK_BYTES
        data = bytes(min(CHUNK_BYTES, max(0, total - offset)))
    if behaviour == "wrong length":
        data += b"x"
    if behaviour == "slow":
        delay_s = rng.uniform(0.5, 2.5)
    return delay_s, total, data


@given(
    size=st.sampled_from([0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * CHUNK_BYTES + 7]),
    behaviours=st.lists(st.sampled_from(BEHAVIOURS), max_size=5),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=150, deadline=None)
def test_an_honest_donor_is_enough_and_never_blamed(size, behaviours, seed):
    rng = random.Random(seed)
    body = random.Random(1).randbytes(size)
    donors = dict(enumerate([*behaviours, "honest"]))
    ranked = [bytes((index,)) for index in donors]
    rng.shuffle(ranked)
    pull = Transfer(size_max=20 * CHUNK_BYTES, started_s=0.0)
    now_s, order, answers, blamed, asked = 0.0, itertools.count(), [], [], dict.fromkeys(donors, 0)
    while now_s < TIME_LIMIT_S:
        for ask in pull.step(now_s, ranked, budget=lambda _: 8, progress_s=lambda _: 0.0):
            index = ask.donor[0]
            what = reply(donors[index], body, ask.offset, ask.length, asked[index], rng)
            asked[index] += 1
            if what != "silence":
                delay_s = 0.01 if what is None else what[0]
                heapq.heappush(answers, (now_s + delay_s, next(order), ask, what))
        if pull.complete:
            if pull.body() == body:
                break
            liar = pull.refuted(now_s)
            blamed += [] if liar is None else [liar]
            continue
        wakeup_s = pull.next_wakeup_s(lambda _: 0.0, ranked)
        if answers and answers[0][0] <= wakeup_s:
            now_s, _, ask, what = heapq.heappop(answers)
            if what is None:
                pull.fail(ask.donor, now_s)
            elif pull.chunk(ask.donor, ask.offset, what[1], what[2], now_s) is not None:
                blamed.append(ask.donor)
        else:
            assert wakeup_s > now_s, "a step was not enough: the pull would spin"
            now_s = wakeup_s
    assert pull.complete and pull.body() == body
    assert all(donors[donor[0]] in ("wrong bytes", "wrong size", "wrong length") for donor in blamed)

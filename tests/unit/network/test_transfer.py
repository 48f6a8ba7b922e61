"""Playbooks of one pull: whom it asks for what, and what it believes."""

from __future__ import annotations

import random

from aicpnode.network.transfer import (
    CHUNK_BYTES,
    COOLING_S_MAX,
    COOLING_S_MIN,
    RECHECK_S,
    STALL_S,
    SWITCH_S,
    WINDOW_CHUNKS,
    Ask,
    Transfer,
)

A, B, C = b"A", b"B", b"C"
BODY_BYTES = 12 * CHUNK_BYTES + 5
BODY = random.Random(3).randbytes(BODY_BYTES)


def transfer(size_max=BODY_BYTES) -> Transfer:
    return Transfer(size_max=size_max, started_s=0.0)


def step(pull, now_s, *ranked, budget=8, progress_s=0.0) -> list[Ask]:
    return pull.step(now_s, ranked, budget=lambda _: budget, progress_s=lambda _: progress_s)


def answer(pull, ask, now_s, body=BODY, donor=None):
    data = body[ask.offset : ask.offset + ask.length]
    return pull.chunk(donor or ask.donor, ask.offset, len(body), data, now_s)


def test_a_donor_without_budget_is_passed_over_for_one_that_has_some():
    pull = transfer()
    asks = pull.step(0.0, [A, B], budget=lambda peer: 8 if peer == B else 0, progress_s=lambda _: 0.0)
    assert [ask.donor for ask in asks] == [B]
    assert pull.tried == 0


def test_nobody_to_ask_is_waited_for_without_end():
    pull = transfer()
    assert step(pull, 5.0) == [] and pull.next_wakeup_s(lambda _: 0.0, []) == float("inf")


def test_first_one_chunk_then_a_window():
    pull = transfer()
    (first,) = step(pull, 0.0, A)
    assert first == Ask(donor=A, offset=0, length=CHUNK_BYTES)
    assert step(pull, 0.0, A) == []
    assert answer(pull, first, 0.1) is None
    asks = step(pull, 0.1, A)
    assert [ask.offset for ask in asks] == [CHUNK_BYTES * index for index in range(1, WINDOW_CHUNKS + 1)]


def test_answers_in_any_order_make_the_body():
    pull, rng = transfer(), random.Random(5)
    asks = step(pull, 0.0, A)
    while asks:
        ask = asks.pop(rng.randrange(len(asks)))
        assert answer(pull, ask, 0.1) is None
        asks += step(pull, 0.1, A)
    assert pull.complete and pull.body() == BODY and pull.received == len(BODY)


def test_an_empty_body_is_complete_with_one_empty_chunk():
    pull = transfer()
    step(pull, 0.0, A)
    assert pull.chunk(A, 0, 0, b"", 0.1) is None
    assert pull.complete and pull.body() == b""


def test_the_budget_of_a_peer_is_respected_and_waiting_for_it_is_no_stall():
    pull = transfer()
    assert step(pull, 0.0, A, budget=0) == []
    assert pull.next_wakeup_s(lambda _: 0.0, [A]) == RECHECK_S
    assert len(step(pull, 100.0, A, budget=1)) == 1
    assert pull.tried == 0


def test_a_silent_donor_is_changed_for_another_soon_and_its_chunks_are_kept():
    pull = transfer()
    (first,) = step(pull, 0.0, A, B)
    answer(pull, first, 0.1)
    assert {ask.donor for ask in step(pull, 0.1, A, B)} == {A}
    assert step(pull, 0.1 + SWITCH_S * 0.9, A, B) == []
    asks = step(pull, 0.1 + SWITCH_S, A, B)
    assert {ask.donor for ask in asks} == {B} and 0 not in {ask.offset for ask in asks}


def test_a_silent_donor_without_an_alternative_is_given_more_time():
    pull = transfer()
    step(pull, 0.0, A)
    assert step(pull, STALL_S * 0.9, A) == [] and pull.donor == A
    assert step(pull, STALL_S, A) == [] and pull.donor is None
    assert pull.next_wakeup_s(lambda _: 0.0, [A]) == STALL_S + COOLING_S_MIN
    assert [ask.donor for ask in step(pull, STALL_S + COOLING_S_MIN, A)] == [A]


def test_progress_on_another_transfer_of_the_same_donor_counts():
    pull = transfer()
    step(pull, 0.0, A, B)
    assert step(pull, 3.0, A, B, progress_s=2.9) == [] and pull.donor == A


def test_wakeup_never_lies_in_the_past_after_a_step():
    pull, now_s = transfer(), 0.0
    for _ in range(50):
        step(pull, now_s, A, B)
        wakeup_s = pull.next_wakeup_s(lambda _: 0.0, [A, B])
        assert now_s < wakeup_s < now_s + STALL_S + COOLING_S_MAX
        now_s = wakeup_s


def test_a_late_chunk_is_taken():
    pull = transfer()
    (first,) = step(pull, 0.0, A, B)
    step(pull, SWITCH_S, A, B)
    assert pull.donor == B
    assert answer(pull, first, SWITCH_S + 0.1) is None
    assert pull.received == CHUNK_BYTES


def test_who_does_not_have_it_is_asked_again_later_and_later_until_it_announces():
    pull, now_s, pauses = transfer(), 0.0, []
    for _ in range(8):
        assert [ask.donor for ask in step(pull, now_s, A)] == [A]
        pull.fail(A, now_s)
        step(pull, now_s, A)
        pauses.append(pull.next_wakeup_s(lambda _: 0.0, [A]) - now_s)
        now_s += pauses[-1]
    assert pauses[0] == COOLING_S_MIN and pauses[-1] == COOLING_S_MAX
    pull.fail(A, now_s)
    pull.announced(A)
    assert [ask.donor for ask in step(pull, now_s, A)] == [A]


def test_a_size_above_the_limit_is_refused_and_blamed_on_nobody():
    """The limit may come from a third node that lied about the size."""
    pull = transfer(size_max=10)
    (ask,) = step(pull, 0.0, A)
    assert answer(pull, ask, 0.1) is None
    assert pull.donor is None and pull.received == 0 and pull.tried == 1


def test_a_chunk_of_the_wrong_length_is_the_donors_fault():
    pull = transfer()
    step(pull, 0.0, A)
    assert "a chunk of 3 bytes" in (pull.chunk(A, 0, len(BODY), b"abc", 0.1) or "")


def test_the_donor_that_answers_now_is_believed_about_the_size():
    pull = transfer(size_max=1 << 40)
    (ask,) = step(pull, 0.0, A, B)
    assert pull.chunk(A, ask.offset, 1 << 30, bytes(CHUNK_BYTES), 0.1) is None
    step(pull, 0.1, A, B)
    (*_, last) = step(pull, 0.1 + SWITCH_S, A, B)
    assert answer(pull, last, 1.2) is None
    assert pull.total == len(BODY)
    assert pull.chunk(A, CHUNK_BYTES, 1 << 30, bytes(CHUNK_BYTES), 1.3) is None
    assert pull.total == len(BODY)


def test_a_chunk_behind_the_end_corrects_the_size_and_is_not_stored():
    pull, small = transfer(), b"small"
    (ask,) = step(pull, 0.0, A, B)
    pull.chunk(A, ask.offset, len(BODY), bytes(CHUNK_BYTES), 0.0)
    step(pull, 0.0, A, B)
    (beyond, *_) = step(pull, SWITCH_S, A, B)
    assert beyond.offset > len(small)
    assert pull.chunk(B, beyond.offset, len(small), b"", 1.1) is None
    assert not pull.complete and pull.received == 0
    (again, *_) = step(pull, 1.1, A, B)
    assert again.offset == 0
    answer(pull, again, 1.2, small)
    assert pull.body() == small


def test_the_one_donor_of_a_wrong_body_is_named():
    pull = transfer(size_max=100)
    (ask,) = step(pull, 0.0, A, B)
    answer(pull, ask, 0.1, b"wrong")
    assert pull.complete and pull.refuted(0.1) == A
    assert [ask.donor for ask in step(pull, 0.1, A, B)] == [B]


def test_after_a_mixed_wrong_body_each_donor_must_send_it_all():
    body = bytes(CHUNK_BYTES * 2)
    pull = transfer()
    (first,) = step(pull, 0.0, A, B)
    answer(pull, first, 0.0, body)
    step(pull, 0.0, A, B)
    (second,) = step(pull, SWITCH_S, A, B)
    answer(pull, second, 1.1, body)
    assert pull.complete and pull.refuted(1.1) is None and pull.alone
    (again,) = step(pull, 2.0, A, B)
    assert again == Ask(donor=A, offset=0, length=CHUNK_BYTES)
    answer(pull, again, 2.0, body)
    (rest,) = step(pull, 2.0, A, B)
    (switched,) = step(pull, 3.1, A, B)
    assert switched == Ask(donor=B, offset=0, length=CHUNK_BYTES)
    answer(pull, rest, 3.2, body, donor=A)
    assert pull.received == 0


def test_a_donor_that_leaves_is_replaced_and_its_chunks_stay():
    pull = transfer()
    (first,) = step(pull, 0.0, A, B)
    answer(pull, first, 0.0)
    step(pull, 0.0, A, B)
    pull.gone(A, 0.1)
    asks = step(pull, 0.1, B)
    assert {ask.donor for ask in asks} == {B} and pull.received == CHUNK_BYTES

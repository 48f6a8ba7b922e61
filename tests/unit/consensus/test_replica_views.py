"""Playbooks of views: entry proofs, the jump, and sending again (section 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind, said
from consensus.events import Decide, Effect, OperationReceived, Send, SetTimer, TimerKind
from consensus.messages import Ballot, Commit, MessageKind, OperationKind, Prepare, Vote
from consensus.pool import operation_subject
from consensus.types import NIL


def told(effects: list[Effect], to: int) -> list[Vote]:
    """Messages sent to one member alone."""
    sends = [send for send in of_kind(effects, Send) if send.to == simulated_key(to)]
    return [send.message for send in sends if isinstance(send.message, Ballot | Prepare | Commit)]


# ---- entry proofs


def test_message_of_a_lower_view_is_answered_with_what_let_this_member_in() -> None:
    table = Playbook()
    commits = [table.commit(i, 0, NIL) for i in (1, 2, 3)]
    table.hear(*commits)
    assert told(table.hear(table.prepare(3, 0, NIL)), 3) == commits


def test_entry_proof_takes_the_one_behind_along() -> None:
    ahead, behind = Playbook(), Playbook(me=3)
    ahead.hear(*(ahead.commit(i, 0, NIL) for i in (1, 2)), ahead.commit(3, 0, NIL))
    proof = told(ahead.hear(ahead.ballot(3)), 3)
    assert behind.replica.view == 0
    behind.hear(*proof)
    assert behind.replica.view == 1


def test_entry_proof_is_sent_once_per_peer_and_window() -> None:
    table = Playbook()
    table.reach_view(1)
    assert told(table.hear(table.ballot(3)), 3)
    assert not told(table.hear(table.prepare(3, 0, NIL), table.ballot(3)), 3)
    assert told(table.hear(table.ballot(2)), 2), "another peer has its own"
    table.fire(TimerKind.ENTRY)
    assert told(table.hear(table.ballot(3)), 3)


def test_jump_is_proved_by_the_messages_that_led_to_it() -> None:
    table = Playbook()
    messages = [table.commit(1, 3, NIL), table.commit(2, 4, NIL)]
    table.hear(*messages)
    assert table.replica.view == 3
    assert sorted(m.view for m in told(table.hear(table.ballot(3)), 3)) == [3, 4]


# ---- jump


def test_jump_at_f_plus_one_and_not_at_f() -> None:
    table = Playbook(founders(7))
    table.hear(table.commit(1, 5, NIL), table.commit(2, 6, NIL))
    assert table.replica.view == 0
    (ballot,) = said(table.hear(table.commit(3, 9, NIL)), Ballot)
    assert (table.replica.view, ballot.view) == (5, 5)


def test_jump_restarts_the_timers_of_the_view() -> None:
    table = Playbook()
    effects = table.hear(table.commit(1, 2, NIL), table.commit(2, 2, NIL))
    waits = {t.timer.kind: t for t in of_kind(effects, SetTimer)}
    assert (waits[TimerKind.PROPOSE].timer.view, waits[TimerKind.PROPOSE].delay_ms) == (
        2,
        table.replica.pacemaker.timeout_ms(2),
    )


def test_timer_of_an_earlier_view_is_stale() -> None:
    table = Playbook()
    (timer,) = [
        t.timer
        for t in of_kind(table.hear(*(table.ballot(i) for i in (1, 2, 3))), SetTimer)
        if t.timer.kind is TimerKind.PROPOSE
    ]
    table.reach_view(1)
    from consensus.events import TimerFired

    assert not said(table.handle(TimerFired(timer=timer)), Prepare)


# ---- sending again


def test_own_messages_of_this_and_the_previous_view_are_sent_again() -> None:
    table = Playbook()
    table.lock(table.block())
    table.reach_view(1)
    sent = [send.message for send in of_kind(table.fire(TimerKind.RESEND), Send)]
    assert [(m.view, m.kind) for m in sent if not hasattr(m, "sequence")] == [
        (0, MessageKind.PREPARE),
        (0, MessageKind.COMMIT),
        (1, MessageKind.BALLOT),
    ]
    table.reach_view(2)
    sent = [send.message for send in of_kind(table.fire(TimerKind.RESEND), Send)]
    assert {m.view for m in sent if not hasattr(m, "sequence")} == {1, 2}


def test_sending_again_backs_off_with_jitter_and_starts_anew_in_the_next_view() -> None:
    table = Playbook()
    table.lock(table.block())
    waits = []
    for _ in range(8):
        (timer,) = [t for t in of_kind(table.fire(TimerKind.RESEND), SetTimer) if t.timer.kind is TimerKind.RESEND]
        assert timer.jitter
        waits.append(timer.delay_ms)
    assert waits == sorted(waits) and waits[-1] == 5_000
    effects = table.reach_view(1)
    anew = [t.delay_ms for t in of_kind(effects, SetTimer) if t.timer.kind is TimerKind.RESEND]
    assert anew and anew[0] == table.timing.delta_ms


def test_own_operations_are_sent_again_until_they_are_in_the_ledger() -> None:
    table = Playbook()
    operation = table.operation(0, OperationKind.CONTRIBUTE, 9)
    effects = table.handle(OperationReceived(operation=operation, own=True))
    assert [send.message for send in of_kind(effects, Send)] == [operation]
    assert operation in [send.message for send in of_kind(table.fire(TimerKind.RESEND), Send)]
    table.decide(table.block(operations=(operation,)))
    assert operation not in [send.message for send in of_kind(table.fire(TimerKind.RESEND), Send)]


def test_operation_that_a_leader_did_not_know_is_passed_on() -> None:
    table = Playbook()
    operation = table.operation(3, OperationKind.CONTRIBUTE, 9)
    table.handle(OperationReceived(operation=operation))
    table.fire(TimerKind.OPERATION, subject=operation_subject(operation))
    sent = [send.message for send in of_kind(table.decide(table.block()), Send)]
    assert sent.count(operation) == 1


def test_nothing_is_sent_again_while_there_is_nothing_to_decide() -> None:
    table = Playbook()
    table.decide(table.block())
    effects = table.fire(TimerKind.RESEND)
    assert not of_kind(effects, Send) and not of_kind(effects, SetTimer)


# ---- isolation and rejection


def test_isolated_member_never_decides() -> None:
    table = Playbook(founders(4, until_round=9))
    table.opine()
    for kind in TimerKind:
        table.fire(kind)
    assert not of_kind(table.log, Decide)
    assert table.replica.view == 0


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7])
def test_one_below_a_quorum_never_decides(count: int) -> None:
    table = Playbook(founders(count))
    quorum = table.ledger.roster.quorum
    block = table.block(voters=range(quorum))
    name = table.name(block)
    others = range(1, quorum - 1)
    table.hear(table.fresh(block), *(table.prepare(i, 0, name) for i in others))
    table.hear(*(table.commit(i, 0, name) for i in others))
    assert not of_kind(table.log, Decide)


def test_rejections_and_duplicates_count_for_nothing() -> None:
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block), table.prepare(1, 0, name), table.prepare(2, 0, NIL), table.prepare(3, 0, NIL))
    table.hear(*[table.prepare(1, 0, name)] * 5)
    assert not said(table.log, Commit)
    table.hear(*[replace(table.commit(1, 0, name), signature=bytes(64))] * 5)
    assert not of_kind(table.log, Decide)

"""What an owner wants, and the next operation that brings the ledger there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.replication.intent import WITHOUT_END, Applicant, Intent, Request, Wish, wanted
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders
from consensus.evidence import evidence
from consensus.membership import LedgerState
from consensus.messages import OperationKind
from consensus.operations import PRESENT_AFTER_ROUNDS
from consensus.types import NIL, MemberStatus

NONCE = b"n" * 16


def contributing(*indices: int, count: int = 4, until_round: int = 50, observers: int = 0) -> LedgerState:
    state = founders(count, observers=observers)
    standings = tuple(
        replace(standing, until_round=until_round) if index in indices else standing
        for index, standing in enumerate(state.standings)
    )
    return replace(state, standings=standings)


def asked(intent: Intent, ledger: LedgerState, *, me: int = 0, trains: bool = True) -> tuple[Request | None, Intent]:
    return wanted(intent, Applicant(key=simulated_key(me), name="me", nonce=NONCE, trains=trains), ledger)


def contribute(until_round: int) -> Request:
    return Request(kind=OperationKind.CONTRIBUTE, arguments=(until_round,))


ON, OFF, FOLLOW = (Intent(wish=wish) for wish in (Wish.ON, Wish.OFF, Wish.FOLLOW))


@pytest.mark.parametrize(
    "intent", [ON, Intent(wish=Wish.FOLLOW, until_round=7, followed=(b"k" * 32, b"l" * 32), left=(b"m" * 32,))]
)
def test_intent_comes_back_whole(intent: Intent) -> None:
    assert Intent.decode(intent.encode()) == intent


def test_stranger_asks_to_join_first() -> None:
    request, intent = asked(ON, founders(4), me=9)
    assert request == Request(kind=OperationKind.JOIN, arguments=(NONCE, "me"))
    assert intent == ON


def test_owner_who_wants_to_train_contributes_and_asks_no_more_once_it_is_in_the_ledger() -> None:
    assert asked(ON, founders(4)) == (contribute(WITHOUT_END), ON)
    assert asked(ON, contributing(0, until_round=WITHOUT_END))[0] is None


def test_training_up_to_a_round_ends_there() -> None:
    intent = Intent(wish=Wish.ON, until_round=20)
    assert asked(intent, founders(4))[0] == contribute(20)
    assert asked(intent, replace(contributing(0, until_round=20), round=20))[0] is None


def test_owner_who_wants_to_stop_stops() -> None:
    assert asked(OFF, contributing(0))[0] == contribute(0)
    assert asked(OFF, founders(4))[0] is None


def test_node_that_cannot_train_never_contributes() -> None:
    assert asked(ON, founders(4), trains=False)[0] is None
    assert asked(ON, contributing(0), trains=False)[0] == contribute(0)


def test_follower_begins_with_others_and_remembers_whom() -> None:
    assert asked(FOLLOW, founders(4)) == (None, FOLLOW)
    request, intent = asked(FOLLOW, contributing(1, 2))
    assert request == contribute(50)
    assert set(intent.followed) == {simulated_key(1), simulated_key(2)}


def test_follower_goes_on_while_one_of_those_does_and_stops_with_the_last() -> None:
    _request, intent = asked(FOLLOW, contributing(1, 2))
    assert asked(intent, contributing(0, 2)) == (None, intent)
    request, after = asked(intent, contributing(0, 3))
    assert request == contribute(0), "3 began later: it is not whom this node followed"
    assert after == Intent(wish=Wish.FOLLOW, left=(simulated_key(3),))


def test_followers_do_not_keep_each_other_going() -> None:
    """One ``stop`` ends what one ``train`` began."""
    _r, first = asked(FOLLOW, contributing(3), me=1)
    _r, second = asked(FOLLOW, contributing(1, 3), me=2)
    stopped = contributing(1, 2)
    request, first = asked(first, stopped, me=1)
    assert request == contribute(0)
    assert asked(second, stopped, me=2)[0] is None
    assert asked(second, contributing(2), me=2)[0] == contribute(0)


def test_follower_that_stopped_follows_another_only_once_that_one_was_off() -> None:
    """The other may be a follower too, whose own stop is under way."""
    _r, intent = asked(FOLLOW, contributing(3), me=1)
    _r, intent = asked(intent, contributing(1, 2), me=1)
    assert asked(intent, contributing(2), me=1) == (None, intent)
    request, intent = asked(intent, contributing(2, 0), me=1)
    assert (request, intent.followed) == (contribute(50), (simulated_key(0),)), "whoever begins now is followed"
    _r, intent = asked(Intent(wish=Wish.FOLLOW, left=(simulated_key(2),)), founders(4), me=1)
    assert intent == FOLLOW
    assert asked(intent, contributing(2), me=1)[0] == contribute(50)


def test_follower_takes_the_latest_end_of_those_it_follows() -> None:
    state = contributing(1, 2)
    standings = (state.standings[0], replace(state.standings[1], until_round=80), *state.standings[2:])
    assert asked(FOLLOW, replace(state, standings=standings))[0] == contribute(80)


def test_member_on_probation_shows_its_presence_while_nobody_trains() -> None:
    ledger = replace(founders(4, observers=1), height=6)
    assert asked(OFF, ledger, me=4)[0] == Request(kind=OperationKind.PRESENT, arguments=(6,))
    assert asked(OFF, contributing(0, observers=1), me=4)[0] is None


def with_status(ledger: LedgerState, status: MemberStatus, *, power: int = 1) -> LedgerState:
    return ledger.with_member(replace(ledger.roster.members[0], status=status, power=power))


def test_banned_member_asks_for_nothing() -> None:
    assert asked(ON, with_status(founders(4), MemberStatus.BANNED, power=0))[0] is None


def test_suspended_member_asks_to_come_back_once_and_then_shows_its_presence() -> None:
    ledger = with_status(founders(4), MemberStatus.SUSPENDED)
    assert asked(ON, ledger)[0] == Request(kind=OperationKind.REJOIN)
    returning = ledger.with_standing(0, replace(ledger.standings[0], is_returning=True))
    assert asked(ON, returning)[0] == Request(kind=OperationKind.PRESENT, arguments=(0,))


def test_who_wants_to_leave_leaves_and_stays_away() -> None:
    leave = Intent(wish=Wish.LEAVE)
    assert asked(leave, founders(4))[0] == Request(kind=OperationKind.LEAVE)
    assert asked(leave, founders(1))[0] is None
    assert asked(leave, with_status(founders(4), MemberStatus.SUSPENDED, power=0))[0] is None
    assert asked(leave, founders(4), me=9)[0] is None


def test_proof_of_a_fault_is_brought_forward_until_its_culprit_is_banned() -> None:
    table = Playbook()
    proof = evidence(table.commit(0, 0, NIL), table.commit(0, 0, b"x" * 32))
    me = Applicant(key=simulated_key(1), name="me", nonce=NONCE, trains=False)
    assert wanted(OFF, me, founders(4), [proof])[0] == Request(kind=OperationKind.EVIDENCE, evidence=proof)
    assert wanted(OFF, me, with_status(founders(4), MemberStatus.BANNED, power=0), [proof])[0] is None


def test_proof_that_the_ledger_would_refuse_is_not_in_the_way_of_other_wishes() -> None:
    """The only voting member cannot be banned; whoever is on probation must get on all the same."""
    table = Playbook()
    proof = evidence(table.commit(0, 0, NIL), table.commit(0, 0, b"x" * 32))
    me = Applicant(key=simulated_key(1), name="me", nonce=NONCE, trains=False)
    request, _intent = wanted(OFF, me, founders(1, observers=1), [proof])
    assert request == Request(kind=OperationKind.PRESENT, arguments=(0,))


def test_voter_that_no_block_shows_announces_its_presence() -> None:
    ledger = contributing(1, until_round=500)
    ledger = replace(ledger, round=PRESENT_AFTER_ROUNDS)
    assert asked(OFF, ledger)[0] == Request(kind=OperationKind.PRESENT, arguments=(0,))
    seen = ledger.with_standing(0, replace(ledger.standings[0], seen_round=1))
    assert asked(OFF, seen)[0] is None


def test_nobody_switches_on_while_the_run_is_stopped() -> None:
    assert asked(ON, replace(founders(4), is_stopped=True))[0] is None

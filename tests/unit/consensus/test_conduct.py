"""Strikes, absence, leaving and coming back, admission, and changes that a quorum endorses (sections 3, 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from aicpnode.envelop.kinds import operation_envelop, parse_operation
from aicpnode.errors import MalformedError
from aicpnode.simulation.crypto import signature_of, simulated_key
from aicpnode.simulation.playbook import NETWORK_ID, RULES, founders
from consensus.changes import ENDORSEMENTS_PER_MEMBER_MAX
from consensus.conduct import RETURN_APPEARANCES, STRIKE_WINDOW_ROUNDS, STRIKES_MAX, absent_power
from consensus.membership import (
    Admission,
    LedgerState,
    Suspension,
    apply_operation,
    next_state,
    refuse_operation,
)
from consensus.messages import (
    BallotRecord,
    Body,
    Change,
    ChangeKind,
    Invitation,
    ObserverRecord,
    Operation,
    OperationKind,
    TrainingDecision,
    Verdict,
)
from consensus.operations import ABSENCE_ROUNDS, PRESENT_AFTER_ROUNDS, PRESENT_HEIGHTS, ban, is_full
from consensus.types import MemberStatus

NAME = b"\x0b" * 32


def op(signer: int, kind: OperationKind, *arguments: int | bytes | str, sequence: int = 1) -> Operation:
    return Operation(kind=kind, signer=simulated_key(signer), sequence=sequence, arguments=arguments)


def endorse(signer: int, change: Change, sequence: int = 1) -> Operation:
    return op(signer, OperationKind.ENDORSE, *change.content(), sequence=sequence)


def body(
    *operations: Operation,
    training_round: int | None = None,
    voters: Iterable[int] = (),
    refused: dict[int, Iterable[int]] | None = None,
    observers: Iterable[int] = (),
) -> Body:
    """``refused``: author -> who says no to its proposal."""
    refused = {author: set(by) for author, by in (refused or {}).items()}
    table = tuple((author, bytes([author]) * 32) for author in sorted(refused))
    records = tuple(
        BallotRecord(
            signer_index=voter,
            ready=True,
            verdicts=tuple(Verdict.NO if voter in refused[author] else Verdict.YES for author, _digest in table),
            signature=bytes(64),
        )
        for voter in voters
    )
    training = None if training_round is None else TrainingDecision(round=training_round, included=())
    seen = tuple(ObserverRecord(signer_index=index, signature=bytes(64)) for index in observers)
    return Body(table=table, ballots=records, observers=seen, training=training, operations=operations)


def after(state: LedgerState, item: Body) -> LedgerState:
    following = next_state(state, item, block_id=NAME)
    assert following is not None
    return following


def trained(state: LedgerState, rounds: int, voters: Iterable[int], **more: dict[int, Iterable[int]]) -> LedgerState:
    for _ in range(rounds):
        state = after(state, body(training_round=state.round, voters=voters, **more))
    return state


def status(state: LedgerState, index: int) -> MemberStatus:
    return state.roster.members[index].status


# ---- strikes


def test_three_proposals_refused_by_a_quorum_suspend_their_author() -> None:
    state = founders(4, until_round=100)
    state = trained(state, STRIKES_MAX - 1, range(4), refused={3: (0, 1, 2)})
    assert (status(state, 3), state.standings[3].strikes) == (MemberStatus.ACTIVE, (0, 1))
    state = trained(state, 1, range(4), refused={3: (0, 1, 2)})
    assert status(state, 3) is MemberStatus.SUSPENDED
    assert state.standings[3].suspension is Suspension.STRIKES
    assert not state.contributes(simulated_key(3))


def test_less_than_a_quorum_of_refusals_is_no_strike() -> None:
    state = trained(founders(4, until_round=100), 10, range(4), refused={3: (0, 1)})
    assert state.standings[3].strikes == ()


def test_strikes_expire() -> None:
    state = trained(founders(4, until_round=500), STRIKES_MAX - 1, range(4), refused={3: (0, 1, 2)})
    state = trained(state, STRIKE_WINDOW_ROUNDS, range(4))
    state = trained(state, 1, range(4), refused={3: (0, 1, 2)})
    assert (status(state, 3), len(state.standings[3].strikes)) == (MemberStatus.ACTIVE, 1)


def test_refusals_in_blocks_without_training_are_no_strikes() -> None:
    state = founders(4, until_round=100)
    for _ in range(5):
        state = after(state, body(voters=range(4), refused={3: (0, 1, 2)}))
    assert state.standings[3].strikes == ()


def test_struck_member_on_probation_starts_anew() -> None:
    state = founders(4, observers=1, until_round=100)
    state = trained(state, STRIKES_MAX, range(4), refused={4: range(4)})
    assert (status(state, 4), state.roster.members[4].power) == (MemberStatus.SUSPENDED, 0)
    assert refuse_operation(state, op(4, OperationKind.JOIN, bytes(16), "again", sequence=5)) is None


def test_no_more_power_is_suspended_in_a_block_than_may_be_faulty() -> None:
    """Three of seven refused at once: F = 2, so two go now, and the third with the next block that trains."""
    refused = dict.fromkeys((4, 5, 6), (0, 1, 2, 3, 4))
    state = trained(founders(7, until_round=100), STRIKES_MAX, range(7), refused=refused)
    assert [status(state, index) is MemberStatus.SUSPENDED for index in (4, 5, 6)] == [True, True, False]
    state = trained(state, 1, range(4))
    assert status(state, 6) is MemberStatus.SUSPENDED


# ---- absence


def test_absent_member_is_suspended_and_comes_back() -> None:
    present = range(6)
    state = trained(founders(7, until_round=9999), ABSENCE_ROUNDS, present)
    assert status(state, 6) is MemberStatus.SUSPENDED
    assert (state.standings[6].suspension, absent_power(state)) == (Suspension.ABSENT, 1)
    state = after(state, body(op(6, OperationKind.REJOIN)))
    for _ in range(RETURN_APPEARANCES - 1):
        state = after(state, body(training_round=state.round, voters=present, observers=(6,)))
    assert status(state, 6) is MemberStatus.SUSPENDED
    state = after(state, body(training_round=state.round, voters=present, observers=(6,)))
    assert (status(state, 6), state.roster.power(simulated_key(6))) == (MemberStatus.ACTIVE, 1)
    assert state.standings[6].seen_round == state.round


def test_member_comes_back_only_while_there_is_a_seat() -> None:
    """Else those that are away, and come back, would make more voting members than the run allows."""
    seats = replace(RULES, members_max=7)
    state = replace(founders(7, until_round=9999), rules=seats)
    state = trained(state, ABSENCE_ROUNDS, range(6))
    assert status(state, 6) is MemberStatus.SUSPENDED and not is_full(state)
    join = op(8, OperationKind.JOIN, bytes(16), "newcomer")
    taken = after(state, body(join))
    assert refuse_operation(taken, op(6, OperationKind.REJOIN)) == "the roster is full"
    state = after(state, body(op(6, OperationKind.REJOIN)))
    assert refuse_operation(state, join) == "the roster is full", "a seat is kept for who is on the way back"


def test_case_C24_absence_suspends_at_most_half_of_what_may_be_faulty() -> None:
    """F(4)//2 = 0: of four nobody is suspended for absence. Of thirteen, F(13)//2 = 2."""
    state = trained(founders(4, until_round=9999), 2 * ABSENCE_ROUNDS, (0, 1, 2))
    assert status(state, 3) is MemberStatus.ACTIVE
    state = trained(founders(13, until_round=9999), 2 * ABSENCE_ROUNDS, range(9))
    assert [status(state, index).name for index in range(9, 13)].count("SUSPENDED") == 2


def test_presence_counts_like_a_ballot_and_only_when_it_is_due() -> None:
    state = trained(founders(7, until_round=9999), PRESENT_AFTER_ROUNDS - 1, range(6))
    assert refuse_operation(state, op(6, OperationKind.PRESENT, state.height)) is not None
    state = trained(state, 1, range(6))
    for wrong in (state.height + 1, state.height - PRESENT_HEIGHTS):
        assert refuse_operation(state, op(6, OperationKind.PRESENT, wrong)) is not None
    late = op(6, OperationKind.PRESENT, state.height - PRESENT_HEIGHTS + 1)
    assert refuse_operation(state, late) is None, (
        "while blocks come fast, one that names the last height is always late"
    )
    state = after(state, body(late))
    state = trained(state, ABSENCE_ROUNDS - 1, range(6))
    assert status(state, 6) is MemberStatus.ACTIVE


def test_case_C24_nothing_is_counted_while_nobody_trains() -> None:
    state = founders(7)
    for _ in range(2 * ABSENCE_ROUNDS):
        state = after(state, body(voters=range(5)))
    assert {member.status for member in state.roster.members} == {MemberStatus.ACTIVE}


# ---- leaving


def test_leaver_has_no_power_and_may_join_again() -> None:
    state = after(founders(4), body(op(3, OperationKind.LEAVE)))
    assert (status(state, 3), state.roster.total_power, state.roster.epoch) == (MemberStatus.SUSPENDED, 3, 1)
    assert refuse_operation(state, op(3, OperationKind.LEAVE, sequence=2)) == "left already"
    assert refuse_operation(state, op(3, OperationKind.REJOIN, sequence=2)) is not None
    state = after(state, body(op(3, OperationKind.JOIN, bytes(16), "node-3", sequence=2)))
    assert status(state, 3) is MemberStatus.PROBATION and len(state.roster.members) == 4


def test_the_last_member_stays() -> None:
    assert refuse_operation(founders(1), op(0, OperationKind.LEAVE)) == "the last member cannot leave"


def test_no_more_leave_in_a_block_than_may_be_faulty() -> None:
    leaving = [op(index, OperationKind.LEAVE) for index in range(7)]
    state = founders(7)
    assert next_state(state, body(*leaving[:3]), block_id=NAME) is None
    state = after(state, body(*leaving[:2]))
    assert (state.roster.total_power, state.departed) == (5, 0)
    assert after(state, body(leaving[2])).roster.total_power == 4


def test_votes_of_one_that_left_have_no_power() -> None:
    state = after(founders(4), body(op(3, OperationKind.LEAVE)))
    assert state.roster.power(simulated_key(3)) == 0 and not state.roster.is_active(simulated_key(3))


# ---- admission


def invited(guest: int, sponsor: int) -> Operation:
    invitation = Invitation(guest=simulated_key(guest), signer=simulated_key(sponsor))
    invitation = replace(invitation, signature=signature_of(invitation, NETWORK_ID))
    return replace(op(guest, OperationKind.JOIN, bytes(16), "guest"), invitation=invitation)


def test_invitation_only() -> None:
    state = founders(4, observers=1, rules=replace(RULES, admission=Admission.INVITE))
    assert refuse_operation(state, op(9, OperationKind.JOIN, bytes(16), "guest")) is not None
    assert refuse_operation(state, invited(9, 0)) is None
    for sponsor in (4, 8, 9):  # on probation, a stranger, the guest itself
        assert refuse_operation(state, invited(9, sponsor)) == "no invitation of a voting member"
    stolen = replace(op(8, OperationKind.JOIN, bytes(16), "thief"), invitation=invited(9, 0).invitation)
    assert refuse_operation(state, stolen) is not None
    again = parse_operation(operation_envelop(invited(9, 0), NETWORK_ID))
    assert again == invited(9, 0)


def test_allowlist() -> None:
    rules = replace(RULES, admission=Admission.ALLOWLIST, allowlist=frozenset([simulated_key(9)]))
    state = founders(4, rules=rules)
    assert refuse_operation(state, op(9, OperationKind.JOIN, bytes(16), "known")) is None
    assert refuse_operation(state, op(8, OperationKind.JOIN, bytes(16), "unknown")) == "not on the allowlist"


# ---- changes


STOP = Change(kind=ChangeKind.STOP)


def test_change_takes_effect_with_a_quorum_and_not_before() -> None:
    state = founders(4, until_round=100)
    for endorser in (0, 1):
        state = after(state, body(endorse(endorser, STOP)))
    assert not state.is_stopped and len(state.endorsers(STOP)) == 2
    state = after(state, body(endorse(2, STOP)))
    assert state.is_stopped and state.endorsements == () and state.contributors() == ()
    assert refuse_operation(state, endorse(3, STOP)) == "that would change nothing"
    for endorser in (0, 1, 2):
        state = after(state, body(endorse(endorser, Change(kind=ChangeKind.RESUME), sequence=2)))
    assert len(state.contributors()) == 4


def test_nobody_counts_twice() -> None:
    state = after(founders(4), body(endorse(0, STOP)))
    assert refuse_operation(state, endorse(0, STOP, sequence=2)) == "endorsed already"


def test_endorsements_go_with_the_member() -> None:
    """They must not count once more when it is back, years later."""
    removal = Change(kind=ChangeKind.REMOVE, key=simulated_key(3), text="gone")
    state = after(founders(5), body(endorse(0, removal), endorse(1, STOP), endorse(3, STOP)))
    assert after(state, body(op(1, OperationKind.LEAVE, sequence=2))).endorsements == ((removal, 0), (STOP, 3))
    banned = ban(state, state.roster.members[3], "reason")
    assert banned.endorsements == ((STOP, 1),)


def test_only_voters_endorse_and_only_voters_count() -> None:
    state = founders(4, observers=1)
    assert refuse_operation(state, endorse(4, STOP)) == "only voting members endorse"
    for endorser in (0, 1):
        state = after(state, body(endorse(endorser, STOP)))
    state = after(state, body(op(0, OperationKind.LEAVE, sequence=2)))
    state = after(state, body(endorse(2, STOP)))
    assert not state.is_stopped, "two of the three that are left: Q is 3"


def test_endorsements_that_wait_take_effect_once_the_others_have_left() -> None:
    """Nobody could endorse it again, and nobody else was left: the run would have stood still for ever."""
    state = after(founders(2), body(endorse(0, STOP)))
    assert not state.is_stopped
    state = after(state, body(op(1, OperationKind.LEAVE)))
    assert state.is_stopped
    assert state.endorsements == ()


def test_removal_bans_for_the_reason_given() -> None:
    change = Change(kind=ChangeKind.REMOVE, key=simulated_key(3), text="sells its votes")
    state = founders(4)
    for endorser in (0, 1, 2):
        state = after(state, body(endorse(endorser, change)))
    assert status(state, 3) is MemberStatus.BANNED
    assert state.standings[3].reason == "removed by the members: sells its votes"
    assert refuse_operation(state, op(3, OperationKind.JOIN, bytes(16), "me", sequence=9)) == "already a member"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change(kind=ChangeKind.ROUND_MS, number=60_000), ("round_ms", 60_000)),
        (Change(kind=ChangeKind.PROBATION_ROUNDS, number=9), ("probation_rounds", 9)),
        (Change(kind=ChangeKind.MEMBERS_MAX, number=12), ("members_max", 12)),
        (Change(kind=ChangeKind.ADMISSION, number=1), ("admission", Admission.INVITE)),
    ],
)
def test_parameters_change_for_everybody(change: Change, expected: tuple[str, object]) -> None:
    state = founders(4)
    before = state.content()
    for endorser in (0, 1, 2):
        state = after(state, body(endorse(endorser, change)))
    assert getattr(state.rules, expected[0]) == expected[1]
    assert replace(state, height=0, block_id=founders(4).block_id, standings=founders(4).standings).content() != before


@pytest.mark.parametrize(
    "change",
    [
        Change(kind=ChangeKind.STOP, number=1),
        Change(kind=ChangeKind.STOP, text="now"),
        Change(kind=ChangeKind.ROUND_MS, number=1),
        Change(kind=ChangeKind.MEMBERS_MAX, number=10_000),
        Change(kind=ChangeKind.ADMISSION, number=7),
        Change(kind=ChangeKind.REMOVE, key=b"short", text="reason"),
        Change(kind=ChangeKind.REMOVE, key=simulated_key(3)),
        Change(kind=ChangeKind.REMOVE, key=simulated_key(3), text="bell \x07"),
        Change(kind=ChangeKind.REMOVE, key=simulated_key(3), text="x" * 121),
    ],
)
def test_malformed_change_is_refused_by_ledger_and_wire(change: Change) -> None:
    assert refuse_operation(founders(4), endorse(0, change)) == "malformed change"
    with pytest.raises(MalformedError):
        parse_operation(operation_envelop(endorse(0, change), NETWORK_ID))


def test_endorsements_waiting_are_bounded() -> None:
    state = founders(4)
    for number in range(20):
        change = Change(kind=ChangeKind.ROUND_MS, number=1000 + number)
        state = apply_operation(state, endorse(0, change, sequence=number + 1))
    assert len(state.endorsements) == ENDORSEMENTS_PER_MEMBER_MAX
    assert state.endorsements[-1][0].number == 1019


def test_roster_does_not_shrink_below_its_members() -> None:
    change = Change(kind=ChangeKind.MEMBERS_MAX, number=3)
    assert refuse_operation(founders(4), endorse(0, change)) == "there are more members already"

"""Playbooks of one view: ballots, SET, PREPARE, COMMIT, decision (section 3, rules 3 to 5; section 4)."""

from __future__ import annotations

from dataclasses import replace

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind, said
from consensus.events import (
    Decide,
    Fetch,
    OperationReceived,
    PersistSafety,
    PersistVote,
    Send,
    SetTimer,
    Step,
    TimerKind,
)
from consensus.messages import Ballot, BallotEntry, Commit, Operation, OperationKind, Prepare, SetMessage
from consensus.pool import operation_subject
from consensus.types import NIL, NO_VIEW, MemberStatus, Roster

X = b"x" * 32
LEADER = 1
"""Of height 1, view 0, among four."""


def timers(effects: list) -> set[TimerKind]:
    return {effect.timer.kind for effect in of_kind(effects, SetTimer)}


def ripe(table: Playbook, operation: Operation) -> list:
    effects = table.handle(OperationReceived(operation=operation))
    return effects + table.fire(TimerKind.OPERATION, subject=operation_subject(operation))


# ---- ballots


def test_idle_replica_says_nothing() -> None:
    table = Playbook()
    assert not of_kind(table.log, Send) and not of_kind(table.log, PersistVote)


def test_ready_member_sends_its_ballot() -> None:
    table = Playbook(founders(4, until_round=9))
    entry = BallotEntry(author_index=2, digest=X, accepted=True)
    (ballot,) = said(table.opine(entry), Ballot)
    assert (ballot.height, ballot.view, ballot.ready, ballot.entries) == (1, 0, True, (entry,))
    assert (ballot.valid_view, ballot.valid_id, ballot.state_hash) == (NO_VIEW, NIL, table.state_hash(0))


def test_unready_opinion_is_no_reason_for_a_ballot() -> None:
    table = Playbook(founders(4, until_round=9))
    assert not said(table.opine(ready=False), Ballot)
    assert said(table.opine(ready=True), Ballot)


def test_nobody_is_ready_for_a_round_to_which_nobody_contributes_any_more() -> None:
    """Once ready, always ready: with the last contributor gone, empty blocks would follow each other without end."""
    table = Playbook(founders(4, until_round=0))
    assert not said(table.opine(ready=True), Ballot)


def test_opinion_of_another_round_is_not_used() -> None:
    table = Playbook(founders(4, until_round=9))
    assert not said(table.opine(round_=1), Ballot)


def test_operation_that_waited_is_a_reason_for_an_unready_ballot() -> None:
    table = Playbook()
    operation = table.operation(2, OperationKind.CONTRIBUTE, 9)
    effects = table.handle(OperationReceived(operation=operation))
    (timer,) = of_kind(effects, SetTimer)
    assert (timer.timer.kind, timer.delay_ms) == (TimerKind.OPERATION, table.timing.operation_delay_ms)
    assert not said(effects, Ballot)
    (ballot,) = said(table.fire(TimerKind.OPERATION, subject=operation_subject(operation)), Ballot)
    assert not ballot.ready


def test_operation_that_is_not_valid_is_no_reason() -> None:
    table = Playbook()
    assert not said(ripe(table, table.operation(2, OperationKind.PRESENT, 0)), Ballot)


def test_unready_ballots_of_f_plus_one_are_a_reason() -> None:
    table = Playbook()
    assert not said(table.hear(table.ballot(2)), Ballot)
    assert said(table.hear(table.ballot(3)), Ballot)


def test_ready_ballots_of_others_are_no_reason() -> None:
    table = Playbook(founders(4, until_round=9))
    assert not said(table.hear(*(table.ballot(i, ready=True) for i in (1, 2, 3))), Ballot)


def test_no_ballot_before_the_state_is_known() -> None:
    table = Playbook(founders(4, until_round=9), applied=False)
    assert not said(table.opine(), Ballot)
    assert said(table.apply(), Ballot)


def test_member_on_probation_sends_an_observer_ballot_only() -> None:
    table = Playbook(founders(4, observers=1, until_round=9), me=4)
    (ballot,) = said(table.log, Ballot)
    assert (ballot.ready, ballot.entries, ballot.valid_view) == (False, (), NO_VIEW)
    effects = table.opine(BallotEntry(author_index=0, digest=X, accepted=True)) + table.decide(table.block())
    assert not said(effects, Prepare) and not said(effects, Commit)
    assert of_kind(effects, Decide), "it follows all the same"


def test_set_before_the_own_ballot_is_accepted_and_no_ballot_follows() -> None:
    table = Playbook(founders(4, until_round=9))
    (prepare,) = said(table.hear(table.fresh(table.block(voters=(1, 2, 3)))), Prepare)
    assert prepare.block_id != NIL
    assert not said(table.opine(), Ballot)


# ---- the leader


def leader_table(count: int = 4) -> Playbook:
    return Playbook(founders(count, until_round=9), me=LEADER)


def test_leader_proposes_at_once_when_all_ballots_are_in() -> None:
    table = leader_table()
    table.opine()
    effects = table.hear(*(table.ballot(i, ready=True) for i in (0, 2, 3)))
    (proposal,) = said(effects, SetMessage)
    assert proposal.block is not None and proposal.valid_view == NO_VIEW
    assert len(proposal.block.body.ballots) == 4
    assert said(effects, Prepare), "it accepts its own block"


def test_leader_waits_a_quarter_of_delta_after_a_ready_quorum() -> None:
    table = leader_table()
    table.opine()
    effects = table.hear(table.ballot(0, ready=True), table.ballot(2, ready=True))
    assert not said(effects, SetMessage)
    (soft,) = [t for t in of_kind(effects, SetTimer) if t.timer.kind is TimerKind.LEADER_SOFT]
    assert soft.delay_ms == table.timing.delta_ms // 4
    (proposal,) = said(table.fire(TimerKind.LEADER_SOFT), SetMessage)
    assert proposal.block is not None and proposal.block.body.training is not None


def test_leader_waits_a_quarter_of_delta_after_more_than_f_unready() -> None:
    table = leader_table()
    table.opine()
    effects = table.hear(table.ballot(0), table.ballot(2))
    assert TimerKind.LEADER_SOFT in timers(effects) and not said(effects, SetMessage)


def test_leader_without_a_clear_picture_waits_for_half_of_the_timeout() -> None:
    table = leader_table()
    table.opine()
    effects = table.hear(table.ballot(0, ready=True), table.ballot(2, ready=False))
    assert TimerKind.LEADER_SOFT not in timers(effects)
    (hard,) = [t for t in of_kind(effects, SetTimer) if t.timer.kind is TimerKind.LEADER_HARD]
    assert hard.delay_ms == table.timing.delta_ms // 2
    assert not said(table.fire(TimerKind.LEADER_SOFT), SetMessage)
    (proposal,) = said(table.fire(TimerKind.LEADER_HARD), SetMessage)
    assert proposal.block is not None and proposal.block.body.training is None


def test_leader_of_a_later_view_counts_half_of_the_timeout_from_entering() -> None:
    table = Playbook(me=2)
    effects = table.reach_view(1)
    in_view = [t for t in of_kind(effects, SetTimer) if t.timer.view == 1]
    (hard,) = [t for t in in_view if t.timer.kind is TimerKind.LEADER_HARD]
    (whole,) = [t for t in in_view if t.timer.kind is TimerKind.PROPOSE]
    assert hard.delay_ms == whole.delay_ms // 2
    table.fire(TimerKind.LEADER_HARD)
    assert not said(table.hear(table.ballot(0, 1)), SetMessage)
    assert said(table.hear(table.ballot(1, 1, ready=True)), SetMessage), "the wait is over when the quorum comes"


def test_leader_never_proposes_below_a_quorum_of_ballots() -> None:
    table = leader_table()
    table.opine()
    table.hear(table.ballot(0, ready=True))
    assert not said(table.fire(TimerKind.LEADER_HARD) + table.fire(TimerKind.LEADER_SOFT), SetMessage)


def test_ballots_of_another_view_state_or_round_are_not_used() -> None:
    table = leader_table()
    table.opine()
    effects = table.hear(
        table.ballot(0, 1, ready=True),
        table.ballot(2, ready=True, state_hash=bytes(32)),
        table.ballot(3, ready=True, round_=1),
    )
    assert not said(effects + table.fire(TimerKind.LEADER_HARD), SetMessage)


def test_leader_includes_pending_operations_in_arrival_order() -> None:
    table = Playbook(me=LEADER)
    operations = [table.operation(i, OperationKind.CONTRIBUTE, 9) for i in (3, 0)]
    for operation in operations:
        ripe(table, operation)
    (proposal,) = said(table.hear(*(table.ballot(i) for i in (0, 2, 3))), SetMessage)
    assert proposal.block is not None and list(proposal.block.body.operations) == operations


def test_block_with_neither_training_nor_operations_is_proposed_rather_than_nothing() -> None:
    table = Playbook(me=LEADER)
    (proposal,) = said(table.hear(*(table.ballot(i) for i in (0, 2, 3))), SetMessage)
    assert proposal.block is not None and proposal.block.body.training is None


def test_leader_lists_observers_with_its_state() -> None:
    table = Playbook(founders(4, observers=2), me=LEADER)
    ballots = [table.ballot(4), table.ballot(5, state_hash=bytes(32)), *(table.ballot(i) for i in (0, 2, 3))]
    (proposal,) = said(table.hear(*ballots), SetMessage)
    assert proposal.block is not None
    assert [record.signer_index for record in proposal.block.body.observers] == [4]


def test_leader_proposes_once() -> None:
    table = Playbook(me=LEADER)
    table.hear(*(table.ballot(i) for i in (0, 2, 3)))
    effects = table.hear(*(table.ballot(i) for i in (0, 2, 3))) + table.fire(TimerKind.LEADER_HARD)
    assert not said(effects, SetMessage)


# ---- SET and PREPARE


def test_valid_set_is_prepared_with_its_block_on_disk() -> None:
    table = Playbook()
    block = table.block()
    effects = table.hear(table.fresh(block))
    (prepare,) = said(effects, Prepare)
    assert (prepare.block_id, prepare.valid_view, table.replica.step) == (table.name(block), NO_VIEW, Step.PREPARE)
    order = [type(effect).__name__ for effect in effects]
    assert order.index("PersistBlock") < order.index("Send")
    assert order[0] == "PersistSafety"


def test_invalid_set_is_answered_with_nil() -> None:
    table = Playbook()
    block = table.block(voters=(1, 2, 3), state_hash=bytes(32))
    (prepare,) = said(table.hear(table.fresh(block)), Prepare)
    assert (prepare.block_id, prepare.valid_view) == (NIL, NO_VIEW)


def test_fresh_block_of_another_view_is_answered_with_nil() -> None:
    table = Playbook()
    old = table.block(view=0)
    table.reach_view(1)
    (prepare,) = said(table.hear(table.fresh(old, 1)), Prepare)
    assert prepare.block_id == NIL


def test_fresh_set_waits_until_the_state_is_applied() -> None:
    table = Playbook(applied=False)
    block = table.block(voters=(1, 2, 3))
    assert not said(table.hear(table.fresh(block)), Prepare)
    (prepare,) = said(table.apply(), Prepare)
    assert prepare.block_id == table.name(block)


def test_no_set_in_time_is_answered_with_nil() -> None:
    table = Playbook()
    effects = table.hear(*(table.ballot(i) for i in (1, 2, 3)))
    assert TimerKind.PROPOSE in timers(effects), "TP(0) starts with a quorum of ballots"
    (prepare,) = said(table.fire(TimerKind.PROPOSE), Prepare)
    assert prepare.block_id == NIL


def test_timeout_of_view_0_does_not_start_below_a_quorum() -> None:
    table = Playbook()
    assert TimerKind.PROPOSE not in timers(table.hear(table.ballot(1), table.prepare(1, 0, X)))


def test_timeout_of_view_0_counts_members_that_skipped_their_ballot() -> None:
    """A faulty leader shows its SET to one member only, which then sends no ballot: the others must not wait for it."""
    table = Playbook()
    effects = table.hear(table.ballot(2), table.ballot(3))
    assert said(effects, Ballot) and TimerKind.PROPOSE in timers(effects), "the own ballot is the third"
    table = Playbook(me=3)
    effects = table.hear(table.ballot(2), table.prepare(0, 0, X))
    assert TimerKind.PROPOSE not in timers(effects)
    effects = ripe(table, table.operation(2, OperationKind.CONTRIBUTE, 9))
    assert said(effects, Ballot) and TimerKind.PROPOSE in timers(effects)


def test_only_the_first_set_of_a_view_counts() -> None:
    table = Playbook()
    one, two = table.block(voters=(0, 1, 2)), table.block(voters=(1, 2, 3))
    (prepare,) = said(table.hear(table.fresh(one), table.fresh(two)), Prepare)
    assert prepare.block_id == table.name(one)


# ---- COMMIT and decision


def test_quorum_of_prepares_locks_and_commits_in_one_transaction() -> None:
    table = Playbook()
    block = table.block()
    effects = table.lock(block)
    (commit,) = said(effects, Commit)
    assert commit.block_id == table.name(block)
    assert (table.replica.locked_view, table.replica.locked_id) == (0, table.name(block))
    safety = of_kind(effects, PersistSafety)[-1].safety
    assert (safety.locked_view, safety.valid_view, safety.step) == (0, 0, Step.COMMIT)
    assert safety.valid_certificate is not None and len(safety.valid_certificate.votes) == 3


def test_prepares_are_grouped_by_id_and_valid_view() -> None:
    table = Playbook()
    table.reach_view(2)
    block = table.block(view=2)
    name = table.name(block)
    effects = table.hear(table.fresh(block, 2), table.prepare(1, 2, name), table.prepare(2, 2, name, 1))
    assert not said(effects, Commit)
    assert said(table.hear(table.prepare(3, 2, name)), Commit)


def test_quorum_of_nil_prepares_commits_nil_and_never_unlocks() -> None:
    table = Playbook()
    block = table.block()
    table.lock(block)
    table.reach_view(1)
    table.fire(TimerKind.PROPOSE)
    (commit,) = said(table.hear(*(table.prepare(i, 1, NIL) for i in (1, 2, 3))), Commit)
    assert commit.block_id == NIL
    assert (table.replica.locked_view, table.replica.locked_id) == (0, table.name(block))


def test_prepares_that_agree_on_nothing_end_in_a_nil_commit_after_the_timeout() -> None:
    table = Playbook()
    block = table.block()
    effects = table.hear(table.fresh(block), table.prepare(1, 0, NIL), table.prepare(2, 0, X))
    assert TimerKind.PREPARE in timers(effects) and not said(effects, Commit)
    (commit,) = said(table.fire(TimerKind.PREPARE), Commit)
    assert commit.block_id == NIL


def test_quorum_of_nil_commits_enters_the_next_view_with_a_ballot() -> None:
    table = Playbook()
    (ballot,) = said(table.hear(*(table.commit(i, 0, NIL) for i in (1, 2, 3))), Ballot)
    assert (table.replica.view, ballot.view, table.replica.step) == (1, 1, Step.PROPOSE)


def test_commits_that_agree_on_nothing_enter_the_next_view_after_the_timeout() -> None:
    table = Playbook()
    effects = table.hear(table.commit(1, 0, NIL), table.commit(2, 0, NIL), table.commit(3, 0, X))
    assert TimerKind.COMMIT in timers(effects) and table.replica.view == 0
    table.fire(TimerKind.COMMIT)
    assert table.replica.view == 1
    assert len(table.replica.entry) == 3


def test_quorum_of_commits_decides() -> None:
    table = Playbook()
    block = table.block()
    (decision,) = of_kind(table.decide(block, apply=False), Decide)
    assert decision.certificate.block_id == table.name(block)
    assert [index for index, _signature in decision.certificate.votes][:3] == [0, 1, 2]
    assert (table.replica.height, table.replica.view, table.replica.step) == (2, 0, Step.PROPOSE)
    assert (table.replica.locked_view, table.replica.valid_view, table.replica.locked_id) == (NO_VIEW, NO_VIEW, NIL)


def test_commits_of_any_view_decide() -> None:
    table = Playbook()
    block = table.block()
    table.hear(table.fresh(block))
    table.reach_view(3)
    assert of_kind(table.hear(*(table.commit(i, 1, table.name(block)) for i in (1, 2))), Decide) == []
    # The first COMMIT of 3 in view 1 was nil; in view 2 likewise: another view's quorum decides.
    table = Playbook()
    block = table.block()
    table.hear(table.fresh(block))
    assert of_kind(table.hear(*(table.commit(i, 5, table.name(block)) for i in (1, 2, 3))), Decide)


def test_commits_of_different_views_do_not_add_up() -> None:
    table = Playbook()
    block = table.block()
    name = table.name(block)
    effects = table.hear(
        table.fresh(block), table.commit(1, 0, name), table.commit(2, 1, name), table.commit(3, 2, name)
    )
    assert not of_kind(effects, Decide)


def test_decision_without_the_block_fetches_it_first() -> None:
    table = Playbook()
    block = table.block()
    effects = table.hear(*(table.commit(i, 0, table.name(block)) for i in (1, 2, 3)))
    assert not of_kind(effects, Decide)
    (fetch,) = of_kind(effects, Fetch)
    assert fetch.block_id == table.name(block)
    assert fetch.targets == tuple(simulated_key(i) for i in (1, 2, 3))


def test_single_member_decides_alone() -> None:
    table = Playbook(founders(1))
    effects = ripe(table, table.operation(0, OperationKind.CONTRIBUTE, 9))
    (decision,) = of_kind(effects, Decide)
    assert len(decision.block.body.operations) == 1


def test_everything_sent_is_persisted_in_the_same_step() -> None:
    table = Playbook()
    table.decide(table.block())
    persisted = [effect.message for effect in of_kind(table.log, PersistVote)]
    sent = [send.message for send in of_kind(table.log, Send) if send.message.signer == table.key]
    assert sent and all(message in persisted for message in sent)


def test_opinion_on_an_author_suspended_since_is_left_out_of_the_ballot() -> None:
    ledger = founders(4, observers=1, until_round=9)
    members = tuple(replace(m, status=MemberStatus.SUSPENDED) if m.index == 4 else m for m in ledger.roster.members)
    table = Playbook(replace(ledger, roster=Roster(epoch=1, members=members)))
    entries = [BallotEntry(author_index=index, digest=X, accepted=True) for index in (2, 4)]
    (ballot,) = said(table.opine(*entries), Ballot)
    assert ballot.entries == (entries[0],)

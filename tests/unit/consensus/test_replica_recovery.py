"""Playbooks of crashes: what was signed is sent again, locks are kept, nothing is signed twice (section 5)."""

from __future__ import annotations

from aicpnode.simulation.playbook import Playbook, founders, of_kind, said
from consensus.events import Decide, Diverged, Send, SetTimer, Step, TimerKind
from consensus.messages import Ballot, BallotEntry, Commit, Prepare, SetMessage
from consensus.types import NIL, NO_VIEW

X = b"x" * 32


def test_restart_sends_the_stored_messages_again_byte_for_byte() -> None:
    table = Playbook(founders(4, until_round=9))
    table.opine(BallotEntry(author_index=1, digest=X, accepted=True))
    table.lock(table.block())
    before = {(m.kind, m.view): (m, m.signature) for m in table.votes}
    sent = [send.message for send in of_kind(table.restart(), Send)]
    assert {(m.kind, m.view): (m, m.signature) for m in sent if isinstance(m, Ballot | Prepare | Commit)} == before
    assert len(before) == 3


def test_restart_after_another_opinion_keeps_the_ballot_that_was_signed() -> None:
    table = Playbook(founders(4, until_round=9))
    (first,) = said(table.opine(BallotEntry(author_index=1, digest=X, accepted=True)), Ballot)
    table.restart()
    table.apply()
    effects = table.opine(BallotEntry(author_index=1, digest=X, accepted=False))
    assert not [b for b in said(effects, Ballot) if b != first]


def test_restart_keeps_lock_view_step_and_entry() -> None:
    table = Playbook()
    block = table.block()
    table.lock(block)
    table.reach_view(2)
    before = table.replica.safety
    table.restart()
    assert table.replica.safety == before
    assert (table.replica.locked_view, table.replica.locked_id, table.replica.view) == (0, table.name(block), 2)
    assert len(table.replica.entry) == 3


def test_locked_member_refuses_a_fresh_set_after_its_restart() -> None:
    table = Playbook()
    table.lock(table.block())
    table.reach_view(1)
    table.restart()
    table.apply()
    (prepare,) = [p for p in said(table.hear(table.fresh(table.block(view=1), 1)), Prepare) if p.view == 1]
    assert prepare.block_id == NIL


def test_restarted_member_serves_the_block_that_it_prepared() -> None:
    table = Playbook()
    block = table.block()
    table.hear(table.fresh(block))
    table.restart()
    assert table.replica.block(table.name(block)) == block


def test_restarted_leader_proposes_its_stored_block_again_and_no_other() -> None:
    table = Playbook(me=1)
    (first,) = said(table.hear(*(table.ballot(i) for i in (0, 2, 3))), SetMessage)
    sent = said(table.restart(), SetMessage)
    assert sent == [first] and sent[0].block == first.block
    table.apply()
    effects = table.hear(*(table.ballot(i) for i in (0, 2, 3))) + table.fire(TimerKind.LEADER_HARD)
    assert not [s for s in said(effects, SetMessage) if s != first]


def test_restart_arms_the_timeout_of_a_later_view_again() -> None:
    table = Playbook()
    table.reach_view(2)
    effects = table.restart()
    (timer,) = [t for t in of_kind(effects, SetTimer) if t.timer.kind is TimerKind.PROPOSE]
    assert (timer.timer.view, timer.delay_ms) == (2, table.replica.pacemaker.timeout_ms(2))


def test_restart_in_step_prepare_goes_on_when_the_prepares_come_again() -> None:
    table = Playbook()
    block = table.block()
    table.hear(table.fresh(block))
    table.restart()
    assert table.replica.step is Step.PREPARE
    (commit,) = said(table.hear(*(table.prepare(i, 0, table.name(block)) for i in (1, 2))), Commit)
    assert commit.block_id == table.name(block)


def test_restart_on_the_record_of_an_older_height_starts_fresh() -> None:
    table = Playbook()
    table.decide(table.block())
    assert table.safety is not None and table.safety.height == 1
    table.votes = [vote for vote in table.votes if vote.height > 1]
    table.restart()
    assert (table.replica.height, table.replica.view, table.replica.locked_view) == (2, 0, NO_VIEW)


def test_restart_before_anything_was_signed_says_nothing() -> None:
    table = Playbook()
    assert not of_kind(table.restart(), Send)


# ---- memory lost


def test_member_without_its_memory_signs_nothing_and_follows() -> None:
    table = Playbook(founders(4, until_round=9), voting_from=None)
    table.opine()
    table.decide(table.block())
    assert not of_kind(table.log, Send)
    assert of_kind(table.log, Decide)


def test_member_without_its_memory_votes_again_from_its_height_on() -> None:
    table = Playbook(voting_from=2)
    assert not said(table.decide(table.block()), Prepare)
    assert said(table.hear(table.fresh(table.block())), Prepare)


# ---- divergence


def test_state_that_is_not_the_certified_one_stops_the_signing() -> None:
    table = Playbook()
    block = table.block(state_hash=bytes(32), voters=(1, 2, 3))
    effects = table.hear(table.fresh(block), *(table.commit(i, 0, table.name(block)) for i in (1, 2, 3)))
    (diverged,) = of_kind(effects, Diverged)
    assert (diverged.height, diverged.own, diverged.certified) == (0, table.state_hash(0), bytes(32))
    table.apply()
    assert not said(table.hear(table.fresh(table.block())), Prepare)


def test_divergence_is_noticed_when_the_state_is_applied_after_the_decision() -> None:
    table = Playbook(applied=False)
    block = table.block(state_hash=bytes(32), voters=(1, 2, 3))
    effects = table.hear(*(table.commit(i, 0, table.name(block)) for i in (1, 2, 3)))
    from consensus.events import BlockReceived

    effects += table.handle(BlockReceived(block=block))
    assert of_kind(effects, Decide) and not of_kind(effects, Diverged)
    assert of_kind(table.apply(0), Diverged)
    assert table.replica.diverged

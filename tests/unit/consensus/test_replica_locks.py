"""Playbooks of locks: what binds a member, what frees it, and how a block survives its view (section 4)."""

from __future__ import annotations

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind, said
from consensus.events import BlockReceived, Fetch, PersistSafety, Step, TimerKind
from consensus.messages import Ballot, Commit, Prepare, SetMessage
from consensus.types import NIL, NO_VIEW


def locked_table(me: int = 0) -> tuple[Playbook, bytes]:
    """This member is locked on a block of view 0."""
    table = Playbook(founders(4), me=me)
    block = table.block()
    table.lock(block)
    assert table.replica.locked_view == 0
    return table, table.name(block)


def test_locked_member_refuses_a_fresh_set() -> None:
    table, name = locked_table()
    table.reach_view(1)
    (prepare,) = said(table.hear(table.fresh(table.block(view=1), 1)), Prepare)
    assert prepare.block_id == NIL
    assert table.replica.locked_id == name


def test_locked_member_refuses_even_its_own_block_proposed_as_fresh() -> None:
    table = Playbook()
    block = table.block()
    table.lock(block)
    table.reach_view(1)
    (prepare,) = said(table.hear(table.fresh(block, 1)), Prepare)
    assert prepare.block_id == NIL, "no shortcut for lockedId == id"


def test_certificate_of_the_lock_view_frees_the_member_for_the_same_block() -> None:
    table, name = locked_table()
    table.reach_view(1)
    (prepare,) = said(table.hear(table.again(table.prepare_certificate(0, name), 1)), Prepare)
    assert (prepare.block_id, prepare.valid_view) == (name, 0)


def test_certificate_below_the_lock_view_does_not_free() -> None:
    table = Playbook()
    other = table.block(voters=(1, 2, 3))
    table.reach_view(2)
    block = table.block(view=2)
    table.lock(block, 2)
    table.reach_view(3)
    low = table.prepare_certificate(1, table.name(other))
    table.hear(table.again(low, 3))
    table.handle(BlockReceived(block=other))
    (prepare,) = said(table.log[-8:], Prepare)
    assert (prepare.view, prepare.block_id) == (3, NIL)
    assert table.replica.locked_view == 2


def test_certificate_below_the_lock_view_does_not_free_even_for_the_locked_block() -> None:
    """No shortcut for lockedId == id: a PREPARE below one's lock looks like a forgotten lock to everybody else."""
    table, name = locked_table()
    first = table.prepare_certificate(0, name)
    table.reach_view(1)
    table.hear(table.again(first, 1), *(table.prepare(i, 1, name, 0) for i in (1, 2, 3)))
    assert (table.replica.locked_view, table.replica.locked_id) == (1, name)
    table.reach_view(2)
    (prepare,) = said(table.hear(table.again(first, 2)), Prepare)
    assert (prepare.view, prepare.block_id) == (2, NIL)


def test_certificate_above_the_lock_view_moves_the_lock_to_another_block() -> None:
    table, _name = locked_table()
    other = table.block(view=1, voters=(1, 2, 3))
    table.reach_view(2)
    effects = table.hear(table.again(table.prepare_certificate(1, table.name(other)), 2))
    assert not said(effects, Prepare), "pending while the block is fetched"
    (prepare,) = said(table.handle(BlockReceived(block=other)), Prepare)
    assert (prepare.block_id, prepare.valid_view) == (table.name(other), 1)
    table.hear(*(table.prepare(i, 2, table.name(other), 1) for i in (1, 2)))
    assert (table.replica.locked_view, table.replica.locked_id) == (2, table.name(other))


def test_nil_never_unlocks() -> None:
    table, name = locked_table()
    for view in range(3):
        table.fire(TimerKind.PROPOSE)
        table.hear(*(table.prepare(i, view, NIL) for i in (1, 2, 3)))
        table.hear(*(table.commit(i, view, NIL) for i in (1, 2, 3)))
    assert table.replica.view == 3
    assert (table.replica.locked_view, table.replica.locked_id) == (0, name)


def test_lock_and_valid_values_are_reset_at_the_next_height() -> None:
    table = Playbook()
    table.decide(table.block())
    (prepare,) = said(table.hear(table.fresh(table.block())), Prepare)
    assert prepare.block_id != NIL


# ---- certificates


def test_ballots_carry_the_highest_certificate() -> None:
    table, name = locked_table()
    (ballot,) = said(table.reach_view(1), Ballot)
    assert (ballot.valid_view, ballot.valid_id) == (0, name)
    assert ballot.certificate is not None and ballot.certificate.view == 0


def test_leader_proposes_again_what_a_single_ballot_proves() -> None:
    table = Playbook(founders(4), me=2)
    name = table.name(table.block())
    certificate = table.prepare_certificate(0, name, voters=(0, 1, 3))
    table.reach_view(1)
    table.hear(table.ballot(0, 1, certificate=certificate), table.ballot(1, 1))
    effects = table.hear(table.ballot(3, 1))
    (proposal,) = said(effects, SetMessage)
    assert (proposal.valid_view, proposal.block_id, proposal.certificate) == (0, name, certificate)
    assert of_kind(table.log, Fetch), "a proposer fetches too but need not wait"


def test_leader_proposes_the_highest_of_several_certificates() -> None:
    table = Playbook(founders(4), me=3)
    low, high = table.block(voters=(0, 1, 2)), table.block(view=1)
    table.reach_view(2)
    certificates = [
        table.prepare_certificate(0, table.name(low), voters=(0, 1, 2)),
        table.prepare_certificate(1, table.name(high), voters=(0, 1, 2)),
    ]
    ballots = [table.ballot(i, 2, certificate=c) for i, c in enumerate(certificates)]
    (proposal,) = said(table.hear(*ballots, table.ballot(2, 2)), SetMessage)
    assert (proposal.valid_view, proposal.block_id) == (1, table.name(high))


def test_verified_certificate_raises_the_valid_value_and_never_lowers_it() -> None:
    table = Playbook()
    table.reach_view(3)
    name = b"\x07" * 32
    table.hear(table.ballot(1, 3, certificate=table.prepare_certificate(1, name)))
    assert (table.replica.valid_view, table.replica.valid_id) == (1, name)
    table.hear(table.ballot(2, 3, certificate=table.prepare_certificate(0, b"\x08" * 32)))
    assert (table.replica.valid_view, table.replica.valid_id) == (1, name)
    table.hear(table.ballot(3, 3, certificate=table.prepare_certificate(2, name)))
    assert table.replica.valid_view == 2
    assert table.replica.locked_view == NO_VIEW


def test_certificate_of_a_view_that_lies_ahead_is_learnt_on_arrival_there() -> None:
    table = Playbook()
    name = b"\x07" * 32
    table.hear(table.ballot(1, 5, certificate=table.prepare_certificate(4, name)))
    assert table.replica.valid_view == NO_VIEW, "lockedView <= validView <= v"
    table.hear(table.ballot(2, 5))
    assert (table.replica.view, table.replica.valid_view) == (5, 4)


def test_late_prepares_of_a_past_view_still_make_a_certificate() -> None:
    table = Playbook()
    block = table.block()
    table.hear(table.fresh(block), table.prepare(1, 0, table.name(block)))
    table.reach_view(1)
    table.hear(table.prepare(2, 0, table.name(block)))
    assert (table.replica.valid_view, table.replica.locked_view) == (0, NO_VIEW)


# ---- fetching


def test_set_stays_pending_while_its_block_is_fetched_from_signers_and_sender() -> None:
    table = Playbook()
    block = table.block(voters=(1, 2, 3))
    certificate = table.prepare_certificate(0, table.name(block))
    table.reach_view(1)
    effects = table.hear(table.again(certificate, 1))
    assert table.replica.step is Step.PROPOSE
    (fetch,) = of_kind(effects, Fetch)
    assert set(fetch.targets) == {simulated_key(i) for i in (1, 2, 3)}
    (prepare,) = said(table.handle(BlockReceived(block=block)), Prepare)
    assert prepare.block_id == table.name(block)


def test_timeout_runs_while_a_set_is_pending() -> None:
    table = Playbook()
    block = table.block(voters=(1, 2, 3))
    table.reach_view(1)
    table.hear(table.again(table.prepare_certificate(0, table.name(block)), 1))
    (prepare,) = said(table.fire(TimerKind.PROPOSE), Prepare)
    assert prepare.block_id == NIL


def test_fetch_is_repeated_until_the_block_is_here() -> None:
    table = Playbook()
    block = table.block(voters=(1, 2, 3))
    table.hear(*(table.prepare(i, 0, table.name(block)) for i in (1, 2, 3)))
    assert of_kind(table.fire(TimerKind.FETCH), Fetch)
    table.handle(BlockReceived(block=block))
    assert not of_kind(table.fire(TimerKind.FETCH), Fetch)


def test_quorum_of_prepares_without_the_block_locks_once_it_is_fetched() -> None:
    table = Playbook()
    block = table.block(voters=(1, 2, 3))
    table.hear(*(table.ballot(i) for i in (1, 2, 3)))
    table.fire(TimerKind.PROPOSE)
    effects = table.hear(*(table.prepare(i, 0, table.name(block)) for i in (1, 2, 3)))
    assert of_kind(effects, Fetch) and not said(effects, Commit)
    assert table.replica.valid_view == 0, "a certificate is learnt without its block"
    (commit,) = said(table.handle(BlockReceived(block=block)), Commit)
    assert commit.block_id == table.name(block)


def test_block_that_nobody_asked_for_is_not_stored() -> None:
    table = Playbook()
    block = table.block()
    table.handle(BlockReceived(block=block))
    assert table.replica.block(table.name(block)) is None


def test_block_with_another_body_is_not_taken_for_the_one_wanted() -> None:
    table = Playbook()
    block, other = table.block(voters=(1, 2, 3)), table.block(voters=(0, 1, 2))
    table.hear(*(table.prepare(i, 0, table.name(block)) for i in (1, 2, 3)))
    table.handle(BlockReceived(block=type(block)(header=block.header, body=other.body)))
    assert table.replica.block(table.name(block)) is None
    assert of_kind(table.fire(TimerKind.FETCH), Fetch)


def test_lock_is_durable_before_its_commit_leaves() -> None:
    table = Playbook()
    effects = table.lock(table.block())
    of_commit = [e for e in effects if isinstance(e, PersistSafety) and e.safety.locked_view == 0]
    assert len(of_commit) == 1

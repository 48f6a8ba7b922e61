"""Faults that real consensus systems had, continued: changing rosters, evidence, absence, and state that diverges."""

from __future__ import annotations

from dataclasses import replace

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind, said
from consensus.events import Decide, DecisionReceived, OperationReceived, ServeDecision, TimerKind
from consensus.evidence import evidence
from consensus.membership import next_state
from consensus.messages import Commit, Operation, OperationKind, Prepare
from consensus.pool import OPERATIONS_PER_SIGNER_KEPT
from consensus.types import NIL, NO_VIEW, MemberStatus

X, Y = b"x" * 32, b"y" * 32
HALT_VIEWS = 300
"""More than the rounds after which a member is absent; at the longest timeout five hours."""


# ---- C10: what commits


def test_case_C10_certificate_of_an_earlier_view_commits_nothing_in_this_one() -> None:
    """relab/hotstuff 249: a commit without the check that its views follow each other. Here a COMMIT needs a quorum of
    PREPAREs of its own view; one of an earlier view is only carried on."""
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block))
    table.reach_view(1)
    table.hear(*(table.prepare(i, 0, name) for i in (1, 2, 3)))
    replica = table.replica
    assert (replica.valid_view, replica.valid_id, replica.locked_view) == (0, name, NO_VIEW)
    assert not [commit for commit in said(table.log, Commit) if commit.block_id == name]


def test_case_C10_commits_of_several_views_decide_nothing() -> None:
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block))
    effects = table.hear(table.commit(1, 0, name), table.commit(2, 1, name), table.commit(3, 2, name))
    assert not of_kind(effects, Decide)


# ---- C18 and C20: rosters that change


def left_behind() -> tuple[Playbook, list[Decide]]:
    """A member that saw nothing, and what the others decided: member 3 leaves at height 1; they go on without it."""
    ahead = Playbook()
    ahead.decide(ahead.block(operations=[ahead.operation(3, OperationKind.LEAVE)]))
    ahead.decide(ahead.block())
    return Playbook(me=2), ahead.decisions


def test_case_C18_laggard_follows_over_the_departure_of_a_member() -> None:
    """hotstuff_rs 25: the old set resigned, and who lagged behind was stranded. Any member's copy of the decisions will
    do, and each certificate is that of its own height's roster."""
    laggard, decisions = left_behind()
    for decided in decisions:
        laggard.handle(DecisionReceived(block=decided.block, certificate=decided.certificate))
    assert (laggard.replica.height, laggard.ledger.roster.total_power) == (3, 3)


def test_case_C18_leaver_votes_until_it_is_decided_and_serves_afterwards() -> None:
    leaver = Playbook(me=3)
    block = leaver.block(operations=[leaver.operation(3, OperationKind.LEAVE)])
    effects = leaver.decide(block)
    assert [vote.block_id for vote in said(effects, Prepare)] == [leaver.name(block)]
    assert [vote.block_id for vote in said(effects, Commit)] == [leaver.name(block)]
    assert leaver.ledger.roster.members[3].status is MemberStatus.SUSPENDED
    stuck = replace(leaver.prepare(2, 0, NIL), height=1)
    (answer,) = of_kind(leaver.hear(leaver.signed(stuck), leaver.signed(stuck)), ServeDecision)
    assert (answer.height, answer.to) == (1, simulated_key(2))
    assert not said(leaver.hear(leaver.fresh(leaver.block())), Prepare), "it has no vote any more"


def test_case_C20_certificates_are_checked_against_the_derived_roster() -> None:
    """snarkOS 3226: two members forged blocks for those who were syncing. Here two and one that has left since."""
    laggard, (first, second) = left_behind()
    laggard.handle(DecisionReceived(block=first.block, certificate=first.certificate))
    forged = laggard.commit_certificate(0, second.certificate.block_id, voters=(1, 2, 3))
    assert not of_kind(laggard.handle(DecisionReceived(block=second.block, certificate=forged)), Decide)
    assert of_kind(laggard.handle(DecisionReceived(block=second.block, certificate=second.certificate)), Decide), (
        "the true one is still taken"
    )


def test_case_C17_votes_of_one_that_left_count_no_more() -> None:
    """allways 181: votes of a removed validator counted."""
    table, decisions = left_behind()
    table.handle(DecisionReceived(block=decisions[0].block, certificate=decisions[0].certificate))
    table.apply()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block), table.prepare(0, 0, name), table.prepare(3, 0, name))
    assert not [commit for commit in said(table.log, Commit) if commit.height == 2]


# ---- C21: evidence


def accusation(table: Playbook, sequence: int, *, view: int) -> Operation:
    """By member 1, of member 2, with ever other proofs."""
    proof = evidence(table.commit(2, view, X), table.commit(2, view, NIL))
    operation = Operation(kind=OperationKind.EVIDENCE, signer=simulated_key(1), sequence=sequence, evidence=proof)
    return table.signed(operation)


def test_case_C21_flood_of_evidence_keeps_nobody_else_out() -> None:
    """GHSA-p658-8693-mhvg, tendermint 1637: evidence with timestamps, and floods of it."""
    table = Playbook()
    for number in range(1, 200):
        table.handle(OperationReceived(operation=accusation(table, number, view=number)))
    assert len(table.replica.pool) <= OPERATIONS_PER_SIGNER_KEPT
    table.handle(OperationReceived(operation=table.operation(3, OperationKind.CONTRIBUTE, 9)))
    block = table.block(operations=table.replica.pool)
    kinds = [operation.kind for operation in block.body.operations]
    assert kinds.count(OperationKind.EVIDENCE) == 1, "one conviction is enough"
    assert OperationKind.CONTRIBUTE in kinds


def test_case_C21_evidence_knows_no_time() -> None:
    """The same two messages convict whenever they are shown: at the next height or a thousand heights later."""
    table = Playbook()
    operation = accusation(table, 1, view=0)
    soon = table.genesis
    late = replace(soon, height=1_000, round=50)
    for state in (soon, late):
        body = table.block(operations=[operation]).body
        after = next_state(state, body, block_id=X)
        assert after is not None and after.roster.members[2].status is MemberStatus.BANNED


# ---- C23 and C24: state, and halts


def leaves(value: object) -> list[object]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple) else [value]


def test_case_C23_agreed_state_is_made_of_integers_and_bytes() -> None:
    """Aptos 2023-10-18: state that depended on more than the log. No floating point, no sets, no order by address."""
    table = Playbook(founders(4, observers=1, until_round=9))
    table.decide(
        table.block(
            ready=True,
            observers=(4,),
            operations=[table.operation(3, OperationKind.LEAVE), accusation(table, 1, view=0)],
        )
    )
    found = {type(leaf) for leaf in leaves(table.ledger.content())}
    assert found <= {int, bool, bytes, str}, found


def test_case_C24_halt_of_any_length_suspends_nobody() -> None:
    """em-ledger 52: when the chain went on after a halt, everybody was jailed for the time that had passed."""
    table = Playbook(founders(7, until_round=1 << 40))
    before = table.ledger.roster
    for view in range(1, HALT_VIEWS):
        for kind in TimerKind:
            table.fire(kind)
        table.reach_view(view)
    last = HALT_VIEWS - 1
    table.decide(table.block(view=last, voters=range(5), ready=True), last)
    assert table.ledger.height == 1 and table.ledger.roster == before

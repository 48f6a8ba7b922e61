"""What convicts a member, and what does not; what a fork proves (section 6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.envelop.kinds import operation_envelop, parse_operation
from aicpnode.simulation.crypto import signature_of, simulated_key
from aicpnode.simulation.playbook import NETWORK_ID, Playbook, founders
from consensus.events import Accusation, Decide, DecisionReceived, OperationReceived
from consensus.evidence import (
    Decision,
    Evidence,
    Grad,
    contradiction,
    culprits,
    evidence,
    first_contradiction,
    refuse_evidence,
)
from consensus.membership import apply_operation, refuse_operation, select_operations
from consensus.messages import Ballot, BallotEntry, Operation, OperationKind, operation_holds
from consensus.types import NIL, MemberStatus
from consensus.watch import STATEMENTS_PER_MEMBER_MAX, Watch

X, Y = b"x" * 32, b"y" * 32


@pytest.fixture
def table() -> Playbook:
    return Playbook()


def accusation(table: Playbook, proof: Evidence, *, by: int = 0, sequence: int = 1) -> Operation:
    operation = Operation(kind=OperationKind.EVIDENCE, signer=simulated_key(by), sequence=sequence, evidence=proof)
    return table.signed(operation)


def grad(signer: int, digest: bytes, round_: int = 3) -> Grad:
    message = Grad(height=round_, digest=digest, size=100, signer=simulated_key(signer))
    return replace(message, signature=signature_of(message, NETWORK_ID))


# ---- what contradicts what


def test_two_contents_in_one_slot_of_every_kind(table: Playbook) -> None:
    one, two = table.block(voters=(0, 1, 2)), table.block(voters=(1, 2, 3))
    pairs = [
        (table.commit(1, 0, X), table.commit(1, 0, NIL)),
        (table.prepare(1, 2, X), table.prepare(1, 2, X, 1)),
        (table.ballot(1), table.ballot(1, ready=True)),
        (table.fresh(one), table.fresh(two)),
        (grad(1, X), grad(1, Y)),
    ]
    for first, second in pairs:
        assert contradiction(first, second) is not None, first.kind
        assert evidence(first, second) == evidence(second, first)
        assert refuse_evidence(evidence(first, second)) is None


def test_what_is_no_contradiction(table: Playbook) -> None:
    innocent = [
        (table.commit(1, 0, X), table.commit(2, 0, Y)),
        (table.commit(1, 0, X), table.commit(1, 1, Y)),
        (table.commit(1, 0, X), replace(table.commit(1, 0, X), signature=b"s" * 64)),
        (table.commit(1, 0, X), table.prepare(1, 0, Y)),
        (table.ballot(1), table.ballot(1, height=2)),
        (grad(1, X), grad(1, Y, round_=4)),
        (table.ballot(1), replace(table.ballot(1), certificate=table.prepare_certificate(0, X))),
    ]
    for first, second in innocent:
        assert contradiction(first, second) is None, (first, second)
        assert refuse_evidence(Evidence(first=first, second=second)) is not None


def test_forgotten_lock(table: Playbook) -> None:
    commit = table.commit(1, 2, X)
    forgotten = table.prepare(1, 4, Y, 1)
    assert "forgotten" in str(contradiction(commit, forgotten))
    assert contradiction(forgotten, commit) == contradiction(commit, forgotten)


@pytest.mark.parametrize(
    ("committed", "prepared", "view", "valid_view"),
    [
        (X, NIL, 4, -1),  # nil says nothing of a lock
        (NIL, Y, 4, 1),  # nil locks nothing
        (X, X, 4, 1),  # the locked block itself
        (X, Y, 4, 2),  # a certificate of the lock's own view unlocks
        (X, Y, 4, 3),  # a later one too
        (X, Y, 2, 1),  # the same view: a PREPARE comes before its COMMIT
        (X, Y, 1, 0),  # an earlier view
    ],
)
def test_amnesia_accuses_nobody_that_kept_the_lock(
    table: Playbook, committed: bytes, prepared: bytes, view: int, valid_view: int
) -> None:
    assert contradiction(table.commit(1, 2, committed), table.prepare(1, view, prepared, valid_view)) is None


# ---- operations


def test_evidence_bans_its_culprit_with_the_reason(table: Playbook) -> None:
    proof = evidence(table.commit(1, 0, X), table.commit(1, 0, NIL))
    state = founders(4)
    operation = accusation(table, proof)
    assert refuse_operation(state, operation) is None
    after = apply_operation(state, operation)
    assert after.roster.members[1].status is MemberStatus.BANNED
    assert (after.roster.total_power, after.roster.epoch) == (3, 1)
    assert after.standings[1].reason == "two different COMMIT messages at height 1 view 0"
    assert refuse_operation(after, accusation(table, proof, by=2)) is not None


@pytest.mark.parametrize("by", [1, 9])
def test_strangers_accuse_nobody_but_the_culprit_may_confess(table: Playbook, by: int) -> None:
    proof = evidence(table.commit(1, 0, X), table.commit(1, 0, NIL))
    assert (refuse_operation(founders(4), accusation(table, proof, by=by)) is None) == (by == 1)


def test_the_last_member_is_not_banned(table: Playbook) -> None:
    proof = evidence(table.commit(0, 0, X), table.commit(0, 0, NIL))
    assert "last member" in str(refuse_operation(founders(1), accusation(table, proof)))


def test_case_C21_one_conviction_a_key_and_eight_a_block(table: Playbook) -> None:
    state = founders(40)
    operations = []
    for culprit in range(1, 12):
        proof = evidence(table.commit(culprit, 0, X), table.commit(culprit, 0, NIL))
        operations += [accusation(table, proof, by=20 + culprit), accusation(table, proof, by=0, sequence=culprit)]
    chosen, after = select_operations(state, operations)
    assert len(chosen) == 8 == sum(m.status is MemberStatus.BANNED for m in after.roster.members)


def test_contradicting_ballots_of_a_large_run_fit_into_a_block(table: Playbook) -> None:
    state = founders(100)
    digests = [(author, bytes([author, number]) * 16) for author in range(100) for number in (1, 2)]
    entries = [BallotEntry(author_index=author, digest=digest, accepted=False) for author, digest in digests]
    proof = evidence(table.ballot(1, entries=entries), table.ballot(1, entries=entries, ready=True))
    chosen, _after = select_operations(state, [accusation(table, proof)])
    assert chosen == (accusation(table, proof),)


def heavy_ballot(table: Playbook, signer: int, number: int, *, height: int | None = None) -> Ballot:
    """Signed by its author, but so large that two of them fit into no block."""
    entries = [BallotEntry(author_index=0, digest=bytes([number, n % 256]) * 16, accepted=False) for n in range(500)]
    return table.ballot(signer, entries=entries, height=height)


def test_accusation_that_fits_into_no_block_waits_nowhere(table: Playbook) -> None:
    """Or else it would ask for block after block, and none of them could hold it."""
    proof = evidence(heavy_ballot(table, 1, 1), heavy_ballot(table, 1, 2))
    operation = accusation(table, proof, by=1)
    assert refuse_operation(founders(4), operation) == "too large for a block"
    table.handle(OperationReceived(operation=operation))
    assert len(table.replica.pool) == 0


@pytest.mark.parametrize("signer", [3, 4], ids=["voter", "observer"])
def test_ballots_too_large_to_be_brought_accuse_nobody(signer: int) -> None:
    """Who holds such a proof could not bring it forward, nor anything else before it."""
    table = Playbook(founders(4, observers=1))
    table.hear(table.ballot(signer), heavy_ballot(table, signer, 1))
    block = table.block()
    table.decide(block)
    before = table.replica.statistics()
    table.hear(*(heavy_ballot(table, signer, number, height=block.height) for number in (2, 3, 4)))
    assert accused(table) == []
    assert table.replica.statistics() == before


def test_unverified_evidence_counts_nowhere(table: Playbook) -> None:
    forged = replace(table.commit(1, 0, NIL), signature=b"f" * 64)
    operation = accusation(table, evidence(table.commit(1, 0, X), forged))
    assert not operation_holds(table.crypto, operation)
    table.handle(OperationReceived(operation=operation))
    assert len(table.replica.pool) == 0
    good = accusation(table, evidence(table.commit(1, 0, X), table.commit(1, 0, NIL)))
    table.handle(OperationReceived(operation=good))
    assert table.replica.pool.accuses(simulated_key(1)) and not table.replica.pool.accuses(simulated_key(2))


@pytest.mark.parametrize("place", ["first", "second"])
def test_each_of_the_two_messages_must_be_signed(table: Playbook, place: str) -> None:
    proof = evidence(table.commit(1, 0, X), table.commit(1, 0, NIL))
    forged = replace(getattr(proof, place), signature=b"f" * 64)
    assert not operation_holds(table.crypto, accusation(table, replace(proof, **{place: forged})))
    assert operation_holds(table.crypto, accusation(table, proof))


def test_ban_is_for_good(table: Playbook) -> None:
    """To LEAVE and JOIN again would wash it off."""
    proof = evidence(table.commit(1, 0, X), table.commit(1, 0, NIL))
    banned = apply_operation(founders(4), accusation(table, proof))
    for kind, arguments in (
        (OperationKind.JOIN, (bytes(16), "again")),
        (OperationKind.LEAVE, ()),
        (OperationKind.REJOIN, ()),
        (OperationKind.PRESENT, (0,)),
        (OperationKind.CONTRIBUTE, (9,)),
    ):
        assert refuse_operation(banned, table.operation(1, kind, *arguments, sequence=5)) is not None, kind


def test_operation_with_evidence_survives_the_wire(table: Playbook) -> None:
    entries = [BallotEntry(author_index=2, digest=X, accepted=True)]
    certificate = table.prepare_certificate(0, X)
    pairs = [
        (table.ballot(1, entries=entries), table.ballot(1)),
        (table.ballot(1, 1, certificate=certificate), table.ballot(1, 1)),
        (table.fresh(table.block()), table.fresh(table.block(voters=(1, 2, 3)))),
        (table.commit(1, 2, X), table.prepare(1, 4, Y, 1)),
        (grad(1, X), grad(1, Y)),
    ]
    for pair in pairs:
        operation = accusation(table, evidence(*pair))
        again = parse_operation(operation_envelop(operation, NETWORK_ID))
        assert again == operation and operation_holds(table.crypto, again)


# ---- where contradictions are found


def accused(table: Playbook) -> list[bytes]:
    return [effect.evidence.accused for effect in table.log if isinstance(effect, Accusation)]


def test_vote_inside_a_certificate_is_compared_with_the_one_received(table: Playbook) -> None:
    table.hear(table.prepare(3, 0, Y))
    table.reach_view(1)
    table.hear(table.ballot(1, 1, certificate=table.prepare_certificate(0, X)))
    assert accused(table) == [simulated_key(3)]


def test_ballot_inside_a_block_is_compared_with_the_one_received(table: Playbook) -> None:
    table.hear(table.ballot(2, ready=True))
    table.hear(table.fresh(table.block(voters=(1, 2, 3))))
    assert accused(table) == [simulated_key(2)]


def test_commit_inside_a_certificate_is_compared_too(table: Playbook) -> None:
    block = table.block()
    table.hear(table.commit(1, 0, NIL))
    certificate = table.commit_certificate(0, table.name(block))
    table.handle(DecisionReceived(block=block, certificate=certificate))
    assert accused(table) == [simulated_key(1)]


def test_commit_is_compared_also_after_its_height_is_decided(table: Playbook) -> None:
    late = table.commit(1, 0, NIL)
    table.decide(table.block())
    table.hear(late)
    assert accused(table) == [simulated_key(1)]


def test_forgotten_lock_is_found_in_what_one_member_said(table: Playbook) -> None:
    table.hear(table.commit(3, 0, X))
    table.reach_view(2)
    table.hear(table.prepare(3, 2, Y))
    assert accused(table) == [simulated_key(3)]


def test_watch_is_bounded_and_accuses_once(table: Playbook) -> None:
    watch = Watch()
    for view in range(1000):
        assert watch.heard(table.commit(1, view, NIL)) is None
    assert len(watch) == STATEMENTS_PER_MEMBER_MAX
    proofs = [watch.heard(table.commit(1, 999, bytes([n]) * 32)) for n in range(5)]
    assert [proof is not None for proof in proofs] == [True, False, False, False, False]


# ---- what a fork proves


def decision_of(table: Playbook, name: bytes, view: int, voters: tuple[int, ...], chain: list[int]) -> Decision:
    """Decided in ``view`` by ``voters``, its PrepareCerts in the views of ``chain`` (newest first)."""
    pointers = [*chain[1:], -1]
    return Decision(
        certificate=table.commit_certificate(view, name, voters=voters),
        prepares=tuple(
            table.prepare_certificate(at, name, voters=voters, valid_view=to)
            for at, to in zip(chain, pointers, strict=True)
        ),
    )


@pytest.mark.parametrize(
    ("view", "chain"),
    [(0, [0]), (3, [3]), (3, [3, 0]), (5, [5, 3, 0])],
)
def test_fork_convicts_more_than_may_be_faulty_and_nobody_else(view: int, chain: list[int]) -> None:
    """Members 1 and 2 of four sign both histories; 0 and 3 one each, and only 1 and 2 are convicted."""
    table = Playbook()
    one = decision_of(table, X, 0, (0, 1, 2), [0])
    other = decision_of(table, Y, view, (1, 2, 3), chain)
    found = culprits(one, other, table.ledger.roster)
    assert set(found) == {simulated_key(1), simulated_key(2)}
    assert all(refuse_evidence(proof) is None for proof in found.values())


def test_one_block_decided_twice_is_no_fork() -> None:
    table = Playbook()
    one = decision_of(table, X, 0, (0, 1, 2), [0])
    assert culprits(one, decision_of(table, X, 1, (1, 2, 3), [1, 0]), table.ledger.roster) == {}


def test_decision_keeps_the_certificates_behind_it(table: Playbook) -> None:
    block = table.block()
    name = table.name(block)
    table.lock(block)
    table.reach_view(1)
    certificate = table.prepare_certificate(0, name)
    table.hear(table.again(certificate, 1))
    table.hear(*(table.prepare(i, 1, name, 0) for i in (1, 2, 3)))
    table.hear(*(table.commit(i, 1, name) for i in (1, 2, 3)))
    (decided,) = [effect for effect in table.log if isinstance(effect, Decide)]
    assert [(proof.view, proof.valid_view) for proof in decided.prepares] == [(1, 0), (0, -1)]


def test_decision_against_the_own_lock_keeps_the_proof_of_the_other_block(table: Playbook) -> None:
    """Only if more than F are faulty; that this member was locked on the losing block may be all that convicts them."""
    won, lost = table.block(), table.block(1, voters=(1, 2, 3))
    table.reach_view(1)
    table.lock(lost, 1)
    certificate = table.commit_certificate(0, table.name(won))
    (decided,) = [
        effect
        for effect in table.handle(DecisionReceived(block=won, certificate=certificate))
        if isinstance(effect, Decide)
    ]
    assert [(proof.view, proof.block_id) for proof in decided.prepares] == [(1, table.name(lost))]
    one = Decision(certificate=certificate, prepares=decided.prepares)
    other = Decision(certificate=table.commit_certificate(1, table.name(lost)), prepares=())
    roster = decided.before.roster
    assert sum(map(roster.power, culprits(one, other, roster))) >= roster.weak_quorum


def test_decision_does_not_keep_what_an_older_view_certified(table: Playbook) -> None:
    """A block that was certified before the one that was decided proves no fault."""
    older, won = table.block(), table.block(1, voters=(1, 2, 3))
    table.lock(older)
    certificate = table.commit_certificate(1, table.name(won))
    (decided,) = [
        effect
        for effect in table.handle(DecisionReceived(block=won, certificate=certificate))
        if isinstance(effect, Decide)
    ]
    assert decided.prepares == ()


def test_first_contradiction_of_many(table: Playbook) -> None:
    assert first_contradiction([table.commit(1, view, X) for view in range(4)]) is None

"""What a leader makes of ballots, and every reason to refuse what it made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aicpnode.envelop.kinds import encode_block
from aicpnode.simulation.playbook import Playbook, founders
from consensus.blocks import ballot_is_well_formed, build_block, certified, judge_block
from consensus.membership import LedgerState, apply_block
from consensus.messages import (
    BLOCK_WEIGHT_MAX,
    OBSERVERS_MAX,
    BallotEntry,
    BallotRecord,
    Block,
    Body,
    ObserverRecord,
    OperationKind,
    TrainingDecision,
    Verdict,
    ballots_root,
    block_binds,
    block_id,
    block_weight_max,
    operations_root,
    training_hash,
)
from consensus.types import MemberStatus, Roster

X, Y, Z = (letter * 32 for letter in (b"x", b"y", b"z"))


def yes(author: int, digest: bytes) -> BallotEntry:
    return BallotEntry(author_index=author, digest=digest, accepted=True)


def no(author: int, digest: bytes) -> BallotEntry:
    return BallotEntry(author_index=author, digest=digest, accepted=False)


@pytest.fixture
def table() -> Playbook:
    """Four contributors and one member on probation."""
    return Playbook(founders(4, observers=1, until_round=1 << 40))


def full_block(table: Playbook) -> Block:
    return table.block(
        voters=(0, 1, 2),
        observers=(4,),
        ready=True,
        entries=(yes(0, X), no(1, Y), yes(2, Z)),
        operations=(table.operation(1, OperationKind.CONTRIBUTE, 1 << 41),),
    )


def refusal(table: Playbook, block: Block) -> str | None:
    name = block_id(table.crypto, block.header)
    judged = judge_block(block, block_id=name, ledger=table.ledger, crypto=table.crypto)
    if judged.refusal is None:
        assert judged.after == apply_block(table.ledger, block, block_id=name), "what follows is what a decision makes"
    else:
        assert judged.after is None
        assert judged.ballots == ()
    return judged.refusal


def rerooted(table: Playbook, block: Block, body: Body) -> Block:
    """``block`` with another body, bound by right roots: the lie of a leader, not of a relay."""
    header = replace(
        block.header,
        ballots_root=ballots_root(table.crypto, body),
        training_hash=training_hash(table.crypto, body),
        operations_root=operations_root(table.crypto, body),
    )
    return Block(header=header, body=body)


def test_built_block_is_valid_and_carries_what_it_should(table: Playbook) -> None:
    block = full_block(table)
    assert refusal(table, block) is None
    assert block.body.training == TrainingDecision(round=0, included=((0, X), (2, Z)))
    assert len(block.body.operations) == 1
    assert block_binds(table.crypto, block, table.name(block))


def test_body_is_bound_by_the_block_id(table: Playbook) -> None:
    block = full_block(table)
    for body in (
        replace(block.body, operations=()),
        replace(block.body, training=None),
        replace(block.body, observers=()),
        replace(block.body, ballots=block.body.ballots[:2]),
    ):
        assert not block_binds(table.crypto, Block(header=block.header, body=body), table.name(block))


BODIES: dict[str, Callable[[Body], Body]] = {
    "ballots of nobody on the roster": lambda body: replace(
        body, ballots=(*body.ballots, replace(body.ballots[0], signer_index=99))
    ),
    "ballots of nobody on the roster: repeated": lambda body: replace(body, ballots=(body.ballots[0], *body.ballots)),
    "ballots of nobody on the roster: unsorted": lambda body: replace(body, ballots=body.ballots[::-1]),
    "ballots of nobody on the roster: verdicts": lambda body: replace(
        body, ballots=(replace(body.ballots[0], verdicts=(Verdict.YES,)), *body.ballots[1:])
    ),
    "ballots of nobody on the roster: observer beyond": lambda body: replace(
        body, observers=(ObserverRecord(signer_index=1 << 20, signature=bytes(64)),)
    ),
    "ballots of nobody on the roster: observer that votes": lambda body: replace(
        body, observers=(ObserverRecord(signer_index=3, signature=bytes(64)),)
    ),
    "ballots of nobody on the roster: observer repeated": lambda body: replace(body, observers=body.observers * 2),
    "ballot of a member that is not ACTIVE": lambda body: replace(
        body, ballots=(*body.ballots, replace(body.ballots[0], signer_index=4))
    ),
    "ballots below a quorum": lambda body: replace(body, ballots=body.ballots[:2]),
    "malformed ballot: unknown author": lambda body: replace(body, table=(*body.table[:2], (77, Z))),
    "malformed ballot: two yes for one author": lambda body: replace(
        body, table=(body.table[0], (0, Y), body.table[2]), ballots=tuple(_all_yes(r) for r in body.ballots)
    ),
    "table is not the ballots' union": lambda body: replace(
        body,
        table=(*body.table, (3, Z)),
        ballots=tuple(replace(r, verdicts=(*r.verdicts, Verdict.NONE)) for r in body.ballots),
    ),
    "ballot with a bad signature": lambda body: replace(
        body, ballots=(replace(body.ballots[0], signature=bytes(64)), *body.ballots[1:])
    ),
    "ballot with a bad signature: ready flag": lambda body: replace(
        body, ballots=(*body.ballots[:2], replace(body.ballots[2], ready=False))
    ),
    "ballot with a bad signature: verdict": lambda body: replace(
        body, ballots=(_all_yes(body.ballots[0]), *body.ballots[1:])
    ),
    "ballot with a bad signature: observer": lambda body: replace(
        body, observers=(replace(body.observers[0], signature=bytes(64)),)
    ),
    "training of another round": lambda body: replace(body, training=TrainingDecision(round=1, included=())),
    "included proposals are not the certified ones: fewer": lambda body: replace(
        body, training=TrainingDecision(round=0, included=((0, X),))
    ),
    "included proposals are not the certified ones: more": lambda body: replace(
        body, training=TrainingDecision(round=0, included=((0, X), (1, Y), (2, Z)))
    ),
    "included proposals are not the certified ones: beyond": lambda body: replace(
        body, training=TrainingDecision(round=0, included=((0, X), (2, Z), (99, Z)))
    ),
    "operation with a bad signature": lambda body: replace(
        body, operations=(replace(body.operations[0], signature=bytes(64)),)
    ),
    "operation that is not valid in order": lambda body: replace(body, operations=body.operations * 2),
}


def _all_yes(record: BallotRecord) -> BallotRecord:
    return replace(record, verdicts=tuple(Verdict.YES for _ in record.verdicts))


@pytest.mark.parametrize("reason", sorted(BODIES))
def test_leader_can_insert_nothing_into_the_body(table: Playbook, reason: str) -> None:
    honest = full_block(table)
    block = rerooted(table, honest, BODIES[reason](honest.body))
    assert refusal(table, block) == reason.partition(":")[0]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("height", 2, "does not build on this ledger"),
        ("previous_block_id", bytes(32), "does not build on this ledger"),
        ("epoch", 1, "another roster"),
        ("roster_hash", bytes(32), "another roster"),
        ("next_roster_hash", bytes(32), "wrong next roster"),
        ("state_hash", bytes(32), "ballot with a bad signature"),
        ("origin_view", 1, "ballot with a bad signature"),
    ],
)
def test_header_must_agree_with_ledger_and_ballots(
    table: Playbook, field: str, value: bytes | int, reason: str
) -> None:
    block = full_block(table)
    assert refusal(table, replace(block, header=replace(block.header, **{field: value}))) == reason


def test_training_needs_a_ready_quorum(table: Playbook) -> None:
    block = table.block(voters=(0, 1, 2), ready=False, entries=(yes(0, X),))
    assert block.body.training is None
    body = replace(block.body, training=TrainingDecision(round=0, included=((0, X),)))
    assert refusal(table, rerooted(table, block, body)) == "training without a ready quorum"


def test_training_needs_a_contributor() -> None:
    table = Playbook(founders(4))
    block = table.block(ready=True)
    assert block.body.training is None
    body = replace(block.body, training=TrainingDecision(round=0, included=()))
    assert refusal(table, rerooted(table, block, body)) == "training without a ready quorum"


def test_leader_may_leave_training_out(table: Playbook) -> None:
    block = full_block(table)
    header = replace(block.header, next_roster_hash=block.header.next_roster_hash)
    left_out = rerooted(table, replace(block, header=header), replace(block.body, training=None, operations=()))
    assert refusal(table, left_out) is None


def test_block_on_another_ledger_is_refused(table: Playbook) -> None:
    first = full_block(table)
    table.lock(first)
    table.hear(*(table.commit(i, 0, table.name(first)) for i in (1, 2, 3)))
    assert refusal(table, first) == "does not build on this ledger"


# ---- certified proposals


def test_proposal_is_certified_by_yes_power_of_a_quorum(table: Playbook) -> None:
    ballots = [table.ballot(i, entries=(yes(0, X), *((yes(1, Y),) if i < 2 else (no(1, Y),)))) for i in range(4)]
    assert certified(ballots, table.ledger.roster) == ((0, X),)


def test_author_with_two_certified_digests_is_left_out() -> None:
    # Only more than F faulty members can bring this about: with power 2 of 4 they say yes to both.
    table = Playbook(founders(4))
    ballots = [table.ballot(i, entries=(yes(0, X), yes(0, Y), yes(1, Z))) for i in range(3)]
    assert certified(ballots, table.ledger.roster) == ((1, Z),)


@pytest.mark.parametrize(
    ("entries", "well_formed"),
    [
        ((), True),
        ((yes(0, X), no(0, Y), yes(3, X)), True),
        ((no(0, X), no(0, Y)), True),
        ((yes(1, X), yes(0, X)), False),
        ((yes(0, Y), yes(0, X)), False),
        ((yes(0, X), yes(0, X)), False),
        ((yes(0, X), no(0, X)), False),
        ((yes(0, X), yes(0, Y)), False),
        ((no(0, X), no(0, Y), no(0, Z)), False),
        ((yes(5, X),), False),
        ((yes(1 << 20, X),), False),
        (tuple(no(i % 4, bytes([i]) * 32) for i in range(100)), False),
    ],
)
def test_ballot_entries_are_sorted_and_bounded(
    table: Playbook, entries: tuple[BallotEntry, ...], well_formed: bool
) -> None:
    assert ballot_is_well_formed(table.ballot(0, entries=entries), table.ledger.roster) is well_formed


# ---- size


def test_weight_is_an_upper_bound_of_the_bytes(table: Playbook) -> None:
    name = "\U0001f40d" * 64
    joins = [table.operation(9 + i, OperationKind.JOIN, bytes(16), name, sequence=1 << 62) for i in range(4)]
    contributions = [table.operation(i, OperationKind.CONTRIBUTE, 1 << 61, sequence=1 << 62) for i in range(4)]
    entries = tuple(yes(i, X) for i in range(4))
    block = table.block(
        voters=range(4), observers=(4,), ready=True, entries=entries, operations=[*joins, *contributions]
    )
    assert len(block.body.operations) == 8
    assert len(encode_block(block)) <= block.body.weight


def test_leader_leaves_out_ballots_that_bloat_the_block() -> None:
    """Without this, members that name random proposals make every honest leader's block too large to be read."""
    count = 60
    table = Playbook(founders(count, until_round=1 << 40))
    roster = table.ledger.roster
    honest_entries = tuple(yes(i, X) for i in range(count))
    bloated = range(roster.faulty_power)
    ballots = [
        table.ballot(
            i,
            ready=True,
            entries=tuple(no(a, bytes([i, d]) * 16) for a in range(count) for d in range(2))
            if i in bloated
            else honest_entries,
        )
        for i in range(count)
    ]
    everything = sum(len(ballot.entries) for ballot in ballots if ballot.signer in {b.signer for b in ballots[:19]})
    assert everything * 40 > BLOCK_WEIGHT_MAX, "the flood would not fit"
    block = build_block(
        ledger=table.ledger,
        crypto=table.crypto,
        view=0,
        state_hash=table.state_hash(0),
        ballots=ballots,
        observers=[],
        operations=(),
    )
    assert block is not None and refusal(table, block) is None
    assert block.body.weight <= block_weight_max(roster)
    assert block.body.training is not None and len(block.body.training.included) == count


def test_block_that_cannot_be_made_to_fit_is_not_proposed() -> None:
    count = 60
    table = Playbook(founders(count))
    ballots = [
        table.ballot(i, entries=tuple(no(a, bytes([i, d]) * 16) for a in range(count) for d in range(2)))
        for i in range(table.ledger.roster.quorum)
    ]
    assert (
        build_block(
            ledger=table.ledger,
            crypto=table.crypto,
            view=0,
            state_hash=table.state_hash(0),
            ballots=ballots,
            observers=[],
            operations=(),
        )
        is None
    )


def test_block_above_its_limit_is_refused() -> None:
    table = Playbook(founders(4))
    block = table.block()
    body = replace(block.body, table=tuple((0, n.to_bytes(32, "big")) for n in range(1000)))
    assert refusal(table, rerooted(table, block, body)) == "too large"


def with_status(ledger: LedgerState, status: MemberStatus, indices: range) -> LedgerState:
    members = tuple(replace(m, status=status, power=0) if m.index in indices else m for m in ledger.roster.members)
    return replace(ledger, roster=Roster(epoch=1, members=members))


def test_suspended_strangers_cannot_crowd_a_block() -> None:
    """Any number of keys can join and fail probation: their observer ballots must not keep blocks from fitting."""
    ledger = with_status(founders(4, observers=900), MemberStatus.SUSPENDED, range(4, 900))
    table = Playbook(ledger)
    block = table.block(voters=range(4), observers=range(4, 904))
    assert refusal(table, block) is None
    assert len(block.body.observers) == OBSERVERS_MAX
    on_probation = [m.index for m in ledger.roster.members if m.status is MemberStatus.PROBATION]
    assert on_probation == [r.signer_index for r in block.body.observers][-4:]


def test_member_on_its_way_back_is_not_crowded_out_by_those_who_failed() -> None:
    ledger = with_status(founders(4, observers=100), MemberStatus.SUSPENDED, range(4, 104))
    ledger = ledger.with_standing(103, replace(ledger.standings[103], is_returning=True))
    block = Playbook(ledger).block(voters=range(4), observers=range(4, 104))
    assert block.body.observers[-1].signer_index == 103


def test_block_with_too_many_observers_is_refused() -> None:
    table = Playbook(founders(4, observers=OBSERVERS_MAX + 1))
    block = table.block(observers=range(4, 4 + OBSERVERS_MAX))
    ballot = table.ballot(4 + OBSERVERS_MAX)
    extra = ObserverRecord(signer_index=4 + OBSERVERS_MAX, signature=ballot.signature)
    body = replace(block.body, observers=(*block.body.observers, extra))
    assert refusal(table, rerooted(table, block, body)) == "too large"


def test_entries_on_suspended_authors_make_no_ballot() -> None:
    """Else a ballot could name more authors than an Envelop can carry, and rebuilding it would fail."""
    ledger = with_status(founders(4, observers=900), MemberStatus.SUSPENDED, range(4, 904))
    table = Playbook(ledger)
    assert not ballot_is_well_formed(table.ballot(0, entries=(yes(4, X),)), ledger.roster)
    assert ballot_is_well_formed(table.ballot(0, entries=(yes(3, X),)), ledger.roster)

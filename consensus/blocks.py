"""From ballots to a block, and what makes a fresh block valid (consensus specification, section 3, rules 4 to 6).

Verdicts are opinions; the certificate is the fact. A leader may leave ballots out but can insert nothing: every
verdict in a block is covered by its signer's signature, which ``judge_block`` rebuilds and verifies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from consensus.membership import LedgerState, apply_training, next_state, select_operations
from consensus.messages import (
    BLOCK_BASE_WEIGHT,
    ENTRIES_PER_AUTHOR_MAX,
    OBSERVER_WEIGHT,
    OBSERVERS_MAX,
    TABLE_ROW_WEIGHT,
    Ballot,
    BallotEntry,
    BallotRecord,
    Block,
    Body,
    Crypto,
    Header,
    ObserverRecord,
    Operation,
    TrainingDecision,
    Verdict,
    ballot_weight,
    ballots_root,
    block_weight_max,
    observer_ballot,
    operation_holds,
    operations_root,
    operations_weight_max,
    roster_hash,
    training_hash,
)
from consensus.types import HASH_BYTES, NIL, NO_VIEW, MemberStatus, Roster

_UNKNOWN_ID = bytes(HASH_BYTES)
"""Stands for the block's own id while its effects on the roster are computed: the roster does not depend on it."""


def ballot_is_well_formed(ballot: Ballot, roster: Roster) -> bool:
    """Entries sorted, of authors on the roster, at most two an author and one yes among them."""
    if len(ballot.entries) > ENTRIES_PER_AUTHOR_MAX * len(roster.authors):
        return False
    previous = (-1, b"")
    author, of_author, accepted = -1, 0, 0
    for entry in ballot.entries:
        key = (entry.author_index, entry.digest)
        if key <= previous:
            return False
        previous = key
        if entry.author_index != author:
            author, of_author, accepted = entry.author_index, 0, 0
            if author not in roster.authors:
                return False
        of_author += 1
        accepted += entry.accepted
        if of_author > ENTRIES_PER_AUTHOR_MAX or accepted > 1:
            return False
    return (ballot.valid_view == NO_VIEW) == (ballot.valid_id == NIL)


def certified(ballots: Iterable[Ballot], roster: Roster) -> tuple[tuple[int, bytes], ...]:
    """Proposals with yes-power of at least Q, by author; an author with two of them is left out."""
    power: dict[tuple[int, bytes], int] = {}
    for ballot in ballots:
        of_signer = roster.power(ballot.signer)
        for entry in ballot.entries:
            if entry.accepted:
                key = (entry.author_index, entry.digest)
                power[key] = power.get(key, 0) + of_signer
    chosen = [key for key, yes in sorted(power.items()) if yes >= roster.quorum]
    authors = Counter(author for author, _digest in chosen)
    return tuple(key for key in chosen if authors[key[0]] == 1)


def ready_power(ballots: Iterable[Ballot], roster: Roster) -> int:
    return sum(roster.power(ballot.signer) for ballot in ballots if ballot.ready)


def build_block(
    *,
    ledger: LedgerState,
    crypto: Crypto,
    view: int,
    state_hash: bytes,
    ballots: list[Ballot],
    observers: list[Ballot],
    operations: Iterable[Operation],
) -> Block | None:
    """A fresh block of ``view`` from ``ballots`` (ACTIVE, all with this state hash and hv = -1).

    Ballots beyond a quorum are left out where they would make the block too large; None if that does not help.
    """
    roster = ledger.roster
    observers = _fitting_observers(observers, ledger)
    room = block_weight_max(roster) - BLOCK_BASE_WEIGHT - OBSERVER_WEIGHT * len(observers)
    ballots = _fitting_ballots(ballots, roster, room - operations_weight_max(roster))
    training = None
    if ready_power(ballots, roster) >= roster.quorum and ledger.contributors():
        training = TrainingDecision(round=ledger.round, included=certified(ballots, roster))
    table = tuple(sorted({(e.author_index, e.digest) for ballot in ballots for e in ballot.entries}))
    base = ledger if training is None else apply_training(ledger, training)
    room -= len(ballots) * ballot_weight(len(table))
    room -= TABLE_ROW_WEIGHT * (len(table) + (0 if training is None else len(training.included)))
    if room < 0:
        return None
    chosen, _state = select_operations(base, operations, weight_max=room)
    body = Body(
        table=table,
        ballots=tuple(_record(ballot, table, roster) for ballot in ballots),
        observers=tuple(
            ObserverRecord(signer_index=_index(roster, ballot.signer), signature=ballot.signature)
            for ballot in observers
        ),
        training=training,
        operations=chosen,
    )
    return Block(header=_header(ledger, crypto, view, state_hash, body), body=body)


def _fitting_observers(observers: list[Ballot], ledger: LedgerState) -> list[Ballot]:
    """In join order; where there are too many, those on the way back stay, and those on probation."""
    roster = ledger.roster

    def rank(ballot: Ballot) -> tuple[bool, bool, int]:
        member = roster.by_key(ballot.signer)
        assert member is not None
        is_returning = ledger.standings[member.index].is_returning
        return not is_returning, member.status is not MemberStatus.PROBATION, member.index

    kept = sorted(observers, key=rank)[:OBSERVERS_MAX]
    return sorted(kept, key=lambda ballot: _index(roster, ballot.signer))


def _fitting_ballots(ballots: list[Ballot], roster: Roster, room: int) -> list[Ballot]:
    """Leave out those that bring most rows of their own, as far as a quorum remains, until the rest fits."""
    kept = list(ballots)
    while True:
        holders = Counter((e.author_index, e.digest) for ballot in kept for e in ballot.entries)
        # Every author with a row may stand in ``included`` as well.
        rows = len(holders) + len({author for author, _digest in holders})
        if TABLE_ROW_WEIGHT * rows + len(kept) * ballot_weight(len(holders)) <= room:
            return kept
        power = sum(roster.power(ballot.signer) for ballot in kept)
        spare = [ballot for ballot in kept if power - roster.power(ballot.signer) >= roster.quorum]
        if not spare:
            return kept
        kept.remove(max(spare, key=lambda b: sum(holders[(e.author_index, e.digest)] == 1 for e in b.entries)))


def _index(roster: Roster, key: bytes) -> int:
    member = roster.by_key(key)
    assert member is not None
    return member.index


def _record(ballot: Ballot, table: tuple[tuple[int, bytes], ...], roster: Roster) -> BallotRecord:
    said = {(entry.author_index, entry.digest): entry.accepted for entry in ballot.entries}
    verdicts = tuple(Verdict.NONE if row not in said else Verdict.YES if said[row] else Verdict.NO for row in table)
    return BallotRecord(
        signer_index=_index(roster, ballot.signer),
        ready=ballot.ready,
        verdicts=verdicts,
        signature=ballot.signature,
    )


def _header(ledger: LedgerState, crypto: Crypto, view: int, state_hash: bytes, body: Body) -> Header:
    after = next_state(ledger, body, block_id=_UNKNOWN_ID)
    assert after is not None, "a leader proposes valid operations only"
    return Header(
        height=ledger.height + 1,
        origin_view=view,
        epoch=ledger.roster.epoch,
        previous_block_id=ledger.block_id,
        state_hash=state_hash,
        roster_hash=roster_hash(crypto, ledger.roster),
        next_roster_hash=roster_hash(crypto, after.roster),
        ballots_root=ballots_root(crypto, body),
        training_hash=training_hash(crypto, body),
        operations_root=operations_root(crypto, body),
    )


def ballots_of(block: Block, ledger: LedgerState) -> tuple[Ballot, ...] | None:
    """The exact ballots of ACTIVE members that ``block`` carries, rebuilt; None if a record fits no member."""
    ballots: list[Ballot] = []
    previous = -1
    # Many ballots say the same of the same proposal: each of the two possible entries of a row is made once.
    said: list[dict[Verdict, BallotEntry]] = [
        {
            verdict: BallotEntry(author_index=author, digest=digest, accepted=verdict is Verdict.YES)
            for verdict in (Verdict.YES, Verdict.NO)
        }
        for author, digest in block.body.table
    ]
    for record in block.body.ballots:
        member = ledger.roster.by_index(record.signer_index)
        if member is None or record.signer_index <= previous or len(record.verdicts) != len(block.body.table):
            return None
        previous = record.signer_index
        entries = tuple(
            row[verdict] for row, verdict in zip(said, record.verdicts, strict=True) if verdict is not Verdict.NONE
        )
        ballots.append(
            Ballot(
                height=block.height,
                view=block.header.origin_view,
                state_hash=block.header.state_hash,
                valid_view=NO_VIEW,
                valid_id=NIL,
                round=ledger.round,
                ready=record.ready,
                entries=entries,
                signer=member.key,
                signature=record.signature,
            )
        )
    return tuple(ballots)


def observers_of(block: Block, ledger: LedgerState) -> tuple[Ballot, ...] | None:
    ballots: list[Ballot] = []
    previous = -1
    for record in block.body.observers:
        member = ledger.roster.by_index(record.signer_index)
        if member is None or record.signer_index <= previous:
            return None
        if member.status not in (MemberStatus.PROBATION, MemberStatus.SUSPENDED):
            return None
        previous = record.signer_index
        ballot = observer_ballot(
            height=block.height,
            view=block.header.origin_view,
            state_hash=block.header.state_hash,
            round_=ledger.round,
            signer=member.key,
        )
        ballots.append(replace(ballot, signature=record.signature))
    return tuple(ballots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a member found out about a fresh block."""

    refusal: str | None
    """Why it is not valid, or None."""
    ballots: tuple[Ballot, ...] = ()
    """The verified ballots of ACTIVE members in a valid block."""
    after: LedgerState | None = None
    """The state after a valid block."""


def judge_block(block: Block, *, block_id: bytes, ledger: LedgerState, crypto: Crypto) -> Judgement:
    """Whether ``block``, whose id is ``block_id``, is a valid fresh block on ``ledger``.

    The receiver compares ``header.state_hash`` and ``header.origin_view`` itself, and has checked that the roots bind
    the body (``block_binds``).
    """
    header, body, roster = block.header, block.body, ledger.roster
    if refusal := _refuse_place(block, ledger, crypto):
        return Judgement(refusal=refusal)
    ballots, observers = ballots_of(block, ledger), observers_of(block, ledger)
    if ballots is None or observers is None:
        return Judgement(refusal="ballots of nobody on the roster")
    if refusal := _refuse_ballots(ballots, observers, body, roster, crypto):
        return Judgement(refusal=refusal)
    if body.training is not None:
        if ready_power(ballots, roster) < roster.quorum or not ledger.contributors():
            return Judgement(refusal="training without a ready quorum")
        if body.training.included != certified(ballots, roster):
            return Judgement(refusal="included proposals are not the certified ones")
    if not all(operation_holds(crypto, operation) for operation in body.operations):
        return Judgement(refusal="operation with a bad signature")
    after = next_state(ledger, body, block_id=block_id)
    if after is None:
        return Judgement(refusal="operation that is not valid in order")
    if header.next_roster_hash != roster_hash(crypto, after.roster):
        return Judgement(refusal="wrong next roster")
    return Judgement(refusal=None, ballots=ballots, after=after)


def _refuse_place(block: Block, ledger: LedgerState, crypto: Crypto) -> str | None:
    header, body, roster = block.header, block.body, ledger.roster
    if header.height != ledger.height + 1 or header.previous_block_id != ledger.block_id:
        return "does not build on this ledger"
    if header.epoch != roster.epoch or header.roster_hash != roster_hash(crypto, roster):
        return "another roster"
    if len(body.observers) > OBSERVERS_MAX or body.weight > block_weight_max(roster):
        return "too large"
    if body.training is not None and body.training.round != ledger.round:
        return "training of another round"
    return None


def _refuse_ballots(
    ballots: tuple[Ballot, ...], observers: tuple[Ballot, ...], body: Body, roster: Roster, crypto: Crypto
) -> str | None:
    if not all(roster.is_active(ballot.signer) for ballot in ballots):
        return "ballot of a member that is not ACTIVE"
    if sum(roster.power(ballot.signer) for ballot in ballots) < roster.quorum:
        return "ballots below a quorum"
    if not all(ballot_is_well_formed(ballot, roster) for ballot in ballots):
        return "malformed ballot"
    # The ballots were built from the table, so it holds all that they say; that they say all of it is left to see.
    strictly_rising = all(one < other for one, other in pairwise(body.table))
    if not strictly_rising or not all(
        any(record.verdicts[row] is not Verdict.NONE for record in body.ballots) for row in range(len(body.table))
    ):
        return "table is not the ballots' union"
    if not all(crypto.verify(ballot) for ballot in (*ballots, *observers)):
        return "ballot with a bad signature"
    return None

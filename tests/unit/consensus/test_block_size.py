"""Bytes of the largest blocks: a full roster with everybody's proposal, and the most that the weights let through."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from aicpnode.envelop.kinds import BLOCK_BYTES_MAX, decode_block, encode_block
from aicpnode.simulation.crypto import SimulatedCrypto
from aicpnode.simulation.playbook import NETWORK_ID, founders
from consensus.blocks import build_block
from consensus.membership import LedgerState
from consensus.messages import Ballot, BallotEntry, Block
from consensus.types import NIL, NO_VIEW

MEMBERS = 100
STATE_HASH = b"s" * 32
KIB = 1024


def digest(author: int, which: int) -> bytes:
    return hashlib.sha256(b"%d/%d" % (author, which)).digest()


def entry(author: int, which: int, *, accepted: bool) -> BallotEntry:
    return BallotEntry(author_index=author, digest=digest(author, which), accepted=accepted)


def ballot(signer: bytes, entries: Iterable[BallotEntry]) -> Ballot:
    return Ballot(
        height=1,
        view=0,
        state_hash=STATE_HASH,
        valid_view=NO_VIEW,
        valid_id=NIL,
        round=0,
        ready=True,
        entries=tuple(entries),
        signer=signer,
        signature=hashlib.sha512(signer).digest(),
    )


def block_of(ledger: LedgerState, ballots: list[Ballot]) -> Block:
    block = build_block(
        ledger=ledger,
        crypto=SimulatedCrypto(ledger.roster.members[0].key, NETWORK_ID),
        view=0,
        state_hash=STATE_HASH,
        ballots=ballots,
        observers=[],
        operations=[],
    )
    assert block is not None
    return block


def test_hundred_ballots_over_hundred_proposals_stay_under_32_kib() -> None:
    ledger = founders(MEMBERS, until_round=1 << 40)
    entries = [entry(author, 0, accepted=True) for author in range(MEMBERS)]
    block = block_of(ledger, [ballot(member.key, entries) for member in ledger.roster.members])
    raw = encode_block(block)
    assert len(block.body.ballots) == len(block.body.table) == MEMBERS
    assert block.body.training is not None and len(block.body.training.included) == MEMBERS
    assert len(raw) < 18 * KIB
    assert decode_block(raw) == block


def test_two_proposals_of_every_author_stay_under_64_kib() -> None:
    """The most that ballots which agree can hold: each author has two proposals, and one of them is accepted."""
    ledger = founders(MEMBERS, until_round=1 << 40)
    pairs = [sorted((0, 1), key=lambda which, author=author: digest(author, which)) for author in range(MEMBERS)]
    entries = [entry(author, which, accepted=which == 0) for author, pair in enumerate(pairs) for which in pair]
    block = block_of(ledger, [ballot(member.key, entries) for member in ledger.roster.members])
    assert len(block.body.table) == 2 * MEMBERS
    assert len(encode_block(block)) <= block.body.weight < BLOCK_BYTES_MAX == 64 * KIB


def test_ballots_without_a_row_in_common_make_no_larger_a_block() -> None:
    """A third of the members name proposals that nobody else saw: the leader leaves out as many as it must."""
    ledger = founders(MEMBERS, until_round=1 << 40)
    ballots = [
        ballot(member.key, (entry(author, index, accepted=False) for author in range(0 if index < 67 else 80)))
        for index, member in enumerate(ledger.roster.members)
    ]
    block = block_of(ledger, ballots)
    assert ledger.roster.quorum <= len(block.body.ballots) < MEMBERS
    assert len(encode_block(block)) <= block.body.weight < BLOCK_BYTES_MAX

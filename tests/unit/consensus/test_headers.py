"""A chain of certified headers takes what a quorum of the roster derived so far stands behind, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders
from consensus.headers import STATES_KEPT, CertifiedHeader, HeaderChain
from consensus.messages import CommitCert, OperationKind, block_id, roster_hash
from consensus.types import MemberStatus, Roster

HEIGHTS = 5
CHANGED_AT = 2
"""The height whose block takes in a newcomer, so that another roster decides the one after."""
LEFT_AT = 4
"""The height whose block lets member 3 go."""


@pytest.fixture
def table() -> Playbook:
    """Heights 1 to HEIGHTS, decided; the roster changes twice."""
    table = Playbook(founders(5))
    for height in range(1, HEIGHTS + 1):
        operations = []
        if height == CHANGED_AT:
            operations = [table.operation(9, OperationKind.JOIN, bytes(16), "new", sequence=1)]
        if height == LEFT_AT:
            operations = [table.operation(3, OperationKind.LEAVE, sequence=1)]
        voters = (0, 1, 2, 3) if height <= LEFT_AT else (0, 1, 2)
        table.decide(table.block(voters=voters, operations=operations))
    return table


@pytest.fixture
def links(table: Playbook) -> list[CertifiedHeader]:
    return [
        CertifiedHeader(
            header=decision.block.header,
            certificate=decision.certificate,
            next_roster=decision.ledger.roster if decision.ledger.roster != decision.before.roster else None,
        )
        for decision in table.decisions
    ]


def chain_from(table: Playbook, height: int = 0) -> HeaderChain:
    ledger = table.genesis if height == 0 else table.decisions[height - 1].ledger
    return HeaderChain(crypto=table.crypto, height=height, block_id=ledger.block_id, roster=ledger.roster)


def certificate(table: Playbook, link: CertifiedHeader, roster: Roster, voters: tuple[int, ...]) -> CommitCert:
    """A true certificate of the link's header by ``voters`` of ``roster``."""
    header = link.header
    name = block_id(table.crypto, header)
    commits = [replace(table.commit(index, 0, name), height=header.height) for index in voters]
    votes = tuple((index, table.signed(commit).signature) for index, commit in zip(voters, commits, strict=True))
    return CommitCert(height=header.height, view=0, block_id=name, votes=votes)


def recertified(table: Playbook, link: CertifiedHeader, **changes: object) -> CertifiedHeader:
    """The link with a changed header that a quorum of its roster has signed: more than F must be faulty for it."""
    changed = replace(link, header=replace(link.header, **changes))
    roster = table.decisions[link.header.height - 1].before.roster
    return replace(changed, certificate=certificate(table, changed, roster, (0, 1, 2, 4)))


def state_of(chain: HeaderChain) -> tuple[object, ...]:
    return chain.height, chain.block_id, chain.roster, [chain.certified_state(height) for height in range(HEIGHTS + 1)]


def test_headers_in_sequence_lead_to_the_roster_and_the_states_of_the_ledger(table, links) -> None:
    assert [link.next_roster is not None for link in links] == [False, True, False, True, False]
    chain = chain_from(table)
    assert [chain.extend(link) for link in links] == [None] * HEIGHTS
    assert (chain.height, chain.block_id, chain.roster) == (HEIGHTS, table.ledger.block_id, table.ledger.roster)
    for height in range(HEIGHTS):
        assert chain.certified_state(height) == links[height].header.state_hash == table.state_hash(height)
    assert chain.certified_state(HEIGHTS) is None


def test_chain_begins_at_any_trusted_point(table, links) -> None:
    chain = chain_from(table, CHANGED_AT)
    assert [chain.extend(link) for link in links[CHANGED_AT:]] == [None] * (HEIGHTS - CHANGED_AT)
    assert chain.block_id == table.ledger.block_id
    assert chain.certified_state(CHANGED_AT - 1) is None
    assert chain.certified_state(CHANGED_AT) == table.state_hash(CHANGED_AT)


REFUSED = {
    "left out": lambda table, links: links[1],
    "repeated": lambda table, links: replace(links[0], header=replace(links[0].header, height=0)),
    "another previous block": lambda table, links: recertified(table, links[0], previous_block_id=bytes(32)),
    "another roster": lambda table, links: recertified(table, links[0], roster_hash=bytes(32)),
    "forged state": lambda table, links: replace(links[0], header=replace(links[0].header, state_hash=bytes(32))),
    "certificate of another height": lambda table, links: replace(links[0], certificate=links[1].certificate),
    "certificate of nil": lambda table, links: replace(
        links[0], certificate=replace(links[0].certificate, block_id=b"")
    ),
    "too few signatures": lambda table, links: replace(
        links[0], certificate=replace(links[0].certificate, votes=links[0].certificate.votes[:2])
    ),
    "a signature twice": lambda table, links: replace(
        links[0], certificate=replace(links[0].certificate, votes=links[0].certificate.votes[:1] * 4)
    ),
    "forged signatures": lambda table, links: replace(
        links[0],
        certificate=replace(
            links[0].certificate, votes=tuple((index, bytes(64)) for index, _ in links[0].certificate.votes)
        ),
    ),
    "a new roster without being shown": lambda table, links: recertified(table, links[0], next_roster_hash=bytes(32)),
    "a new roster that is not the named one": lambda table, links: replace(
        recertified(table, links[0], next_roster_hash=bytes(32)), next_roster=table.ledger.roster
    ),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=[name.replace(" ", "-") for name in REFUSED])
def test_whatever_does_not_hold_is_refused_and_changes_nothing(table, links, make) -> None:
    chain = chain_from(table)
    before = state_of(chain)
    assert chain.extend(make(table, links)) is not None
    assert state_of(chain) == before
    assert [chain.extend(link) for link in links] == [None] * HEIGHTS


def test_roster_change_without_the_roster_is_refused(table, links) -> None:
    chain = chain_from(table, CHANGED_AT - 1)
    bare = replace(links[CHANGED_AT - 1], next_roster=None)
    other = replace(links[CHANGED_AT - 1], next_roster=table.ledger.roster)
    assert chain.extend(bare) == "it changes the roster, and the new one is missing"
    assert chain.extend(other) == "the roster that came with it is not the one it names"
    assert chain.extend(links[CHANGED_AT - 1]) is None


def test_member_that_left_certifies_nothing_any_more(table, links) -> None:
    """Three of the old four would do for the old roster; one of them has no power in the new one."""
    chain = chain_from(table, LEFT_AT)
    before = table.decisions[LEFT_AT - 1].before.roster
    last = links[LEFT_AT]
    stale = replace(last, certificate=certificate(table, last, before, (0, 3, 4)))
    true = replace(last, certificate=certificate(table, last, before, (0, 1, 4)))
    assert chain.roster.power(simulated_key(3)) == 0
    assert chain.extend(stale) == "no quorum of the roster derived so far stands behind it"
    assert chain.extend(true) is None


def test_roster_that_nobody_votes_in_is_refused(table, links) -> None:
    roster = table.genesis.roster
    empty = Roster(epoch=1, members=tuple(replace(m, power=0, status=MemberStatus.BANNED) for m in roster.members))
    changed = recertified(table, links[0], next_roster_hash=roster_hash(table.crypto, empty))
    chain = chain_from(table)
    assert chain.extend(replace(changed, next_roster=empty)) == "it leaves nobody to decide the next height"


def test_roster_comes_only_where_it_changes(table, links) -> None:
    """A roster beside a header that changes none is not looked at."""
    chain = chain_from(table)
    assert chain.extend(replace(links[0], next_roster=table.ledger.roster)) is None
    assert chain.roster == table.genesis.roster


def test_every_field_of_a_header_is_bound(table, links) -> None:
    for field in fields(links[0].header):
        value = getattr(links[0].header, field.name)
        other = value + 1 if isinstance(value, int) else bytes(31) + b"\x07"
        chain = chain_from(table)
        assert chain.extend(replace(links[0], header=replace(links[0].header, **{field.name: other}))) is not None


def test_memory_of_states_is_bounded() -> None:
    table = Playbook(founders(1))
    chain = chain_from(table)
    header = None
    for height in range(1, STATES_KEPT + 3):
        if header is None:
            header = table.block(voters=(0,)).header
        header = replace(header, height=height, previous_block_id=chain.block_id, state_hash=height.to_bytes(32, "big"))
        bare = CertifiedHeader(header=header, certificate=CommitCert(height=0, view=0, block_id=b"", votes=()))
        link = replace(bare, certificate=certificate(table, bare, table.genesis.roster, (0,)))
        assert chain.extend(link) is None
    assert chain.certified_state(1) is None
    assert chain.certified_state(2) == (3).to_bytes(32, "big")
    assert chain.certified_state(chain.height - 1) == chain.height.to_bytes(32, "big")

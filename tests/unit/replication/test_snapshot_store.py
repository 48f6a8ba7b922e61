"""Snapshots on disk: what is offered, what proves it, and how another state takes the place of this node's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aicpnode.envelop.codec import digest
from aicpnode.envelop.ledger_state import decode_ledger_state, encode_ledger_state
from aicpnode.replication.ledger import LedgerStore
from aicpnode.replication.snapshot_store import SnapshotStore, VerifiedSnapshot
from aicpnode.simulation.playbook import NETWORK_ID, Playbook, founders
from aicpnode.storage.database import Database
from consensus.events import Diverged
from consensus.messages import OperationKind

HEIGHTS = 6
JOINED_AT = 3
ROOT, MODEL, BLOB = b"r" * 32, b"m" * 32, b"b" * 32
MANY_BYTES = 1 << 30


@pytest.fixture
def table() -> Playbook:
    """Decided heights; at one of them the roster changes."""
    table = Playbook(founders(4))
    for height in range(1, HEIGHTS + 1):
        joins = [table.operation(9, OperationKind.JOIN, bytes(16), "new", sequence=1)] if height == JOINED_AT else []
        table.decide(table.block(operations=joins))
    return table


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "mine") as database:
        yield database


@pytest.fixture
def full(tmp_path: Path, table: Playbook) -> Iterator[Database]:
    """Of a member that has decided everything."""
    with Database.open(tmp_path / "full") as database:
        LedgerStore(database, NETWORK_ID).persist(table.log)
        yield database


def store_of(database: Database, table: Playbook) -> SnapshotStore:
    return SnapshotStore(database, table.genesis)


def ledger_at(table: Playbook, height: int):
    return table.decisions[height - 1].ledger


def snapshot_at(table: Playbook, height: int) -> VerifiedSnapshot:
    return VerifiedSnapshot(
        ledger=ledger_at(table, height), state_hash=bytes([height]) * 32, model_hash=MODEL, agreed_root=ROOT, blob=BLOB
    )


def take(database: Database, table: Playbook, height: int, blob: bytes = BLOB) -> bytes:
    """Record an own snapshot; the encoded ledger state."""
    ledger = ledger_at(table, height)
    encoded = encode_ledger_state(ledger)
    database.put_applied(height=height, round=ledger.round, state_hash=ROOT, model_hash=MODEL, snapshot=blob)
    database.put_state(height, encoded, ROOT)
    return encoded


def links(store: SnapshotStore, height: int = 1, *, most: int = 100, max_bytes: int = MANY_BYTES):
    return list(store.links(height, most=most, max_bytes=max_bytes))


def test_links_of_decided_blocks_extend_a_chain_to_the_head(full, table) -> None:
    store = store_of(full, table)
    chain = store.chain_from_genesis(table.crypto)
    assert [chain.extend(link) for link in links(store)] == [None] * HEIGHTS
    assert (chain.block_id, chain.roster) == (table.ledger.block_id, table.ledger.roster)


def test_links_are_bounded_by_number_and_by_bytes(full, table) -> None:
    store = store_of(full, table)
    assert len(links(store, most=2)) == 2
    assert 0 < len(links(store, max_bytes=1500)) < HEIGHTS
    assert links(store, HEIGHTS + 1) == []


def test_kept_headers_are_served_and_gone_on_from(full, database, table) -> None:
    mine, theirs = store_of(database, table), store_of(full, table)
    mine.keep(links(theirs, most=4))
    assert links(mine) == links(theirs, most=4)
    chain = mine.chain(table.crypto, table.genesis)
    assert (chain.height, chain.block_id, chain.roster) == (4, ledger_at(table, 4).block_id, ledger_at(table, 4).roster)
    assert chain.extend(links(theirs, 5)[0]) is None
    assert mine.certified_state(3) == table.state_hash(3)
    assert mine.certified_state(4) is None


def test_chain_begins_at_the_own_head_if_that_is_later(full, table) -> None:
    chain = store_of(full, table).chain(table.crypto, table.ledger)
    assert (chain.height, chain.block_id) == (HEIGHTS, table.ledger.block_id)


def test_snapshots_are_offered_once_the_next_height_certifies_them(full, table) -> None:
    store = store_of(full, table)
    encoded = take(full, table, 4)
    take(full, table, HEIGHTS, b"c" * 32)
    (offer,) = store.offers(lambda _blob: 7)
    assert (offer.height, offer.application_digest, offer.application_size, offer.agreed_root) == (4, BLOB, 7, ROOT)
    assert (offer.ledger_digest, offer.ledger_size) == (digest(encoded), len(encoded))
    assert store.ledger_body(offer.ledger_digest) == encoded
    assert store.ledger_body(bytes(32)) is None
    assert store.has(BLOB) and not store.has(bytes(32))
    assert store.offers(lambda _blob: None) == []


def test_diverged_node_offers_nothing(full, table) -> None:
    store = store_of(full, table)
    take(full, table, 4)
    store.note_diverged(Diverged(height=5, own=bytes(32), certified=ROOT))
    assert store.offers(lambda _blob: 7) == []
    assert store.diverged() == Diverged(height=5, own=bytes(32), certified=ROOT)


def test_taken_over_state_is_where_the_ledger_begins(full, database, table) -> None:
    mine, ledger_store = store_of(database, table), LedgerStore(database, NETWORK_ID)
    mine.keep(links(store_of(full, table), most=5))
    assert mine.install(snapshot_at(table, 4)) == []
    assert database.head() == 4
    assert ledger_store.head_state(table.genesis) == ledger_at(table, 4)
    (taken,) = database.snapshots()
    assert (taken.height, taken.snapshot, taken.model_hash) == (4, BLOB, MODEL)
    # The next blocks are decided on top of it.
    ledger_store.persist(table.decisions[4:])
    assert ledger_store.head_state(table.genesis) == table.ledger
    assert [decided.after.height for decided in ledger_store.replay(table.genesis, 4)] == [5, 6]
    assert links(mine) == links(store_of(full, table))


def test_own_states_are_replaced_and_the_blocks_above_stay(full, table) -> None:
    store = store_of(full, table)
    take(full, table, 2, b"old" + bytes(29))
    take(full, table, 5, b"wrong" + bytes(27))
    store.note_diverged(Diverged(height=5, own=bytes(32), certified=ROOT))
    dropped = store.install(snapshot_at(table, 3))
    assert sorted(dropped) == sorted([b"old" + bytes(29), b"wrong" + bytes(27)])
    assert store.diverged() is None
    assert [applied.height for applied in full.snapshots()] == [3]
    assert LedgerStore(full, NETWORK_ID).head_state(table.genesis) == table.ledger
    base = full.base()
    assert base is not None and decode_ledger_state(base[1], genesis=table.genesis) == ledger_at(table, 3)


def test_votes_of_the_running_height_survive(full, table) -> None:
    table.hear(*(table.ballot(index) for index in (1, 2, 3)))
    LedgerStore(full, NETWORK_ID).persist(table.log)
    before = full.votes(HEIGHTS + 1)
    store_of(full, table).install(snapshot_at(table, 3))
    assert full.votes(HEIGHTS + 1) == before


def test_interrupted_take_over_leaves_everything_as_it_was(full, table, monkeypatch) -> None:
    store = store_of(full, table)
    take(full, table, 5, b"own" + bytes(29))
    store.note_diverged(Diverged(height=5, own=bytes(32), certified=ROOT))
    monkeypatch.setattr(Database, "prune_votes", lambda *_: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        store.install(snapshot_at(table, 3))
    assert [applied.height for applied in full.snapshots()] == [5]
    assert (full.base(), store.diverged() is not None) == (None, True)

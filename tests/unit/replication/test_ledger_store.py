"""What a step of the replica leaves on a real disk, and what comes back of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aicpnode.replication.ledger import LedgerStore, state_hash
from aicpnode.simulation.playbook import NETWORK_ID, Playbook, founders, of_kind, said
from aicpnode.storage.database import Database
from aicpnode.storage.faults import SlotConflict
from consensus.events import Accusation, Decide, Effect, PersistVote
from consensus.evidence import evidence
from consensus.membership import LedgerState, Standing
from consensus.messages import BallotEntry, Commit, OperationKind, Prepare, Vote
from consensus.replica import Replica, Restored
from consensus.types import NIL


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path) as database:
        yield database


@pytest.fixture
def table() -> Playbook:
    return Playbook(founders(4, until_round=1 << 40))


def store_of(database: Database, table: Playbook) -> LedgerStore:
    return LedgerStore(database, NETWORK_ID)


def restart(table: Playbook, restored: Restored, ledger: LedgerState) -> Replica:
    return Replica(
        key=table.key,
        crypto=table.crypto,
        timing=table.timing,
        ledger=ledger,
        restored=restored,
    )


def with_attachments(votes: list[Vote]) -> list[tuple[object, ...]]:
    return [(v, v.signature, getattr(v, "block", None), getattr(v, "certificate", None)) for v in votes]


def test_empty_store_restores_nothing(database: Database, table: Playbook) -> None:
    store = store_of(database, table)
    assert store.restored(1) == Restored(safety=None, votes=(), blocks=())
    assert store.head_state(table.genesis) == table.genesis


def test_running_height_comes_back_as_it_was(database: Database, table: Playbook) -> None:
    store = store_of(database, table)
    table.opine(BallotEntry(author_index=1, digest=b"x" * 32, accepted=True))
    table.lock(table.block(ready=True))
    table.reach_view(2)
    store.persist(table.log)
    restored = store.restored(1)
    assert restored.safety == table.replica.safety and restored.safety is not None
    assert restored.safety.entry == table.replica.entry and len(restored.safety.entry) == 3
    assert [v.signature for v in restored.safety.entry] == [v.signature for v in table.replica.entry]
    assert {v.kind for v in restored.votes} >= {Prepare.kind, Commit.kind}
    key = lambda item: (int(item[0].kind), item[0].view)  # noqa: E731
    assert sorted(with_attachments(list(restored.votes)), key=key) == sorted(with_attachments(table.votes), key=key)
    assert list(restored.blocks) == table.blocks
    replica = restart(table, restored, table.genesis)
    assert replica.safety == table.replica.safety


def test_leaders_set_comes_back_with_its_block(database: Database) -> None:
    table = Playbook(founders(4), me=1)
    table.hear(*(table.ballot(i) for i in (0, 2, 3)))
    store = store_of(database, table)
    store.persist(table.log)
    replica = restart(table, store.restored(1), table.genesis)
    before = with_attachments(table.votes)
    sent = [effect.message for effect in replica.start() if hasattr(effect, "message")]
    assert sorted(map(repr, with_attachments(sent))) == sorted(map(repr, before))


def test_certificates_of_ballots_and_locks_come_back(database: Database, table: Playbook) -> None:
    table.lock(table.block())
    table.reach_view(1)
    store = store_of(database, table)
    store.persist(table.log)
    restored = store.restored(1)
    assert restored.safety is not None
    assert restored.safety.valid_certificate == table.replica.valid_certificate is not None
    ballots = [v for v in restored.votes if v.view == 1]
    assert [getattr(v, "certificate", None) for v in ballots] == [table.replica.valid_certificate]


def test_jump_with_attachments_comes_back(database: Database, table: Playbook) -> None:
    certificate = table.prepare_certificate(1, b"x" * 32)
    table.hear(table.ballot(1, 4, certificate=certificate), table.ballot(2, 4, certificate=certificate))
    store = store_of(database, table)
    store.persist(table.log)
    restored = store.restored(1)
    assert restored.safety is not None and restored.safety.view == 4
    assert with_attachments(list(restored.safety.entry)) == with_attachments(list(table.replica.entry))


def decide(table: Playbook, heights: int) -> None:
    for number in range(heights):
        joins = [table.operation(10 + number, OperationKind.JOIN, bytes(16), "new", sequence=1)]
        entries = (BallotEntry(author_index=2, digest=bytes([number]) * 32, accepted=True),)
        table.decide(table.block(ready=number % 2 == 0, entries=entries, operations=joins))


def test_ledger_is_derived_again_from_its_blocks(database: Database, table: Playbook) -> None:
    decide(table, 5)
    store = store_of(database, table)
    store.persist(table.log)
    assert store.head_state(table.genesis) == table.ledger
    replayed = list(store.replay(table.genesis, 2))
    assert [decided.after.height for decided in replayed] == [3, 4, 5]
    assert replayed[0].before.height == 2
    assert replayed[-1].after.content() == table.ledger.content()
    assert [decided.block for decided in replayed] == [decision.block for decision in table.decisions[2:]]


def test_ledger_survives_closing_and_opening(tmp_path: Path, table: Playbook) -> None:
    decide(table, 3)
    with Database.open(tmp_path) as database:
        store_of(database, table).persist(table.log)
    with Database.open(tmp_path) as database:
        assert store_of(database, table).head_state(table.genesis) == table.ledger


def test_record_of_a_decided_height_is_not_restored(database: Database, table: Playbook) -> None:
    decide(table, 1)
    store = store_of(database, table)
    store.persist(table.log)
    restored = store.restored(2)
    assert (restored.safety, restored.votes, restored.blocks) == (None, (), ())
    assert restart(table, restored, table.ledger).height == 2


def test_step_that_fails_leaves_nothing(database: Database, table: Playbook) -> None:
    store = store_of(database, table)
    effects: list[Effect] = [*table.hear(table.fresh(table.block()))]
    (vote,) = said(effects, Prepare)
    conflict = PersistVote(message=table.signed(replace(vote, block_id=NIL)))
    with pytest.raises(SlotConflict):
        store.persist([*effects, conflict])
    assert store.restored(1) == Restored(safety=None, votes=(), blocks=())


def test_second_content_in_a_slot_is_refused_by_the_disk_too(database: Database, table: Playbook) -> None:
    store = store_of(database, table)
    table.hear(table.fresh(table.block()))
    store.persist(table.log)
    store.persist(table.log)  # a crash repeats the last step
    (vote,) = said(table.log, Prepare)
    with pytest.raises(SlotConflict):
        store.persist([PersistVote(message=table.signed(replace(vote, block_id=NIL)))])


def test_another_decision_at_a_height_is_refused(database: Database, table: Playbook) -> None:
    one, two = Playbook(), Playbook()
    one.decide(one.block(voters=(0, 1, 2)))
    two.decide(two.block(voters=(1, 2, 3)))
    store = store_of(database, table)
    store.persist(of_kind(one.log, Decide))
    with pytest.raises(SlotConflict):
        store.persist(of_kind(two.log, Decide))


def test_evidence_is_kept_once_a_signer(database: Database, table: Playbook) -> None:
    store = store_of(database, table)
    pair = (table.commit(1, 0, NIL), table.commit(1, 0, b"x" * 32))
    proof = evidence(*pair)
    store.persist([Accusation(evidence=proof)] * 3)
    assert store.evidence() == {pair[0].signer: proof}
    assert [m.signature for m in (store.evidence()[proof.accused].first, proof.second)] == [
        proof.first.signature,
        proof.second.signature,
    ]


def test_state_hash_depends_on_everything_agreed(table: Playbook) -> None:
    ledger, root = table.ledger, b"r" * 32
    base = state_hash(ledger, k=4, bits=2, agreed_root=root)
    others = [
        state_hash(replace(ledger, round=1), k=4, bits=2, agreed_root=root),
        state_hash(replace(ledger, last_round_empty=True), k=4, bits=2, agreed_root=root),
        state_hash(replace(ledger, standings=(Standing(),) * 4), k=4, bits=2, agreed_root=root),
        state_hash(founders(5, until_round=1 << 40), k=4, bits=2, agreed_root=root),
        state_hash(ledger, k=5, bits=2, agreed_root=root),
        state_hash(ledger, k=4, bits=3, agreed_root=root),
        state_hash(ledger, k=4, bits=2, agreed_root=bytes(32)),
    ]
    assert len({base, *others}) == 8

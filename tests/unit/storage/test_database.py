"""What the tables promise: slots keep their content, transactions are whole, everything is there after reopening."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aicpnode.storage.database import FILE_NAME, MAX_PEERS, Applied, Database, StoredPeer, StoredProposal
from aicpnode.storage.faults import SlotConflict, StorageFailed

HASH = bytes(range(32))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path) as opened:
        yield opened


def decide(database: Database, height: int, size: int = 10) -> None:
    database.put_decision(height, height.to_bytes(32, "big"), bytes(size), b"certificate")


def test_meta_is_set_replaced_and_absent(database: Database) -> None:
    assert database.get_meta("network") is None
    database.set_meta("network", b"a")
    database.set_meta("network", b"b")
    assert database.get_meta("network") == b"b"
    assert database.get_meta("other") is None


def test_vote_slot_takes_the_same_bytes_again_and_no_others(database: Database) -> None:
    database.put_vote(5, 10, 0, b"vote")
    database.put_vote(5, 10, 0, b"vote")
    with pytest.raises(SlotConflict):
        database.put_vote(5, 10, 0, b"other")
    assert database.votes(10) == [b"vote"]


def test_slot_conflict_is_our_own_fault() -> None:
    assert issubclass(SlotConflict, AssertionError)


def test_votes_of_a_height_come_by_kind_and_view(database: Database) -> None:
    for kind, height, view in [(6, 7, 0), (5, 7, 1), (5, 7, 0), (3, 7, 0), (3, 8, 0), (3, 6, 0)]:
        database.put_vote(kind, height, view, f"{kind}/{height}/{view}".encode())
    assert database.votes(7) == [b"3/7/0", b"5/7/0", b"5/7/1", b"6/7/0"]
    database.prune_votes(7)
    assert database.votes(6) == []
    assert len(database.votes(7)) == 4
    assert database.votes(8) == [b"3/8/0"]


def test_safety_is_one_record(database: Database) -> None:
    assert database.safety() is None
    database.put_safety(b"1")
    database.put_safety(b"2")
    assert database.safety() == b"2"


def test_ledger_grows_by_one(database: Database) -> None:
    assert database.head() == 0
    assert database.decision(1) is None
    for height in (1, 2, 3):
        decide(database, height)
    assert database.head() == 3
    assert database.decision(2) == (bytes(10), b"certificate")
    with pytest.raises(AssertionError, match="on top of 3"):
        decide(database, 5)
    with pytest.raises(AssertionError):
        decide(database, 0)
    assert database.head() == 3


def test_ledger_may_start_at_a_snapshot(database: Database) -> None:
    decide(database, 100)
    decide(database, 101)
    assert database.head() == 101
    assert database.decisions(1, 1000) == []
    assert [height for height, _, _ in database.decisions(100, 1000)] == [100, 101]


def test_second_block_at_a_height_is_refused_and_second_certificate_is_not_kept(database: Database) -> None:
    decide(database, 1)
    database.put_decision(1, (1).to_bytes(32, "big"), bytes(10), b"another certificate")
    assert database.decision(1) == (bytes(10), b"certificate")
    with pytest.raises(SlotConflict):
        database.put_decision(1, HASH, bytes(10), b"certificate")


def test_decisions_stop_at_the_size_but_return_one(database: Database) -> None:
    for height in range(1, 11):
        decide(database, height, size=89)  # 100 bytes with the certificate
    assert [height for height, _, _ in database.decisions(1, 1000)] == list(range(1, 11))
    assert [height for height, _, _ in database.decisions(3, 250)] == [3, 4]
    assert [height for height, _, _ in database.decisions(9, 1)] == [9]
    assert database.decisions(11, 1000) == []


def test_applied_states_and_their_snapshots(database: Database) -> None:
    assert database.applied() is None
    database.put_applied(1, 0, HASH, HASH, None)
    database.put_applied(2, 1, HASH, HASH, b"s" * 32)
    database.put_applied(3, 2, HASH, HASH, None)
    assert database.applied() == Applied(height=3, round=2, state_hash=HASH, model_hash=HASH, snapshot=None)
    database.put_applied(3, 2, HASH, HASH, b"t" * 32)
    database.put_applied(3, 2, HASH, HASH, None)
    assert [(state.height, state.snapshot) for state in database.snapshots()] == [(3, b"t" * 32), (2, b"s" * 32)]
    database.forget_snapshot(3)
    database.forget_snapshot(77)
    assert [state.height for state in database.snapshots()] == [2]
    with pytest.raises(SlotConflict):
        database.put_applied(3, 2, bytes(32), HASH, None)


def test_proposal_slot_keeps_its_content(database: Database) -> None:
    assert database.proposal(4) is None
    assert database.latest_proposal() is None
    first = StoredProposal(round=4, grad=b"grad", package_digest=HASH, residual_digest=bytes(32))
    database.put_proposal(4, b"grad", HASH, bytes(32))
    database.put_proposal(4, b"grad", HASH, bytes(32))
    with pytest.raises(SlotConflict):
        database.put_proposal(4, b"other", HASH, bytes(32))
    with pytest.raises(SlotConflict):
        database.put_proposal(4, b"grad", bytes(32), bytes(32))
    database.put_proposal(6, b"later", HASH, HASH)
    assert database.proposal(4) == first
    latest = database.latest_proposal()
    assert latest is not None
    assert latest.round == 6
    assert database.prune_proposals(6) == [first]
    assert database.prune_proposals(6) == []
    assert database.proposal(4) is None


def test_evidence_keeps_the_first_pair_of_a_key(database: Database) -> None:
    database.put_evidence(b"k2", b"a", b"b")
    database.put_evidence(b"k1", b"c", b"d")
    database.put_evidence(b"k2", b"e", b"f")
    assert database.evidence() == [(b"k1", b"c", b"d"), (b"k2", b"a", b"b")]


def test_round_metrics_from_a_round(database: Database) -> None:
    for number in (3, 1, 2):
        database.put_round_metrics(number, f'{{"loss": {number}}}')
    database.put_round_metrics(2, "{}")
    assert database.round_metrics(2) == [(2, "{}"), (3, '{"loss": 3}')]


def test_peers_are_bounded_and_the_latest_stay(database: Database) -> None:
    with database.transaction():
        for number in range(MAX_PEERS + 5):
            database.put_peer(number.to_bytes(32, "big"), f"host:{number}", number, 100)
    database.put_peer(bytes(31) + b"\x09", "host:9", 10_000, 50)
    peers = database.peers()
    assert len(peers) == MAX_PEERS
    assert peers[0] == StoredPeer(key=bytes(31) + b"\x09", address="host:9", last_seen_unix=10_000, score=50)
    assert min(peer.last_seen_unix for peer in peers) == 5


def test_transaction_is_whole(database: Database) -> None:
    with pytest.raises(RuntimeError, match="half way"), database.transaction():
        database.put_vote(6, 1, 0, b"commit")
        database.put_safety(b"lock")
        raise RuntimeError("half way")
    assert database.votes(1) == []
    assert database.safety() is None
    with database.transaction():
        database.put_vote(6, 1, 0, b"commit")
        with database.transaction():
            database.put_safety(b"lock")
    assert (database.votes(1), database.safety()) == ([b"commit"], b"lock")


def test_reading_inside_a_transaction_sees_its_writes(database: Database) -> None:
    with database.transaction():
        decide(database, 1)
        decide(database, 2)
        assert database.head() == 2


def test_swallowed_error_inside_a_transaction_stores_nothing_and_is_reported(database: Database) -> None:
    database.put_vote(6, 1, 0, b"commit")

    def swallow() -> None:
        with database.transaction():
            database.put_safety(b"lock")
            with pytest.raises(SlotConflict):
                database.put_vote(6, 1, 0, b"other")

    with pytest.raises(AssertionError, match="swallowed"):
        swallow()
    assert database.safety() is None

    def go_on() -> None:
        with database.transaction():
            with pytest.raises(SlotConflict):
                database.put_vote(6, 1, 0, b"other")
            database.put_safety(b"lock")

    with pytest.raises(AssertionError, match="transaction is over"):
        go_on()
    assert database.safety() is None
    database.put_safety(b"works again")


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    for height in (1, 2, 3):
        with Database.open(tmp_path) as database:
            assert database.head() == height - 1
            decide(database, height)
            database.put_vote(6, height, 0, b"vote")
            database.set_meta("height", bytes([height]))
    with Database.open(tmp_path) as database:
        assert database.head() == 3
        assert [database.votes(height) for height in (1, 2, 3)] == [[b"vote"]] * 3
        assert database.get_meta("height") == b"\x03"


def test_case_C03_commits_wait_for_the_disk(tmp_path: Path, database: Database) -> None:
    connection = database._connection._connection
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)


def test_state_at_the_moment_of_return_opens_elsewhere(tmp_path: Path) -> None:
    """What a killed process leaves is what the files held: copy them at once, without closing."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    with Database.open(source) as database:
        for height in range(1, 50):
            decide(database, height)
            if height % 7 == 0:
                for name in (FILE_NAME, f"{FILE_NAME}-wal"):
                    (copy / name).write_bytes((source / name).read_bytes())
                with Database.open(copy) as reopened:
                    assert reopened.head() == height
                for left in copy.iterdir():
                    left.unlink()


def test_closed_database_refuses_and_closes_again(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    database.close()
    database.close()
    with pytest.raises(StorageFailed, match="closed"):
        database.set_meta("a", b"")
    with pytest.raises(StorageFailed, match="closed"):
        database.head()


def test_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database:
        database.set_meta("a", b"1")
    raw = sqlite3.connect(tmp_path / FILE_NAME)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StorageFailed, match="newer"):
        Database.open(tmp_path)


def test_folder_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed) as caught:
        Database.open(tmp_path / "file")
    assert caught.value.advice
    with pytest.raises(StorageFailed):
        Database.open(tmp_path / "file" / "deeper")


def test_threads_share_one_connection(database: Database) -> None:
    def write(thread: int) -> None:
        for number in range(20):
            with database.transaction():
                count = int.from_bytes(database.get_meta("count") or b"", "big")
                database.set_meta("count", (count + 1).to_bytes(4, "big"))
                database.put_vote(thread, number, 0, bytes([thread, number]))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.get_meta("count") == (80).to_bytes(4, "big")
    assert all(len(database.votes(number)) == 4 for number in range(20))


def test_statistics_are_sizes_on_the_disk(tmp_path: Path, database: Database) -> None:
    decide(database, 1)
    sizes = database.statistics()
    assert sizes["wal_bytes"] == (tmp_path / f"{FILE_NAME}-wal").stat().st_size > 0
    assert sizes["database_bytes"] == (tmp_path / FILE_NAME).stat().st_size > 0

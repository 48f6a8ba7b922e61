"""Headers, rosters and bases on disk, and databases of earlier versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aicpnode.storage.connection import APPLICATION_ID
from aicpnode.storage.database import FILE_NAME, SCHEMAS, Database
from aicpnode.storage.faults import DamagedDatabase, SlotConflict

HASH = bytes(range(32))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path) as opened:
        yield opened


def decide(database: Database, *heights: int) -> None:
    for height in heights:
        database.put_decision(height, height.to_bytes(32, "big"), b"block", b"certificate")


def test_headers_and_rosters_come_back(database: Database) -> None:
    assert (database.header(5), database.last_header_height(), database.roster(5)) == (None, 0, None)
    for height in (5, 6):
        database.put_header(height, b"header%d" % height, b"certificate")
    assert database.header(6) == (b"header6", b"certificate")
    assert database.last_header_height() == 6
    database.put_roster(3, b"early")
    database.put_roster(7, b"late")
    assert [database.roster(height) for height in (2, 3, 6, 7, 100)] == [None, b"early", b"early", b"late", b"late"]
    assert (database.roster_from(7), database.roster_from(8)) == (b"late", None)


def test_base_is_one_and_survives_the_snapshots_around_it(database: Database) -> None:
    assert (database.base(), database.base_height()) == (None, 0)
    database.put_state(4, b"early", HASH)
    database.set_base(10, b"base", HASH)
    assert database.state(4) is None
    database.put_state(10, b"another", HASH)
    database.put_state(20, b"later", HASH)
    database.forget_state(20)
    database.forget_state(10)
    assert (database.base(), database.state(10), database.state(20)) == ((10, b"base"), (b"base", HASH), None)
    database.set_base(30, b"next", HASH)
    assert (database.base(), database.state(10)) == ((30, b"next"), None)


def test_ledger_goes_on_above_a_base_and_has_a_gap_below_it(database: Database) -> None:
    decide(database, 1, 2)
    database.set_base(10, b"base", HASH)
    assert database.head() == 10
    with pytest.raises(AssertionError, match="on top of 10"):
        decide(database, 3)
    decide(database, 11)
    assert database.head() == 11
    assert [height for height, _block, _certificate in database.decisions(1, 1 << 20)] == [1, 2]
    assert database.decisions(5, 1 << 20) == []
    assert [height for height, _block, _certificate in database.decisions(11, 1 << 20)] == [11]


def test_base_below_the_head_leaves_the_blocks_above_it(database: Database) -> None:
    decide(database, 1, 2, 3)
    database.set_base(2, b"base", HASH)
    assert database.head() == 3
    assert [height for height, _block, _certificate in database.decisions(3, 1 << 20)] == [3]


def test_missing_block_above_the_base_is_damage(database: Database) -> None:
    decide(database, 1, 2, 3)
    database._connection.write("DELETE FROM ledger WHERE height = 2")
    with pytest.raises(DamagedDatabase, match="block 2 is missing"):
        database.decisions(1, 1 << 20)


def test_forgotten_states_make_room_for_others(database: Database) -> None:
    database.put_applied(height=1, round=1, state_hash=HASH, model_hash=HASH, snapshot=None)
    database.put_applied(height=2, round=2, state_hash=HASH, model_hash=HASH, snapshot=b"s" * 32)
    with pytest.raises(SlotConflict):
        database.put_applied(height=2, round=2, state_hash=bytes(32), model_hash=HASH, snapshot=None)
    assert database.forget_applied() == [b"s" * 32]
    assert (database.applied(), database.snapshots()) == (None, [])
    database.put_applied(height=2, round=2, state_hash=bytes(32), model_hash=HASH, snapshot=None)


def test_names_by_prefix_and_forgetting_them(database: Database) -> None:
    for name in ("package/b", "package/a", "packages", "other"):
        database.set_meta(name, b"x")
    assert database.meta_names("package/") == ["package/a", "package/b"]
    database.forget_meta("package/a")
    database.forget_meta("package/a")
    assert database.meta_names("package/") == ["package/b"]


def write_version(folder: Path, version: int) -> None:
    """A database as that version of the schema made it, with one vote in it."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        connection.executescript(
            f"{';'.join(SCHEMAS[:version])}; PRAGMA user_version = {version}; PRAGMA application_id = {APPLICATION_ID}"
        )


@pytest.mark.parametrize("version", range(1, len(SCHEMAS) + 1))
def test_database_of_an_earlier_version_is_taken_over(tmp_path: Path, version: int) -> None:
    write_version(tmp_path, version)
    for _ in range(2):
        with Database.open(tmp_path) as database:
            database.put_vote(5, 10, 0, b"vote")
            database.put_header(5, b"header", b"certificate")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(SCHEMAS),)


@pytest.mark.parametrize("version", range(1, len(SCHEMAS) + 1))
def test_earlier_version_that_lacks_a_table_is_damaged_and_gets_no_new_one(tmp_path: Path, version: int) -> None:
    write_version(tmp_path, version)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("DROP TABLE votes")
    with pytest.raises(DamagedDatabase, match="list of tables"):
        Database.open(tmp_path)

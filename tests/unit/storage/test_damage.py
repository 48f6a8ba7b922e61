"""Bytes of the files are overwritten for real: the answer is the truth or DamagedDatabase, never another content."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from aicpnode.storage.database import FILE_NAME, Database
from aicpnode.storage.faults import DamagedDatabase
from aicpnode.storage.journal import FRAME_HEADER_BYTES, WAL_HEADER_BYTES

Content: TypeAlias = tuple[object, ...]
HEIGHTS = 12
PAGE_BYTES = 4096
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES


def write(database: Database, height: int) -> None:
    filler = random.Random(height)
    with database.transaction():
        database.put_decision(height, filler.randbytes(32), filler.randbytes(3000), filler.randbytes(300))
        database.put_applied(height, height // 2, filler.randbytes(32), filler.randbytes(32), None)
        database.put_vote(6, height, 0, filler.randbytes(200))
        database.put_safety(filler.randbytes(150))
        database.put_proposal(height, filler.randbytes(100), filler.randbytes(32), filler.randbytes(32))


def fill(database: Database) -> None:
    database.set_meta("identity", b"i" * 32)
    for height in range(1, HEIGHTS + 1):
        write(database, height)


def content(database: Database) -> Content:
    """All that a node reads when it starts."""
    head = database.head()
    return (
        database.get_meta("identity"),
        head,
        database.decisions(1, 1 << 30),
        database.applied(),
        [database.votes(height) for height in range(HEIGHTS + 2)],
        database.safety(),
        [database.proposal(number) for number in range(HEIGHTS + 2)],
        database.latest_proposal(),
    )


def read(directory: Path) -> Content:
    with Database.open(directory) as database:
        return content(database)


@pytest.fixture
def closed(tmp_path: Path) -> tuple[Path, Content]:
    with Database.open(tmp_path) as database:
        fill(database)
        return tmp_path, content(database)


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, Content]:
    """The files of a process that died: everything still stands in the write-ahead log."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    with Database.open(source) as database:
        fill(database)
        expected = content(database)
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            (copy / name).write_bytes((source / name).read_bytes())
    return copy, expected


def truth_or_damage(directory: Path, expected: Content) -> bool:
    """True if the damage was noticed. Anything but the truth or DamagedDatabase fails the test."""
    try:
        found = read(directory)
    except DamagedDatabase as damage:
        assert "move" in damage.advice
        return True
    assert found == expected
    return False


def test_overwritten_parts_of_the_file_never_change_an_answer(closed: tuple[Path, Content]) -> None:
    directory, expected = closed
    path = directory / FILE_NAME
    sound = path.read_bytes()
    dice = random.Random(1)
    noticed = 0
    tries = 0
    for length in (1, 4, 64, 700, PAGE_BYTES):
        for _ in range(40):
            start = dice.randrange(len(sound) - length)
            path.write_bytes(sound[:start] + dice.randbytes(length) + sound[start + length :])
            noticed += truth_or_damage(directory, expected)
            tries += 1
            for name in (f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
                (directory / name).unlink(missing_ok=True)
    assert tries == 200
    assert noticed > 100
    path.write_bytes(sound)
    assert read(directory) == expected


def test_overwritten_whole_pages_are_all_noticed(closed: tuple[Path, Content]) -> None:
    directory, _ = closed
    path = directory / FILE_NAME
    sound = path.read_bytes()
    for start in range(0, len(sound), PAGE_BYTES):
        for filling in (bytes(PAGE_BYTES), b"\xff" * PAGE_BYTES):
            path.write_bytes(sound[:start] + filling + sound[start + PAGE_BYTES :])
            with pytest.raises(DamagedDatabase):
                read(directory)


@pytest.mark.parametrize("keep", [1, 100, PAGE_BYTES, 3 * PAGE_BYTES, -PAGE_BYTES, -1])
def test_cut_file_is_damaged(closed: tuple[Path, Content], keep: int) -> None:
    directory, _ = closed
    path = directory / FILE_NAME
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedDatabase):
        read(directory)


@pytest.mark.parametrize("content", [b"not a database at all", bytes(range(256)) * 64], ids=["text", "bytes"])
def test_file_that_is_no_database_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(DamagedDatabase) as caught:
        Database.open(tmp_path)
    assert FILE_NAME in caught.value.message
    assert "older copy" in caught.value.advice


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE_NAME)
    other.execute("CREATE TABLE accounts (name)")
    other.commit()
    other.close()
    with pytest.raises(DamagedDatabase, match="not a database of aicp-node"):
        Database.open(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE votes SET raw = x'00' WHERE height = 3",
        "UPDATE votes SET height = 99 WHERE height = 3",
        "UPDATE votes SET view = 7 WHERE height = 3",
        "UPDATE votes SET checksum = NULL WHERE height = 3",
        "UPDATE votes SET raw = 1.5 WHERE height = 3",
        "UPDATE meta SET name = 'idfntity'",
        "UPDATE safety SET raw = x'00'",
        "UPDATE ledger SET block = x'00' WHERE height = 5",
        "UPDATE ledger SET height = 99 WHERE height = 12",
        "DELETE FROM ledger WHERE height = 5",
        "UPDATE applied SET model_hash = x'00' WHERE height = 12",
        "UPDATE proposals SET round = 99 WHERE round = 12",
        "UPDATE safety SET slot = 5",
        "DROP TABLE evidence",
        "ALTER TABLE evidence ADD COLUMN c",
        "PRAGMA application_id = 5",
    ],
)
def test_rows_changed_behind_our_back_are_noticed(closed: tuple[Path, Content], statement: str) -> None:
    directory, _ = closed
    raw = sqlite3.connect(directory / FILE_NAME, isolation_level=None)
    raw.execute(statement)
    raw.close()
    with pytest.raises(DamagedDatabase):
        read(directory)


def test_log_of_a_killed_process_is_replayed(killed: tuple[Path, Content]) -> None:
    directory, expected = killed
    assert (directory / f"{FILE_NAME}-wal").stat().st_size > WAL_HEADER_BYTES
    assert read(directory) == expected


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def frames(log: bytes) -> list[int]:
    """The commit marks of the frames: 0 for a frame that ends no transaction."""
    starts = range(WAL_HEADER_BYTES, len(log), FRAME_BYTES)
    return [int.from_bytes(log[start + 4 : start + 8], "big") for start in starts]


def test_damage_in_the_middle_of_the_log_is_noticed(killed: tuple[Path, Content]) -> None:
    """SQLite alone would go on with the transactions before the damage, and forget votes that were sent."""
    directory, _ = killed
    log = directory / f"{FILE_NAME}-wal"
    sound = log.read_bytes()
    database = (directory / FILE_NAME).read_bytes()
    commits = [number for number, mark in enumerate(frames(sound)) if mark]
    assert len(commits) >= HEIGHTS
    for frame in range(commits[-2]):
        (directory / FILE_NAME).write_bytes(database)
        log.write_bytes(sound)
        (directory / f"{FILE_NAME}-shm").unlink(missing_ok=True)
        overwrite(log, WAL_HEADER_BYTES + frame * FRAME_BYTES + FRAME_HEADER_BYTES + 2000, b"damage")
        with pytest.raises(DamagedDatabase, match="write-ahead log has lost"):
            read(directory)


@pytest.mark.parametrize("start", [0, 4, 8, 16, 24], ids=["magic", "format", "page size", "salts", "checksum"])
def test_damaged_head_of_the_log_is_noticed(killed: tuple[Path, Content], start: int) -> None:
    directory, _ = killed
    overwrite(directory / f"{FILE_NAME}-wal", start, b"\x55\xaa\x55\xaa")
    with pytest.raises(DamagedDatabase):
        read(directory)


def test_overwritten_parts_of_the_log_lose_at_most_its_end(killed: tuple[Path, Content]) -> None:
    """Damage to the last transaction, or to the mark that ends the one before, looks like a crash."""
    directory, expected = killed
    log = directory / f"{FILE_NAME}-wal"
    sound, database = log.read_bytes(), (directory / FILE_NAME).read_bytes()
    commits = [number for number, mark in enumerate(frames(sound)) if mark]
    last_two_start = WAL_HEADER_BYTES + (commits[-3] + 1) * FRAME_BYTES
    dice = random.Random(2)
    for length in (1, 8, 64, 700, FRAME_BYTES):
        for _ in range(30):
            (directory / FILE_NAME).write_bytes(database)
            (directory / f"{FILE_NAME}-shm").unlink(missing_ok=True)
            start = dice.randrange(len(sound) - length)
            log.write_bytes(sound[:start] + dice.randbytes(length) + sound[start + length :])
            try:
                found = read(directory)
            except DamagedDatabase:
                continue
            assert found == expected or start + length > last_two_start
            assert found[1] in (HEIGHTS - 2, HEIGHTS - 1, HEIGHTS)


def test_interrupted_last_transaction_is_no_damage(killed: tuple[Path, Content]) -> None:
    """A crash while the last transaction was written: it was never acknowledged, the others stand."""
    directory, _ = killed
    log = directory / f"{FILE_NAME}-wal"
    sound = log.read_bytes()
    last_start = [number for number, mark in enumerate(frames(sound)) if mark][-2] + 1
    cut: list[Callable[[], None]] = [
        lambda: log.write_bytes(sound[: WAL_HEADER_BYTES + last_start * FRAME_BYTES + 1000]) and None,
        lambda: log.write_bytes(sound[:-1]) and None,
        lambda: overwrite(log, WAL_HEADER_BYTES + last_start * FRAME_BYTES + 100, b"torn"),
    ]
    database = (directory / FILE_NAME).read_bytes()
    for interrupt in cut:
        (directory / FILE_NAME).write_bytes(database)
        log.write_bytes(sound)
        interrupt()
        with Database.open(directory) as reopened:
            assert reopened.head() == HEIGHTS - 1
            assert reopened.votes(HEIGHTS) == []
            write(reopened, HEIGHTS)
            assert reopened.head() == HEIGHTS
        for name in (f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
            (directory / name).unlink(missing_ok=True)


def test_log_is_reused_across_generations_without_false_alarm(tmp_path: Path) -> None:
    """Frames of an older generation of the log stand behind the new ones and are no damage."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    with Database.open(source) as database:
        for height in range(1, 400):
            write(database, height)
            if height % 50 == 0:
                database._connection._pragma("wal_checkpoint(FULL)")
            if height % 25 == 3:
                for name in (FILE_NAME, f"{FILE_NAME}-wal"):
                    (copy / name).write_bytes((source / name).read_bytes())
                with Database.open(copy) as reopened:
                    assert reopened.head() == height
                for left in copy.iterdir():
                    left.unlink()

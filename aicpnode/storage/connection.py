"""One SQLite connection whose commits are on the disk when they return.

Write-ahead log with synchronous=FULL: every commit is one append and one fsync. The connection is shared by threads
behind one lock, held for the length of a transaction; a transaction is a few inserts, so callers may use it from the
event loop, and never await inside one (another task of the same thread would join it).

A transaction either commits whole or leaves nothing. After an I/O error the connection refuses everything: once fsync
has failed, no later success says that the earlier bytes arrived.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

from aicpnode.errors import UserError
from aicpnode.storage.faults import (
    SQLITE_ERRORS,
    DamagedDatabase,
    StorageFailed,
    database_fault,
    disk_errors,
    sync_directory,
)
from aicpnode.storage.journal import PAGE_BYTES_MIN, lost_commits

BUSY_SECONDS = 5.0
CACHE_KIB = 2048
WAL_CHECKPOINT_PAGES = 1000
WAL_KEPT_BYTES = 16 << 20
FULL_CHECK_BYTES_MAX = 256 << 20
"""Up to this size the whole database is checked on opening (about 1 s); beyond it, only the tables asked for."""
MAX_ROW_BYTES = 16 << 20
"""Largest row; a length above it that is read from the file is damage, and is not allocated."""
APPLICATION_ID = 0x61696370
"""'aicp', in the header of the file."""

Column: TypeAlias = int | bytes | str | None


class Connection:
    """A durable SQLite file. Open it with ``Connection(...)``, leave it with ``close()`` or ``with``."""

    def __init__(self, path: Path, *, schemas: tuple[str, ...], always_checked: tuple[str, ...]) -> None:
        """Open or create ``path``. Raises DamagedDatabase, StorageFull or StorageFailed.

        ``schemas``: what each version of the schema added to the one before; their number is the version.
        """
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        self._doomed = False
        self._broken: UserError | None = None
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path.exists() and 0 < path.stat().st_size < PAGE_BYTES_MIN:
                raise DamagedDatabase(path, "it was cut short")  # SQLite would start an empty one in its place
        try:
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise database_fault(path, error) from error
        try:
            self._prepare(schemas, always_checked)
        except BaseException as error:
            self._connection.close()
            if isinstance(error, SQLITE_ERRORS):
                raise database_fault(path, error, opening=True) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Move the write-ahead log into the file and close. Closing twice is harmless."""
        with self._lock:
            assert self._depth == 0, "a connection is not closed inside a transaction"
            self._connection.close()
            self._broken = self._broken or StorageFailed(self.path, "it was closed")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside become durable together when the outermost block ends, or none of them does.

        Raises StorageFull, StorageFailed or DamagedDatabase from the end of the block as from any statement in it.
        """
        with self._lock:
            if self._depth == 0:
                self._doomed = False
                self._execute("BEGIN IMMEDIATE")
            assert not self._doomed, "after an error the transaction is over"
            self._depth += 1
            try:
                yield
            except BaseException:
                self._doomed = True
                raise
            finally:
                self._depth -= 1
                if self._depth == 0 and self._doomed:
                    self._roll_back()
            if self._depth == 0:
                assert not self._doomed, "an error inside a transaction was swallowed: nothing of it was stored"
                self._commit()

    def query(self, statement: str, columns: tuple[Column, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement that reads; the caller bounds their number."""
        with self._lock:
            try:
                return self._execute(statement, columns).fetchall()
            except SQLITE_ERRORS as error:
                raise self._fault(error) from error

    def write(self, statement: str, columns: tuple[Column, ...] = ()) -> None:
        """One statement that writes; outside a transaction it is one by itself."""
        assert sum(len(column) for column in columns if isinstance(column, bytes | str)) < MAX_ROW_BYTES // 2
        with self.transaction():
            self._execute(statement, columns).close()

    def statistics(self) -> dict[str, int]:
        """Sizes on the disk, in bytes."""
        wal = self.path.with_name(self.path.name + "-wal")
        sizes = {"database_bytes": self.path, "wal_bytes": wal}
        return {name: file.stat().st_size if file.exists() else 0 for name, file in sizes.items()}

    def _prepare(self, schemas: tuple[str, ...], always_checked: tuple[str, ...]) -> None:
        self._connection.text_factory = _text
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
        pragma = self._pragma
        pragma(f"cache_size = -{CACHE_KIB}")
        if pragma("journal_mode = WAL") != ("wal",):
            raise StorageFailed(self.path, "this file system does not support a write-ahead log")
        pragma("synchronous = FULL")
        pragma("fullfsync = ON")  # macOS: fsync alone does not reach the disk there
        pragma("checkpoint_fullfsync = ON")
        pragma(f"wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
        pragma(f"journal_size_limit = {WAL_KEPT_BYTES}")
        self._check_log()
        (version,) = pragma("user_version")
        if version > len(schemas):
            raise StorageFailed(self.path, "it was written by a newer aicp-node: use that version")
        if version == 0:
            self._create(schemas)
        else:
            self._check(schemas[:version], always_checked)
            self._upgrade(schemas, version)
        with disk_errors(self.path):
            sync_directory(self.path.parent)

    def _create(self, schemas: tuple[str, ...]) -> None:
        if _tables(self._connection):
            raise DamagedDatabase(self.path, "it is not a database of aicp-node, or its header was overwritten")
        self._connection.executescript(
            f"BEGIN IMMEDIATE; {';'.join(schemas)}; PRAGMA user_version = {len(schemas)}; "
            f"PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
        )

    def _upgrade(self, schemas: tuple[str, ...], version: int) -> None:
        """Add what later versions have besides; nothing that is there changes."""
        if version < len(schemas):
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {';'.join(schemas[version:])}; PRAGMA user_version = {len(schemas)}; COMMIT;"
            )

    def _check_log(self) -> None:
        """Also moves the log into the file, so that the next write starts a new generation of the log."""
        _busy, frames, _moved = self._pragma("wal_checkpoint(PASSIVE)")
        with disk_errors(self.path):
            lost = lost_commits(self.path, valid_frames=frames)
        if lost:
            raise DamagedDatabase(self.path, f"its write-ahead log has lost at least {lost} transactions")

    def _check(self, schemas: tuple[str, ...], always_checked: tuple[str, ...]) -> None:
        if _tables(self._connection) != _tables_of(";".join(schemas)):
            raise DamagedDatabase(self.path, "its list of tables was overwritten")
        whole = self.path.stat().st_size <= FULL_CHECK_BYTES_MAX
        for argument in ("",) if whole else tuple(f"('{table}')" for table in always_checked):
            (finding,) = self._pragma(f"quick_check{argument}")
            if finding != "ok":
                raise DamagedDatabase(self.path, " ".join(str(finding).split()))
        if self._pragma("application_id") != (APPLICATION_ID,):
            raise DamagedDatabase(self.path, "it is not a database of aicp-node, or its header was overwritten")

    def _pragma(self, statement: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(f"PRAGMA {statement}").fetchone()
        return row or ()

    def _execute(self, statement: str, columns: tuple[Column, ...] = ()) -> sqlite3.Cursor:
        if self._broken is not None:
            raise self._broken
        try:
            return self._connection.execute(statement, columns)
        except SQLITE_ERRORS as error:
            raise self._fault(error) from error

    def _commit(self) -> None:
        try:
            self._execute("COMMIT").close()
        except UserError:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Undo what is left of a transaction; SQLite has undone it already after some errors."""
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except SQLITE_ERRORS as error:
                self._broken = self._fault(error)

    def _fault(self, error: Exception) -> UserError:
        fault = database_fault(self.path, error)
        if isinstance(fault, StorageFailed | DamagedDatabase) and not _is_busy(error):
            self._broken = fault
        return fault


def _text(raw: bytes) -> str:
    """Damaged text is still returned, so that its checksum can tell."""
    return raw.decode("utf-8", errors="surrogateescape")


def _tables(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _tables_of(schema: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema)
        return _tables(connection)


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

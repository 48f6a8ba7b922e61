"""What can go wrong with a disk, in words that say what to do.

A full disk is an ordinary day: the transaction is undone, the node says so, and goes on once there is space. A damaged
database is not: votes may be lost, and a member that has forgotten its votes must not vote as if it had cast none.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aicpnode.errors import AicpError, UserError

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""All that a damaged file makes SQLite raise: also messages that quote a damaged name, and impossible lengths."""
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH)
NEARLY_FULL_BYTES = 128 << 10
"""SQLite reports some full disks as I/O errors; with less than this left, full is what they mean."""


class StorageFull(UserError):
    """No space left where the node keeps its data. Nothing of the failed write remains."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"The disk that holds {path} is full.",
            advice="Free some space there, or stop the node and move its data folder to a larger disk (--data-dir). "
            "Nothing was lost: what could not be stored was not sent either.",
        )


class DamagedDatabase(UserError):
    """The database does not hold what this node wrote into it. ``detail`` says what was noticed."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"The database {path} is damaged ({detail}).",
            advice=f"Stop the node and move {path.name}, {path.name}-wal and {path.name}-shm out of that folder; leave "
            "the key file and the blobs. The node then rejoins by replaying the ledger from its peers, and votes again "
            "only once it cannot contradict votes that it has forgotten. Do not restore an older copy of the database: "
            "the node would vote twice and be banned. Then check the disk.",
        )
        self.detail = detail


class StorageFailed(UserError):
    """The disk or its permissions are at fault, not the content. ``detail`` is the system's own message."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"{path} cannot be used ({detail}).",
            advice="Check that the folder exists on a local disk, belongs to the user who runs the node, and that no "
            "other program has the database open; then look for disk errors in the system's log (dmesg).",
        )
        self.detail = detail


class DamagedBlob(UserError):
    """A stored blob does not have the content that its name promises."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"The file {path} is damaged: its content does not match its name.",
            advice="Delete it: the node fetches it again from its peers. Then check the disk.",
        )
        self.path = path


class MissingBlob(AicpError, LookupError):
    """This node does not hold the blob; peers may."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(f"no blob {digest.hex()}")
        self.digest = digest


class SlotConflict(AssertionError):
    """Our own fault: another content for a slot that this node has filled already, such as a second vote.

    What stands in the slot was, or may have been, sent; contradicting it would be equivocation.
    """


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Operating system errors on ``path`` as StorageFull or StorageFailed."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise StorageFull(path) from error
        raise StorageFailed(path, error.strerror or str(error)) from error


def database_fault(path: Path, error: Exception, *, opening: bool = False) -> UserError:
    """The user's error behind one of SQLITE_ERRORS. A programming error is not one: it is raised as an assertion.

    While opening, a statement that SQLite does not understand means a file that it does not understand.
    """
    if isinstance(error, UnicodeDecodeError):
        return DamagedDatabase(path, "unreadable names of tables")
    if isinstance(error, MemoryError):
        return DamagedDatabase(path, "a length in it is impossible, or this machine is out of memory")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in DAMAGE_CODES or (opening and code == sqlite3.SQLITE_ERROR):
        return DamagedDatabase(path, str(error))
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(path)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return StorageFull(path) if _nearly_full(path.parent) else StorageFailed(path, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StorageFailed(path, str(error))
    raise AssertionError(f"SQLite refused our own statement: {error}") from error


def _nearly_full(directory: Path) -> bool:
    try:
        status = os.statvfs(directory)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < NEARLY_FULL_BYTES


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable: a new file is lost in a power cut without this."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A really full file system: what was acknowledged stays, what was not leaves nothing, and the node goes on afterwards.

Needs a small file system of its own: root may mount one in memory. Elsewhere SQLite's own page limit and a limit on the
size of files stand in for it.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aicpnode.errors import UserError
from aicpnode.identity import Identity
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import FILE_NAME, Database
from aicpnode.storage.faults import StorageFull, disk_errors
from aicpnode.storage.lock import DataDirLock

DISK_BYTES = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small file system")
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    filler = disk / "filler"
    status = os.statvfs(disk)
    size = status.f_bavail * status.f_frsize - leave_bytes
    with filler.open("wb", buffering=0) as file:
        try:
            file.write(bytes(max(0, size)))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


def test_full_disk_stops_the_write_and_nothing_else(small_disk: Path) -> None:
    acknowledged = 0
    with Database.open(small_disk / "data") as database:
        for height in range(1, 1000):
            try:
                with database.transaction():
                    database.put_decision(height, height.to_bytes(32, "big"), bytes([height % 256]) * 3000, b"c")
                    database.put_vote(6, height, 0, b"vote")
            except StorageFull as full:
                assert "Free some space" in full.advice
                break
            acknowledged = height
        assert 10 < acknowledged < 999
        assert database.head() == acknowledged
        assert database.votes(acknowledged + 1) == []
        with pytest.raises(StorageFull):
            database.put_vote(6, acknowledged + 1, 0, bytes(200_000))
        assert database.votes(acknowledged) == [b"vote"]
    subprocess.run(["mount", "-o", f"remount,size={2 * DISK_BYTES}", str(small_disk)], check=True)
    with Database.open(small_disk / "data") as database:
        assert database.head() == acknowledged
        for height in range(1, acknowledged + 1):
            assert database.decision(height) == (bytes([height % 256]) * 3000, b"c")
            assert database.votes(height) == [b"vote"]


def test_node_goes_on_once_there_is_space(small_disk: Path) -> None:
    with Database.open(small_disk / "data") as database:
        database.set_meta("a", b"1")
        filler = fill(small_disk)
        refused = False
        for number in range(200):
            try:
                database.put_vote(6, number, 0, bytes(4000))
            except StorageFull:
                refused = True
                break
        assert refused
        filler.unlink()
        database.put_vote(6, 500, 0, b"later")
        assert database.votes(500) == [b"later"]
    with Database.open(small_disk / "data") as database:
        assert database.votes(500) == [b"later"]
        assert database.get_meta("a") == b"1"


@pytest.mark.parametrize("leave_bytes", range(0, 140_000, 4096))
def test_opening_on_a_full_disk_says_so_or_works(small_disk: Path, leave_bytes: int) -> None:
    (small_disk / "data").mkdir()
    filler = fill(small_disk, leave_bytes=leave_bytes)
    with suppress(StorageFull), Database.open(small_disk / "data") as database:
        database.set_meta("a", b"1")
    filler.unlink()
    with Database.open(small_disk / "data") as database:
        assert database.get_meta("a") in (None, b"1")
        database.set_meta("a", b"2")


def test_blob_that_does_not_fit_leaves_nothing(small_disk: Path) -> None:
    with Blobs.open(small_disk / "blobs") as blobs:
        small = blobs.put(b"small")
        with pytest.raises(StorageFull):
            blobs.put(bytes(2 * DISK_BYTES))
        assert list(blobs.digests()) == [small]
        assert list((small_disk / "blobs" / "unfinished").iterdir()) == []
        fitting = blobs.put(bytes(DISK_BYTES // 2))
        assert set(blobs.digests()) == {small, fitting}


def test_key_and_lock_on_a_full_disk_say_so(small_disk: Path) -> None:
    (small_disk / "data").mkdir()
    fill(small_disk)
    with pytest.raises(UserError, match="No space left"):
        Identity.generate().save(small_disk / "data" / "key")
    with pytest.raises(StorageFull):
        DataDirLock(small_disk / "data")
    assert not (small_disk / "data" / "key").exists()


def test_sqlites_own_limit_is_reported_as_full(tmp_path: Path) -> None:
    with Database.open(tmp_path) as database:
        database.put_vote(6, 1, 0, b"before")
        database._connection._pragma("max_page_count = 40")
        with pytest.raises(StorageFull) as caught, database.transaction():
            database.put_vote(6, 2, 0, b"in the same transaction")
            database.put_decision(1, bytes(32), bytes(200_000), b"")
        assert FILE_NAME in caught.value.message
        assert database.votes(2) == []
        assert database.head() == 0
        database.put_vote(6, 2, 0, b"after")
        assert database.votes(2) == [b"after"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_and_quota_are_the_same_error(tmp_path: Path, code: int) -> None:
    def write() -> None:
        with disk_errors(tmp_path):
            raise OSError(code, os.strerror(code))

    with pytest.raises(StorageFull):
        write()

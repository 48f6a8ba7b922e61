"""Blobs are complete, checked, and bounded in memory."""

from __future__ import annotations

import hashlib
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from aicpnode.storage import blobs as blobs_module
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.faults import DamagedBlob, MissingBlob, StorageFailed, StorageFull

ABSENT = bytes(32)


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    with Blobs.open(tmp_path / "blobs") as opened:
        yield opened


def file_of(blobs: Blobs, digest: bytes) -> Path:
    return blobs.directory / digest.hex()[:2] / digest.hex()


@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256)) * 1000], ids=["empty", "short", "long"])
def test_content_comes_back_by_its_hash(blobs: Blobs, content: bytes) -> None:
    digest = blobs.put(content)
    assert digest == hashlib.sha256(content).digest()
    assert blobs.put(memoryview(bytearray(content))) == digest
    assert blobs.has(digest)
    assert blobs.size(digest) == len(content)
    assert blobs.get(digest) == content
    assert list(blobs.digests()) == [digest]
    with blobs.open_map(digest) as view:
        assert view == content
        assert view.readonly
    assert blobs.read(digest, 0, 1 << 20) == content
    assert blobs.read(digest, len(content), 5) == b""


def test_piece_is_read_without_the_rest(blobs: Blobs) -> None:
    digest = blobs.put(bytes(range(100)))
    assert blobs.read(digest, 10, 5) == bytes([10, 11, 12, 13, 14])
    assert blobs.read(digest, 98, 5) == bytes([98, 99])
    assert blobs.read(digest, 1000, 5) == b""


def test_missing_blob_is_told_apart(blobs: Blobs) -> None:
    assert not blobs.has(ABSENT)
    blobs.delete(ABSENT)
    for attempt in (blobs.get, blobs.size, blobs.open_map, lambda digest: blobs.read(digest, 0, 1)):
        with pytest.raises(MissingBlob) as caught:
            attempt(ABSENT)
        assert caught.value.digest == ABSENT


def test_deleted_blob_is_gone(blobs: Blobs) -> None:
    first, second = blobs.put(b"first"), blobs.put(b"second")
    blobs.delete(first)
    assert not blobs.has(first)
    assert list(blobs.digests()) == [second]


@pytest.mark.parametrize("damage", [b"", b"hellp", b"hello ", b"hell"])
def test_damaged_blob_is_noticed_and_mended_by_putting_it_again(blobs: Blobs, damage: bytes) -> None:
    digest = blobs.put(b"hello")
    file_of(blobs, digest).write_bytes(damage)
    with pytest.raises(DamagedBlob) as caught:
        blobs.get(digest)
    assert caught.value.path == file_of(blobs, digest)
    assert "fetches it again" in caught.value.advice
    with pytest.raises(DamagedBlob):
        blobs.open_map(digest)
    assert blobs.put(b"hello") == digest
    assert blobs.get(digest) == b"hello"


def test_every_flipped_bit_is_noticed(blobs: Blobs) -> None:
    content = bytes(range(64))
    digest = blobs.put(content)
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        file_of(blobs, digest).write_bytes(damaged)
        with pytest.raises(DamagedBlob):
            blobs.get(digest)


def test_unfinished_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    with Blobs.open(tmp_path / "blobs") as blobs:
        kept = blobs.put(b"kept")
        (blobs.directory / "unfinished" / "0123.abcd").write_bytes(b"half")
    with Blobs.open(tmp_path / "blobs") as blobs:
        assert list((blobs.directory / "unfinished").iterdir()) == []
        assert list(blobs.digests()) == [kept]


def test_readers_leave_alone_what_the_owner_writes(tmp_path: Path) -> None:
    """Of a folder that another process uses: its unfinished files are its own, and a missing folder stays missing."""
    with Blobs.open(tmp_path / "blobs") as owner:
        kept = owner.put(b"kept")
        half = owner.directory / "unfinished" / "0123.abcd"
        half.write_bytes(b"half")
        with Blobs(owner.directory) as reader:
            assert reader.get(kept) == b"kept"
            assert reader.has(kept)
            assert not reader.has(ABSENT)
        assert half.read_bytes() == b"half"
    with Blobs(tmp_path / "none") as reader, pytest.raises(MissingBlob):
        reader.get(ABSENT)
    assert not (tmp_path / "none").exists()


def test_file_is_synced_before_its_name_and_the_folder_after(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name.partition('.')[0]}")
        fsync(descriptor)

    def recorded_replace(source: Path, target: Path) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(blobs_module.os, "fsync", recorded_fsync)
    monkeypatch.setattr(blobs_module.os, "replace", recorded_replace)
    name = blobs.put(b"content").hex()
    assert steps == [f"sync {name}", "sync blobs", "rename", f"sync {name[:2]}"]


def test_failed_write_leaves_no_trace(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs_module.os, "fsync", no_space)
    with pytest.raises(StorageFull):
        blobs.put(b"content")
    assert list(blobs.digests()) == []
    assert list((blobs.directory / "unfinished").iterdir()) == []


def test_folder_that_cannot_be_used_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        Blobs.open(tmp_path / "file")


def test_large_content_is_neither_copied_to_write_nor_to_map(blobs: Blobs) -> None:
    content = bytes(32 << 20)
    tracemalloc.start()
    try:
        digest = blobs.put(content)
        blobs.open_map(digest).release()
        blobs.put(content)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_map_outlives_deletion_and_close(tmp_path: Path) -> None:
    with Blobs.open(tmp_path / "blobs") as blobs:
        digest = blobs.put(b"content")
        view = blobs.open_map(digest)
        blobs.delete(digest)
    assert view == b"content"
    view.release()


def test_closed_blobs_are_not_used(tmp_path: Path) -> None:
    blobs = Blobs.open(tmp_path / "blobs")
    blobs.close()
    blobs.close()
    with pytest.raises(AssertionError, match="after close"):
        blobs.put(b"a")
    with pytest.raises(AssertionError, match="after close"):
        blobs.has(ABSENT)


def test_threads_may_put_the_same_and_other_blobs(blobs: Blobs) -> None:
    start = threading.Barrier(6)
    done: list[bytes] = []

    def put(thread: int) -> None:
        start.wait()
        for number in range(30):
            done.append(blobs.put(b"common %d" % number))
            done.append(blobs.put(b"own %d %d" % (thread, number)))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 6 * 30 * 2
    assert len(set(blobs.digests())) == 30 + 6 * 30
    assert all(hashlib.sha256(blobs.get(digest)).digest() == digest for digest in blobs.digests())

"""Bytes by their SHA-256: gradient packages, residuals, model snapshots, data shards.

A blob is complete or absent: it is written beside, synced, renamed, and the folder is synced, so that a row of the
database may refer to it afterwards. Reading checks the content against the name. Blobs may be large: writing copies
nothing, and reading can map the file or take a piece of it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from aicpnode.storage.faults import DamagedBlob, MissingBlob, disk_errors, sync_directory

DIGEST_BYTES = 32
MAX_BLOB_BYTES = 1 << 30
"""``get`` refuses to bring more than this into memory; ``open_map`` and ``read`` have no such bound."""
UNFINISHED = "unfinished"


class Blobs:
    """A folder of content-addressed files, ``ab/abcdef...`` in hex. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        """To read what is in ``directory``, which another process may be writing to. Changes nothing there."""
        self.directory = directory
        self._unfinished = directory / UNFINISHED
        self._closed = False
        self._making_folder = threading.Lock()

    @classmethod
    def open(cls, directory: Path) -> Self:
        """As the only process that writes there: make the folder, and remove what a crash left unfinished.

        Raises StorageFull or StorageFailed.
        """
        blobs = cls(directory)
        with disk_errors(directory):
            blobs._unfinished.mkdir(parents=True, exist_ok=True, mode=0o700)
            for leftover in blobs._unfinished.iterdir():
                leftover.unlink()
            sync_directory(directory)
            sync_directory(directory.parent)
        return blobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No use after this. Maps that were handed out stay valid until they are released."""
        self._closed = True

    def put(self, data: bytes | memoryview) -> bytes:
        """Store ``data`` durably and return its SHA-256. Storing it again is harmless, and mends a damaged copy.

        Raises StorageFull or StorageFailed; nothing remains then.
        """
        assert not self._closed, "blobs are not used after close"
        name = hashlib.sha256(data).digest()
        path = self._path(name)
        with disk_errors(path):
            if path.exists() and _file_digest(path) == name:
                sync_directory(path.parent)  # another thread may have renamed it a moment ago
            else:
                self._write(path, data)
        return name

    def get(self, digest: bytes) -> bytes:
        """The content, checked against its name. Raises MissingBlob, DamagedBlob or StorageFailed."""
        path = self._path(digest)
        size = self.size(digest)
        assert size <= MAX_BLOB_BYTES, "a blob as large as this is mapped, not read"
        with _reading(digest, path):
            content = path.read_bytes()
        if hashlib.sha256(content).digest() != digest:
            raise DamagedBlob(path)
        return content

    def open_map(self, digest: bytes) -> memoryview:
        """The content as read-only mapped memory, checked once, here. ``release()`` it or let it go to unmap.

        Raises MissingBlob, DamagedBlob or StorageFailed.
        """
        path = self._path(digest)
        if self.size(digest) == 0:
            return memoryview(self.get(digest))
        with _reading(digest, path), path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if hashlib.sha256(view).digest() != digest:
            view.release()
            raise DamagedBlob(path)
        return view

    def read(self, digest: bytes, offset: int, length: int) -> bytes:
        """A piece of the content for a peer that asked for it, shorter at the end. NOT checked: the peer checks.

        Raises MissingBlob or StorageFailed.
        """
        path = self._path(digest)
        with _reading(digest, path), path.open("rb") as file:
            return os.pread(file.fileno(), length, offset)

    def has(self, digest: bytes) -> bool:
        """True iff the blob is stored; its content is not checked."""
        return self._path(digest).is_file()

    def size(self, digest: bytes) -> int:
        """Bytes. Raises MissingBlob."""
        path = self._path(digest)
        with _reading(digest, path):
            return path.stat().st_size

    def delete(self, digest: bytes) -> None:
        """Remove the blob; harmless if it is absent."""
        path = self._path(digest)
        with disk_errors(path):
            path.unlink(missing_ok=True)

    def digests(self) -> Iterator[bytes]:
        """The names of all blobs, ordered within a folder listing that is bounded to 1/256 of them."""
        for shard in sorted(self.directory.glob("[0-9a-f][0-9a-f]")):
            for name in sorted(os.listdir(shard)):
                if len(name) == 2 * DIGEST_BYTES:
                    yield bytes.fromhex(name)

    def _path(self, digest: bytes) -> Path:
        assert not self._closed, "blobs are not used after close"
        assert len(digest) == DIGEST_BYTES, "a blob is named by 32 bytes"
        name = digest.hex()
        return self.directory / name[:2] / name

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        temporary = self._unfinished / f"{path.name}.{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with self._making_folder:
                if not path.parent.exists():
                    path.parent.mkdir(mode=0o700)
                    sync_directory(self.directory)
            os.replace(temporary, path)
            sync_directory(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def _reading(digest: bytes, path: Path) -> Iterator[None]:
    with disk_errors(path):
        try:
            yield
        except FileNotFoundError:
            raise MissingBlob(digest) from None

"""One process per data folder: two that share a key would vote twice.

The kernel holds the lock and drops it when the process ends, however it ends; the number in the file only serves to
name the holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from aicpnode.errors import UserError
from aicpnode.storage.faults import StorageFailed, disk_errors

FILE_NAME = "lock"
PID_BYTES_MAX = 20


class DataDirLocked(UserError):
    """Another process uses the data folder. ``pid`` is its number, if it could be read."""

    def __init__(self, data_dir: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"The data folder {data_dir} is in use by {holder}.",
            advice="Stop that node first, or start this one with another --data-dir or --node-id.",
        )
        self.pid = pid


class DataDirLock:
    """Holds the lock from construction until ``close()`` or the end of the ``with`` block."""

    def __init__(self, data_dir: Path) -> None:
        """Take the lock, making the folder (mode 700) if it is missing. Raises DataDirLocked, StorageFull or
        StorageFailed."""
        self.path = data_dir / FILE_NAME
        with disk_errors(self.path):
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._acquire(data_dir)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back; harmless when done already. The file stays: removing it would race with the next one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self, data_dir: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DataDirLocked(data_dir, self._holder()) from None
            raise StorageFailed(self.path, f"this file system cannot lock files: {error.strerror}") from error
        with disk_errors(self.path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _holder(self) -> int | None:
        text = os.pread(self._descriptor, PID_BYTES_MAX, 0).strip()
        return int(text) if text.isdigit() else None

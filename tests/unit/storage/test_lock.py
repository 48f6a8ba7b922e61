"""One process per data folder, and the other one is named."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aicpnode.storage.faults import StorageFailed
from aicpnode.storage.lock import DataDirLock, DataDirLocked

HOLDER = """
import sys
from pathlib import Path
from aicpnode.storage.lock import DataDirLock
with DataDirLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_makes_a_private_folder_and_is_free_after_closing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with DataDirLock(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"
    with DataDirLock(folder) as lock:
        lock.close()
        lock.close()
        with DataDirLock(folder):
            pass


def test_second_lock_of_this_process_is_refused(tmp_path: Path) -> None:
    with DataDirLock(tmp_path), pytest.raises(DataDirLocked) as caught:
        DataDirLock(tmp_path)
    assert caught.value.pid == os.getpid()


def test_other_process_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataDirLocked, match=f"process {holder.pid}") as caught:
            DataDirLock(tmp_path)
        assert "--data-dir" in caught.value.advice
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with DataDirLock(tmp_path):
            pass


def test_holder_without_a_readable_number_is_still_refused(tmp_path: Path) -> None:
    with DataDirLock(tmp_path):
        (tmp_path / "lock").write_text("?")
        with pytest.raises(DataDirLocked, match="another process"):
            DataDirLock(tmp_path)


def test_folder_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        DataDirLock(tmp_path / "file" / "data")

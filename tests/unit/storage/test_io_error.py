"""A disk that fails a write: the connection refuses everything afterwards, and what was acknowledged is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aicpnode.storage.database import Database

WRITER = """
import resource
import signal
import sys
from pathlib import Path
from aicpnode.storage.database import Database
from aicpnode.storage.faults import StorageFailed

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
database = Database.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # the system now fails writes beyond this
height = 0
try:
    while True:
        height += 1
        database.put_vote(6, height, 0, bytes(3000))
        print(height, flush=True)
except StorageFailed as failed:
    assert "dmesg" in failed.advice
for attempt in (lambda: database.put_vote(6, 1, 0, bytes(3000)), lambda: database.votes(1), database.head):
    try:
        attempt()
    except StorageFailed:
        print("refused", flush=True)
"""


def test_failed_write_ends_the_connection_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.split()
    assert lines[-3:] == ["refused"] * 3
    acknowledged = [int(line) for line in lines[:-3]]
    assert len(acknowledged) > 10
    with Database.open(tmp_path) as database:
        assert all(database.votes(height) == [bytes(3000)] for height in acknowledged)
        assert database.votes(len(acknowledged) + 1) == []

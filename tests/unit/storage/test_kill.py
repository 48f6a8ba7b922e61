"""SIGKILL at random moments: everything that was acknowledged is there, and nothing is half there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.lock import DataDirLock

KILLS = 20
WRITER = """
import sys
from pathlib import Path
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.lock import DataDirLock

directory = Path(sys.argv[1])
with DataDirLock(directory), Database.open(directory) as database, Blobs.open(directory / "blobs") as blobs:
    height = database.head()
    while True:
        height += 1
        name = height.to_bytes(32, "big")
        snapshot = blobs.put(name * 300)
        with database.transaction():
            database.put_vote(6, height, 0, b"vote" + name)
            database.put_safety(b"lock" + name)
            database.put_decision(height, name, name * 50, b"certificate")
            database.put_applied(height, height, name, name, snapshot)
        print(height, flush=True)
"""


def check(directory: Path, acknowledged: int) -> int:
    """Reopen as a restarted node does; returns the head."""
    with DataDirLock(directory), Database.open(directory) as database, Blobs.open(directory / "blobs") as blobs:
        head = database.head()
        assert head >= acknowledged
        decisions = database.decisions(1, 1 << 30)
        assert [height for height, _, _ in decisions] == list(range(1, head + 1))
        for height, block, _ in decisions:
            name = height.to_bytes(32, "big")
            assert block == name * 50
            assert database.votes(height) == [b"vote" + name]
        assert database.votes(head + 1) == []
        if head:
            assert database.safety() == b"lock" + head.to_bytes(32, "big")
        for state in database.snapshots():
            assert state.snapshot is not None
            assert blobs.get(state.snapshot) == state.height.to_bytes(32, "big") * 300
        assert list((directory / "blobs" / "unfinished").iterdir()) == []
        return head


def test_case_C03_everything_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    dice = random.Random(7)
    head = 0
    for _ in range(KILLS):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged = head
        for _ in range(dice.randrange(1, 25)):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split("\n")
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        head = check(tmp_path, acknowledged)
    assert head > KILLS

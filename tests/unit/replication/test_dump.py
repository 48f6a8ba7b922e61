"""Folders for developers: complete, few, and never half written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aicpnode.replication.dump import DUMPS_KEPT, write_dump
from aicpnode.storage.faults import StorageFailed


def dump(folder: Path, height: int, snapshot: bytes = b"model") -> Path:
    path = write_dump(
        folder, height, facts={"height": height}, ledger=b"ledger", snapshot=snapshot, blocks=[(7, b"block", b"cert")]
    )
    os.utime(path, ns=(height, height))
    return path


def test_dump_holds_what_a_developer_needs(tmp_path: Path) -> None:
    path = dump(tmp_path, 12)
    assert path == tmp_path / "diverged-12"
    assert json.loads((path / "facts.json").read_text()) == {"height": 12}
    found = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix != ".json"}
    assert found == {
        "ledger.msgpack": b"ledger",
        "snapshot.bin": b"model",
        "block-7.msgpack": b"block",
        "certificate-7.msgpack": b"cert",
    }


def test_only_the_last_dumps_are_kept(tmp_path: Path) -> None:
    for height in range(1, DUMPS_KEPT + 4):
        dump(tmp_path, height)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diverged-4", "diverged-5", "diverged-6"]


def test_second_dump_of_a_height_replaces_the_first(tmp_path: Path) -> None:
    dump(tmp_path, 5)
    (tmp_path / ".diverged-5").mkdir()  # left by a crash
    dump(tmp_path, 5, b"another")
    assert [path.name for path in tmp_path.iterdir()] == ["diverged-5"]
    assert (tmp_path / "diverged-5" / "snapshot.bin").read_bytes() == b"another"


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        dump(tmp_path / "missing", 5)

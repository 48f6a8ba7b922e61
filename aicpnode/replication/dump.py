"""What a developer needs of a node whose state went astray, in a folder of its own (specification, section 8).

``diverged-HEIGHT/`` holds the facts as JSON, the ledger's state, the application's snapshot and the last blocks, all as
they are on this node. The last few such folders are kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from aicpnode.storage.faults import disk_errors

PREFIX = "diverged-"
DUMPS_KEPT = 3
BLOCKS_DUMPED = 16


def write_dump(
    folder: Path,
    height: int,
    *,
    facts: dict[str, object],
    ledger: bytes,
    snapshot: bytes,
    blocks: Sequence[tuple[int, bytes, bytes]],
) -> Path:
    """Write ``folder/diverged-HEIGHT``, replacing an earlier one of that height. Raises StorageFull, StorageFailed.

    ``blocks`` are (height, block, certificate).
    """
    path, unfinished = folder / f"{PREFIX}{height}", folder / f".{PREFIX}{height}"
    with disk_errors(folder):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        (unfinished / "facts.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        (unfinished / "ledger.msgpack").write_bytes(ledger)
        (unfinished / "snapshot.bin").write_bytes(snapshot)
        for number, block, certificate in blocks:
            (unfinished / f"block-{number}.msgpack").write_bytes(block)
            (unfinished / f"certificate-{number}.msgpack").write_bytes(certificate)
        shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)
        for old in _dumps(folder)[:-DUMPS_KEPT]:
            shutil.rmtree(old)
    return path


def _dumps(folder: Path) -> list[Path]:
    """Oldest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))

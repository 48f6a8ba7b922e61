"""Was the write-ahead log damaged after it was written?

SQLite reads its log up to the first frame whose checksum fails and takes what follows for the remains of a write that a
crash interrupted. That is right for one transaction, since every commit here is synced before the next one starts. If
commits of several transactions stand behind the bad frame, the disk has lost what this node had already relied on
(votes that were sent), and going on would be forgetting them.

The file format is that of https://www.sqlite.org/fileformat2.html, section 4. Damage to the last transaction
alone, or to the mark that ends the one before it, cannot be told apart from a crash.
"""

from __future__ import annotations

import struct
from pathlib import Path

WAL_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
PAGE_BYTES_DEFAULT = 4096
PAGE_BYTES_MIN = 512
PAGE_BYTES_MAX = 65536
INTERRUPTED_COMMITS_MAX = 1
"""A crash can leave this many unfinished transactions behind the valid frames."""


def lost_commits(database: Path, *, valid_frames: int) -> int:
    """How many transactions of the log are certainly lost; 0 for a log that a crash explains. Raises OSError.

    ``valid_frames`` is the number of frames that SQLite accepted (``PRAGMA wal_checkpoint`` reports it).
    """
    log = database.with_name(database.name + "-wal")
    if not log.exists():
        return 0
    behind = 0
    with log.open("rb") as file:
        header = file.read(WAL_HEADER_BYTES)
        if len(header) < WAL_HEADER_BYTES:
            return 0
        page_bytes: int = struct.unpack_from(">I", header, 8)[0]
        plausible = page_bytes.bit_count() == 1 and PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX
        frame_bytes = FRAME_HEADER_BYTES + (page_bytes if plausible else PAGE_BYTES_DEFAULT)
        # With frames accepted the log's header is sound and names this generation of the log; older frames have other
        # salts. With none accepted the header itself may be what is damaged: then the first frame names it.
        salts = header[16:24] if valid_frames > 0 else b""
        file.seek(WAL_HEADER_BYTES + max(valid_frames, 0) * frame_bytes)
        while len(frame := file.read(FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
            salts = salts or frame[8:16]
            pages_after_commit: int = struct.unpack_from(">I", frame, 4)[0]
            if frame[8:16] == salts and pages_after_commit > 0:
                behind += 1
            file.seek(frame_bytes - FRAME_HEADER_BYTES, 1)
    return max(0, behind - INTERRUPTED_COMMITS_MAX)

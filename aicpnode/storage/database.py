"""What a node must not forget, as tables.

Every method that writes returns only when the bytes are on the disk, or, inside ``transaction()``, when the block ends:
persist first, then send. A slot that was filled keeps its content: the same bytes again are welcome (a crash repeats
the last step), other bytes are our own fault and stop the node before it contradicts itself.

The rows and their checksums are in ``rows``, what speaks of heights without blocks in ``history``; the rest is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aicpnode.storage.connection import Connection
from aicpnode.storage.faults import DamagedDatabase, SlotConflict
from aicpnode.storage.history import HISTORY_SCHEMA, History
from aicpnode.storage.rows import MAX_ROWS

FILE_NAME = "node.sqlite"
MAX_PEERS = 1000

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB, checksum BLOB) WITHOUT ROWID;
CREATE TABLE votes (height INTEGER, kind INTEGER, view INTEGER, raw BLOB, checksum BLOB,
                    PRIMARY KEY (height, kind, view)) WITHOUT ROWID;
CREATE TABLE blocks (height INTEGER, block_id BLOB, raw BLOB, checksum BLOB,
                     PRIMARY KEY (height, block_id)) WITHOUT ROWID;
CREATE TABLE safety (slot INTEGER PRIMARY KEY, raw BLOB, checksum BLOB);
CREATE TABLE ledger (height INTEGER PRIMARY KEY, block_id BLOB, block BLOB, certificate BLOB, checksum BLOB);
CREATE TABLE applied (height INTEGER PRIMARY KEY, round INTEGER, state_hash BLOB, model_hash BLOB, snapshot BLOB,
                      checksum BLOB);
CREATE TABLE proposals (round INTEGER PRIMARY KEY, grad BLOB, package_digest BLOB, residual_digest BLOB, checksum BLOB);
CREATE TABLE evidence (key BLOB PRIMARY KEY, a BLOB, b BLOB, checksum BLOB) WITHOUT ROWID;
CREATE TABLE round_metrics (round INTEGER PRIMARY KEY, metrics TEXT, checksum BLOB);
CREATE TABLE peers (key BLOB PRIMARY KEY, address TEXT, last_seen_unix INTEGER, score INTEGER, checksum BLOB)
    WITHOUT ROWID
"""
PREPARES_SCHEMA = "CREATE TABLE prepares (height INTEGER PRIMARY KEY, raw BLOB, checksum BLOB)"
SCHEMAS = (SCHEMA, PREPARES_SCHEMA, HISTORY_SCHEMA)
"""By version: each adds to the one before."""
ALWAYS_CHECKED = ("meta", "votes", "safety", "applied", "proposals")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The state after a block: hashes of 32 bytes; ``snapshot`` is the digest of a blob, if one was taken there."""

    height: int
    round: int
    state_hash: bytes
    model_hash: bytes
    snapshot: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProposal:
    """This node's own proposal of a round: its GRAD Envelop and the blobs of its package and of the residual after."""

    round: int
    grad: bytes
    package_digest: bytes
    residual_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPeer:
    """A peer that this node was connected to. ``last_seen_unix`` in seconds; ``score`` as of then."""

    key: bytes
    address: str
    last_seen_unix: int
    score: int


class Database(History):
    """The node's durable private state. ``open`` it once per data folder, under the folder's lock."""

    @classmethod
    def open(cls, data_dir: Path) -> Self:
        """Open or create ``data_dir/node.sqlite``. Raises DamagedDatabase, StorageFull or StorageFailed."""
        connection = Connection(data_dir / FILE_NAME, schemas=SCHEMAS, always_checked=ALWAYS_CHECKED)
        database = cls(connection)
        try:
            database._check_rows()
        except BaseException:
            connection.close()
            raise
        return database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless when closed already."""
        self._connection.close()

    def statistics(self) -> dict[str, int]:
        """``database_bytes`` and ``wal_bytes`` on the disk."""
        return self._connection.statistics()

    # Small facts by name.

    def get_meta(self, name: str) -> bytes | None:
        """The value of ``name``, or None."""
        rows = self._rows("meta", "WHERE name = ?", (name,))
        return rows[0][1] if rows else None

    def set_meta(self, name: str, value: bytes) -> None:
        """Set or replace the value of ``name``."""
        self._replace("meta", name, value)

    def forget_meta(self, name: str) -> None:
        """Harmless if it is not there."""
        self._connection.write("DELETE FROM meta WHERE name = ?", (name,))

    def meta_names(self, prefix: str) -> list[str]:
        """Names that begin with ``prefix``, at most MAX_ROWS."""
        rows = self._connection.query(
            "SELECT name FROM meta WHERE name >= ? AND name < ? ORDER BY name LIMIT ?",
            (prefix, prefix + "\U0010ffff", MAX_ROWS),
        )
        return [name for (name,) in rows]

    # Own signed messages, one per slot.

    def put_vote(self, kind: int, height: int, view: int, raw: bytes) -> None:
        """Fill the slot (height, kind, view) with the Envelop's bytes. SlotConflict if it holds others.

        Own GRADs stand among the proposals instead: their height is a round.
        """
        self._fill("votes", "height = ? AND kind = ? AND view = ?", (height, kind, view), (raw,))

    def votes(self, height: int) -> list[bytes]:
        """Own messages of a height, ordered by kind and view."""
        return [row[3] for row in self._rows("votes", "WHERE height = ? ORDER BY kind, view", (height,))]

    def prune_votes(self, below_height: int) -> None:
        """Forget the votes of decided heights: the ledger answers for those."""
        self._connection.write("DELETE FROM votes WHERE height < ?", (below_height,))

    # Blocks of the running height that a PREPARE was signed for, or that were fetched: undecided so far.

    def put_block(self, height: int, block_id: bytes, raw: bytes) -> None:
        """Keep a block that may be decided; a block's id names its bytes, so writing it again changes nothing."""
        self._replace("blocks", height, block_id, raw)

    def blocks(self, height: int) -> list[bytes]:
        """The undecided blocks of a height."""
        return [
            row[2] for row in self._rows("blocks", "WHERE height = ? ORDER BY block_id LIMIT ?", (height, MAX_ROWS))
        ]

    def prune_blocks(self, below_height: int) -> None:
        """Forget undecided blocks of decided heights."""
        self._connection.write("DELETE FROM blocks WHERE height < ?", (below_height,))

    def put_safety(self, raw: bytes) -> None:
        """Replace the safety record (locks and valid values of the running height)."""
        self._replace("safety", 0, raw)

    def safety(self) -> bytes | None:
        """The latest safety record, or None."""
        rows = self._rows("safety", "WHERE slot = 0", ())
        return rows[0][1] if rows else None

    # The ledger.

    def put_decision(
        self, height: int, block_id: bytes, block: bytes, certificate: bytes, prepares: bytes = b""
    ) -> None:
        """Append a decided block. SlotConflict for another block at a height; AssertionError for a gap.

        Another certificate for the same block is as good as the first, which stays. ``prepares`` is what is known of
        the certificates behind it; empty if nothing is.
        """
        with self.transaction():
            rows = self._rows("ledger", "WHERE height = ?", (height,))
            if rows:
                if rows[0][1] != block_id:
                    raise SlotConflict(f"two blocks decided at height {height}")
                return
            head = self.head()
            assert height >= 1, "heights start at 1"
            assert head in (0, height - 1), f"block {height} decided on top of {head}"
            self._insert("ledger", height, block_id, block, certificate)
            if prepares:
                self._insert("prepares", height, prepares)

    def decision(self, height: int) -> tuple[bytes, bytes] | None:
        """(block, certificate) of a height, or None."""
        rows = self._rows("ledger", "WHERE height = ?", (height,))
        return (rows[0][2], rows[0][3]) if rows else None

    def prepares(self, height: int) -> bytes:
        """The PrepareCerts that were kept with a decision; empty if there are none."""
        rows = self._rows("prepares", "WHERE height = ?", (height,))
        return rows[0][1] if rows else b""

    def decisions(self, from_height: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        """(height, block, certificate) from ``from_height`` on, in order, while they fit into ``max_bytes``.

        The first one is returned whatever its size, so that whoever catches up always moves on.
        """
        found: list[tuple[int, bytes, bytes]] = []
        total_bytes = 0
        for height in range(from_height, from_height + MAX_ROWS):
            decision = self.decision(height)
            if decision is None:
                self._check_end(height)
                break
            total_bytes += len(decision[0]) + len(decision[1])
            if found and total_bytes > max_bytes:
                break
            found.append((height, *decision))
        return found

    def head(self) -> int:
        """The height of the last decided block, or of the base if that is higher; 0 if there is neither."""
        rows = self._rows("ledger", "ORDER BY height DESC LIMIT 1", ())
        return max(rows[0][0] if rows else 0, self.base_height())

    # States that were reached.

    def put_applied(
        self, height: int, round: int, state_hash: bytes, model_hash: bytes, snapshot: bytes | None
    ) -> None:
        """Record the state after ``height``; a snapshot's blob must be stored before. SlotConflict for another state.

        A snapshot may be added later, by the same call with its digest.
        """
        with self.transaction():
            rows = self._rows("applied", "WHERE height = ?", (height,))
            if rows and rows[0][1:4] != (round, state_hash, model_hash):
                raise SlotConflict(f"two states after height {height}")
            kept = rows[0][4] if rows and snapshot is None else snapshot
            self._replace("applied", height, round, state_hash, model_hash, kept)

    def applied(self) -> Applied | None:
        """The latest state that was applied, or None."""
        rows = self._rows("applied", "ORDER BY height DESC LIMIT 1", ())
        return _applied(rows[0]) if rows else None

    def snapshots(self) -> list[Applied]:
        """The states whose snapshot is stored, newest first."""
        rows = self._rows("applied", "WHERE snapshot IS NOT NULL ORDER BY height DESC LIMIT ?", (MAX_ROWS,))
        return [_applied(row) for row in rows]

    def forget_snapshot(self, height: int) -> None:
        """The state stays on record, its snapshot does not; delete the blob afterwards."""
        with self.transaction():
            for row in self._rows("applied", "WHERE height = ?", (height,)):
                self._replace("applied", *row[:4], None)

    def forget_applied(self) -> list[bytes]:
        """Forget every state that was reached here, because another was taken over; the blobs of their snapshots."""
        with self.transaction():
            snapshots = [applied.snapshot for applied in self.snapshots() if applied.snapshot is not None]
            self._connection.write("DELETE FROM applied")
        return snapshots

    # Own gradient proposals.

    def put_proposal(self, round: int, grad: bytes, package_digest: bytes, residual_digest: bytes) -> None:
        """Fill the slot of a round; the blobs must be stored before. SlotConflict if it holds another proposal."""
        self._fill("proposals", "round = ?", (round,), (grad, package_digest, residual_digest))

    def proposal(self, round: int) -> StoredProposal | None:
        """Own proposal of a round, or None."""
        rows = self._rows("proposals", "WHERE round = ?", (round,))
        return _proposal(rows[0]) if rows else None

    def latest_proposal(self) -> StoredProposal | None:
        """Own proposal of the latest round that had one."""
        rows = self._rows("proposals", "ORDER BY round DESC LIMIT 1", ())
        return _proposal(rows[0]) if rows else None

    def prune_proposals(self, below_round: int) -> list[StoredProposal]:
        """Forget proposals of earlier rounds and return them, so that the caller can delete their blobs."""
        with self.transaction():
            rows = self._rows("proposals", "WHERE round < ? ORDER BY round LIMIT ?", (below_round, MAX_ROWS))
            for row in rows:
                self._connection.write("DELETE FROM proposals WHERE round = ?", (row[0],))
        return [_proposal(row) for row in rows]

    # Evidence, metrics, peers.

    def put_evidence(self, key: bytes, a: bytes, b: bytes) -> None:
        """Two contradicting Envelops of one signer. One pair per key suffices: the first stays."""
        with self.transaction():
            if not self._rows("evidence", "WHERE key = ?", (key,)):
                self._insert("evidence", key, a, b)

    def evidence(self) -> list[tuple[bytes, bytes, bytes]]:
        """(key, a, b), ordered by key."""
        return [row[:3] for row in self._rows("evidence", "ORDER BY key LIMIT ?", (MAX_ROWS,))]

    def put_round_metrics(self, round: int, metrics: str) -> None:
        """Set or replace the metrics of a round, one JSON object."""
        self._replace("round_metrics", round, metrics)

    def round_metrics(self, from_round: int) -> list[tuple[int, str]]:
        """(round, JSON) from a round on, in order, at most MAX_ROWS."""
        rows = self._rows("round_metrics", "WHERE round >= ? ORDER BY round LIMIT ?", (from_round, MAX_ROWS))
        return [row[:2] for row in rows]

    def put_peer(self, key: bytes, address: str, last_seen_unix: int, score: int) -> None:
        """Set or replace a peer; beyond MAX_PEERS the one unseen for longest is forgotten."""
        with self.transaction():
            self._replace("peers", key, address, last_seen_unix, score)
            self._connection.write(
                "DELETE FROM peers WHERE key IN "
                "(SELECT key FROM peers ORDER BY last_seen_unix DESC, key LIMIT -1 OFFSET ?)",
                (MAX_PEERS,),
            )

    def peers(self) -> list[StoredPeer]:
        """All stored peers, last seen first."""
        rows = self._rows("peers", "ORDER BY last_seen_unix DESC, key", ())
        return [StoredPeer(key=row[0], address=row[1], last_seen_unix=row[2], score=row[3]) for row in rows]

    # Checks.

    def _check_rows(self) -> None:
        """Read what decides about votes once, at the start: a row whose key was damaged would never be asked for."""
        for table in ALWAYS_CHECKED:
            order = "height DESC" if table == "applied" else "1"
            self._rows(table, f"ORDER BY {order} LIMIT ?", (MAX_ROWS,))

    def _check_end(self, missing_height: int) -> None:
        """A height may be missing before the first or after the last block, or below the base, not between them."""
        if missing_height <= self.base_height():
            return
        gap = "SELECT (SELECT min(height) FROM ledger) < ?1 AND ?1 < (SELECT max(height) FROM ledger)"
        if self._connection.query(gap, (missing_height,)) == [(1,)]:
            raise DamagedDatabase(self._connection.path, f"block {missing_height} is missing from the ledger")


def _applied(row: tuple[Any, ...]) -> Applied:
    return Applied(height=row[0], round=row[1], state_hash=row[2], model_hash=row[3], snapshot=row[4])


def _proposal(row: tuple[Any, ...]) -> StoredProposal:
    return StoredProposal(round=row[0], grad=row[1], package_digest=row[2], residual_digest=row[3])

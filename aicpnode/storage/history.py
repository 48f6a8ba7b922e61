"""What lets a node speak of heights whose blocks it does not have: certified headers, rosters, ledger states.

A node that took over a snapshot has no blocks between its old head and the snapshot's height, its *base*. It keeps the
headers and rosters that proved the snapshot, so that it can prove them to others, and derives the ledger from the state
at the base. Ledger states of its own snapshots are kept as long as those.
"""

from __future__ import annotations

from aicpnode.storage.rows import MAX_ROWS, Rows

HISTORY_SCHEMA = """
CREATE TABLE headers (height INTEGER PRIMARY KEY, header BLOB, certificate BLOB, checksum BLOB);
CREATE TABLE rosters (height INTEGER PRIMARY KEY, roster BLOB, checksum BLOB);
CREATE TABLE states (height INTEGER PRIMARY KEY, is_base INTEGER, ledger BLOB, agreed_root BLOB,
                     checksum BLOB)
"""


class History(Rows):
    """Three tables of the node's database."""

    def put_header(self, height: int, header: bytes, certificate: bytes) -> None:
        """A verified header of a height that has no block here."""
        self._replace("headers", height, header, certificate)

    def header(self, height: int) -> tuple[bytes, bytes] | None:
        """(header, certificate), or None."""
        rows = self._rows("headers", "WHERE height = ?", (height,))
        return (rows[0][1], rows[0][2]) if rows else None

    def last_header_height(self) -> int:
        """0 if there are none."""
        rows = self._rows("headers", "ORDER BY height DESC LIMIT 1", ())
        return rows[0][0] if rows else 0

    def put_roster(self, height: int, roster: bytes) -> None:
        """The roster that decides ``height`` and the heights after it, until the next one."""
        self._replace("rosters", height, roster)

    def roster(self, height: int) -> bytes | None:
        """The roster that decides ``height``; None if it is that of the genesis."""
        rows = self._rows("rosters", "WHERE height <= ? ORDER BY height DESC LIMIT 1", (height,))
        return rows[0][1] if rows else None

    def roster_from(self, height: int) -> bytes | None:
        """The roster that begins exactly at ``height``, or None."""
        rows = self._rows("rosters", "WHERE height = ?", (height,))
        return rows[0][1] if rows else None

    def put_state(self, height: int, ledger: bytes, agreed_root: bytes) -> None:
        """The ledger's state of a snapshot, and the application's root. Those of the base stay what they are."""
        if self.base_height() != height:
            self._replace("states", height, 0, ledger, agreed_root)

    def state(self, height: int) -> tuple[bytes, bytes] | None:
        """(the ledger's state after ``height``, the application's root), if a snapshot was taken there."""
        rows = self._rows("states", "WHERE height = ?", (height,))
        return (rows[0][2], rows[0][3]) if rows else None

    def forget_state(self, height: int) -> None:
        """Of a snapshot that is gone; the base stays."""
        self._connection.write("DELETE FROM states WHERE height = ? AND is_base = 0", (height,))

    def set_base(self, height: int, ledger: bytes, agreed_root: bytes) -> None:
        """From now on the ledger is derived from here; earlier bases and states are forgotten."""
        with self.transaction():
            self._connection.write("DELETE FROM states")
            self._replace("states", height, 1, ledger, agreed_root)

    def base(self) -> tuple[int, bytes] | None:
        """(height, the ledger's state after it); None: the genesis."""
        rows = self._rows("states", "WHERE is_base = 1 LIMIT ?", (MAX_ROWS,))
        return (rows[0][0], rows[0][2]) if rows else None

    def base_height(self) -> int:
        """0: the genesis."""
        base = self.base()
        return 0 if base is None else base[0]

"""Rows with checksums: what every table of the node's database has in common.

SQLite has no checksums, so each row carries one over its table, its keys and its values: a bit that flipped on the disk
is reported as damage when the row is read, and never becomes another vote.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from typing import Any

from aicpnode.envelop.codec import pack
from aicpnode.storage.connection import Column, Connection
from aicpnode.storage.faults import DamagedDatabase, SlotConflict

CHECKSUM_BYTES = 8
MAX_ROWS = 10_000
"""At most this many rows are returned by one call."""


class Rows:
    """Base of the node's tables; whoever inherits from it names them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def transaction(self) -> AbstractContextManager[None]:
        """All that is written inside becomes durable together, or none of it. Nested blocks join; no await inside."""
        return self._connection.transaction()

    def _insert(self, table: str, *columns: Column) -> None:
        self._write_row("INSERT", table, columns)

    def _replace(self, table: str, *columns: Column) -> None:
        self._write_row("INSERT OR REPLACE", table, columns)

    def _write_row(self, verb: str, table: str, columns: tuple[Column, ...]) -> None:
        marks = ", ".join("?" * (len(columns) + 1))
        self._connection.write(f"{verb} INTO {table} VALUES ({marks})", (*columns, _checksum(table, columns)))

    def _fill(self, table: str, slot: str, keys: tuple[int, ...], values: tuple[bytes, ...]) -> None:
        """Insert unless the slot holds the same values already; SlotConflict if it holds others."""
        with self.transaction():
            rows = self._rows(table, f"WHERE {slot}", keys)
            if not rows:
                self._insert(table, *keys, *values)
            elif rows[0][len(keys) : -1] != values:
                raise SlotConflict(f"{table}: the slot {slot} = {keys} holds another content")

    def _rows(self, table: str, condition: str, columns: tuple[Column, ...]) -> list[tuple[Any, ...]]:
        """Whole rows, each checked against its checksum, which stands last. Raises DamagedDatabase."""
        rows = self._connection.query(f"SELECT * FROM {table} {condition}", columns)
        for row in rows:
            if row[-1] != _checksum(table, row[:-1]):
                raise DamagedDatabase(self._connection.path, f"a row of {table} does not match its checksum")
        return rows


def _checksum(table: str, columns: tuple[Column, ...]) -> bytes:
    try:
        encoded = pack((table, *columns))
    except (TypeError, ValueError):  # damage can turn a number into a float, or a text into none
        return b""
    return hashlib.sha256(encoded).digest()[:CHECKSUM_BYTES]

"""The packages (header and body) of proposals, on disk, by the digest that GRAD commits to.

A package must be durable before this node says yes to it: a quorum of yes means that enough honest members hold the
body for everyone to apply it, after any crash. The packages of decided rounds are kept for a while, because whoever was
away replays the ledger and pulls them from those who were there (whoever was away for longer takes a snapshot);
packages that were not included are dropped when their round is decided.

Blobs are named by the SHA-256 of their content, proposals by their digest, so the database keeps the map: one row a
decided package, and one row that lists the few undecided ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aicpnode.envelop.codec import pack, unpack
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.faults import DamagedBlob, MissingBlob

OPEN_ROW = "packages/open"
DECIDED_PREFIX = "package/"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPackage:
    """Where a package is: its round, and the blob that holds it."""

    round: int
    blob: bytes


class Packages:
    """All methods block for a few disk operations; safe to use from several threads."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs
        self._open = self._stored_open()

    def put(self, round: int, digest: bytes, package: bytes) -> None:
        """Store the verified package of ``digest`` durably. Raises StorageFull or StorageFailed."""
        self.enter(round, digest, self._blobs.put(package))

    def enter(self, round: int, digest: bytes, blob: bytes) -> None:
        """Record a package whose blob is stored; joins a transaction that is open."""
        with self._database.transaction():
            packages = self._stored_open()
            packages[digest] = StoredPackage(round=round, blob=blob)
            self._store_open(packages)

    def decide(self, round: int, included: Collection[bytes]) -> None:
        """Keep the packages of ``included`` until ``forget`` and drop all others of this and earlier rounds."""
        with self._database.transaction():
            packages = self._stored_open()
            over = [digest for digest, package in packages.items() if package.round <= round]
            dropped = []
            for digest in over:
                package = packages.pop(digest)
                if digest in included:
                    self._database.set_meta(_row(digest), pack((package.round, package.blob)))
                else:
                    dropped.append(package.blob)
            self._store_open(packages)
        for blob in dropped:
            self._blobs.delete(blob)

    def forget(self, below_round: int) -> int:
        """Delete the packages that were included in earlier rounds; how many they were."""
        old: list[tuple[str, bytes]] = []
        for name in self._database.meta_names(DECIDED_PREFIX):
            row = self._database.get_meta(name)
            if row is not None and (package := _decode_package(row)).round < below_round:
                old.append((name, package.blob))
        with self._database.transaction():
            for name, _blob in old:
                self._database.forget_meta(name)
        for _name, blob in old:
            self._blobs.delete(blob)
        return len(old)

    def _stored_open(self) -> dict[bytes, StoredPackage]:
        return _decode_open(self._database.get_meta(OPEN_ROW))

    def _store_open(self, packages: dict[bytes, StoredPackage]) -> None:
        """Inside a transaction, which keeps other writers out."""
        self._database.set_meta(OPEN_ROW, _encode_open(packages))
        self._open = packages

    def find(self, digest: bytes) -> StoredPackage | None:
        """Where the package is, or None if it is not here (any more)."""
        package = self._open.get(digest)
        if package is None:
            row = self._database.get_meta(_row(digest))
            package = None if row is None else _decode_package(row)
        return package if package is not None and self._blobs.has(package.blob) else None

    def is_sound(self, digest: bytes) -> bool:
        """True iff the package is here and undamaged; a damaged one is deleted, to be fetched again."""
        package = self.find(digest)
        if package is None:
            return False
        try:
            self._blobs.get(package.blob)
        except DamagedBlob:
            self._blobs.delete(package.blob)
            return False
        return True

    def read(self, digest: bytes) -> bytes:
        """The package. Raises MissingBlob, DamagedBlob or StorageFailed."""
        package = self.find(digest)
        if package is None:
            raise MissingBlob(digest)
        return self._blobs.get(package.blob)


def _row(digest: bytes) -> str:
    return DECIDED_PREFIX + digest.hex()


def _encode_open(packages: dict[bytes, StoredPackage]) -> bytes:
    return pack([(package.round, digest, package.blob) for digest, package in packages.items()])


def _decode_open(row: bytes | None) -> dict[bytes, StoredPackage]:
    packages: dict[bytes, StoredPackage] = {}
    items = () if row is None else unpack(row)
    assert isinstance(items, tuple), "our own row"
    for item in items:
        match item:
            case (int(round), bytes(digest), bytes(blob)):
                packages[digest] = StoredPackage(round=round, blob=blob)
            case _:
                raise AssertionError("our own row")
    return packages


def _decode_package(row: bytes) -> StoredPackage:
    match unpack(row):
        case (int(round), bytes(blob)):
            return StoredPackage(round=round, blob=blob)
        case _:
            raise AssertionError("our own row")

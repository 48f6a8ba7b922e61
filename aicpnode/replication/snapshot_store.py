"""Snapshots and certified headers on disk: what is offered to others, and how one of others is taken over (section 8).

A snapshot is the ledger's state after a height and the application's state after the same height. Taking one over is
one transaction: before it the disk says what it said, after it the ledger begins at the snapshot's height.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, cast

from aicpnode.envelop.codec import digest, pack, unpack
from aicpnode.envelop.kinds import (
    decode_block,
    decode_commit_certificate,
    decode_header,
    encode_commit_certificate,
    encode_header,
)
from aicpnode.envelop.ledger_state import (
    LEDGER_STATE_BYTES_MAX,
    decode_roster,
    encode_ledger_state,
    encode_roster,
    link_content,
)
from aicpnode.envelop.records import Bytes, Integer, Record
from aicpnode.storage.database import Applied, Database
from consensus.events import Diverged
from consensus.headers import CertifiedHeader, HeaderChain
from consensus.membership import LedgerState
from consensus.messages import CommitCert, Crypto, Header
from consensus.types import HASH_BYTES

SNAPSHOT_BYTES_MAX = 1 << 40
HEIGHT_MAX = (1 << 63) - 1
OFFERS_MAX = 4
DIVERGED_META = "diverged"
"""(height, own hash, certified hash) of a state that was found wrong and has not been replaced yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOffer(Record):
    """What a member says it has. Sizes in bytes; both digests are SHA-256 of a body of the SNAPSHOT namespace."""

    height: Annotated[int, Integer(1, HEIGHT_MAX)]
    agreed_root: Annotated[bytes, Bytes(HASH_BYTES)]
    """Of the application: with the ledger's state it makes the state hash, so lies show before the large body comes."""
    ledger_digest: Annotated[bytes, Bytes(HASH_BYTES)]
    ledger_size: Annotated[int, Integer(1, LEDGER_STATE_BYTES_MAX)]
    application_digest: Annotated[bytes, Bytes(HASH_BYTES)]
    application_size: Annotated[int, Integer(1, SNAPSHOT_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSnapshot:
    """A snapshot whose full state hash is the certified one. ``blob`` is where the application's state is stored."""

    ledger: LedgerState
    state_hash: bytes
    model_hash: bytes
    agreed_root: bytes
    blob: bytes


class SnapshotStore:
    """All methods block for disk operations; safe to use from several threads."""

    def __init__(self, database: Database, genesis: LedgerState) -> None:
        self._database = database
        self._genesis = genesis

    # ---- what others may have

    def links(self, from_height: int, *, most: int, max_bytes: int) -> Iterator[CertifiedHeader]:
        """Certified headers from ``from_height`` on, in sequence, as far as they are here."""
        total = 0
        for height in range(from_height, from_height + most):
            link = self._link(height)
            if link is None:
                return
            total += len(pack(link_content(link)))
            if total > max_bytes:
                return
            yield link

    def _link(self, height: int) -> CertifiedHeader | None:
        found = self._certified(height)
        if found is None:
            return None
        header, certificate = found
        roster = None
        if header.next_roster_hash != header.roster_hash:
            encoded = self._database.roster_from(height + 1)
            if encoded is None:
                return None
            roster = decode_roster(encoded)
        return CertifiedHeader(header=header, certificate=certificate, next_roster=roster)

    def _certified(self, height: int) -> tuple[Header, CommitCert] | None:
        decision = self._database.decision(height)
        if decision is not None:
            return decode_block(decision[0]).header, decode_commit_certificate(decision[1])
        row = self._database.header(height)
        return None if row is None else (decode_header(row[0]), decode_commit_certificate(row[1]))

    def has(self, blob: bytes) -> bool:
        """Whether it is the application's state of a snapshot on offer."""
        return any(applied.snapshot == blob for applied in self._database.snapshots()[:OFFERS_MAX])

    def ledger_body(self, name: bytes) -> bytes | None:
        """The encoded ledger state of a stored snapshot with this SHA-256."""
        for applied in self._database.snapshots()[:OFFERS_MAX]:
            state = self._database.state(applied.height)
            if state is not None and digest(state[0]) == name:
                return state[0]
        return None

    def offers(self, size: Callable[[bytes], int | None]) -> list[SnapshotOffer]:
        """Snapshots, newest first, that the next height has certified. ``size`` of an application's blob, None if it
        is gone."""
        head, found = self._database.head(), []
        if self.diverged() is not None:
            return []
        for applied in self._database.snapshots()[:OFFERS_MAX]:
            state, bytes_ = self._database.state(applied.height), size(cast(bytes, applied.snapshot))
            if state is not None and bytes_ is not None and applied.height < head:
                found.append(_offer(applied, *state, bytes_))
        return found

    # ---- what others have

    def certified_state(self, height: int) -> bytes | None:
        """What the next height's header says of the state after ``height``, if it is here: decided, or verified."""
        found = self._certified(height + 1)
        return None if found is None else found[0].state_hash

    def chain(self, crypto: Crypto, head: LedgerState) -> HeaderChain:
        """From this node's last block, or the last header that it verified before, whichever is later."""
        height = self._database.last_header_height()
        if height <= head.height:
            return HeaderChain(crypto=crypto, height=head.height, block_id=head.block_id, roster=head.roster)
        row = self._database.header(height)
        assert row is not None
        roster = self._database.roster(height + 1)
        return HeaderChain(
            crypto=crypto,
            height=height,
            block_id=decode_commit_certificate(row[1]).block_id,
            roster=self._genesis.roster if roster is None else decode_roster(roster),
        )

    def chain_from_genesis(self, crypto: Crypto) -> HeaderChain:
        """For a node whose own state is wrong: it believes nothing that it derived itself."""
        genesis = self._genesis
        return HeaderChain(crypto=crypto, height=genesis.height, block_id=genesis.block_id, roster=genesis.roster)

    def keep(self, links: list[CertifiedHeader]) -> None:
        """Headers that a chain has taken, durably: they are fetched once, and served to others."""
        with self._database.transaction():
            for link in links:
                height = link.header.height
                if self._database.decision(height) is None:
                    certificate = encode_commit_certificate(link.certificate)
                    self._database.put_header(height, encode_header(link.header), certificate)
                if link.next_roster is not None:
                    self._database.put_roster(height + 1, encode_roster(link.next_roster))

    def install(self, snapshot: VerifiedSnapshot) -> list[bytes]:
        """Begin at ``snapshot`` from now on, in one transaction; the blobs of snapshots that are not used any more.

        The own votes of undecided heights stay: whatever was signed is remembered.
        """
        ledger, database = snapshot.ledger, self._database
        with database.transaction():
            dropped = database.forget_applied()
            database.set_base(ledger.height, encode_ledger_state(ledger), snapshot.agreed_root)
            database.put_applied(
                height=ledger.height,
                round=ledger.round,
                state_hash=snapshot.state_hash,
                model_hash=snapshot.model_hash,
                snapshot=snapshot.blob,
            )
            database.prune_votes(ledger.height)
            database.prune_blocks(ledger.height + 1)
            database.forget_meta(DIVERGED_META)
        return [blob for blob in dropped if blob != snapshot.blob]

    # ---- divergence

    def note_diverged(self, diverged: Diverged) -> None:
        """Remembered until another state was taken over: a restart must not make this node sign again."""
        self._database.set_meta(DIVERGED_META, pack((diverged.height, diverged.own, diverged.certified)))

    def diverged(self) -> Diverged | None:
        raw = self._database.get_meta(DIVERGED_META)
        if raw is None:
            return None
        height, own, certified = cast("tuple[int, bytes, bytes]", unpack(raw))
        return Diverged(height=height, own=own, certified=certified)


def _offer(applied: Applied, ledger: bytes, agreed_root: bytes, application_size: int) -> SnapshotOffer:
    assert applied.snapshot is not None
    return SnapshotOffer(
        height=applied.height,
        agreed_root=agreed_root,
        ledger_digest=digest(ledger),
        ledger_size=len(ledger),
        application_digest=applied.snapshot,
        application_size=application_size,
    )

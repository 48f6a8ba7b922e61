"""The ledger on disk: what one batch of effects persists, and what a restart reads back (section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from aicpnode.envelop.codec import Kind, Packable, Value, content_id, decode, encode, pack, unpack
from aicpnode.envelop.kinds import (
    decode_block,
    decode_commit_certificate,
    decode_prepare_certificate,
    encode_block,
    encode_commit_certificate,
    encode_prepare_certificate,
    parse_grad,
    parse_vote,
    vote_attachment,
    vote_envelop,
)
from aicpnode.envelop.ledger_state import decode_ledger_state, encode_roster
from aicpnode.storage.database import Database
from consensus.events import Accusation, Decide, Effect, PersistBlock, PersistSafety, PersistVote, Safety, Step
from consensus.evidence import Decision, Evidence, SignedContent
from consensus.membership import LedgerState, apply_block
from consensus.messages import Block, Vote
from consensus.replica import Restored

REPLAY_BATCH_BYTES = 4 << 20
SAFETY_BYTES_MAX = 64 << 20
"""Of this node's own record: F+1 messages with their attachments prove a view."""
DURABLE = (PersistVote, PersistSafety, PersistBlock, Decide, Accusation)


def state_hash(ledger: LedgerState, *, k: int, bits: int, agreed_root: bytes) -> bytes:
    """What every ballot certifies: SHA-256 over the ledger state, the agreed parameters and the application's root.

    The ledger's content holds the block id (and by it the whole log), the roster, the round and every member's
    standing, so that a replica that derived any of it differently finds out at the next block.
    """
    ledger_root = content_id("aicp/ledger/1", cast(Packable, ledger.content()))
    return content_id("aicp/state/1", (ledger_root, ledger.round, k, bits, agreed_root))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedBlock:
    """One decided block with the ledger's state before and after it."""

    block: Block
    block_id: bytes
    before: LedgerState
    after: LedgerState


class LedgerStore:
    """Effects to rows and back. All methods are synchronous: the driver calls them in a worker thread."""

    def __init__(self, database: Database, network_id: bytes) -> None:
        self._database = database
        self._network_id = network_id

    def persist(self, effects: Iterable[Effect]) -> None:
        """Everything durable among ``effects``, in one transaction that is on the disk when this returns."""
        database = self._database
        with database.transaction():
            for effect in effects:
                match effect:
                    case PersistVote(message=vote):
                        database.put_vote(int(vote.kind), vote.height, vote.view, self.vote_bytes(vote))
                    case PersistSafety(safety=safety):
                        database.put_safety(self._encode_safety(safety))
                    case PersistBlock(block_id=name, block=block):
                        database.put_block(block.height, name, encode_block(block))
                    case Decide(block=block, certificate=certificate, before=before, ledger=ledger, prepares=prepares):
                        if ledger.roster.epoch != before.roster.epoch:
                            database.put_roster(ledger.height + 1, encode_roster(ledger.roster))
                        database.put_decision(
                            ledger.height,
                            ledger.block_id,
                            encode_block(block),
                            encode_commit_certificate(certificate),
                            pack(tuple(encode_prepare_certificate(proof) for proof in prepares)) if prepares else b"",
                        )
                        database.prune_votes(ledger.height)
                        database.prune_blocks(ledger.height + 1)
                    case Accusation(evidence=proof):
                        self.put_evidence(proof)

    def replay(self, genesis: LedgerState, from_height: int) -> Iterator[DecidedBlock]:
        """Decided blocks above ``from_height``, in order, with their ledger states, derived from the base."""
        ledger = self.base(genesis)
        for block, name in self._blocks(ledger.height + 1):
            after = self._after(ledger, block, name)
            if after.height > from_height:
                yield DecidedBlock(block=block, block_id=name, before=ledger, after=after)
            ledger = after

    def head_state(self, genesis: LedgerState) -> LedgerState:
        """The ledger's state after the last decided block."""
        ledger = self.base(genesis)
        for block, name in self._blocks(ledger.height + 1):
            ledger = self._after(ledger, block, name)
        return ledger

    def base(self, genesis: LedgerState) -> LedgerState:
        """Where the ledger begins on this disk: the genesis, or the snapshot that was taken over last."""
        base = self._database.base()
        return genesis if base is None else decode_ledger_state(base[1], genesis=genesis)

    def _after(self, ledger: LedgerState, block: Block, name: bytes) -> LedgerState:
        after = apply_block(ledger, block, block_id=name)
        assert after is not None, "this node decided the block, so it applies"
        return after

    def _blocks(self, height: int) -> Iterator[tuple[Block, bytes]]:
        while batch := self._database.decisions(height, REPLAY_BATCH_BYTES):
            for _height, block, certificate in batch:
                yield decode_block(block), decode_commit_certificate(certificate).block_id
            height += len(batch)

    def restored(self, height: int) -> Restored:
        """What is on disk of the running ``height``."""
        raw = self._database.safety()
        safety = None if raw is None else self._decode_safety(raw)
        return Restored(
            safety=safety if safety is not None and safety.height == height else None,
            votes=tuple(self._vote(raw_vote) for raw_vote in self._database.votes(height)),
            blocks=tuple(decode_block(raw_block) for raw_block in self._database.blocks(height)),
        )

    def put_evidence(self, proof: Evidence) -> None:
        """The first proof against a member stays."""
        first, second = (encode(vote_envelop(m, self._network_id)) for m in (proof.first, proof.second))
        self._database.put_evidence(proof.accused, first, second)

    def evidence(self) -> dict[bytes, Evidence]:
        """All proofs on disk, by the key they convict."""
        return {
            key: Evidence(first=_statement(first), second=_statement(second))
            for key, first, second in self._database.evidence()
        }

    def decision(self, height: int) -> Decision | None:
        """What this node can prove of the block of ``height``."""
        found = self._database.decision(height)
        if found is None:
            return None
        raw = self._database.prepares(height)
        proofs = cast("tuple[bytes, ...]", unpack(raw)) if raw else ()
        return Decision(
            block=decode_block(found[0]),
            certificate=decode_commit_certificate(found[1]),
            prepares=tuple(decode_prepare_certificate(proof) for proof in proofs),
        )

    def vote_bytes(self, vote: Vote) -> bytes:
        return encode(vote_envelop(vote, self._network_id), vote_attachment(vote))

    @staticmethod
    def _vote(raw: bytes) -> Vote:
        return parse_vote(*decode(raw))

    def _encode_safety(self, safety: Safety) -> bytes:
        certificate = safety.valid_certificate
        return pack(
            (
                safety.height,
                safety.view,
                int(safety.step),
                safety.locked_view,
                safety.locked_id,
                safety.valid_view,
                safety.valid_id,
                None if certificate is None else encode_prepare_certificate(certificate),
                tuple(self.vote_bytes(vote) for vote in safety.entry),
            )
        )

    def _decode_safety(self, raw: bytes) -> Safety:
        fields = cast("tuple[Value, ...]", unpack(raw, max_bytes=SAFETY_BYTES_MAX))
        height, view, step, locked_view, locked_id, valid_view, valid_id, certificate, entry = fields
        return Safety(
            height=cast(int, height),
            view=cast(int, view),
            step=Step(cast(int, step)),
            locked_view=cast(int, locked_view),
            locked_id=cast(bytes, locked_id),
            valid_view=cast(int, valid_view),
            valid_id=cast(bytes, valid_id),
            valid_certificate=None if certificate is None else decode_prepare_certificate(cast(bytes, certificate)),
            entry=tuple(self._vote(vote) for vote in cast("tuple[bytes, ...]", entry)),
        )


def _statement(raw: bytes) -> SignedContent:
    envelop, attachment = decode(raw)
    return parse_grad(envelop) if envelop.kind is Kind.GRAD else parse_vote(envelop, attachment)

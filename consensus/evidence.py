"""Proofs that a member broke the rules: two contents in one slot, or a lock forgotten (consensus specification, 6).

An honest member signs one content per slot, whatever happens to it, and after COMMIT(h, v, id) PREPAREs another id at
h only in a view v' for which a PrepareCert of a view vr >= v was shown. So two signed messages that contradict either
rule prove a fault, by themselves, for ever: no time, no place and no witness takes part in it. Nil is no id: a member
that committed a block may PREPARE nil in later views.

``culprits`` does for a fork what evidence does for one member: if two blocks were ever decided at one height, their
certificates and the PrepareCerts behind them convict members of power of at least F+1, and no honest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from consensus.messages import (
    OPERATION_BASE_WEIGHT,
    Ballot,
    Block,
    Commit,
    CommitCert,
    MessageKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    operations_weight_max,
)
from consensus.types import NIL, Roster

EVIDENCE_BASE_WEIGHT = 384
"""Upper bound of the bytes of two signed messages without ballot entries."""
ENTRY_WEIGHT = 42
EVIDENCE_PER_BLOCK_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Grad:
    """GRAD: the commitment of an author to one proposal of a round. ``height`` is the round."""

    height: int
    digest: bytes
    size: int
    signer: bytes
    signature: bytes = field(default=b"", compare=False)

    kind = MessageKind.GRAD
    view = 0

    def fields(self) -> tuple[object, ...]:
        return (self.digest, self.size)


SignedContent = Vote | Grad


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Two signed messages of one member that contradict each other, without their attachments."""

    first: SignedContent
    second: SignedContent

    @property
    def accused(self) -> bytes:
        return self.first.signer

    @property
    def weight(self) -> int:
        """Upper bound of the bytes it takes in an operation."""
        return EVIDENCE_BASE_WEIGHT + sum(
            ENTRY_WEIGHT * len(message.entries) for message in (self.first, self.second) if isinstance(message, Ballot)
        )

    def content(self) -> tuple[object, ...]:
        """What an operation that carries it signs: the messages with their signatures."""
        return (self.accused, *(_content(message) for message in (self.first, self.second)))


def _content(message: SignedContent) -> tuple[object, ...]:
    return (int(message.kind), message.height, message.fields(), message.signature)


def can_be_brought(message: SignedContent, roster: Roster) -> bool:
    """Whether two messages of its size fit into one operation of a block: heavier ones convict nobody.

    Ballots that honest members send do, so whoever signs larger ones gains nothing but that they are ignored.
    """
    if not isinstance(message, Ballot) or not message.entries:
        return True
    room = operations_weight_max(roster) - OPERATION_BASE_WEIGHT - EVIDENCE_BASE_WEIGHT
    return roster.is_active(message.signer) and 2 * ENTRY_WEIGHT * len(message.entries) <= room


def evidence(one: SignedContent, other: SignedContent) -> Evidence:
    """In an order that does not depend on who heard what first."""
    first, second = sorted((bare(one), bare(other)), key=lambda m: (m.view, int(m.kind), repr(m.fields())))
    return Evidence(first=first, second=second)


def bare(message: SignedContent) -> SignedContent:
    """Without its attachment, which no signature covers."""
    if isinstance(message, SetMessage):
        return replace(message, block=None, certificate=None)
    return replace(message, certificate=None) if isinstance(message, Ballot) else message


def contradiction(one: SignedContent, other: SignedContent) -> str | None:
    """What rule the two break together, or None. Signatures are the caller's business."""
    if one.signer != other.signer or one.height != other.height:
        return None
    if (one.kind, one.view) == (other.kind, other.view):
        if one == other:
            return None
        where = f"round {one.height}" if one.kind is MessageKind.GRAD else f"height {one.height} view {one.view}"
        return f"two different {one.kind.name} messages at {where}"
    return _amnesia(one, other) or _amnesia(other, one)


def _amnesia(commit: SignedContent, prepare: SignedContent) -> str | None:
    """COMMIT(h, v, id) with PREPARE(h, v' > v, id' != id, vr < v), both ids non-nil."""
    if not isinstance(commit, Commit) or not isinstance(prepare, Prepare):
        return None
    if NIL in (commit.block_id, prepare.block_id) or commit.block_id == prepare.block_id:
        return None
    if prepare.view > commit.view > prepare.valid_view:
        return f"a lock of height {commit.height} view {commit.view} forgotten in view {prepare.view}"
    return None


def refuse_evidence(proof: Evidence) -> str | None:
    """Why it proves nothing, or None. Whether the accused is a member, and signatures, are checked elsewhere."""
    if proof.first.signer != proof.second.signer:
        return "two signers"
    if contradiction(proof.first, proof.second) is None:
        return "the two messages do not contradict each other"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decided block as somebody can prove it. ``prepares`` are the PrepareCerts behind it, newest first: that of
    the view it was decided in, then the one its SET pointed to, back to the view in which the block was fresh; after
    them those of another block that its holder was locked on."""

    certificate: CommitCert
    prepares: tuple[PrepareCert, ...]
    block: Block | None = None


def culprits(one: Decision, other: Decision, roster: Roster) -> dict[bytes, Evidence]:
    """Members that two decisions of one height convict, each with the proof; empty if the block is the same.

    If Q power decided ``id`` in view v and Q power decided another id' in v' >= v, either one PrepareCert of each
    stands in one view, and whoever signed both equivocated; or the certificates behind id' lead back to PREPAREs of a
    view above v that pointed below v, and whoever had committed id in v forgot its lock.
    """
    if one.certificate.block_id == other.certificate.block_id:
        return {}
    found: dict[bytes, Evidence] = {}
    statements = _statements(one, roster) + _statements(other, roster)
    by_signer: dict[bytes, list[Vote]] = {}
    for message in statements:
        by_signer.setdefault(message.signer, []).append(message)
    for signer, messages in sorted(by_signer.items()):
        proof = first_contradiction(messages)
        if proof is not None:
            found[signer] = proof
    return found


def _statements(decision: Decision, roster: Roster) -> list[Vote]:
    certificates: Sequence[CommitCert | PrepareCert] = (decision.certificate, *decision.prepares)
    return [message for certificate in certificates for message in certificate.messages(roster) or ()]


def first_contradiction(messages: Iterable[SignedContent]) -> Evidence | None:
    """The first pair of one member's messages that proves a fault."""
    seen: list[SignedContent] = []
    for message in messages:
        for earlier in seen:
            if contradiction(earlier, message) is not None:
                return evidence(earlier, message)
        seen.append(message)
    return None

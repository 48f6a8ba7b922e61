"""The messages of the protocol, certificates, and blocks (consensus specification, section 2).

A message's identity is its signer and its content, never its signature bytes. Attachments (a block, a PrepareCert)
are bound by id and unsigned, so they take no part in comparison. ``fields()`` is what a signature covers besides
kind, height and network id; the envelop room turns it into bytes and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from consensus.types import NIL, NO_VIEW, Roster

if TYPE_CHECKING:
    from consensus.evidence import Evidence, Grad

OPERATIONS_PER_SIGNER_MAX = 8
OPERATIONS_WEIGHT_MAX = 16 * 1024
"""Of all operations in one block. Weights are upper bounds of encoded bytes that need no encoding to be known."""
LARGE_ROSTER_OPERATIONS_WEIGHT_MAX = 24 * 1024
"""With many authors two contradicting ballots alone may weigh 22 KiB, and must not escape for their size."""
BLOCK_WEIGHT_MAX = 32 * 1024
LARGE_ROSTER_BLOCK_WEIGHT_MAX = 64 * 1024
LARGE_ROSTER_MEMBERS = 64
"""Beyond so many members, suspended and banned ones not counted, a block may take more."""
BLOCK_BASE_WEIGHT = 320
TABLE_ROW_WEIGHT = 40
BALLOT_BASE_WEIGHT = 80
OBSERVER_WEIGHT = 72
OBSERVERS_MAX = 64
"""In a block. Those on probation come first: the suspended may be strangers without number."""
JOINS_PER_BLOCK_MAX = 4
ENTRIES_PER_AUTHOR_MAX = 2
OPERATION_BASE_WEIGHT = 128
INVITATION_WEIGHT = 104


class MessageKind(IntEnum):
    """The kinds that occupy a slot: an honest key signs one content per (kind, height, view)."""

    GRAD = 1
    BALLOT = 3
    SET = 4
    PREPARE = 5
    COMMIT = 6


class OperationKind(IntEnum):
    JOIN = 1
    CONTRIBUTE = 2
    PRESENT = 3
    LEAVE = 4
    REJOIN = 5
    EVIDENCE = 6
    ENDORSE = 7


class ChangeKind(IntEnum):
    """What members of power Q can change together (section 3, rule 1)."""

    STOP = 1
    """Nobody's contribution counts any more."""
    RESUME = 2
    REMOVE = 3
    """Ban a member, for a reason."""
    ROUND_MS = 4
    PROBATION_ROUNDS = 5
    MEMBERS_MAX = 6
    ADMISSION = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A run-wide change, the same value for all who endorse it. What a kind does not use is empty or 0."""

    kind: ChangeKind
    key: bytes = b""
    number: int = 0
    text: str = ""

    def content(self) -> tuple[int, bytes, int, str]:
        return (int(self.kind), self.key, self.number, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A member's word that ``guest`` may join. It is bound to that key, so it can be shown to anybody."""

    guest: bytes
    signer: bytes
    signature: bytes = field(default=b"", compare=False)

    def fields(self) -> tuple[object, ...]:
        return (self.guest,)

    def content(self) -> tuple[object, ...]:
        return (self.signer, self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A signed request to the ledger. ``sequence`` rises strictly per signer, so none can be replayed.

    Arguments by kind: JOIN (nonce: 16 bytes, name), CONTRIBUTE (until_round: 0 stops), PRESENT (height), ENDORSE (the
    content of a Change), none for LEAVE, REJOIN and EVIDENCE.
    """

    kind: OperationKind
    signer: bytes
    sequence: int
    arguments: tuple[int | bytes | str, ...] = ()
    invitation: Invitation | None = None
    """Of a JOIN where members are invited."""
    evidence: Evidence | None = None
    """Of an EVIDENCE."""
    signature: bytes = field(default=b"", compare=False)

    def fields(self) -> tuple[object, ...]:
        enclosed: tuple[object, ...] = ()
        if self.invitation is not None:
            enclosed = (self.invitation.content(),)
        if self.evidence is not None:
            enclosed = (self.evidence.content(),)
        return (int(self.kind), *self.arguments, *enclosed)

    def content(self) -> tuple[object, ...]:
        """Everything, signature included: what a block binds."""
        return (self.signer, self.sequence, self.signature, self.fields())

    @property
    def change(self) -> Change:
        """Of an ENDORSE."""
        kind, key, number, text = self.arguments
        assert isinstance(kind, int) and isinstance(key, bytes) and isinstance(number, int) and isinstance(text, str)
        return Change(kind=ChangeKind(kind), key=key, number=number, text=text)

    @property
    def weight(self) -> int:
        """Upper bound of the bytes it takes in a block."""
        texts = (a.encode() if isinstance(a, str) else a for a in self.arguments if isinstance(a, (bytes, str)))
        enclosed = 0 if self.evidence is None else self.evidence.weight
        enclosed += 0 if self.invitation is None else INVITATION_WEIGHT
        return OPERATION_BASE_WEIGHT + sum(len(text) for text in texts) + enclosed


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotEntry:
    """One judged proposal of the round; proposals that were not judged have no entry."""

    author_index: int
    digest: bytes
    accepted: bool

    def content(self) -> tuple[object, ...]:
        return (self.author_index, self.digest, self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCert:
    """PREPAREs of one (block_id, valid_view) in (height, view) with power of at least Q.

    ``votes`` are (roster index, signature), by rising index.
    """

    height: int
    view: int
    block_id: bytes
    valid_view: int
    votes: tuple[tuple[int, bytes], ...]

    def messages(self, roster: Roster) -> tuple[Prepare, ...] | None:
        """The signed messages it stands for, or None if it names somebody who is no member."""
        return _rebuild(
            roster,
            self.votes,
            lambda key, signature: Prepare(
                height=self.height,
                view=self.view,
                block_id=self.block_id,
                valid_view=self.valid_view,
                signer=key,
                signature=signature,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCert:
    """COMMITs of one block in (height, view) with power of at least Q: the proof of a decision."""

    height: int
    view: int
    block_id: bytes
    votes: tuple[tuple[int, bytes], ...]

    def messages(self, roster: Roster) -> tuple[Commit, ...] | None:
        """The signed messages it stands for, or None if it names somebody who is no member."""
        return _rebuild(
            roster,
            self.votes,
            lambda key, signature: Commit(
                height=self.height, view=self.view, block_id=self.block_id, signer=key, signature=signature
            ),
        )


_Vote = TypeVar("_Vote")


def _rebuild(
    roster: Roster, votes: tuple[tuple[int, bytes], ...], build: Callable[[bytes, bytes], _Vote]
) -> tuple[_Vote, ...] | None:
    messages: list[_Vote] = []
    previous = -1
    for index, signature in votes:
        member = roster.by_index(index)
        if member is None or index <= previous:
            return None
        previous = index
        messages.append(build(member.key, signature))
    return tuple(messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """A member's view of height and round: its certified state, its highest PrepareCert, its verdicts."""

    height: int
    view: int
    state_hash: bytes
    valid_view: int
    valid_id: bytes
    round: int
    ready: bool
    entries: tuple[BallotEntry, ...]
    signer: bytes
    signature: bytes = field(default=b"", compare=False)
    certificate: PrepareCert | None = field(default=None, compare=False)

    kind = MessageKind.BALLOT

    def fields(self) -> tuple[object, ...]:
        entries = tuple(entry.content() for entry in self.entries)
        return (self.view, self.state_hash, self.valid_view, self.valid_id, self.round, self.ready, entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMessage:
    """SET: the leader's pre-prepare. ``valid_view`` is vr: -1 for a fresh block, else the view of its PrepareCert."""

    height: int
    view: int
    valid_view: int
    block_id: bytes
    signer: bytes
    signature: bytes = field(default=b"", compare=False)
    block: Block | None = field(default=None, compare=False)
    certificate: PrepareCert | None = field(default=None, compare=False)

    kind = MessageKind.SET

    def fields(self) -> tuple[object, ...]:
        return (self.view, self.valid_view, self.block_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """A vote that the view's SET is valid (or, with NIL, that there was none in time).

    ``valid_view`` repeats the SET's vr, so that votes for a fresh and for a re-proposed block are told apart.
    """

    height: int
    view: int
    block_id: bytes
    valid_view: int
    signer: bytes
    signature: bytes = field(default=b"", compare=False)

    kind = MessageKind.PREPARE

    def fields(self) -> tuple[object, ...]:
        return (self.view, self.block_id, self.valid_view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A vote to decide the block (or, with NIL, to go on to the next view)."""

    height: int
    view: int
    block_id: bytes
    signer: bytes
    signature: bytes = field(default=b"", compare=False)

    kind = MessageKind.COMMIT

    def fields(self) -> tuple[object, ...]:
        return (self.view, self.block_id)


Vote = Ballot | SetMessage | Prepare | Commit
"""What replicas exchange while they decide one height. (GRAD belongs to a round, not to a height.)"""
VoteT = TypeVar("VoteT", Ballot, SetMessage, Prepare, Commit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a block id is the hash of: the block's place, the state it builds on, and roots that bind its body."""

    height: int
    origin_view: int
    epoch: int
    previous_block_id: bytes
    state_hash: bytes
    """Of height - 1: the state on which this block builds."""
    roster_hash: bytes
    next_roster_hash: bytes
    ballots_root: bytes
    training_hash: bytes
    operations_root: bytes

    def content(self) -> tuple[object, ...]:
        return (
            self.height,
            self.origin_view,
            self.epoch,
            self.previous_block_id,
            self.state_hash,
            self.roster_hash,
            self.next_roster_hash,
            self.ballots_root,
            self.training_hash,
            self.operations_root,
        )


class Verdict(IntEnum):
    """Two bits a table row in a block's ballots."""

    NONE = 0
    YES = 1
    NO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotRecord:
    """A ballot as a block carries it: one verdict per row of the block's table of proposals."""

    signer_index: int
    ready: bool
    verdicts: tuple[Verdict, ...]
    signature: bytes

    def content(self) -> tuple[object, ...]:
        return (self.signer_index, self.ready, tuple(int(verdict) for verdict in self.verdicts), self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverRecord:
    """The powerless ballot of a member on probation: it shows that the member follows."""

    signer_index: int
    signature: bytes

    def content(self) -> tuple[object, ...]:
        return (self.signer_index, self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDecision:
    """Which proposals enter round ``round``: (author index, digest), by author index."""

    round: int
    included: tuple[tuple[int, bytes], ...]

    def content(self) -> tuple[object, ...]:
        return (self.round, self.included)


def ballot_weight(rows: int) -> int:
    """Of one ballot in a block whose table has so many rows: two bits a row."""
    return BALLOT_BASE_WEIGHT + (rows + 3) // 4


def block_weight_max(roster: Roster) -> int:
    large = len(roster.authors) > LARGE_ROSTER_MEMBERS
    return LARGE_ROSTER_BLOCK_WEIGHT_MAX if large else BLOCK_WEIGHT_MAX


def operations_weight_max(roster: Roster) -> int:
    large = len(roster.authors) > LARGE_ROSTER_MEMBERS
    return LARGE_ROSTER_OPERATIONS_WEIGHT_MAX if large else OPERATIONS_WEIGHT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a block decides, and the ballots that entitle it to."""

    table: tuple[tuple[int, bytes], ...]
    """Distinct (author index, digest) of all entries of all ballots, sorted."""
    ballots: tuple[BallotRecord, ...]
    observers: tuple[ObserverRecord, ...]
    training: TrainingDecision | None
    operations: tuple[Operation, ...]

    @property
    def weight(self) -> int:
        """Upper bound of the bytes of a block with this body."""
        included = () if self.training is None else self.training.included
        return (
            BLOCK_BASE_WEIGHT
            + TABLE_ROW_WEIGHT * (len(self.table) + len(included))
            + len(self.ballots) * ballot_weight(len(self.table))
            + OBSERVER_WEIGHT * len(self.observers)
            + sum(operation.weight for operation in self.operations)
        )

    def ballots_content(self) -> tuple[object, ...]:
        return (
            self.table,
            tuple(record.content() for record in self.ballots),
            tuple(record.content() for record in self.observers),
        )

    def training_content(self) -> tuple[object, ...] | None:
        return None if self.training is None else self.training.content()

    def operations_content(self) -> tuple[object, ...]:
        return tuple(operation.content() for operation in self.operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One entry of the ledger."""

    header: Header
    body: Body

    @property
    def height(self) -> int:
        return self.header.height


class Crypto(Protocol):
    """What the core needs from outside: signatures and hashes. Injected, so the core holds no keys."""

    def sign(self, message: VoteT) -> VoteT:
        """The message under this member's key. The same slot returns the same signed message, another content in a
        slot already signed is an AssertionError: it would be this member's own equivocation."""
        ...

    def verify(self, message: Ballot | SetMessage | Prepare | Commit | Grad | Operation | Invitation) -> bool: ...

    def content_id(self, domain: str, content: object) -> bytes:
        """SHA-256 over the domain and the canonical bytes of ``content``."""
        ...


class ContentHash(Protocol):
    """The hashing half of ``Crypto``."""

    def content_id(self, domain: str, content: object) -> bytes: ...


def block_id(crypto: ContentHash, header: Header) -> bytes:
    return crypto.content_id("aicp/block/1", header.content())


def roster_hash(crypto: Crypto, roster: Roster) -> bytes:
    return crypto.content_id("aicp/roster/1", roster.content())


def ballots_root(crypto: Crypto, body: Body) -> bytes:
    return crypto.content_id("aicp/ballots/1", body.ballots_content())


def training_hash(crypto: Crypto, body: Body) -> bytes:
    return crypto.content_id("aicp/training/1", body.training_content())


def operations_root(crypto: Crypto, body: Body) -> bytes:
    return crypto.content_id("aicp/operations/1", body.operations_content())


def block_binds(crypto: Crypto, block: Block, expected_id: bytes) -> bool:
    """Whether ``block`` is exactly the block named ``expected_id``, body included."""
    return (
        block_id(crypto, block.header) == expected_id
        and block.header.ballots_root == ballots_root(crypto, block.body)
        and block.header.training_hash == training_hash(crypto, block.body)
        and block.header.operations_root == operations_root(crypto, block.body)
    )


def certificate_holds(crypto: Crypto, certificate: PrepareCert | CommitCert, roster: Roster) -> bool:
    """Whether distinct, verified members of ``roster`` with power of at least Q stand behind ``certificate``.

    Verified alone, whatever first votes are stored.
    """
    if certificate.block_id == NIL:
        return False
    messages = certificate.messages(roster)
    if messages is None or sum(roster.power(message.signer) for message in messages) < roster.quorum:
        return False
    return all(roster.is_active(message.signer) and crypto.verify(message) for message in messages)


def operation_holds(crypto: Crypto, operation: Operation) -> bool:
    """Whether its signature is good, and those of what it encloses."""
    if operation.invitation is not None and not crypto.verify(operation.invitation):
        return False
    proof = operation.evidence
    if proof is not None and not (crypto.verify(proof.first) and crypto.verify(proof.second)):
        return False
    return crypto.verify(operation)


def observer_ballot(*, height: int, view: int, state_hash: bytes, round_: int, signer: bytes) -> Ballot:
    """The ballot of a member without power: never ready, without verdicts."""
    return Ballot(
        height=height,
        view=view,
        state_hash=state_hash,
        valid_view=NO_VIEW,
        valid_id=NIL,
        round=round_,
        ready=False,
        entries=(),
        signer=signer,
    )

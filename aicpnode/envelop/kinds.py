"""Consensus messages, blocks and certificates as Envelops and bytes, and back, strictly.

The core speaks in dataclasses; here each gets its one canonical encoding. Parsing checks every type, length and range
and raises MalformedError, so that the core only ever sees well-typed values. Block and certificate attachments are
encoded apart from the signed part, since they are bound by id (consensus specification, section 1).
"""

from __future__ import annotations

from typing import TypedDict, cast

from aicpnode.envelop.codec import Envelop, Kind, Packable, Value, pack, unpack
from aicpnode.errors import MalformedError
from consensus.changes import is_well_formed
from consensus.evidence import Evidence, Grad, SignedContent
from consensus.messages import (
    Ballot,
    BallotEntry,
    BallotRecord,
    Block,
    Body,
    Change,
    ChangeKind,
    Commit,
    CommitCert,
    Header,
    Invitation,
    MessageKind,
    ObserverRecord,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    TrainingDecision,
    Verdict,
    Vote,
)
from consensus.text import is_plain_text
from consensus.types import HASH_BYTES, KEY_BYTES, MEMBER_NAME_CHARS_MAX, NIL, NO_VIEW, SIGNATURE_BYTES

BLOCK_BYTES_MAX = 64 << 10
CERTIFICATE_BYTES_MAX = 32 << 10
HEADER_BYTES_MAX = 512
ROSTER_INDEX_MAX = 1 << 20
COUNTER_MAX = (1 << 63) - 1
VIEW_MAX = (1 << 31) - 1
OPERATION_SIGNATURE_HEIGHT = 0
JOIN_NONCE_BYTES = 16
JOIN_ARGUMENTS = 2
DECISIONS_PER_REPLY_MAX = 64

VOTE_KINDS = (Kind.BALLOT, Kind.SET, Kind.PREPARE, Kind.COMMIT)


# ---- checked reading of decoded values


def _array(value: Value, length: int, what: str) -> tuple[Value, ...]:
    if not isinstance(value, tuple) or len(value) != length:
        raise MalformedError(f"{what}: an array of {length} was expected")
    return value


def _list(value: Value, longest: int, what: str) -> tuple[Value, ...]:
    if not isinstance(value, tuple) or len(value) > longest:
        raise MalformedError(f"{what}: an array of at most {longest} was expected")
    return value


def _integer(value: Value, lowest: int, highest: int, what: str) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise MalformedError(f"{what}: an integer from {lowest} to {highest} was expected")
    return value


def _flag(value: Value, what: str) -> bool:
    if type(value) is not bool:
        raise MalformedError(f"{what}: true or false was expected")
    return value


def _bytes(value: Value, length: int, what: str) -> bytes:
    if type(value) is not bytes or len(value) != length:
        raise MalformedError(f"{what}: {length} bytes were expected")
    return value


def _id_or_nil(value: Value, what: str) -> bytes:
    return NIL if value == NIL and type(value) is bytes else _bytes(value, HASH_BYTES, what)


def _view(value: Value, what: str = "view") -> int:
    return _integer(value, 0, VIEW_MAX, what)


def _pointer(value: Value, what: str) -> int:
    return _integer(value, NO_VIEW, VIEW_MAX, what)


# ---- messages


def vote_envelop(message: SignedContent, network_id: bytes) -> Envelop:
    """The Envelop that a vote or GRAD is; its signature (b"" while unsigned) covers exactly this."""
    return Envelop(
        network_id=network_id,
        kind=Kind(int(message.kind)),
        sender=message.signer,
        height=message.height,
        body=cast(Value, message.fields()),
        signature=message.signature,
    )


def operation_envelop(operation: Operation, network_id: bytes) -> Envelop:
    """Operations belong to no height: ``seq`` orders those of one signer."""
    return Envelop(
        network_id=network_id,
        kind=Kind.OPERATION,
        sender=operation.signer,
        seq=operation.sequence,
        height=OPERATION_SIGNATURE_HEIGHT,
        body=cast(Value, operation.fields()),
        signature=operation.signature,
    )


def invitation_envelop(invitation: Invitation, network_id: bytes) -> Envelop:
    """An invitation belongs to no height and has no order."""
    return Envelop(
        network_id=network_id,
        kind=Kind.INVITATION,
        sender=invitation.signer,
        height=OPERATION_SIGNATURE_HEIGHT,
        body=cast(Value, invitation.fields()),
        signature=invitation.signature,
    )


def parse_invitation(envelop: Envelop) -> Invitation:
    """The invitation in ``envelop``. MalformedError if it is anything else."""
    if envelop.kind is not Kind.INVITATION or envelop.height != OPERATION_SIGNATURE_HEIGHT or envelop.route is not None:
        raise MalformedError("not an invitation")
    (guest,) = _array(envelop.body, 1, "invitation")
    return Invitation(guest=_bytes(guest, KEY_BYTES, "guest"), signer=envelop.sender, signature=envelop.signature)


def parse_grad(envelop: Envelop) -> Grad:
    """The commitment in a GRAD, as evidence names it. MalformedError on wrong types or ranges."""
    digest, size = _array(envelop.body, 2, "GRAD")
    return Grad(
        height=envelop.height,
        digest=_bytes(digest, HASH_BYTES, "digest"),
        size=_integer(size, 0, COUNTER_MAX, "size"),
        signer=envelop.sender,
        signature=envelop.signature,
    )


def vote_attachment(message: Vote) -> bytes:
    """The unsigned rest of a SET or BALLOT: its block, or its PrepareCert."""
    if isinstance(message, SetMessage) and message.block is not None:
        return encode_block(message.block)
    if isinstance(message, (SetMessage, Ballot)) and message.certificate is not None:
        return encode_prepare_certificate(message.certificate)
    return b""


def parse_vote(envelop: Envelop, attachment: bytes) -> Vote:
    """The consensus message in ``envelop``. MalformedError on wrong types, ranges or a stray attachment."""
    match envelop.kind:
        case Kind.BALLOT:
            return _parse_ballot(envelop, attachment)
        case Kind.SET:
            return _parse_set(envelop, attachment)
        case Kind.PREPARE:
            _no_attachment(attachment)
            view, block_id, valid_view = _array(envelop.body, 3, "PREPARE")
            return Prepare(
                height=envelop.height,
                view=_view(view),
                block_id=_id_or_nil(block_id, "block id"),
                valid_view=_pointer(valid_view, "vr"),
                signer=envelop.sender,
                signature=envelop.signature,
            )
        case Kind.COMMIT:
            _no_attachment(attachment)
            view, block_id = _array(envelop.body, 2, "COMMIT")
            return Commit(
                height=envelop.height,
                view=_view(view),
                block_id=_id_or_nil(block_id, "block id"),
                signer=envelop.sender,
                signature=envelop.signature,
            )
    raise MalformedError(f"{envelop.kind.name} is no vote")


def _no_attachment(attachment: bytes) -> None:
    if attachment:
        raise MalformedError("an attachment where none belongs")


def _parse_ballot(envelop: Envelop, attachment: bytes) -> Ballot:
    fields = _array(envelop.body, 7, "BALLOT")
    view, state_hash, valid_view, valid_id, round_, ready, entries = fields
    valid = _pointer(valid_view, "hv")
    if valid == NO_VIEW:
        _no_attachment(attachment)
    return Ballot(
        height=envelop.height,
        view=_view(view),
        state_hash=_bytes(state_hash, HASH_BYTES, "state hash"),
        valid_view=valid,
        valid_id=_id_or_nil(valid_id, "hid"),
        round=_integer(round_, 0, COUNTER_MAX, "round"),
        ready=_flag(ready, "ready"),
        entries=tuple(_parse_entry(entry) for entry in _list(entries, 2 * ROSTER_INDEX_MAX, "entries")),
        signer=envelop.sender,
        signature=envelop.signature,
        certificate=decode_prepare_certificate(attachment) if attachment else None,
    )


def _parse_entry(value: Value) -> BallotEntry:
    author, digest, accepted = _array(value, 3, "entry")
    return BallotEntry(
        author_index=_integer(author, 0, ROSTER_INDEX_MAX, "author"),
        digest=_bytes(digest, HASH_BYTES, "digest"),
        accepted=_flag(accepted, "verdict"),
    )


def _parse_set(envelop: Envelop, attachment: bytes) -> SetMessage:
    view, valid_view, block_id = _array(envelop.body, 3, "SET")
    valid = _pointer(valid_view, "vr")
    fresh = valid == NO_VIEW
    return SetMessage(
        height=envelop.height,
        view=_view(view),
        valid_view=valid,
        block_id=_bytes(block_id, HASH_BYTES, "block id"),
        signer=envelop.sender,
        signature=envelop.signature,
        block=decode_block(attachment) if fresh and attachment else None,
        certificate=decode_prepare_certificate(attachment) if not fresh and attachment else None,
    )


def parse_operation(envelop: Envelop, attachment: bytes = b"") -> Operation:
    """The operation in ``envelop``. MalformedError for kinds and arguments that do not exist."""
    _no_attachment(attachment)
    if envelop.height != OPERATION_SIGNATURE_HEIGHT or envelop.route is not None:
        raise MalformedError("an operation has height 0 and goes to everyone")
    body = envelop.body
    if not isinstance(body, tuple) or not body:
        raise MalformedError("an operation is an array that starts with its kind")
    return Operation(
        signer=envelop.sender,
        sequence=_integer(envelop.seq, 1, COUNTER_MAX, "sequence"),
        signature=envelop.signature,
        **_operation_fields(body, envelop.sender),
    )


def _operation_kind(value: Value) -> OperationKind:
    number = _integer(value, min(OperationKind), max(OperationKind), "operation kind")
    return OperationKind(number)


class _OperationFields(TypedDict):
    kind: OperationKind
    arguments: tuple[int | bytes | str, ...]
    invitation: Invitation | None
    evidence: Evidence | None


def _operation_fields(values: tuple[Value, ...], signer: bytes) -> _OperationFields:
    """Kind, arguments and enclosures of an operation whose fields are ``values``."""
    kind, rest = _operation_kind(values[0]), values[1:]
    invitation, proof = None, None
    if kind is OperationKind.JOIN and len(rest) > JOIN_ARGUMENTS:
        *rest_list, enclosed = rest
        rest, invitation = tuple(rest_list), _enclosed_invitation(enclosed, signer)
    if kind is OperationKind.EVIDENCE:
        (enclosed,) = _array(rest, 1, "EVIDENCE")
        rest, proof = (), _parse_evidence(enclosed)
    return {"kind": kind, "arguments": _arguments(kind, rest), "invitation": invitation, "evidence": proof}


def _arguments(kind: OperationKind, values: tuple[Value, ...]) -> tuple[int | bytes | str, ...]:
    match kind:
        case OperationKind.JOIN:
            nonce, name = _array(values, JOIN_ARGUMENTS, "JOIN")
            if type(name) is not str or len(name) > MEMBER_NAME_CHARS_MAX or not is_plain_text(name):
                raise MalformedError(
                    f"JOIN: a printable name of at most {MEMBER_NAME_CHARS_MAX} characters was expected"
                )
            return (_bytes(nonce, JOIN_NONCE_BYTES, "nonce"), name)
        case OperationKind.LEAVE | OperationKind.REJOIN | OperationKind.EVIDENCE:
            _array(values, 0, kind.name)
            return ()
        case OperationKind.ENDORSE:
            return _parse_change(values).content()
    (argument,) = _array(values, 1, kind.name)
    return (_integer(argument, 0, COUNTER_MAX, kind.name),)


def _parse_change(values: tuple[Value, ...]) -> Change:
    kind, key, number, text = _array(values, 4, "ENDORSE")
    if type(key) is not bytes or type(text) is not str:
        raise MalformedError("ENDORSE: a kind, a key, a number and a text were expected")
    change = Change(
        kind=ChangeKind(_integer(kind, min(ChangeKind), max(ChangeKind), "change")),
        key=key,
        number=_integer(number, 0, COUNTER_MAX, "number"),
        text=text,
    )
    if not is_well_formed(change):
        raise MalformedError(f"ENDORSE: not a {change.kind.name} within its limits")
    return change


def _enclosed_invitation(value: Value, guest: bytes) -> Invitation:
    """An invitation says nothing of its guest: it is the one who shows it."""
    sponsor, signature = _array(value, 2, "invitation")
    return Invitation(
        guest=guest,
        signer=_bytes(sponsor, KEY_BYTES, "sponsor"),
        signature=_bytes(signature, SIGNATURE_BYTES, "signature"),
    )


def _parse_evidence(value: Value) -> Evidence:
    accused, first, second = _array(value, 3, "evidence")
    key = _bytes(accused, KEY_BYTES, "accused")
    return Evidence(first=_parse_statement(first, key), second=_parse_statement(second, key))


def _parse_statement(value: Value, signer: bytes) -> SignedContent:
    """One of two contradicting messages: without its attachment."""
    kind, height, fields, signature = _array(value, 4, "statement")
    number = _integer(kind, min(MessageKind), max(MessageKind), "kind")
    if number not in set(MessageKind):
        raise MalformedError("a statement is a vote or a GRAD")
    envelop = Envelop(
        network_id=bytes(HASH_BYTES),  # of no weight here: the signature is verified under the run's own
        kind=Kind(number),
        sender=signer,
        height=_integer(height, 0, COUNTER_MAX, "height"),
        body=fields,
        signature=_bytes(signature, SIGNATURE_BYTES, "signature"),
    )
    return parse_grad(envelop) if envelop.kind is Kind.GRAD else parse_vote(envelop, b"")


# ---- certificates


def _certificate_votes(value: Value) -> tuple[tuple[int, bytes], ...]:
    votes = []
    for item in _list(value, ROSTER_INDEX_MAX, "certificate"):
        index, signature = _array(item, 2, "vote")
        votes.append((_integer(index, 0, ROSTER_INDEX_MAX, "index"), _bytes(signature, SIGNATURE_BYTES, "signature")))
    return tuple(votes)


def _prepare_certificate_content(certificate: PrepareCert) -> tuple[object, ...]:
    return (
        certificate.height,
        certificate.view,
        certificate.block_id,
        certificate.valid_view,
        certificate.votes,
    )


def encode_prepare_certificate(certificate: PrepareCert) -> bytes:
    return pack(cast(Packable, _prepare_certificate_content(certificate)))


def decode_prepare_certificate(data: bytes) -> PrepareCert:
    return _parse_prepare_certificate(unpack(data, max_bytes=CERTIFICATE_BYTES_MAX))


def _parse_prepare_certificate(value: Value) -> PrepareCert:
    height, view, block_id, valid_view, votes = _array(value, 5, "PrepareCert")
    return PrepareCert(
        height=_integer(height, 0, COUNTER_MAX, "height"),
        view=_view(view),
        block_id=_bytes(block_id, HASH_BYTES, "block id"),
        valid_view=_pointer(valid_view, "vr"),
        votes=_certificate_votes(votes),
    )


def encode_commit_certificate(certificate: CommitCert) -> bytes:
    content = (certificate.height, certificate.view, certificate.block_id, certificate.votes)
    return pack(cast(Packable, content))


def decode_commit_certificate(data: bytes) -> CommitCert:
    height, view, block_id, votes = _array(unpack(data, max_bytes=CERTIFICATE_BYTES_MAX), 4, "CommitCert")
    return CommitCert(
        height=_integer(height, 0, COUNTER_MAX, "height"),
        view=_view(view),
        block_id=_bytes(block_id, HASH_BYTES, "block id"),
        votes=_certificate_votes(votes),
    )


# ---- blocks


def encode_block(block: Block) -> bytes:
    """``[header, table, ballots, observers, training, operations]``, canonical."""
    body = block.body
    content = (
        block.header.content(),
        body.table,
        tuple((r.signer_index, r.ready, _pack_verdicts(r.verdicts), r.signature) for r in body.ballots),
        tuple(record.content() for record in body.observers),
        body.training_content(),
        tuple(_operation_content(operation) for operation in body.operations),
    )
    return pack(cast(Packable, content))


def decode_block(data: bytes) -> Block:
    """The block in ``data``. MalformedError above 64 KiB, on wrong types or ranges. Signatures are not verified."""
    fields = _array(unpack(data, max_bytes=BLOCK_BYTES_MAX), 6, "block")
    header, table, ballots, observers, training, operations = fields
    rows = tuple(_parse_row(row) for row in _list(table, ROSTER_INDEX_MAX, "table"))
    body = Body(
        table=rows,
        ballots=tuple(_parse_record(record, len(rows)) for record in _list(ballots, ROSTER_INDEX_MAX, "ballots")),
        observers=tuple(_parse_observer(record) for record in _list(observers, ROSTER_INDEX_MAX, "observers")),
        training=None if training is None else _parse_training(training),
        operations=tuple(_parse_block_operation(item) for item in _list(operations, ROSTER_INDEX_MAX, "operations")),
    )
    return Block(header=_parse_header(header), body=body)


def encode_header(header: Header) -> bytes:
    return pack(cast(Packable, header.content()))


def decode_header(data: bytes) -> Header:
    """A block's header by itself. MalformedError on wrong types or ranges."""
    return _parse_header(unpack(data, max_bytes=HEADER_BYTES_MAX))


def _parse_header(value: Value) -> Header:
    (height, origin_view, epoch, *hashes) = _array(value, 10, "header")
    names = ("previous block", "state", "roster", "next roster", "ballots", "training", "operations")
    previous, state, roster, next_roster, ballots, training, operations = (
        _bytes(item, HASH_BYTES, name) for item, name in zip(hashes, names, strict=True)
    )
    return Header(
        height=_integer(height, 1, COUNTER_MAX, "height"),
        origin_view=_view(origin_view, "origin view"),
        epoch=_integer(epoch, 0, COUNTER_MAX, "epoch"),
        previous_block_id=previous,
        state_hash=state,
        roster_hash=roster,
        next_roster_hash=next_roster,
        ballots_root=ballots,
        training_hash=training,
        operations_root=operations,
    )


def _parse_row(value: Value) -> tuple[int, bytes]:
    author, digest = _array(value, 2, "row")
    return _integer(author, 0, ROSTER_INDEX_MAX, "author"), _bytes(digest, HASH_BYTES, "digest")


def _pack_verdicts(verdicts: tuple[Verdict, ...]) -> bytes:
    """Two bits a row, least significant first, the last byte padded with zeros."""
    packed = bytearray((len(verdicts) + 3) // 4)
    for row, verdict in enumerate(verdicts):
        packed[row // 4] |= int(verdict) << (2 * (row % 4))
    return bytes(packed)


def _four_verdicts(byte: int) -> tuple[Verdict, ...] | None:
    """Of four rows; None if a pair of bits means nothing."""
    numbers = [(byte >> shift) & 3 for shift in (0, 2, 4, 6)]
    return tuple(Verdict(number) for number in numbers) if max(numbers) <= max(Verdict) else None


_FOUR_VERDICTS = tuple(_four_verdicts(byte) for byte in range(256))


def _unpack_verdicts(value: Value, rows: int) -> tuple[Verdict, ...]:
    packed = _bytes(value, (rows + 3) // 4, "verdicts")
    verdicts: list[Verdict] = []
    for byte in packed:
        four = _FOUR_VERDICTS[byte]
        if four is None:
            raise MalformedError("verdicts: 0, 1 or 2 a row")
        verdicts += four
    if any(verdicts[rows:]):
        raise MalformedError("verdicts: zeros behind the last row")
    return tuple(verdicts[:rows])


def _parse_record(value: Value, rows: int) -> BallotRecord:
    index, ready, verdicts, signature = _array(value, 4, "ballot record")
    return BallotRecord(
        signer_index=_integer(index, 0, ROSTER_INDEX_MAX, "signer"),
        ready=_flag(ready, "ready"),
        verdicts=_unpack_verdicts(verdicts, rows),
        signature=_bytes(signature, SIGNATURE_BYTES, "signature"),
    )


def _parse_observer(value: Value) -> ObserverRecord:
    index, signature = _array(value, 2, "observer")
    return ObserverRecord(
        signer_index=_integer(index, 0, ROSTER_INDEX_MAX, "signer"),
        signature=_bytes(signature, SIGNATURE_BYTES, "signature"),
    )


def _parse_training(value: Value) -> TrainingDecision:
    round_, included = _array(value, 2, "training")
    return TrainingDecision(
        round=_integer(round_, 0, COUNTER_MAX, "round"),
        included=tuple(_parse_row(row) for row in _list(included, ROSTER_INDEX_MAX, "included")),
    )


def _operation_content(operation: Operation) -> tuple[object, ...]:
    return (operation.signer, operation.sequence, operation.signature, *operation.fields())


def _parse_block_operation(value: Value) -> Operation:
    if not isinstance(value, tuple) or len(value) < 4:
        raise MalformedError("an operation in a block has signer, sequence, signature and kind")
    signer = _bytes(value[0], KEY_BYTES, "signer")
    return Operation(
        signer=signer,
        sequence=_integer(value[1], 1, COUNTER_MAX, "sequence"),
        signature=_bytes(value[2], SIGNATURE_BYTES, "signature"),
        **_operation_fields(value[3:], signer),
    )

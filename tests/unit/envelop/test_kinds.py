"""Consensus messages, certificates and blocks as bytes: one form each, read strictly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, Value, content_id, decode, encode, pack, unpack
from aicpnode.envelop.kinds import (
    BLOCK_BYTES_MAX,
    VIEW_MAX,
    decode_block,
    decode_commit_certificate,
    decode_prepare_certificate,
    encode_block,
    encode_commit_certificate,
    encode_prepare_certificate,
    operation_envelop,
    parse_operation,
    parse_vote,
    vote_attachment,
    vote_envelop,
)
from aicpnode.errors import MalformedError
from aicpnode.simulation.playbook import NETWORK_ID, Playbook, founders
from consensus.messages import (
    Ballot,
    BallotEntry,
    Block,
    Commit,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_id,
)
from consensus.types import NIL, NO_VIEW

X, Y = b"x" * 32, b"y" * 32
SIGNER = bytes(range(32))


@pytest.fixture
def table() -> Playbook:
    return Playbook(founders(4, observers=1, until_round=100))


def whole_block(table: Playbook) -> Block:
    entries = (
        BallotEntry(author_index=0, digest=X, accepted=True),
        BallotEntry(author_index=1, digest=X, accepted=False),
        BallotEntry(author_index=1, digest=Y, accepted=True),
    )
    operations = (
        table.operation(9, OperationKind.JOIN, bytes(16), "née 🐍"),
        table.operation(1, OperationKind.CONTRIBUTE, 1 << 62),
        table.operation(4, OperationKind.PRESENT, 0),
    )
    return table.block(observers=(4,), ready=True, entries=entries, operations=operations)


def votes(table: Playbook) -> dict[str, Vote]:
    entries = (
        BallotEntry(author_index=2, digest=X, accepted=True),
        BallotEntry(author_index=3, digest=Y, accepted=False),
    )
    certificate = table.prepare_certificate(0, X)
    return {
        "ballot": table.ballot(1, ready=True, entries=entries),
        "ballot with certificate": table.ballot(2, 3, certificate=certificate),
        "set": table.fresh(whole_block(table)),
        "set again": table.again(certificate, 1),
        "prepare": table.prepare(1, 4, X, 2),
        "prepare nil": table.prepare(1, 0, NIL),
        "commit": table.commit(3, VIEW_MAX, X),
        "commit nil": table.commit(3, 0, NIL),
    }


NAMES = sorted(votes(Playbook(founders(4, observers=1, until_round=100))))


def attachments(vote: Vote) -> tuple[object, object]:
    return getattr(vote, "block", None), getattr(vote, "certificate", None)


# ---- round trips


@pytest.mark.parametrize("name", NAMES)
def test_vote_comes_back_whole(table: Playbook, name: str) -> None:
    vote = votes(table)[name]
    envelop, attachment = decode(encode(vote_envelop(vote, NETWORK_ID), vote_attachment(vote)))
    back = parse_vote(envelop, attachment)
    assert back == vote and back.signature == vote.signature and attachments(back) == attachments(vote)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (OperationKind.JOIN, (bytes(16), "")),
        (OperationKind.JOIN, (b"n" * 16, "née 🐍" * 10)),
        (OperationKind.CONTRIBUTE, (0,)),
        (OperationKind.CONTRIBUTE, ((1 << 63) - 1,)),
        (OperationKind.PRESENT, (7,)),
    ],
)
def test_operation_comes_back_whole(
    table: Playbook, kind: OperationKind, arguments: tuple[int | bytes | str, ...]
) -> None:
    operation = table.operation(1, kind, *arguments, sequence=5)
    envelop, attachment = decode(encode(operation_envelop(operation, NETWORK_ID)))
    back = parse_operation(envelop, attachment)
    assert back == operation and back.signature == operation.signature


def test_block_comes_back_whole(table: Playbook) -> None:
    for block in (whole_block(table), table.block(), table.block(ready=True)):
        back = decode_block(encode_block(block))
        assert back == block
        assert [r.signature for r in back.body.ballots] == [r.signature for r in block.body.ballots]
        assert back.body.operations_content() == block.body.operations_content(), "signatures included"
        assert block_id(table.crypto, back.header) == block_id(table.crypto, block.header)


def test_certificates_come_back_whole(table: Playbook) -> None:
    prepared, committed = table.prepare_certificate(3, X, valid_view=2), table.commit_certificate(3, X)
    assert decode_prepare_certificate(encode_prepare_certificate(prepared)) == prepared
    assert decode_commit_certificate(encode_commit_certificate(committed)) == committed


@pytest.mark.parametrize("name", NAMES)
def test_attachment_is_no_part_of_what_is_signed(table: Playbook, name: str) -> None:
    vote = votes(table)[name]
    bare = replace(vote, **{f: None for f in ("block", "certificate") if hasattr(vote, f)})
    assert vote_envelop(bare, NETWORK_ID).identity == vote_envelop(vote, NETWORK_ID).identity


# ---- golden bytes: what a signature covers and how a block is named, for ever

GOLDEN_NETWORK = b"\x11" * 32


@pytest.mark.parametrize(
    ("message", "signed"),
    [
        (
            Prepare(height=7, view=2, block_id=X, valid_view=-1, signer=SIGNER),
            "98 01 c420" + "11" * 32 + "05 c420" + SIGNER.hex() + "00 07 c0 93 02 c420" + X.hex() + "ff",
        ),
        (
            Commit(height=300, view=0, block_id=NIL, signer=SIGNER),
            "98 01 c420" + "11" * 32 + "06 c420" + SIGNER.hex() + "00 cd012c c0 92 00 c400",
        ),
        (
            SetMessage(height=1, view=1, valid_view=0, block_id=Y, signer=SIGNER),
            "98 01 c420" + "11" * 32 + "04 c420" + SIGNER.hex() + "00 01 c0 93 01 00 c420" + Y.hex(),
        ),
        (
            Ballot(
                height=1,
                view=0,
                state_hash=X,
                valid_view=NO_VIEW,
                valid_id=NIL,
                round=5,
                ready=True,
                entries=(BallotEntry(author_index=2, digest=Y, accepted=False),),
                signer=SIGNER,
            ),
            "98 01 c420" + "11" * 32 + "03 c420" + SIGNER.hex() + "00 01 c0 97 00 c420" + X.hex()
            + "ff c400 05 c3 91 93 02 c420" + Y.hex() + "c2",
        ),
    ],
    ids=["prepare", "commit", "set", "ballot"],
)  # fmt: skip
def test_signed_bytes_of_votes_are_fixed(message: Vote, signed: str) -> None:
    envelop = vote_envelop(message, GOLDEN_NETWORK)
    assert envelop.signed_part() == bytes.fromhex(signed)
    assert signing.signing_bytes(envelop.signed_part()) == b"aicp/envelop/1" + bytes.fromhex(signed)


def test_signed_bytes_of_operations_are_fixed() -> None:
    operation = Operation(kind=OperationKind.JOIN, signer=SIGNER, sequence=3, arguments=(bytes(16), "ada"))
    expected = "98 01 c420" + "11" * 32 + "07 c420" + SIGNER.hex() + "03 00 c0 93 01 c410" + "00" * 16 + "a3616461"
    assert operation_envelop(operation, GOLDEN_NETWORK).signed_part() == bytes.fromhex(expected)


def test_block_id_and_bytes_are_fixed(table: Playbook) -> None:
    block = whole_block(table)
    assert table.name(block) == content_id("aicp/block/1", pack_like(block))
    assert table.name(block).hex() == GOLDEN_BLOCK_ID
    assert content_id("test", encode_block(block)).hex() == GOLDEN_BLOCK_BYTES


def pack_like(block: Block) -> tuple[int | bytes, ...]:
    header = block.header
    return (
        header.height,
        header.origin_view,
        header.epoch,
        header.previous_block_id,
        header.state_hash,
        header.roster_hash,
        header.next_roster_hash,
        header.ballots_root,
        header.training_hash,
        header.operations_root,
    )


GOLDEN_BLOCK_ID = "a084737ee2a67dc31bdc3bd707b05a66addd3653e94c51e46b854f2e7998d80c"
GOLDEN_BLOCK_BYTES = "fbed90306f28bc91b44e175a20404c83daddd8e384257c56d09c58b06c1bf81a"


def test_network_id_is_inside_what_is_signed(table: Playbook) -> None:
    vote = table.prepare(1, 0, X)
    assert vote_envelop(vote, NETWORK_ID).signed_part() != vote_envelop(vote, GOLDEN_NETWORK).signed_part()


# ---- refusals


def envelop_with(vote: Vote, body: Value) -> Envelop:
    return replace(vote_envelop(vote, NETWORK_ID), body=body)


BODIES: dict[str, tuple[str, Callable[[tuple[Value, ...]], Value]]] = {
    "too few fields": ("commit", lambda body: body[:1]),
    "too many fields": ("commit", lambda body: (*body, 0)),
    "no array": ("commit", lambda _body: b"commit"),
    "negative view": ("commit", lambda body: (-1, body[1])),
    "huge view": ("commit", lambda body: (VIEW_MAX + 1, body[1])),
    "view that is a flag": ("commit", lambda body: (False, body[1])),
    "view that is text": ("commit", lambda body: ("0", body[1])),
    "short block id": ("commit", lambda body: (body[0], X[:31])),
    "block id that is text": ("commit", lambda body: (body[0], "")),
    "vr below -1": ("prepare", lambda body: (*body[:2], -2)),
    "SET for nil": ("set", lambda body: (*body[:2], NIL)),
    "ready that is a number": ("ballot", lambda body: (*body[:5], 1, body[6])),
    "negative round": ("ballot", lambda body: (*body[:4], -1, *body[5:])),
    "entries that are no array": ("ballot", lambda body: (*body[:6], None)),
    "entry of two": ("ballot", lambda body: (*body[:6], ((0, X),))),
    "entry with a negative author": ("ballot", lambda body: (*body[:6], ((-1, X, True),))),
    "entry with a huge author": ("ballot", lambda body: (*body[:6], ((1 << 21, X, True),))),
    "entry with half a digest": ("ballot", lambda body: (*body[:6], ((0, X[:16], True),))),
    "entry with a third verdict": ("ballot", lambda body: (*body[:6], ((0, X, 2),))),
}


@pytest.mark.parametrize("fault", sorted(BODIES))
def test_vote_of_wrong_shape_is_malformed(table: Playbook, fault: str) -> None:
    name, change = BODIES[fault]
    vote = votes(table)[name]
    envelop = vote_envelop(vote, NETWORK_ID)
    assert isinstance(envelop.body, tuple)
    with pytest.raises(MalformedError):
        parse_vote(envelop_with(vote, change(envelop.body)), vote_attachment(vote))


@pytest.mark.parametrize("name", ["prepare", "commit", "ballot"])
def test_attachment_where_none_belongs_is_malformed(table: Playbook, name: str) -> None:
    with pytest.raises(MalformedError, match="attachment"):
        parse_vote(vote_envelop(votes(table)[name], NETWORK_ID), b"\x90")


@pytest.mark.parametrize("name", ["set", "set again", "ballot with certificate"])
def test_stripped_attachment_is_no_peers_fault_and_left_to_the_core(table: Playbook, name: str) -> None:
    back = parse_vote(vote_envelop(votes(table)[name], NETWORK_ID), b"")
    assert attachments(back) == (None, None)


@pytest.mark.parametrize("name", ["set", "set again", "ballot with certificate"])
def test_garbage_attachment_is_malformed(table: Playbook, name: str) -> None:
    with pytest.raises(MalformedError):
        parse_vote(vote_envelop(votes(table)[name], NETWORK_ID), b"garbage")


def test_other_kinds_are_no_votes(table: Playbook) -> None:
    envelop = replace(vote_envelop(table.commit(0, 0, X), NETWORK_ID), kind=Kind.HEAD)
    with pytest.raises(MalformedError, match="no vote"):
        parse_vote(envelop, b"")


@pytest.mark.parametrize(
    "body",
    [
        (),
        (0, 5),
        (4, 5),
        (2,),
        (2, -1),
        (2, 1 << 63),
        (2, b"5"),
        (2, 5, 5),
        (1, bytes(15), "name"),
        (1, bytes(16), "n" * 65),
        (1, bytes(16), "two\nlines"),
        (1, bytes(16), b"name"),
        (1, bytes(16)),
        (True, 5),
    ],
)
def test_operation_of_wrong_shape_is_malformed(table: Playbook, body: Value) -> None:
    envelop = replace(operation_envelop(table.operation(1, OperationKind.CONTRIBUTE, 5), NETWORK_ID), body=body)
    with pytest.raises(MalformedError):
        parse_operation(envelop)


@pytest.mark.parametrize("change", [{"height": 1}, {"seq": 0}, {"route": bytes(32)}])
def test_operation_belongs_to_no_height_and_goes_to_everyone(table: Playbook, change: dict[str, object]) -> None:
    envelop = operation_envelop(table.operation(1, OperationKind.CONTRIBUTE, 5), NETWORK_ID)
    with pytest.raises(MalformedError):
        parse_operation(replace(envelop, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Kind.BALLOT, Kind.SET, Kind.PREPARE, Kind.COMMIT])
@pytest.mark.parametrize("change", [{"seq": 1}, {"route": bytes(32)}])
def test_vote_has_one_signed_form(kind: Kind, change: dict[str, object]) -> None:
    """Else a vote counts here whose signature no certificate can carry."""
    fields: dict[str, object] = {"network_id": NETWORK_ID, "kind": kind, "sender": SIGNER, "height": 1, "body": ()}
    with pytest.raises(ValueError, match="consensus message"):
        Envelop(**{**fields, **change})  # type: ignore[arg-type]


def test_block_above_its_size_is_malformed() -> None:
    with pytest.raises(MalformedError):
        decode_block(bytes(BLOCK_BYTES_MAX + 1))


BLOCKS: dict[str, Callable[[list[Value]], list[Value]]] = {
    "too few parts": lambda parts: parts[:5],
    "header too short": lambda parts: [parts[0][:-1], *parts[1:]],  # type: ignore[index]
    "height 0": lambda parts: [(0, *parts[0][1:]), *parts[1:]],  # type: ignore[index]
    "row of one": lambda parts: [parts[0], ((0,),), *parts[2:]],
    "verdicts too long": lambda parts: [parts[0], (), *parts[2:]],
    "verdict 3": lambda parts: [*parts[:2], ((0, True, b"\xff", bytes(64)),), *parts[3:]],
    "padding that is not zero": lambda parts: [*parts[:2], ((0, True, b"\x40", bytes(64)),), *parts[3:]],
    "short signature": lambda parts: [*parts[:2], ((0, True, b"\x00", bytes(63)),), *parts[3:]],
    "observer of three": lambda parts: [*parts[:3], ((4, bytes(64), 0),), *parts[4:]],
    "training without round": lambda parts: [*parts[:4], ((),), parts[5]],
    "training that is a flag": lambda parts: [*parts[:4], False, parts[5]],
    "operation of a kind that does not exist": lambda parts: [*parts[:5], ((SIGNER, 1, bytes(64), 9, 5),)],
    "operation without arguments": lambda parts: [*parts[:5], ((SIGNER, 1, bytes(64)),)],
    "operation with sequence 0": lambda parts: [*parts[:5], ((SIGNER, 0, bytes(64), 2, 5),)],
    "operation with arrays inside": lambda parts: [*parts[:5], ((SIGNER, 1, bytes(64), 2, (((5,),),)),)],
}


@pytest.mark.parametrize("fault", sorted(BLOCKS))
def test_block_of_wrong_shape_is_malformed(table: Playbook, fault: str) -> None:
    parts = unpack(encode_block(whole_block(table)))
    assert isinstance(parts, tuple)
    with pytest.raises(MalformedError):
        decode_block(pack(BLOCKS[fault](list(parts))))


@pytest.mark.parametrize(
    "content",
    [
        (1, 0, X, -1),
        (1, 0, NIL, -1, ()),
        (1, -1, X, -1, ()),
        (1, 0, X, -2, ()),
        (1, 0, X, -1, ((0, bytes(63)),)),
        (1, 0, X, -1, ((-1, bytes(64)),)),
        (1, 0, X, -1, ((0,),)),
        (1, 0, X, -1, None),
    ],
)
def test_certificate_of_wrong_shape_is_malformed(content: Value) -> None:
    with pytest.raises(MalformedError):
        decode_prepare_certificate(pack(content))


def test_certificate_of_a_hundred_members_fits() -> None:
    votes_of_all = tuple((index, bytes(64)) for index in range(100))
    certificate = PrepareCert(height=1, view=0, block_id=X, valid_view=-1, votes=votes_of_all)
    assert decode_prepare_certificate(encode_prepare_certificate(certificate)) == certificate

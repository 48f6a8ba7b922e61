"""Bytes of blocks and messages: one form, and no change of them goes unnoticed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.envelop.codec import decode, encode
from aicpnode.envelop.kinds import (
    decode_block,
    decode_prepare_certificate,
    encode_block,
    encode_prepare_certificate,
    parse_vote,
    vote_attachment,
    vote_envelop,
)
from aicpnode.errors import MalformedError
from aicpnode.simulation.playbook import NETWORK_ID, Playbook, founders
from consensus.events import Received
from consensus.messages import BallotEntry, OperationKind, Vote, block_binds

TABLE = Playbook(founders(4, observers=1, until_round=1 << 40))
BLOCK = TABLE.block(
    observers=(4,),
    ready=True,
    entries=tuple(BallotEntry(author_index=i, digest=bytes([i]) * 32, accepted=i != 2) for i in range(4)),
    operations=(
        TABLE.operation(1, OperationKind.CONTRIBUTE, 1 << 41),
        TABLE.operation(9, OperationKind.JOIN, bytes(16), "new"),
    ),
)
BLOCK_BYTES = encode_block(BLOCK)
CERTIFICATE = TABLE.prepare_certificate(0, TABLE.name(BLOCK))
VOTES: list[Vote] = [
    TABLE.fresh(BLOCK),
    TABLE.again(CERTIFICATE, 1),
    TABLE.ballot(1, 1, certificate=CERTIFICATE),
    TABLE.ballot(2, ready=True, entries=(BallotEntry(author_index=0, digest=b"x" * 32, accepted=True),)),
    TABLE.prepare(3, 0, TABLE.name(BLOCK)),
    TABLE.commit(3, 0, b""),
]


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """One place flipped, cut out or doubled."""
    at = draw(st.integers(0, len(data) - 1))
    match draw(st.integers(0, 3)):
        case 0:
            return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + 1 :]
        case _:
            return data[:at] + data[at : at + draw(st.integers(1, 40))] + data[at:]


@settings(max_examples=300, deadline=None)
@given(mutations(BLOCK_BYTES))
def test_mutated_block_is_refused_or_is_another_block(data: bytes) -> None:
    try:
        block = decode_block(data)
    except MalformedError:
        return
    assert encode_block(block) == data
    assert data == BLOCK_BYTES or not block_binds(TABLE.crypto, block, TABLE.name(BLOCK))


@settings(max_examples=150, deadline=None)
@given(mutations(encode_prepare_certificate(CERTIFICATE)))
def test_mutated_certificate_is_refused_or_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        certificate = decode_prepare_certificate(data)
    except MalformedError:
        return
    assert encode_prepare_certificate(certificate) == data


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VOTES).flatmap(lambda v: mutations(encode(vote_envelop(v, NETWORK_ID), vote_attachment(v)))))
def test_mutated_message_is_refused_or_harmless(data: bytes) -> None:
    """As if its signer had signed it: the network would refuse most of these by their signatures."""
    try:
        envelop, attachment = decode(data)
        vote = parse_vote(envelop, attachment)
    except MalformedError:
        return
    assert vote_envelop(vote, envelop.network_id).signed_part() == envelop.signed_part()
    assert vote_attachment(vote) in (attachment, b"")
    table = Playbook(founders(4, observers=1, until_round=1 << 40))
    table.handle(Received(message=vote))
    assert table.replica.height == 1


@given(st.binary(max_size=300))
def test_random_bytes_are_no_block(data: bytes) -> None:
    try:
        decode_block(data)
    except MalformedError:
        return
    raise AssertionError("random bytes became a block")

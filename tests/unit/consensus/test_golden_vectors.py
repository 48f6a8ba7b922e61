"""Bytes that must never change by accident: what is signed, how things are named, and the signatures themselves.

``vectors/consensus.json`` holds, for fixed keys, one message of each kind with its signed bytes, identity and
signature, a block with its id and roots, both certificates, and the hashes of roster and state. Another implementation
can be checked against it; this one is, byte for byte. A change here is a change of the protocol: no node of an earlier
version understands it. tests/README.md says how the vectors are renewed on purpose.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, decode, encode
from aicpnode.envelop.kinds import (
    VOTE_KINDS,
    decode_block,
    decode_commit_certificate,
    decode_prepare_certificate,
    encode_block,
    encode_commit_certificate,
    encode_prepare_certificate,
    invitation_envelop,
    operation_envelop,
    parse_invitation,
    parse_operation,
    parse_vote,
    vote_attachment,
    vote_envelop,
)
from aicpnode.gradients.grad import sealed_grad
from aicpnode.identity import Identity
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.replication.ledger import state_hash
from consensus.blocks import build_block, judge_block
from consensus.evidence import Evidence, evidence
from consensus.membership import LedgerRules, LedgerState, genesis_state
from consensus.messages import (
    Ballot,
    BallotEntry,
    Block,
    Change,
    ChangeKind,
    Commit,
    CommitCert,
    Invitation,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_id,
    certificate_holds,
    roster_hash,
)
from consensus.types import NIL, NO_VIEW

VECTORS = Path(__file__).with_name("vectors") / "consensus.json"
NETWORK_ID = hashlib.sha256(b"golden network").digest()
FOUNDERS = [Identity(bytes([number]) * 32) for number in (1, 2, 3, 4)]
STRANGER = Identity(bytes([9]) * 32)
CRYPTO = [MemberCrypto(identity, NETWORK_ID) for identity in FOUNDERS]
DIGESTS = [hashlib.sha256(b"proposal %d" % number).digest() for number in range(4)]
STATE = hashlib.sha256(b"golden state").digest()
Json = dict[str, object]


def ledger() -> LedgerState:
    named = ((identity.key, 1, f"founder-{number}") for number, identity in enumerate(FOUNDERS))
    rules = LedgerRules(probation_rounds=2, members_max=64)
    state = genesis_state(named, NETWORK_ID, rules)
    contributing = replace(state.standings[0], until_round=1 << 40, since_round=0)
    return replace(state, standings=(contributing, *state.standings[1:]))


def ballot(number: int, view: int = 0, certificate: PrepareCert | None = None) -> Ballot:
    entries = (
        BallotEntry(author_index=0, digest=DIGESTS[0], accepted=True),
        BallotEntry(author_index=2, digest=DIGESTS[2], accepted=number != 3),
    )
    return CRYPTO[number].sign(
        Ballot(
            height=1,
            view=view,
            state_hash=STATE,
            valid_view=NO_VIEW if certificate is None else certificate.view,
            valid_id=NIL if certificate is None else certificate.block_id,
            round=0,
            ready=True,
            entries=entries,
            signer=FOUNDERS[number].key,
            certificate=certificate,
        )
    )


def operations() -> list[Operation]:
    """One of each kind, and a JOIN by invitation."""
    invitation = invited()
    # Each by a signer of its own, as a member that runs twice under one key: one alone would refuse the second.
    two = [MemberCrypto(FOUNDERS[2], NETWORK_ID).sign(_commit(2, name)) for name in (DIGESTS[0], NIL)]
    made = [
        _operation(STRANGER, OperationKind.JOIN, bytes(range(16)), "ada"),
        _operation(STRANGER, OperationKind.JOIN, bytes(range(16)), "ada", invitation=invitation),
        _operation(FOUNDERS[1], OperationKind.CONTRIBUTE, 1 << 40),
        _operation(FOUNDERS[1], OperationKind.PRESENT, 0),
        _operation(FOUNDERS[1], OperationKind.LEAVE),
        _operation(FOUNDERS[1], OperationKind.REJOIN),
        _operation(FOUNDERS[1], OperationKind.EVIDENCE, proof=evidence(*two)),
        _operation(FOUNDERS[1], OperationKind.ENDORSE, *Change(kind=ChangeKind.STOP).content()),
    ]
    assert {operation.kind for operation in made} == set(OperationKind), "every kind has its vector"
    return made


def invited() -> Invitation:
    """Member 0's word that the stranger may join."""
    word = Invitation(guest=STRANGER.key, signer=FOUNDERS[0].key)
    sealed = signing.seal(FOUNDERS[0], invitation_envelop(word, NETWORK_ID))
    return replace(word, signature=sealed.signature)


def _operation(
    signer: Identity,
    kind: OperationKind,
    *arguments: int | bytes | str,
    invitation: Invitation | None = None,
    proof: Evidence | None = None,
) -> Operation:
    operation = Operation(
        kind=kind,
        signer=signer.key,
        sequence=int(kind),
        arguments=arguments,
        invitation=invitation,
        evidence=proof,
    )
    return MemberCrypto(signer, NETWORK_ID).sign_operation(operation)


def golden_block() -> Block:
    chosen = (OperationKind.JOIN, OperationKind.CONTRIBUTE, OperationKind.ENDORSE, OperationKind.EVIDENCE)
    pending = [operation for operation in operations() if operation.kind in chosen]
    block = build_block(
        ledger=ledger(),
        crypto=CRYPTO[1],
        view=0,
        state_hash=STATE,
        ballots=[ballot(number) for number in (1, 2, 3)],
        observers=[],
        operations=pending,
    )
    assert block is not None
    return block


def certificates(block: Block) -> tuple[PrepareCert, CommitCert]:
    name = block_id(CRYPTO[0], block.header)
    prepares = [CRYPTO[n].sign(_prepare(n, name)) for n in (0, 1, 2)]
    commits = [CRYPTO[n].sign(_commit(n, name)) for n in (1, 2, 3)]
    return (
        PrepareCert(
            height=1,
            view=0,
            block_id=name,
            valid_view=NO_VIEW,
            votes=tuple((n, vote.signature) for n, vote in zip((0, 1, 2), prepares, strict=True)),
        ),
        CommitCert(
            height=1,
            view=0,
            block_id=name,
            votes=tuple((n, vote.signature) for n, vote in zip((1, 2, 3), commits, strict=True)),
        ),
    )


def _prepare(number: int, name: bytes) -> Prepare:
    return Prepare(height=1, view=0, block_id=name, valid_view=NO_VIEW, signer=FOUNDERS[number].key)


def _commit(number: int, name: bytes) -> Commit:
    return Commit(height=1, view=0, block_id=name, signer=FOUNDERS[number].key)


def votes() -> dict[str, Vote]:
    """Every kind, fresh and repeated, for a block and for nil."""
    block = golden_block()
    name = block_id(CRYPTO[0], block.header)
    prepared, _committed = certificates(block)
    fresh = SetMessage(height=1, view=0, valid_view=NO_VIEW, block_id=name, signer=FOUNDERS[1].key, block=block)
    again = SetMessage(height=1, view=1, valid_view=0, block_id=name, signer=FOUNDERS[2].key, certificate=prepared)
    nil = Prepare(height=1, view=2, block_id=NIL, valid_view=NO_VIEW, signer=FOUNDERS[0].key)
    return {
        "BALLOT": ballot(1),
        "BALLOT with certificate": ballot(0, 1, prepared),
        "SET": CRYPTO[1].sign(fresh),
        "SET again": CRYPTO[2].sign(again),
        "PREPARE": CRYPTO[0].sign(_prepare(0, name)),
        "PREPARE nil": CRYPTO[0].sign(nil),
        "COMMIT": CRYPTO[3].sign(_commit(3, name)),
        "COMMIT nil": CRYPTO[0].sign(Commit(height=1, view=2, block_id=NIL, signer=FOUNDERS[0].key)),
    }


def _message(envelop: Envelop, attachment: bytes = b"") -> Json:
    return {
        "signing_bytes": signing.signing_bytes(envelop.signed_part()).hex(),
        "identity": envelop.identity.hex(),
        "signature": envelop.signature.hex(),
        "wire": encode(envelop, attachment).hex(),
    }


def vectors() -> Json:
    """Everything, from fixed keys alone."""
    block = golden_block()
    prepared, committed = certificates(block)
    header, state = block.header, ledger()
    head = signing.seal(
        FOUNDERS[0], Envelop(network_id=NETWORK_ID, kind=Kind.HEAD, sender=FOUNDERS[0].key, height=7, body=())
    )
    grad = sealed_grad(FOUNDERS[0], network_id=NETWORK_ID, round=3, digest=DIGESTS[0], size=4096)
    return {
        "network_id": NETWORK_ID.hex(),
        "seeds": [f"{number:02x}" * 32 for number in (1, 2, 3, 4, 9)],
        "keys": [identity.key.hex() for identity in (*FOUNDERS, STRANGER)],
        "messages": {
            "GRAD": _message(grad),
            **{name: _message(vote_envelop(v, NETWORK_ID), vote_attachment(v)) for name, v in votes().items()},
            **{
                o.kind.name + (" by invitation" if o.invitation else ""): _message(operation_envelop(o, NETWORK_ID))
                for o in operations()
            },
            "INVITATION": _message(invitation_envelop(invited(), NETWORK_ID)),
            "HEAD": _message(head),
        },
        "block": {
            "id": block_id(CRYPTO[0], header).hex(),
            "ballots_root": header.ballots_root.hex(),
            "training_hash": header.training_hash.hex(),
            "operations_root": header.operations_root.hex(),
            "next_roster_hash": header.next_roster_hash.hex(),
            "bytes": encode_block(block).hex(),
        },
        "prepare_certificate": encode_prepare_certificate(prepared).hex(),
        "commit_certificate": encode_commit_certificate(committed).hex(),
        "roster_hash": roster_hash(CRYPTO[0], state.roster).hex(),
        "state_hash": state_hash(state, k=64, bits=2, agreed_root=DIGESTS[3]).hex(),
    }


def as_text() -> str:
    return json.dumps(vectors(), indent=1) + "\n"


def kept() -> Json:
    return dict(json.loads(VECTORS.read_text()))


def test_golden_vectors_are_the_kept_ones() -> None:
    assert as_text() == VECTORS.read_text(), (
        "the protocol's bytes changed: if that is what you want, run this file as a program, and read what it changed"
    )


def test_golden_messages_of_every_kind_read_back_and_verify() -> None:
    messages = kept()["messages"]
    assert isinstance(messages, dict)
    kinds = set()
    for vector in messages.values():
        envelop, attachment = decode(bytes.fromhex(vector["wire"]))
        kinds.add(envelop.kind)
        assert signing.verify(envelop)
        assert b"aicp/envelop/1" + envelop.signed_part() == bytes.fromhex(vector["signing_bytes"])
        assert hashlib.sha256(envelop.signed_part()).hexdigest() == vector["identity"]
        if envelop.kind is Kind.OPERATION:
            assert operation_envelop(parse_operation(envelop, attachment), NETWORK_ID) == envelop
        elif envelop.kind is Kind.INVITATION:
            assert parse_invitation(envelop) == invited()
        elif envelop.kind not in (Kind.GRAD, Kind.HEAD):
            vote = parse_vote(envelop, attachment)
            assert encode(vote_envelop(vote, NETWORK_ID), vote_attachment(vote)).hex() == vector["wire"]
    assert kinds == {*VOTE_KINDS, Kind.GRAD, Kind.OPERATION, Kind.INVITATION, Kind.HEAD}


def test_golden_block_is_valid_and_named_by_its_header() -> None:
    block = kept()["block"]
    assert isinstance(block, dict)
    read = decode_block(bytes.fromhex(block["bytes"]))
    assert block_id(CRYPTO[0], read.header).hex() == block["id"]
    name = block_id(CRYPTO[0], read.header)
    assert judge_block(read, block_id=name, ledger=ledger(), crypto=CRYPTO[0]).refusal is None


def test_golden_certificates_hold() -> None:
    prepared = decode_prepare_certificate(bytes.fromhex(str(kept()["prepare_certificate"])))
    committed = decode_commit_certificate(bytes.fromhex(str(kept()["commit_certificate"])))
    for certificate in (prepared, committed):
        assert certificate_holds(MemberCrypto(STRANGER, NETWORK_ID), certificate, ledger().roster)
        assert not certificate_holds(MemberCrypto(STRANGER, bytes(32)), certificate, ledger().roster)


if __name__ == "__main__":
    VECTORS.write_text(as_text())

"""False messages, certificates, blocks and operations, made of what liars own and have heard.

A signature is only ever one that its owner made; what makes a message false is where the signature is put. Each
function draws what it does from the liars' source of randomness.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aicpnode.simulation.crypto import SimulatedCrypto, signature_of
from aicpnode.simulation.malformed import garbled_decision
from consensus.blocks import build_block
from consensus.evidence import Evidence, bare
from consensus.messages import (
    Ballot,
    Block,
    Commit,
    CommitCert,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_id,
)
from consensus.replica import Replica
from consensus.types import HASH_BYTES, NIL, NO_VIEW, SIGNATURE_BYTES

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster
    from aicpnode.simulation.member import SimulatedMember

FOREIGN_NETWORK = hashlib.sha256(b"another simulated network").digest()
Message = Vote | Operation
Group = tuple[int, bytes, int]
"""(view, block id, valid view)."""
Votes = tuple[tuple[int, bytes], ...]


class Forger:
    """Makes what liars send, from one source of randomness."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._random = rng
        self._crypto = SimulatedCrypto(cluster.keys[0], cluster.network_id, honest=False)
        self._sequence = 1 << 40
        """Of operations, above any that liars' own replicas use."""

    def is_genuine(self, message: Message) -> bool:
        """Whether a receiver's network lets it in: the signature is that of its sender, for this network."""
        return message.signature == signature_of(message, self._cluster.network_id)

    def _signed(self, vote: Vote) -> Vote:
        return replace(vote, signature=signature_of(vote, self._cluster.network_id))

    # ---- messages

    def mutated(self, message: Message) -> Message:
        """One number of it is one off, or is one that others use."""
        step = self._random.choice((-1, 1))
        if isinstance(message, Operation):
            changed = replace(message, sequence=max(1, message.sequence + step))
            return replace(changed, signature=signature_of(changed, self._cluster.network_id))
        numbers = ["height", "view"]
        if isinstance(message, Ballot):
            numbers += ["round", "valid_view"]
        elif not isinstance(message, Commit):
            numbers.append("valid_view")
        name = self._random.choice(numbers)
        value = max(NO_VIEW if name == "valid_view" else 0, int(getattr(message, name)) + step)
        match name:
            case "height":
                vote: Vote = replace(message, height=max(1, value))
            case "view":
                vote = replace(message, view=value)
            case "round":
                assert isinstance(message, Ballot)
                vote = replace(message, round=value)
            case _:
                assert not isinstance(message, Commit)
                vote = replace(message, valid_view=value)
        return self._signed(vote)

    def foreign(self, message: Message) -> Message | None:
        """Signed for another network: as it is, or in a certificate that is shown here."""
        if isinstance(message, SetMessage | Ballot) and message.certificate is not None:
            messages = message.certificate.messages(self._cluster.honest[0].ledger.roster) or ()
            votes = tuple(
                (index, signature_of(one, FOREIGN_NETWORK))
                for (index, _signature), one in zip(message.certificate.votes, messages, strict=False)
            )
            return self._signed(replace(message, certificate=replace(message.certificate, votes=votes)))
        return replace(message, signature=signature_of(message, FOREIGN_NETWORK))

    def stripped(self, message: SetMessage | Ballot) -> Vote | None:
        """The same signed message without its attachment or with another one; None if nothing was attached."""
        if isinstance(message, SetMessage) and message.block is not None:
            other = self.other_block(message.block)
            return replace(message, block=self._random.choice((None, other)))
        if message.certificate is None:
            return None
        votes = message.certificate.votes
        fewer = replace(message.certificate, votes=votes[1:])
        return replace(message, certificate=self._random.choice((None, fewer)))

    # ---- certificates

    def with_forged_certificate(
        self, liar: SimulatedMember, prepares: Mapping[Group, Mapping[bytes, bytes]]
    ) -> Vote | None:
        """A SET or BALLOT of a later view with a PrepareCert that does not hold."""
        replica = liar.replica
        if replica is None:
            return None
        view = max(1, replica.view + self._random.randint(0, 1))
        certificate = self._forged(replica, view - 1, prepares)
        name, at = certificate.block_id, certificate.view
        if self._random.random() < 0.5:
            members = len(replica.roster.active)
            led = [v for v in range(view, view + members) if replica.roster.leader(replica.height, v).key == liar.key]
            if not led:
                return None
            return self._signed(
                SetMessage(
                    height=replica.height,
                    view=led[0],
                    valid_view=at,
                    block_id=name,
                    signer=liar.key,
                    certificate=certificate,
                )
            )
        return self._signed(
            Ballot(
                height=replica.height,
                view=view,
                state_hash=replica.state_hash or bytes(HASH_BYTES),
                valid_view=at,
                valid_id=name,
                round=replica.ledger.round,
                ready=False,
                entries=(),
                signer=liar.key,
                certificate=certificate,
            )
        )

    def _forged(self, replica: Replica, below: int, prepares: Mapping[Group, Mapping[bytes, bytes]]) -> PrepareCert:
        groups = [group for group in sorted(prepares) if group[0] <= below]
        if groups:
            (view, name, valid_view) = group = self._random.choice(groups)
            heard = prepares[group]
        else:
            view, name, valid_view = below, self._random.randbytes(HASH_BYTES), NO_VIEW
            heard = {}
        roster = replica.roster
        garbage = self._random.randbytes(SIGNATURE_BYTES)
        votes: Votes = tuple((m.index, heard.get(m.key, garbage)) for m in roster.active)
        genuine: Votes = tuple((m.index, heard[m.key]) for m in roster.active if m.key in heard)
        certificate = PrepareCert(height=replica.height, view=view, block_id=name, valid_view=valid_view, votes=votes)
        match self._random.randrange(6):
            case 0:  # too few
                return replace(certificate, votes=genuine[: max(0, len(roster.active) // 2)])
            case 1:  # one of them again and again
                return replace(certificate, votes=genuine[:1] * len(roster.active))
            case 2:  # strangers, or members of a roster that is over
                offset = len(roster.members)
                return replace(certificate, votes=tuple((index + offset, sig) for index, sig in votes))
            case 3:  # another view
                return replace(certificate, view=self._random.randint(0, below))
            case 4:  # signatures swapped
                swapped = votes[1:] + votes[:1]
                pairs = zip(votes, swapped, strict=True)
                return replace(certificate, votes=tuple((own[0], other[1]) for own, other in pairs))
        return replace(certificate, block_id=self._random.randbytes(HASH_BYTES))  # another block

    # ---- blocks

    def poorer(self, liar: SimulatedMember, message: SetMessage) -> SetMessage | None:
        """A valid SET of the same slot with as little in it as a leader can do."""
        replica = liar.replica
        if replica is None or replica.height != message.height or replica.state_hash is None:
            return None
        roster = replica.roster
        usable = [
            b
            for b in replica.book.ballots(message.view)
            if roster.is_active(b.signer)
            and (b.state_hash, b.round, b.valid_view) == (replica.state_hash, replica.ledger.round, NO_VIEW)
        ]
        chosen: list[Ballot] = []
        for ballot in sorted(usable, key=lambda b: (b.ready, len(b.entries))):
            if sum(roster.power(b.signer) for b in chosen) < roster.quorum:
                chosen.append(ballot)
        if sum(roster.power(b.signer) for b in chosen) < roster.quorum:
            return None
        order = {member.key: member.index for member in roster.members}
        block = build_block(
            ledger=replica.ledger,
            crypto=self._crypto,
            view=message.view,
            state_hash=replica.state_hash,
            ballots=sorted(chosen, key=lambda b: order[b.signer]),
            observers=[],
            operations=(),
        )
        if block is None:
            return None
        poorer = replace(message, block=block, block_id=block_id(self._crypto, block.header))
        return replace(poorer, signature=signature_of(poorer, self._cluster.network_id))

    def other_block(self, block: Block) -> Block:
        """Almost the same one."""
        header, body = block.header, block.body
        match self._random.randrange(4):
            case 0:
                return replace(block, body=replace(body, operations=()))
            case 1:
                return replace(block, body=replace(body, ballots=body.ballots[1:]))
            case 2:
                return replace(block, header=replace(header, state_hash=self._random.randbytes(HASH_BYTES)))
        return replace(block, header=replace(header, height=header.height + 1))

    def decisions(self, liar: SimulatedMember, block: Block, certificate: CommitCert) -> list[tuple[Block, CommitCert]]:
        """What a donor serves that lies."""
        votes = certificate.votes
        match self._random.randrange(9):
            case 0:
                return []
            case 1:
                return [(self.other_block(block), certificate)]
            case 2:
                return [(block, replace(certificate, votes=votes[1:]))]
            case 3:
                return [(block, replace(certificate, votes=votes[::-1] + votes))]
            case 4:
                return [(block, replace(certificate, votes=tuple((index + 90, sig) for index, sig in votes)))]
            case 5:
                return [(block, replace(certificate, view=certificate.view + 1))]
            case 6:
                old = self._random.choice(liar.disk.decisions)
                return [(old.block, replace(old.certificate, height=certificate.height)), (block, old.certificate)]
            case 7:
                messages = certificate.messages(self._cluster.honest[0].ledger.roster) or ()
                foreign = tuple(
                    (index, signature_of(one, FOREIGN_NETWORK))
                    for (index, _signature), one in zip(votes, messages, strict=False)
                )
                return [(block, replace(certificate, votes=foreign))]
        arrives = garbled_decision(block, certificate, self._random)
        return [] if arrives is None else [arrives]

    # ---- operations

    def operation(self, liar: SimulatedMember, heard: Sequence[Message]) -> Operation | None:
        """One that nobody needs: a change of mind, or evidence that proves nothing."""
        self._sequence += 1
        votes = [message for message in heard if not isinstance(message, Operation)]
        operation = Operation(kind=OperationKind.CONTRIBUTE, signer=liar.key, sequence=self._sequence, arguments=(0,))
        if votes and self._random.random() < 0.8:
            operation = Operation(
                kind=OperationKind.EVIDENCE,
                signer=liar.key,
                sequence=self._sequence,
                evidence=self._evidence(votes),
            )
        elif self._random.random() < 0.5:
            operation = replace(operation, arguments=(1 << 40,))
        return replace(operation, signature=signature_of(operation, self._cluster.network_id))

    def _evidence(self, votes: Sequence[Vote]) -> Evidence:
        one = self._random.choice(votes)
        same = [vote for vote in votes if vote.signer == one.signer and vote.height == one.height]
        match self._random.randrange(4):
            case 0:  # the same one twice
                other: Vote = one
            case 1:  # two that go together well
                other = self._random.choice(same)
            case 2:  # two of different signers
                other = self._random.choice(votes)
            case _:  # one that was never signed
                invented = (
                    replace(one, block_id=self._random.randbytes(HASH_BYTES))
                    if isinstance(one, Prepare | Commit | SetMessage) and one.block_id != NIL
                    else replace(one, height=one.height)
                )
                other = replace(invented, signature=self._random.randbytes(SIGNATURE_BYTES))
        return Evidence(first=bare(one), second=bare(other))


__all__ = ["FOREIGN_NETWORK", "Forger"]

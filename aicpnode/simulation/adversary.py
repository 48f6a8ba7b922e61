"""What misbehaving members of a simulation say to whom. Everything is properly signed; nothing is forged."""

from __future__ import annotations

import functools
import hashlib
import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from aicpnode.simulation.crypto import SimulatedCrypto, signature_of
from aicpnode.simulation.habits import Habits
from aicpnode.simulation.member import Behaviour, SimulatedMember
from consensus.membership import next_state
from consensus.messages import (
    Ballot,
    Block,
    Body,
    Commit,
    CommitCert,
    Header,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_id,
    operations_root,
    roster_hash,
)
from consensus.replica import Replica
from consensus.types import NIL, NO_VIEW

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster

HEARD_KEPT = 256
HEIGHTS_HOARDED = 4
Group = tuple[int, bytes, int]
"""(view, block id, valid view) of PREPAREs that add up."""
Saying = tuple[SimulatedMember, Vote | Operation]


class Adversary:
    """Knows the whole cluster: misbehaving members conspire, and hear everything that is sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random = random.Random(cluster.random.random())
        self._crypto = SimulatedCrypto(cluster.keys[0], cluster.network_id, honest=False)
        self._heard: deque[Vote | Operation] = deque(maxlen=HEARD_KEPT)
        self._prepares: dict[int, dict[Group, dict[bytes, bytes]]] = {}
        self.habits = Habits(cluster, self, self._random)

    def overhear(self, message: Vote | Operation) -> None:
        self._heard.append(message)
        if self._has_liars:
            self.habits.overhear(message)
        if isinstance(message, Prepare) and message.block_id != NIL:
            groups = self._prepares.setdefault(message.height, {})
            group = (message.view, message.block_id, message.valid_view)
            groups.setdefault(group, {})[message.signer] = message.signature
            while len(self._prepares) > HEIGHTS_HOARDED:
                del self._prepares[min(self._prepares)]

    @functools.cached_property
    def _has_liars(self) -> bool:
        return any(member.is_liar for member in self._cluster.members.values())

    def prepares(self, height: int) -> dict[Group, dict[bytes, bytes]]:
        """Signatures of PREPAREs of this height that somebody sent, by what they add up to."""
        return self._prepares.get(height, {})

    def sayings(
        self, sender: SimulatedMember, message: Vote | Operation, receivers: list[SimulatedMember]
    ) -> list[Saying]:
        """What ``sender`` says instead of ``message`` to all of ``receivers``."""
        if message.signer != sender.key and not sender.is_liar:
            return [(receiver, message) for receiver in receivers]  # passed on: to change it would be to forge it
        match sender.behaviour:
            case Behaviour.LIAR:
                return self.habits.sayings(sender, message, receivers)
            case Behaviour.SELECTIVE if isinstance(message, Commit):
                return [(receiver, message) for receiver in receivers[:1]]
            case Behaviour.STINGY if isinstance(message, SetMessage | Ballot):
                # The same one however often it is said again.
                chosen = receivers[message.height % len(receivers)] if receivers else None
                return [] if chosen is None else [(chosen, message)]
            case Behaviour.STALE:
                return self.stale(sender, message, receivers)
            case Behaviour.EQUIVOCATE:
                other = self.other_content(message)
                return [(r, other if place % 2 else message) for place, r in enumerate(receivers)]
            case Behaviour.CHAOS:
                return [saying for r in receivers for saying in self._chaos(sender, message, r)]
        return [(receiver, message) for receiver in receivers]

    def head(self, honest_head: int) -> int:
        """A lie about one's height."""
        return self._random.choice((0, honest_head, honest_head + 3, 1 << 60))

    def served(self, donor: SimulatedMember, block: Block, certificate: CommitCert) -> list[tuple[Block, CommitCert]]:
        """What a member gets who asks ``donor`` for a decision."""
        if donor.honest:
            return [(block, certificate)]
        return self.habits.served(donor, block, certificate) if donor.is_liar else [(block, self._lie(certificate))]

    def fetched(self, donor: SimulatedMember, block: Block | None) -> Block | None:
        """What a member gets who fetches a block from ``donor``. Those that lie without habits keep theirs."""
        if donor.honest:
            return block
        return self.habits.block(donor, block) if donor.is_liar else None

    def _lie(self, certificate: CommitCert) -> CommitCert:
        """A certificate that does not hold, or does."""
        lies = (
            certificate,
            replace(certificate, votes=certificate.votes[1:]),
            replace(certificate, votes=certificate.votes[::-1] + certificate.votes),
            replace(certificate, votes=tuple((index + 90, signature) for index, signature in certificate.votes)),
        )
        return self._random.choice(lies)

    # ---- contents

    def _chaos(self, sender: SimulatedMember, message: Vote | Operation, receiver: SimulatedMember) -> list[Saying]:
        said: list[Saying] = []
        roll = self._random.random()
        if roll >= 0.35:
            said.append((receiver, message if roll < 0.8 else self.other_content(message)))
        if self._random.random() < 0.1 and sender.replica is not None:
            said.append((receiver, self._noise(sender.key, sender.replica)))
        if self._random.random() < 0.05 and self._heard:
            said.append((receiver, self._random.choice(self._heard)))
        return said

    def stale(
        self, sender: SimulatedMember, message: Vote | Operation, receivers: list[SimulatedMember]
    ) -> list[Saying]:
        if isinstance(message, Prepare | Commit):
            nil: Vote = replace(message, block_id=NIL)
            if isinstance(nil, Prepare):
                nil = replace(nil, valid_view=NO_VIEW)
            nil = replace(nil, signature=signature_of(nil, self._cluster.network_id))
            return [(receiver, nil) for receiver in receivers]
        if isinstance(message, Ballot):
            hidden = replace(message, valid_view=NO_VIEW, valid_id=NIL, certificate=None)
            signed = replace(hidden, signature=signature_of(hidden, self._cluster.network_id))
            return [(receiver, signed) for receiver in receivers]
        if isinstance(message, SetMessage):
            old = self._old_proposal(sender, message)
            if old is not None:
                return [(receiver, old) for receiver in receivers]
            some = 2 * len(receivers) // 3  # so many that with its own hidden PREPARE there is a certificate
            return [(receivers[(message.height + place) % len(receivers)], message) for place in range(some)]
        return [(receiver, message) for receiver in receivers]

    def _old_proposal(self, sender: SimulatedMember, message: SetMessage) -> SetMessage | None:
        """A SET for the oldest block of the height that can be proved to have been prepared."""
        replica = sender.replica
        if replica is None or replica.height != message.height:
            return None
        liars = [key for key, member in self._cluster.members.items() if not member.honest]
        for (view, name, valid_view), signatures in sorted(self._prepares.get(message.height, {}).items()):
            certificate = self._completed(replica, (view, name, valid_view), signatures, liars)
            if view < message.view and certificate is not None:
                old = replace(message, valid_view=view, block_id=name, block=None, certificate=certificate)
                return replace(old, signature=signature_of(old, self._cluster.network_id))
        return None

    def _completed(
        self, replica: Replica, group: Group, signatures: dict[bytes, bytes], liars: list[bytes]
    ) -> PrepareCert | None:
        """Liars sign whatever makes a certificate."""
        (view, name, valid_view), roster = group, replica.roster
        all_signatures = dict(signatures)
        for key in liars:
            own = Prepare(height=replica.height, view=view, block_id=name, valid_view=valid_view, signer=key)
            all_signatures[key] = signature_of(own, self._cluster.network_id)
        votes = tuple((m.index, all_signatures[m.key]) for m in roster.active if m.key in all_signatures)
        if sum(roster.power(roster.members[index].key) for index, _signature in votes) < roster.quorum:
            return None
        return PrepareCert(height=replica.height, view=view, block_id=name, valid_view=valid_view, votes=votes)

    def _noise(self, key: bytes, replica: Replica) -> Vote:
        """A vote for anything, in some slot nearby."""
        height = max(1, replica.height + self._random.choice((-1, 0, 0, 0, 1, 7)))
        view = max(0, replica.view + self._random.choice((-2, -1, 0, 0, 1, 2, 1 << 20)))
        name = self._random.choice([NIL, self._random.randbytes(32), *replica.blocks])
        vote: Vote
        match self._random.randrange(4):
            case 0:
                vote = Commit(height=height, view=view, block_id=name, signer=key)
            case 1:
                valid = self._random.randint(NO_VIEW, min(view, 8))
                vote = Prepare(height=height, view=view, block_id=name, valid_view=valid, signer=key)
            case 2:
                vote = SetMessage(
                    height=height,
                    view=view,
                    valid_view=replica.valid_view,
                    block_id=name,
                    signer=key,
                    block=replica.blocks.get(name),
                    certificate=replica.valid_certificate,
                )
            case _:
                vote = Ballot(
                    height=height,
                    view=view,
                    state_hash=replica.state_hash or bytes(32),
                    valid_view=replica.valid_view,
                    valid_id=replica.valid_id,
                    round=replica.ledger.round,
                    ready=self._random.random() < 0.5,
                    entries=(),
                    signer=key,
                    certificate=replica.valid_certificate,
                )
        return replace(vote, signature=signature_of(vote, self._cluster.network_id))

    def other_content(self, message: Vote | Operation) -> Vote | Operation:
        """What an equivocator tells others in the same slot."""
        changed: Vote
        if isinstance(message, Prepare | Commit):
            name = self._some_block_id(message.height) if message.block_id == NIL else NIL
            changed = replace(message, block_id=name)
            if isinstance(changed, Prepare):
                changed = replace(changed, valid_view=NO_VIEW)
        elif isinstance(message, Ballot):
            entries = tuple(replace(entry, accepted=not entry.accepted) for entry in message.entries)
            changed = replace(message, ready=not message.ready, entries=entries)
        elif isinstance(message, SetMessage) and message.block is not None:
            block = self._other_block(message.block, message.signer)
            if block is None:
                return message
            changed = replace(message, block=block, block_id=block_id(self._crypto, block.header))
        elif isinstance(message, Operation) and message.kind is OperationKind.CONTRIBUTE:
            other = replace(message, arguments=(1 << 41 if message.arguments == (0,) else 0,))
            return replace(other, signature=signature_of(other, self._cluster.network_id))
        else:
            return message
        return replace(changed, signature=signature_of(changed, self._cluster.network_id))

    def _other_block(self, block: Block, signer: bytes) -> Block | None:
        """The same block without its operations, roots computed again: valid, but another block."""
        replica = self._cluster.members[signer].replica
        if replica is None or replica.height != block.height:
            return None
        body: Body = replace(block.body, operations=())
        after = next_state(replica.ledger, body, block_id=NIL)
        if after is None:
            return None
        header: Header = replace(
            block.header,
            operations_root=operations_root(self._crypto, body),
            next_roster_hash=roster_hash(self._crypto, after.roster),
        )
        return Block(header=header, body=body)

    def _some_block_id(self, height: int) -> bytes:
        return hashlib.sha256(b"no such block %d" % height).digest()

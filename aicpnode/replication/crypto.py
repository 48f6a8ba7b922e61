"""The core's injected crypto on real keys: Envelop signatures, one per slot, and canonical hashes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import cast

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Packable, content_id
from aicpnode.envelop.kinds import invitation_envelop, operation_envelop, vote_envelop
from aicpnode.identity import Identity
from consensus.evidence import Grad
from consensus.messages import Ballot, Commit, Invitation, Operation, Prepare, SetMessage, Vote, VoteT

VERIFIED_MAX = 8192
"""Signatures remembered as good: most of what a certificate holds has been received before."""


class MemberCrypto:
    """Signs for one identity. A slot holds one content for ever: breaking that is our own fault and stops the node."""

    def __init__(self, identity: Identity, network_id: bytes) -> None:
        self._identity = identity
        self._network_id = network_id
        self._slots: dict[tuple[int, int, int], Vote] = {}
        self._verified: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self.verifications = 0

    def remember_slot(self, vote: Vote) -> None:
        """A message that a previous run of this node signed."""
        self._slots[(int(vote.kind), vote.height, vote.view)] = vote

    def forget_slots(self, below_height: int) -> None:
        for slot in [slot for slot in self._slots if slot[1] < below_height]:
            del self._slots[slot]

    def sign(self, message: VoteT) -> VoteT:
        slot = (int(message.kind), message.height, message.view)
        stored = self._slots.get(slot)
        if stored is not None:
            assert isinstance(stored, type(message)), "a slot's kind names its class"
            assert stored == message, f"this node was about to contradict itself in slot {slot}"
            return stored
        envelop = signing.seal(self._identity, vote_envelop(message, self._network_id))
        signed = replace(message, signature=envelop.signature)
        self._slots[slot] = signed
        self._note(envelop)
        return signed

    def sign_operation(self, operation: Operation) -> Operation:
        envelop = signing.seal(self._identity, operation_envelop(operation, self._network_id))
        return replace(operation, signature=envelop.signature)

    def note_verified(self, envelop: Envelop) -> None:
        """The network has verified this one already."""
        self._note(envelop)

    def invite(self, guest: bytes) -> Invitation:
        """This member's word that ``guest`` may join."""
        invitation = Invitation(guest=guest, signer=self._identity.key)
        envelop = signing.seal(self._identity, invitation_envelop(invitation, self._network_id))
        return replace(invitation, signature=envelop.signature)

    def verify(self, message: Ballot | SetMessage | Prepare | Commit | Grad | Operation | Invitation) -> bool:
        match message:
            case Operation():
                envelop = operation_envelop(message, self._network_id)
            case Invitation():
                envelop = invitation_envelop(message, self._network_id)
            case _:
                envelop = vote_envelop(message, self._network_id)
        if (envelop.identity, envelop.signature) in self._verified:
            return True
        self.verifications += 1
        if not signing.verify(envelop):
            return False
        self._note(envelop)
        return True

    def _note(self, envelop: Envelop) -> None:
        self._verified[(envelop.identity, envelop.signature)] = None
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)

    def content_id(self, domain: str, content: object) -> bytes:
        return content_id(domain, cast(Packable, content))

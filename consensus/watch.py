"""Compares what each member signed, wherever it was read: in messages, in certificates and in blocks (section 6).

A member that tells two peers two things is only found out where both meet. Votes travel in certificates and ballots in
blocks, so that is where they do; everything here has a verified signature. Of each member a bounded number of
statements of the running and the previous height is remembered, and it is accused once.
"""

from __future__ import annotations

from consensus.evidence import Evidence, Grad, SignedContent, bare, contradiction, evidence
from consensus.messages import Commit, MessageKind, Prepare, Vote

STATEMENTS_PER_MEMBER_MAX = 40
"""Four kinds in ten views: what the book of votes keeps as well."""


class Watch:
    """What members said of one height."""

    def __init__(self) -> None:
        self._said: dict[bytes, dict[tuple[MessageKind, int], Vote]] = {}
        self._accused: set[bytes] = set()

    def __len__(self) -> int:
        return sum(len(statements) for statements in self._said.values())

    def heard(self, message: Vote) -> Evidence | None:
        """Remember ``message``; the proof if its signer contradicts itself, the first time that it does."""
        said = self._said.setdefault(message.signer, {})
        slot = (message.kind, message.view)
        known = said.get(slot)
        if known is not None and known == message:
            return None
        proof = None
        if message.signer not in self._accused:
            proof = self._contradicted(said, message)
        if proof is not None:
            self._accused.add(message.signer)
        if known is None:
            if len(said) >= STATEMENTS_PER_MEMBER_MAX:
                del said[min(said, key=lambda kept: kept[1])]
            kept = bare(message)
            assert not isinstance(kept, Grad), "a GRAD is no vote"
            said[slot] = kept
        return proof

    @staticmethod
    def _contradicted(said: dict[tuple[MessageKind, int], Vote], message: SignedContent) -> Evidence | None:
        same = said.get((message.kind, message.view))
        if same is not None and contradiction(same, message) is not None:
            return evidence(same, message)
        if isinstance(message, (Prepare, Commit)):
            for earlier in said.values():
                if contradiction(earlier, message) is not None:
                    return evidence(earlier, message)
        return None

"""A chain of certified headers: what a member can know of heights it has no blocks of (specification, section 8).

It starts at a point that is trusted (the genesis, one that the operator pinned, or the member's own last block) and
grows by one header at a time. A header is taken only if it builds on the one before and a quorum of the roster derived
so far committed it; a roster that it hands over to must be the one whose hash it names. So a donor can withhold, but
neither invent a height nor a roster. Each header also certifies the state after the height before it: whoever is given
that state by anybody can tell whether it is the true one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from consensus.messages import CommitCert, Crypto, Header, block_id, certificate_holds, roster_hash
from consensus.types import Roster

STATES_KEPT = 4096
"""Heights, the latest ones, whose certified state hash is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedHeader:
    """A decided header with its proof. ``next_roster`` is given where the header changes the roster, else None."""

    header: Header
    certificate: CommitCert
    next_roster: Roster | None = None


class HeaderChain:
    """``extend`` it in sequence. Holds one roster and the state hashes of the last STATES_KEPT heights."""

    def __init__(self, *, crypto: Crypto, height: int, block_id: bytes, roster: Roster) -> None:
        """``height`` and ``block_id`` are trusted, and ``roster`` is the one that decides the height after."""
        self.height = height
        self.block_id = block_id
        self.roster = roster
        self._crypto = crypto
        self._roster_hash = roster_hash(crypto, roster)
        self._states: OrderedDict[int, bytes] = OrderedDict()

    def extend(self, link: CertifiedHeader) -> str | None:
        """Take the header of the next height. If it is refused: the reason, and nothing has changed."""
        header, certificate = link.header, link.certificate
        if header.height != self.height + 1:
            return f"a header of height {header.height} after height {self.height}"
        if header.previous_block_id != self.block_id:
            return "it does not build on the block before it"
        if header.roster_hash != self._roster_hash:
            return "it names another roster than the one derived so far"
        name = block_id(self._crypto, header)
        if certificate.height != header.height or certificate.block_id != name:
            return "its certificate is of another block"
        roster, new_hash = self.roster, header.next_roster_hash
        if new_hash != self._roster_hash:
            if link.next_roster is None:
                return "it changes the roster, and the new one is missing"
            if roster_hash(self._crypto, link.next_roster) != new_hash:
                return "the roster that came with it is not the one it names"
            if not link.next_roster.active:
                return "it leaves nobody to decide the next height"
            roster = link.next_roster
        if not certificate_holds(self._crypto, certificate, self.roster):
            return "no quorum of the roster derived so far stands behind it"
        self.height, self.block_id = header.height, name
        self.roster, self._roster_hash = roster, new_hash
        self._states[header.height - 1] = header.state_hash
        if len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)
        return None

    def certified_state(self, height: int) -> bytes | None:
        """The hash of the state after ``height`` that a quorum certified in the next header; None if not known."""
        return self._states.get(height)

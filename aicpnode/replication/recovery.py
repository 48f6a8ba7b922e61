"""A member that finds its store missing cannot know what it signed: when may it vote again? Pure (section 5).

It observes until members with a quorum of power, itself not counted, have told heads that this node has meanwhile
verified by their certificates. Of what it ever voted on, the height before was decided, so some honest member among
any quorum has come within one height of it: three heights above the verified head it has certainly signed nothing.
"""

from __future__ import annotations

from consensus.membership import LedgerState
from consensus.types import quorum

SAFE_HEIGHTS = 3
SAFE_ROUNDS = 2


class Amnesia:
    """Collects what members claim, until it is enough."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._heads: dict[bytes, int] = {}

    def heard(self, key: bytes, head: int, ledger: LedgerState) -> None:
        """A signed head of a member; strangers do not count."""
        if key != self._key and ledger.roster.is_active(key):
            self._heads[key] = head

    def first_safe_height(self, ledger: LedgerState) -> int | None:
        """The first height to vote in again, or None while too few heads are verified."""
        roster = ledger.roster
        power = sum(roster.power(key) for key, head in self._heads.items() if head <= ledger.height)
        return ledger.height + SAFE_HEIGHTS if power >= roster.quorum else None

    def missing(self, ledger: LedgerState) -> tuple[bytes, ...]:
        """Members whose head is not known or not verified yet."""
        verified = {key for key, head in self._heads.items() if head <= ledger.height}
        return tuple(m.key for m in ledger.roster.active if m.key != self._key and m.key not in verified)

    def is_hopeless(self, ledger: LedgerState) -> bool:
        """Whether the others alone are no quorum: then this key cannot come back."""
        roster = ledger.roster
        others = roster.total_power - roster.power(self._key)
        return others < quorum(roster.total_power)

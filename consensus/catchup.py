"""Who is ahead, and whom to ask next (consensus specification, sections 4 and 8).

A claimed height is a hint: a liar costs one request, then the next peer is asked. Facts are certificates.
"""

from __future__ import annotations

from collections import Counter

STRANGERS_KEPT = 64
"""Peers that are no members and whose claims are kept. All members' claims are: strangers cannot crowd them out."""
RETRY_MAX_MS = 5_000
FRUITLESS_KEPT = 256
"""Peers that were asked in vain and are remembered; with more of them, all begin anew."""


class CatchUp:
    """What peers claim to have decided, and the order in which they are asked for it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._heads: dict[bytes, int] = {}
        self._strangers: set[bytes] = set()
        self._donor: bytes | None = None
        self._asked: list[bytes] = []
        self._attempts = 0
        self._waiting = False
        self._unanswered = False
        """Whether nothing has come since the last request."""
        self._fruitless: Counter[bytes] = Counter()
        """Requests that brought nothing, of those that claim to be ahead."""

    def heard(self, peer: bytes, head: int, height: int, *, is_member: bool) -> bool:
        """``peer`` claims to have decided ``head``. True if a request should be scheduled now."""
        if peer == self._key:
            return False
        if is_member:
            self._strangers.discard(peer)
        elif peer not in self._strangers:
            if len(self._strangers) >= STRANGERS_KEPT and not self._forget_stranger_below(head):
                return False
            self._strangers.add(peer)
        self._heads[peer] = max(head, self._heads.get(peer, 0))
        if head < height or self._waiting:
            return False
        self._waiting = True
        return True

    def _forget_stranger_below(self, head: int) -> bool:
        last = min(self._strangers, key=lambda key: (self._heads[key], key))
        if self._heads[last] >= head:
            return False
        self._strangers.discard(last)
        del self._heads[last]
        return True

    def next_target(self, height: int) -> bytes | None:
        """The next peer to ask for ``height``: each of those ahead once, then again.

        First whoever was asked last when decisions came, then members, then those that were asked in vain least often,
        then the furthest. So a liar is not asked first after every answer, nor one that answers now and then, however
        much it claims.
        """
        if self._unanswered and self._asked:
            if len(self._fruitless) >= FRUITLESS_KEPT:
                self._fruitless.clear()
            self._fruitless[self._asked[-1]] += 1
            if self._asked[-1] == self._donor:
                self._donor = None
        self._unanswered = False
        ahead = sorted(self.ahead(height), key=self._rank)
        if not ahead:
            self._waiting = False
            self._fruitless.clear()
            return None
        fresh = [key for key in ahead if key not in self._asked]
        if not fresh:
            # Everybody ahead was asked in vain: their claims are forgotten unless they are repeated.
            for key in ahead:
                del self._heads[key]
                self._strangers.discard(key)
            self._donor = None
            self._asked.clear()
            fresh = ahead
        self._asked.append(fresh[0])
        self._attempts += 1
        self._unanswered = True
        return fresh[0]

    def _rank(self, key: bytes) -> tuple[bool, bool, int, int, bytes]:
        return key != self._donor, key in self._strangers, self._fruitless[key], -self._heads[key], key

    def retry_ms(self, delta_ms: int) -> int:
        return min(delta_ms << min(self._attempts, 6), RETRY_MAX_MS)

    def served(self) -> None:
        """Decisions came that were asked for."""
        self._unanswered = False
        if self._asked:
            self._donor = self._asked[-1]

    def progressed(self) -> None:
        self._asked.clear()
        self._attempts = 0

    def ahead(self, height: int) -> list[bytes]:
        """Peers that claim to have decided ``height``."""
        return [key for key, head in self._heads.items() if head >= height]

    def furthest(self) -> int:
        """The greatest height that anybody claims; 0 if nobody claims any."""
        return max(self._heads.values(), default=0)

    def head(self, key: bytes) -> int:
        """What ``key`` claims to have decided; 0 if nothing is known."""
        return self._heads.get(key, 0)

    def donors(self, height: int) -> list[bytes]:
        """Who claims to have decided ``height``, members first, then the furthest: whom to ask for a snapshot."""
        return sorted(self.ahead(height), key=lambda key: (key in self._strangers, -self._heads[key], key))

    def forget(self, key: bytes) -> None:
        """What ``key`` claimed, until it claims it again."""
        self._heads.pop(key, None)
        self._strangers.discard(key)

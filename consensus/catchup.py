"""Who is ahead, and whom to ask next (consensus specification, sections 4 and 8).

A claimed height is a hint: a liar costs one request, then the next peer is asked. Facts are certificates.
"""

from __future__ import annotations

PEERS_KEPT = 256
RETRY_MAX_MS = 5_000


class CatchUp:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._heads: dict[bytes, int] = {}
        self._asked: list[bytes] = []
        self._attempts = 0
        self._waiting = False

    def heard(self, peer: bytes, head: int, height: int) -> bool:
        """``peer`` claims to have decided ``head``. True if a request should be scheduled now."""
        if peer == self._key or (peer not in self._heads and len(self._heads) >= PEERS_KEPT):
            return False
        self._heads[peer] = max(head, self._heads.get(peer, 0))
        if head < height or self._waiting:
            return False
        self._waiting = True
        return True

    def is_behind(self, height: int) -> bool:
        return any(head >= height for head in self._heads.values())

    def next_target(self, height: int) -> bytes | None:
        """The next peer to ask for ``height``: each of those ahead once, the furthest first, then again."""
        ahead = sorted((key for key, head in self._heads.items() if head >= height), key=lambda k: (-self._heads[k], k))
        if not ahead:
            self._waiting = False
            return None
        fresh = [key for key in ahead if key not in self._asked]
        if not fresh:
            # Everybody ahead was asked in vain: their claims are forgotten unless they are repeated.
            for key in ahead:
                del self._heads[key]
            self._asked.clear()
            fresh = ahead
        self._asked.append(fresh[0])
        self._attempts += 1
        return fresh[0]

    def retry_ms(self, delta_ms: int) -> int:
        return min(delta_ms << min(self._attempts, 6), RETRY_MAX_MS)

    def progressed(self) -> None:
        self._asked.clear()
        self._attempts = 0

    def ahead(self, height: int) -> dict[bytes, int]:
        return {key: head for key, head in self._heads.items() if head >= height}

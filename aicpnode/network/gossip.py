"""Which Envelops were seen, and to whom one is passed on. Pure: the caller tells the time.

Among members that are all connected to each other nothing is relayed: everybody hears the sender itself. Peers tell
each other whom they are connected to, so where a link is missing those in the middle know it and pass the message on.

The seen-cache is looked up before a signature is verified and entered only after, by the SHA-256 of all bytes of the
message, signature and attachment included: if the signature stood outside, a copy with a broken one would be delivered
as if it had been verified.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

SEEN_MAX = 16_384
SEEN_S = 120.0
RELAY_AGAIN_S = 1.0
"""Senders repeat themselves on purpose; what comes from the sender itself is passed on again, at most so often."""
RELAY_DEGREE = 8
"""At most so many nodes relay one sender's messages to one target."""


class SeenCache:
    """Hashes of the Envelops that were verified here. Bounded and expiring."""

    def __init__(self, *, entries_max: int = SEEN_MAX, ttl_s: float = SEEN_S) -> None:
        self._entries_max = entries_max
        self._ttl_s = ttl_s
        self._entries: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """Hash -> (entered, last relayed), oldest entry first; seconds."""

    def __len__(self) -> int:
        return len(self._entries)

    def hit(self, message_hash: bytes, now_s: float) -> bool:
        """True iff this message was entered within the last ``ttl_s``."""
        self._expire(now_s)
        return message_hash in self._entries

    def enter(self, message_hash: bytes, now_s: float) -> None:
        """Remember a message that was verified and is being relayed now."""
        self._entries[message_hash] = (now_s, now_s)
        self._entries.move_to_end(message_hash)
        self._expire(now_s)

    def may_relay_again(self, message_hash: bytes, now_s: float) -> bool:
        """True at most every ``RELAY_AGAIN_S`` for a message that was entered."""
        entered_s, relayed_s = self._entries[message_hash]
        if now_s - relayed_s < RELAY_AGAIN_S:
            return False
        self._entries[message_hash] = (entered_s, now_s)
        return True

    def _expire(self, now_s: float) -> None:
        while self._entries:
            entered_s, _ = next(iter(self._entries.values()))
            if len(self._entries) <= self._entries_max and now_s - entered_s < self._ttl_s:
                return
            self._entries.popitem(last=False)


def relay_targets(
    *,
    me: bytes,
    sender: bytes,
    from_peer: bytes,
    route: bytes | None,
    links: Mapping[bytes, Collection[bytes]],
) -> list[bytes]:
    """The peers to which an Envelop of ``sender``, heard from ``from_peer``, is passed on.

    ``links`` maps each of my peers to the keys it said it is connected to (nothing if it has not said so yet).
    ``route`` is a key for one node, or None for everyone.
    """
    if route is not None:
        return [route] if route in links and route not in (sender, from_peer) else []
    missing = [key for key in links if key not in (sender, from_peer) and sender not in links[key]]
    return [target for target in missing if _among_relays(me, sender, target, links)]


def _among_relays(me: bytes, sender: bytes, target: bytes, links: Mapping[bytes, Collection[bytes]]) -> bool:
    """Several nodes see the same missing link; all rank themselves in one order, and the first few relay.

    A node that is not connected to the sender itself is the next hop of a longer path and always relays.
    """
    if sender not in links:
        return True
    others = [
        key for key, linked in links.items() if key not in (sender, target) and sender in linked and target in linked
    ]
    if len(others) < RELAY_DEGREE:
        return True
    return me in _first(RELAY_DEGREE, [me, *others], sender + target)


def _first(count: int, keys: Iterable[bytes], salt: bytes) -> list[bytes]:
    return sorted(keys, key=lambda key: hashlib.sha256(salt + key).digest())[:count]

"""Pulling one body from whoever has it. Pure: chunks and time in, requests out.

Chunks of ``CHUNK_BYTES`` are asked for from one donor at a time, a few ahead. A donor that makes no progress is
changed for another that is available, or given up after a longer while; what it sent is kept, and what it sends late is
taken. Bodies are named by a hash of the whole, so a lie shows only at the end: if one donor sent it all, it lied; if
several did, nobody can be blamed, and the body is pulled again from one donor alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

CHUNK_BYTES = 61_440
"""60 KiB: one chunk with its header fits into one frame."""
WINDOW_CHUNKS = 6
SWITCH_S = 1.0
"""Without a byte for so long, another donor is asked if there is one."""
STALL_S = 5.0
"""Without a byte for so long, the donor is given up; the minimum rate is therefore 12 KiB/s."""
RECHECK_S = 1.0
"""Whether a donor that was busy with other transfers may be asked now."""
COOLING_S_MIN = 0.25
COOLING_S_MAX = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Request ``length`` bytes at ``offset`` from ``donor``."""

    donor: bytes
    offset: int
    length: int


@dataclass(slots=True)
class _Donor:
    failures: int = 0
    cool_until_s: float = 0.0


@dataclass(slots=True)
class Transfer:
    """The state of one pull. ``size_max`` bounds what is accepted; memory grows with the bytes received, not told."""

    size_max: int
    started_s: float
    total: int | None = None
    donor: bytes | None = None
    alone: bool = False
    """Chunks of several donors are not mixed any more."""
    received: int = 0
    """Bytes held."""
    _chunks: dict[int, bytes] = field(default_factory=dict)
    _sources: set[bytes] = field(default_factory=set)
    _asked: dict[int, bytes] = field(default_factory=dict)
    """Offset -> donor, answers outstanding."""
    _next_offset: int = 0
    _progress_s: float = 0.0
    _stepped_s: float = 0.0
    _donors: dict[bytes, _Donor] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """It holds or awaits bytes from a donor."""
        return self.donor is not None and bool(self._chunks or self._asked)

    @property
    def outstanding(self) -> int:
        """Chunks asked for that are still waited for."""
        return len(self._asked)

    @property
    def complete(self) -> bool:
        return self.total is not None and len(self._chunks) == _chunk_count(self.total)

    @property
    def tried(self) -> int:
        """Donors that failed so far."""
        return sum(1 for donor in self._donors.values() if donor.failures)

    def step(
        self,
        now_s: float,
        ranked: Sequence[bytes],
        *,
        budget: Callable[[bytes], int],
        progress_s: Callable[[bytes], float],
    ) -> list[Ask]:
        """What to ask for now. ``ranked`` are the connected peers, best first.

        ``budget`` says how many more requests a peer may be sent (it is shared by all transfers), ``progress_s`` when
        it last answered any of them.
        """
        if self.complete:
            return []
        self._stepped_s = now_s
        self._leave_slow_donor(now_s, ranked, progress_s)
        if self.donor is not None and not self._asked and budget(self.donor) < 1:
            self.donor = None  # busy with other transfers, or silent: perhaps somebody else has it too
        if self.donor is None:
            self.donor = self._available(now_s, [peer for peer in ranked if budget(peer) > 0])
            self._progress_s = now_s
            if self.alone:
                self.discard()
        if self.donor is None:
            return []
        return self._ask(now_s, self.donor, budget(self.donor))

    def next_wakeup_s(self, progress_s: Callable[[bytes], float], ranked: Sequence[bytes]) -> float:
        """When ``step``, just called, may have something to do though nothing arrives; infinity if nobody is there."""
        cool_s = [
            self._donors[peer].cool_until_s if peer in self._donors else 0.0 for peer in ranked if peer != self.donor
        ]
        available_s = min(cool_s, default=float("inf"))
        if self.donor is None:  # whoever is available now has no budget
            return available_s if available_s > self._stepped_s else self._stepped_s + RECHECK_S
        last_s = max(self._progress_s, progress_s(self.donor))
        return min(last_s + STALL_S, max(last_s + SWITCH_S, available_s))

    def chunk(self, donor: bytes, offset: int, total: int, data: bytes, now_s: float) -> str | None:
        """An answer arrived. Returns what is wrong with it (the donor's fault), or None."""
        if self._asked.get(offset) == donor:
            del self._asked[offset]
        if total > self.size_max:
            self.fail(donor, now_s)  # perhaps whoever told us the size lied, not this donor
            return None
        if len(data) != min(CHUNK_BYTES, max(0, total - offset)):
            self.fail(donor, now_s)
            return f"a chunk of {len(data)} bytes at {offset} of {total}"
        if self.alone and donor != self.donor:
            return None
        if self.total is not None and total != self.total:
            if donor != self.donor:
                return None
            self.discard()  # one of two donors lies about the size; the one that answers now is believed
        self.total = total
        if offset not in self._chunks and (data or offset == 0):
            self.received += len(data)
            self._chunks[offset] = data
            self._sources.add(donor)
        if donor == self.donor:
            self._progress_s = now_s
        return None

    def fail(self, donor: bytes, now_s: float) -> None:
        """``donor`` does not have it, or does not do: leave it alone for a while, longer each time."""
        record = self._donors.setdefault(donor, _Donor())
        record.cool_until_s = now_s + min(COOLING_S_MIN * 2**record.failures, COOLING_S_MAX)
        record.failures = min(record.failures + 1, 16)
        if self.donor == donor:
            self.donor = None
        self._asked = {offset: asked for offset, asked in self._asked.items() if asked != donor}
        self._next_offset = 0

    def announced(self, donor: bytes) -> None:
        """``donor`` says that it has the body: it may be asked at once."""
        if donor in self._donors:
            self._donors[donor].cool_until_s = 0.0

    def gone(self, donor: bytes, now_s: float) -> None:
        """``donor`` is not connected any more; what it sent stays."""
        if donor == self.donor or donor in self._asked.values():
            self.fail(donor, now_s)

    def body(self) -> bytes:
        assert self.complete
        return b"".join(self._chunks[offset] for offset in sorted(self._chunks))

    def refuted(self, now_s: float) -> bytes | None:
        """The body does not verify. Returns the one donor that sent all of it, None if several did."""
        liar = next(iter(self._sources)) if len(self._sources) == 1 else None
        for donor in self._sources:
            self.fail(donor, now_s)
        self.alone = True
        self.donor = None
        self.discard()
        return liar

    def discard(self) -> None:
        """Forget the bytes received."""
        self._chunks.clear()
        self._sources.clear()
        self._asked.clear()
        self.received = 0
        self.total = None
        self._next_offset = 0

    def _available(self, now_s: float, ranked: Sequence[bytes]) -> bytes | None:
        fresh = _Donor()
        for peer in ranked:
            if peer != self.donor and self._donors.get(peer, fresh).cool_until_s <= now_s:
                return peer
        return None

    def _leave_slow_donor(self, now_s: float, ranked: Sequence[bytes], progress_s: Callable[[bytes], float]) -> None:
        donor = self.donor
        if donor is None or not self._asked:
            return
        last_s = max(self._progress_s, progress_s(donor))
        another = now_s >= last_s + SWITCH_S and self._available(now_s, ranked) is not None
        if another or now_s >= last_s + STALL_S:
            self.fail(donor, now_s)

    def _ask(self, now_s: float, donor: bytes, budget: int) -> list[Ask]:
        if self.total is None:
            if self._asked or budget < 1:
                return []
            self._asked[0] = donor
            self._progress_s = now_s
            return [Ask(donor=donor, offset=0, length=CHUNK_BYTES)]
        if not self._asked:
            self._progress_s = now_s
        asks: list[Ask] = []
        room = min(budget, WINDOW_CHUNKS - sum(1 for asked in self._asked.values() if asked == donor))
        while len(asks) < room and self._next_offset < self.total:
            offset = self._next_offset
            self._next_offset += CHUNK_BYTES
            if offset not in self._chunks and offset not in self._asked:
                asks.append(Ask(donor=donor, offset=offset, length=min(CHUNK_BYTES, self.total - offset)))
                self._asked[offset] = donor
        return asks


def _chunk_count(total: int) -> int:
    return max(1, -(-total // CHUNK_BYTES))

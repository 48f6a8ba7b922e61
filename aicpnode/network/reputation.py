"""What each peer's faults have cost it, here and for now. Pure: the caller tells the time.

Everybody starts with ``SCORE_MAX`` points, faults subtract, time gives back. Below ``BAN_SCORE`` a peer is banned for
a while that doubles with each ban. This is one node's own opinion; that the members exclude somebody is decided in
the ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

SCORE_MAX = 100.0
BAN_SCORE = 1.0
"""Not zero: two malformed messages of 50 points are enough, whatever came back in the moment between them."""
RECOVERY_POINTS_PER_S = 0.1
"""A full score comes back in about 17 minutes."""
BAN_S = 60.0
BAN_S_MAX = 3600.0
RECORDS_MAX = 4096


@dataclass(slots=True)
class _Record:
    score: float = SCORE_MAX
    updated_s: float = 0.0
    bans: int = 0
    banned_until_s: float = 0.0


class Reputation:
    """Scores by key; bounded, the longest untouched record is forgotten first."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def penalise(self, key: bytes, penalty: int, now_s: float) -> bool:
        """Subtract ``penalty``. True if the peer is banned from this moment on and must be left."""
        assert penalty >= 0
        record = self._touch(key, now_s)
        record.score -= penalty
        if record.score >= BAN_SCORE:
            return False
        record.banned_until_s = now_s + min(BAN_S * 2**record.bans, BAN_S_MAX)
        record.bans += 1
        record.score = SCORE_MAX / 2
        return True

    def score(self, key: bytes, now_s: float) -> float:
        record = self._records.get(key)
        return SCORE_MAX if record is None else self._recovered(record, now_s)

    def banned_for_s(self, key: bytes, now_s: float) -> float:
        """Seconds until the ban ends; 0.0 if there is none."""
        record = self._records.get(key)
        return 0.0 if record is None else max(0.0, record.banned_until_s - now_s)

    def banned(self, now_s: float) -> dict[bytes, float]:
        """The keys banned now, and for how many seconds more."""
        return {key: self.banned_for_s(key, now_s) for key in self._records if self.banned_for_s(key, now_s) > 0}

    def _touch(self, key: bytes, now_s: float) -> _Record:
        record = self._records.setdefault(key, _Record(updated_s=now_s))
        self._records.move_to_end(key)
        record.score, record.updated_s = self._recovered(record, now_s), now_s
        while len(self._records) > RECORDS_MAX:
            self._records.popitem(last=False)
        return record

    @staticmethod
    def _recovered(record: _Record, now_s: float) -> float:
        return min(SCORE_MAX, record.score + (now_s - record.updated_s) * RECOVERY_POINTS_PER_S)

"""Members, rosters and the arithmetic of quorums (consensus specification, section 1).

``W`` is the power of all ACTIVE members, ``F = (W - 1) // 3`` the power that may be faulty, ``Q = W - F`` a quorum
and ``F + 1`` a weak quorum. Integers only, for every ``W`` from 1 up: a quorum is never a rounded fraction.
Any two quorums overlap in at least ``F + 1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

KEY_BYTES = 32
HASH_BYTES = 32
SIGNATURE_BYTES = 64
NIL = b""
"""The block id of a PREPARE or COMMIT for nothing."""
NO_VIEW = -1
"""The value of a view field (vr, hv, lockedView, validView) that points nowhere."""
POWER_MAX = 1 << 20
CLAMP_FROM_POWER = 4
"""From this total power on, no single member may hold more than F."""
MEMBER_NAME_CHARS_MAX = 64


def max_faulty(total_power: int) -> int:
    """``F`` for a total ACTIVE power ``W >= 1``: the power that may be faulty without harm."""
    assert total_power >= 1, "a roster without power decides nothing"
    return (total_power - 1) // 3


def quorum(total_power: int) -> int:
    """``Q = W - F`` for ``W >= 1``."""
    return total_power - max_faulty(total_power)


def clamp_powers(powers: tuple[int, ...]) -> tuple[int, ...]:
    """Lower the largest powers, in join order, until none exceeds ``F`` (only from ``W >= 4`` on)."""
    clamped = list(powers)
    while True:
        total = sum(clamped)
        if total < CLAMP_FROM_POWER:
            return tuple(clamped)
        limit = max(1, max_faulty(total))
        largest = max(clamped)
        if largest <= limit:
            return tuple(clamped)
        clamped[clamped.index(largest)] = limit


class MemberStatus(IntEnum):
    """Where a member stands. Only ACTIVE members vote."""

    PROBATION = 0
    ACTIVE = 1
    SUSPENDED = 2
    BANNED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member. ``index`` is the join order and never changes; ``power`` is nominal (before clamping)."""

    index: int
    key: bytes
    power: int
    status: MemberStatus
    name: str = ""

    def content(self) -> tuple[object, ...]:
        return (self.index, self.key, self.power, int(self.status), self.name)


@dataclass(frozen=True, kw_only=True)
class Roster:
    """All members in join order; ``epoch`` counts the changes."""

    epoch: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        assert [member.index for member in self.members] == list(range(len(self.members))), "indices are join order"
        assert len({member.key for member in self.members}) == len(self.members), "a key joins once"

    @cached_property
    def active(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.status is MemberStatus.ACTIVE)

    @cached_property
    def authors(self) -> frozenset[int]:
        """Indices of those whose proposals are judged: ACTIVE and on probation, so at most ``members_max`` of them."""
        judged = (MemberStatus.ACTIVE, MemberStatus.PROBATION)
        return frozenset(member.index for member in self.members if member.status in judged)

    @cached_property
    def _power_by_key(self) -> dict[bytes, int]:
        powers = clamp_powers(tuple(member.power for member in self.active))
        return {member.key: power for member, power in zip(self.active, powers, strict=True)}

    @cached_property
    def _member_by_key(self) -> dict[bytes, Member]:
        return {member.key: member for member in self.members}

    @cached_property
    def total_power(self) -> int:
        """``W``: the (clamped) power of all ACTIVE members."""
        return sum(self._power_by_key.values())

    @cached_property
    def faulty_power(self) -> int:
        """``F``."""
        return max_faulty(self.total_power)

    @cached_property
    def quorum(self) -> int:
        """``Q``."""
        return quorum(self.total_power)

    @cached_property
    def weak_quorum(self) -> int:
        """``F + 1``: at least one honest member is among any such power."""
        return self.faulty_power + 1

    def power(self, key: bytes) -> int:
        """Voting power of ``key``: 0 for everybody who is not ACTIVE."""
        return self._power_by_key.get(key, 0)

    def by_key(self, key: bytes) -> Member | None:
        return self._member_by_key.get(key)

    def by_index(self, index: int) -> Member | None:
        return self.members[index] if 0 <= index < len(self.members) else None

    def is_active(self, key: bytes) -> bool:
        return key in self._power_by_key

    def leader(self, height: int, view: int) -> Member:
        """``active[(h + v) mod len(active)]`` in join order."""
        return self.active[(height + view) % len(self.active)]

    def content(self) -> tuple[object, ...]:
        return (self.epoch, tuple(member.content() for member in self.members))

"""Members in join order: who has power, and who leads."""

import pytest

from consensus.types import Member, MemberStatus, Roster


def member(
    index: int, status: MemberStatus = MemberStatus.ACTIVE, *, power: int = 1, key: bytes | None = None
) -> Member:
    return Member(index=index, key=key or bytes([index]) * 32, power=power, status=status)


def roster(*members: Member) -> Roster:
    return Roster(epoch=0, members=members)


def test_only_active_members_have_power() -> None:
    statuses = (MemberStatus.ACTIVE, MemberStatus.PROBATION, MemberStatus.SUSPENDED, MemberStatus.BANNED)
    mixed = roster(*(member(i, status, power=5) for i, status in enumerate(statuses)))
    assert [mixed.power(m.key) for m in mixed.members] == [1, 0, 0, 0]
    assert (mixed.total_power, mixed.quorum, mixed.weak_quorum) == (1, 1, 1)
    assert mixed.power(b"stranger") == 0


def test_leader_rotates_over_the_active_in_join_order() -> None:
    mixed = roster(member(0), member(1, MemberStatus.BANNED), member(2), member(3))
    assert [mixed.leader(height, view).index for height, view in ((0, 0), (1, 0), (1, 1), (2, 1))] == [0, 2, 3, 0]


def test_indices_beyond_the_roster_name_nobody() -> None:
    two = roster(member(0), member(1))
    assert two.by_index(1) is not None
    assert (two.by_index(2), two.by_index(-1), two.by_index(1 << 40)) == (None, None, None)


def test_equal_keys_are_refused() -> None:
    with pytest.raises(AssertionError, match="joins once"):
        roster(member(0), member(1, key=bytes(32)))


def test_indices_are_join_order() -> None:
    with pytest.raises(AssertionError, match="join order"):
        roster(member(1), member(0))

"""W, F, Q and F+1, and the clamping of powers, for every total that a run can have."""

import pytest

from consensus.types import clamp_powers, max_faulty, quorum


@pytest.mark.parametrize("first", range(1, 1001, 100))
def test_quorum_has_its_properties_for_every_total_power(first: int) -> None:
    for total in range(first, first + 100):
        faulty, needed = max_faulty(total), quorum(total)
        assert faulty == (total - 1) // 3
        assert needed == total - faulty == 2 * total // 3 + 1
        assert 3 * faulty < total, "the faulty are less than a third"
        assert 2 * needed - total >= faulty + 1, "two quorums share F+1"
        assert needed <= total - faulty, "the honest alone are a quorum"
        assert 3 * (faulty + 1) >= total, "F is the largest such number"


def test_quorum_of_small_rosters_is_everybody() -> None:
    assert [quorum(total) for total in (1, 2, 3, 4, 5, 6, 7)] == [1, 2, 3, 3, 4, 5, 5]
    assert [max_faulty(total) for total in (1, 2, 3, 4, 5, 6, 7)] == [0, 0, 0, 1, 1, 1, 2]


def test_quorum_of_nothing_is_our_own_fault() -> None:
    with pytest.raises(AssertionError):
        quorum(0)


@pytest.mark.parametrize(
    ("powers", "clamped"),
    [
        ((1,), (1,)),
        ((3,), (3,)),
        ((2, 1), (2, 1)),
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((10, 10, 10, 10), (10, 10, 10, 10)),
        ((5,), (1,)),
        ((3, 3), (1, 1)),
        ((2, 1, 1), (1, 1, 1)),
        ((10, 1, 1, 1), (1, 1, 1, 1)),
        ((1, 10, 10, 1), (1, 1, 1, 1)),
        ((4, 4, 1, 1), (1, 1, 1, 1)),
        ((9, 4, 4, 4), (5, 4, 4, 4)),
        ((1 << 32, 1, 1, 1), (1, 1, 1, 1)),
    ],
)
def test_clamping_lowers_the_largest_until_none_exceeds_f(powers: tuple[int, ...], clamped: tuple[int, ...]) -> None:
    assert clamp_powers(powers) == clamped


def test_clamping_begins_with_the_lowest_join_index() -> None:
    # W = 8, F = 2: the first 3 becomes 2, then W = 7 and F = 2 lowers the second.
    assert clamp_powers((3, 3, 1, 1)) == (1, 1, 1, 1)
    # W = 4 is left by the first step, so the second keeps its power.
    assert clamp_powers((2, 2)) == (1, 2)


def test_clamped_powers_leave_no_member_above_f() -> None:
    for a in range(1, 12):
        for b in range(1, 12):
            for c in range(1, 12):
                clamped = clamp_powers((a, b, c, 2))
                total = sum(clamped)
                assert total < 4 or max(clamped) <= max(1, max_faulty(total))
                assert all(after <= before for after, before in zip(clamped, (a, b, c, 2), strict=True))

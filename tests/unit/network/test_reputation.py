"""Scores fall, come back, and lead to bans that end."""

from __future__ import annotations

import pytest

from aicpnode.network.reputation import BAN_S, BAN_S_MAX, RECORDS_MAX, SCORE_MAX, Reputation

KEY = b"k" * 32


def test_two_malformed_messages_ban_a_peer_for_a_while():
    reputation = Reputation()
    assert not reputation.penalise(KEY, 50, 0.0)
    assert reputation.penalise(KEY, 50, 1.0)
    assert reputation.banned_for_s(KEY, 1.0) == BAN_S
    assert list(reputation.banned(2.0)) == [KEY]
    assert reputation.banned_for_s(KEY, 1.0 + BAN_S) == 0.0
    assert reputation.banned(1.0 + BAN_S) == {}


def test_time_gives_points_back_up_to_the_maximum():
    reputation = Reputation()
    reputation.penalise(KEY, 50, 0.0)
    assert reputation.score(KEY, 100.0) == pytest.approx(60)
    assert reputation.score(KEY, 1e6) == SCORE_MAX
    assert reputation.score(b"stranger", 0.0) == SCORE_MAX


def test_each_ban_is_twice_as_long_up_to_a_limit():
    reputation, lengths = Reputation(), []
    for number in range(10):
        while not reputation.penalise(KEY, 50, number * 10.0):
            pass
        lengths.append(reputation.banned_for_s(KEY, number * 10.0))
    assert lengths[:3] == [BAN_S, 2 * BAN_S, 4 * BAN_S] and lengths[-1] == BAN_S_MAX


def test_records_are_bounded_and_the_longest_untouched_is_forgotten():
    reputation = Reputation()
    for number in range(RECORDS_MAX + 1):
        reputation.penalise(number.to_bytes(4, "big"), 10, 0.0)
    assert reputation.score((0).to_bytes(4, "big"), 0.0) == SCORE_MAX
    assert reputation.score((1).to_bytes(4, "big"), 0.0) == 90

"""PAUSED is: an own ballot is outstanding, and for long no quorum was heard."""

from __future__ import annotations

import pytest

from aicpnode.replication.pause import PAUSE_S_MIN, TIMEOUTS, QuorumWatch
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import founders

ME, *OTHERS = (simulated_key(index) for index in range(4))
ROSTER = founders(4).roster
TIMEOUT_MS = 150
LATER_S = PAUSE_S_MIN + 0.1


@pytest.fixture
def watch() -> QuorumWatch:
    return QuorumWatch(ME)


def look(watch: QuorumWatch, now_s: float, heard_s: dict[bytes, float], *, outstanding: bool = True, **more) -> bool:
    return watch.observe(now_s, ROSTER, heard_s, outstanding=outstanding, timeout_ms=more.get("timeout_ms", TIMEOUT_MS))


def test_member_that_hears_too_few_for_long_pauses_once(watch: QuorumWatch) -> None:
    assert not look(watch, 0.0, {})
    assert not look(watch, PAUSE_S_MIN, {}) and not watch.is_paused
    assert look(watch, LATER_S, {}) and watch.is_paused
    assert not look(watch, LATER_S + 1, {}) and watch.is_paused


def test_quorum_with_this_member_itself_keeps_it_going(watch: QuorumWatch) -> None:
    two, one = dict.fromkeys(OTHERS[:2], LATER_S), dict.fromkeys(OTHERS[:1], LATER_S)
    look(watch, 0.0, {})
    assert not look(watch, LATER_S, two)
    assert look(watch, LATER_S, one)


def test_without_a_ballot_nothing_is_waited_for(watch: QuorumWatch) -> None:
    look(watch, 0.0, {}, outstanding=False)
    assert not look(watch, 100.0, {}, outstanding=False)
    assert not look(watch, 101.0, {}), "the waiting begins with the ballot"
    assert not look(watch, 101.0 + PAUSE_S_MIN, {})
    assert look(watch, 101.0 + LATER_S, {})


def test_decision_or_voices_end_the_pause(watch: QuorumWatch) -> None:
    for heard_s, outstanding in ((dict.fromkeys(OTHERS, 2 * LATER_S), True), ({}, False)):
        watch = QuorumWatch(ME)
        look(watch, 0.0, {})
        assert look(watch, LATER_S, {})
        assert look(watch, 2 * LATER_S, heard_s, outstanding=outstanding)
        assert not watch.is_paused


def test_long_timeouts_are_waited_for(watch: QuorumWatch) -> None:
    timeout_ms = 10_000
    limit_s = TIMEOUTS * timeout_ms / 1000
    look(watch, 0.0, {}, timeout_ms=timeout_ms)
    assert not look(watch, limit_s, {}, timeout_ms=timeout_ms)
    assert look(watch, limit_s + 0.1, {}, timeout_ms=timeout_ms)


def test_voices_of_strangers_count_for_nothing(watch: QuorumWatch) -> None:
    look(watch, 0.0, {})
    assert look(watch, LATER_S, {simulated_key(index): LATER_S for index in range(10, 20)})


def test_member_alone_is_a_quorum_of_itself() -> None:
    alone = QuorumWatch(ME)
    roster = founders(1).roster
    for now_s in (0.0, 100.0):
        assert not alone.observe(now_s, roster, {}, outstanding=True, timeout_ms=TIMEOUT_MS)


def test_missing_are_those_that_were_not_heard(watch: QuorumWatch) -> None:
    heard_s = {OTHERS[0]: 10.0, OTHERS[1]: 10.0 - LATER_S}
    assert watch.missing(10.0, ROSTER, heard_s, timeout_ms=TIMEOUT_MS) == [OTHERS[1], OTHERS[2]]

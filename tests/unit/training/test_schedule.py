from __future__ import annotations

import pytest

from aicpnode.training.schedule import Schedule

SCHEDULE = Schedule(peak=1.0, warmup_steps=4, decay_rounds=10)


def test_warm_up_follows_the_own_steps() -> None:
    rates = [SCHEDULE.rate(own_step=step, round_number=0) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_decay_follows_the_round_down_to_a_tenth() -> None:
    rates = [SCHEDULE.rate(own_step=100, round_number=number) for number in (0, 5, 10, 1000)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_a_late_joiner_warms_up_under_the_decayed_rate() -> None:
    assert SCHEDULE.rate(own_step=0, round_number=5) == pytest.approx(0.25 * 0.55)


def test_no_warm_up_and_no_decay_is_a_constant() -> None:
    schedule = Schedule(peak=0.3, warmup_steps=0, decay_rounds=0)
    assert {schedule.rate(own_step=s, round_number=r) for s in (0, 9) for r in (0, 99)} == {0.3}

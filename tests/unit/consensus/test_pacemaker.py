"""Durations, in milliseconds."""

from consensus.pacemaker import RESEND_MAX_MS, Pacemaker, Timing


def test_timeout_grows_by_half_up_to_its_maximum() -> None:
    pacemaker = Pacemaker(Timing(delta_ms=200))
    assert [pacemaker.timeout_ms(view) for view in range(4)] == [200, 300, 450, 675]
    assert pacemaker.timeout_ms(30) == pacemaker.timeout_ms(2**31) == 60_000


def test_timeout_never_falls_with_the_view() -> None:
    pacemaker = Pacemaker(Timing(delta_ms=7))
    waits = [pacemaker.timeout_ms(view) for view in range(100)]
    assert waits == sorted(waits)


def test_slow_decisions_raise_delta_but_never_lower_it() -> None:
    pacemaker = Pacemaker(Timing(delta_ms=150))
    pacemaker.measured(400)
    assert pacemaker.timeout_ms(0) == 400
    pacemaker.measured(1)
    assert pacemaker.timeout_ms(0) == 150
    pacemaker.measured(10**9)
    assert pacemaker.timeout_ms(0) == 60_000


def test_resending_backs_off_and_starts_anew_on_progress() -> None:
    pacemaker = Pacemaker(Timing(delta_ms=150))
    waits = [pacemaker.next_resend_ms() for _ in range(8)]
    assert waits == [150, 300, 600, 1200, 2400, 4800, RESEND_MAX_MS, RESEND_MAX_MS]
    pacemaker.progressed()
    assert pacemaker.next_resend_ms() == 150


def test_leader_waits_within_the_first_half_of_the_timeout() -> None:
    pacemaker = Pacemaker(Timing(delta_ms=150))
    for view in range(50):
        assert 1 <= pacemaker.leader_hard_ms(view) <= pacemaker.timeout_ms(view) // 2 + 1
    assert pacemaker.leader_soft_ms() == 37
    assert Pacemaker(Timing(delta_ms=1)).leader_soft_ms() == 1

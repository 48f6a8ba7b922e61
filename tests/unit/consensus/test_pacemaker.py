"""Durations, in milliseconds."""

from consensus.messages import Commit, CommitCert, Prepare
from consensus.pacemaker import RESEND_MAX_MS, DecisionPace, Pacemaker, Timing
from consensus.types import NIL, NO_VIEW

BLOCK = bytes(32)


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


def prepare(height: int, view: int = 0, block_id: bytes = BLOCK) -> Prepare:
    return Prepare(height=height, view=view, block_id=block_id, valid_view=NO_VIEW, signer=BLOCK)


def decision(height: int, view: int = 0) -> CommitCert:
    return CommitCert(height=height, view=view, block_id=BLOCK, votes=())


def pace_after(*took_ms: float) -> tuple[DecisionPace, int | None]:
    """A pace that saw decisions which took so long each from the own PREPARE on, and its last word."""
    pace, said = DecisionPace(), None
    for height, took in enumerate(took_ms, start=1):
        pace.cast(prepare(height), 1000.0 * height)
        said = pace.decided(decision(height), 1000.0 * height + took)
    return pace, said


def test_delta_is_twice_the_median_of_four_steps() -> None:
    assert pace_after(100, 120, 110)[1] == 2 * 2 * 110


def test_one_slow_decision_says_nothing_alone_and_little_among_others() -> None:
    assert pace_after(3_600_000)[1] is None
    assert pace_after(3_600_000, 50)[1] == 4 * 50
    assert pace_after(50, 60, 3_600_000)[1] == 4 * 60


def test_only_the_last_decisions_count() -> None:
    assert pace_after(*[900] * 20, *[10] * 16)[1] == 40


def test_what_a_height_waited_before_its_last_view_is_no_pace() -> None:
    pace, _said = pace_after(10, 10)
    pace.cast(prepare(3, view=0), 0.0)
    assert pace.decided(decision(3, view=4), 60_000.0) is None, "prepared in a view that did not decide"
    pace.cast(prepare(4, view=0), 0.0)
    pace.cast(prepare(4, view=5), 90_000.0)
    assert pace.decided(decision(4, view=5), 90_010.0) == 40, "from the PREPARE of the view that decides"


def test_nil_and_other_messages_begin_nothing() -> None:
    pace, _said = pace_after(10, 10)
    pace.cast(prepare(3, block_id=NIL), 0.0)
    pace.cast(Commit(height=3, view=0, block_id=BLOCK, signer=BLOCK), 0.0)
    assert pace.decided(decision(3), 5_000.0) is None
    assert pace.decided(decision(4), 6_000.0) is None, "a decision that came from others"

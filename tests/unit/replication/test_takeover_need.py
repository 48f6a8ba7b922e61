"""When a node replays, and when it takes over a state of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.replication.applier import BODIES_KEPT_ROUNDS
from aicpnode.replication.takeover import (
    BLOCKS_PATIENCE_S,
    BODIES_PATIENCE_S,
    SNAPSHOT_GAP,
    Need,
    Position,
    Reason,
    need,
)

AT_HOME = Position(head=500, applied=500, base=0, furthest=500)
GAP = 100


def test_nothing_is_needed_at_the_head_or_a_little_behind() -> None:
    assert need(AT_HOME, gap=GAP) is None
    assert need(replace(AT_HOME, furthest=500 + GAP), gap=GAP) is None
    assert need(replace(AT_HOME, applied=480), gap=GAP) is None
    assert need(replace(AT_HOME, base=500), gap=GAP) is None


def test_far_behind_wants_a_snapshot_that_is_worth_it() -> None:
    found = need(replace(AT_HOME, furthest=501 + GAP), gap=GAP)
    assert found == Need(reason=Reason.FAR_BEHIND, least=501 + GAP // 2)


def test_blocks_without_the_state_after_them_are_still_far_behind() -> None:
    at = replace(AT_HOME, applied=300)
    assert need(at, gap=GAP) == Need(reason=Reason.FAR_BEHIND, least=301 + GAP // 2)


def test_waiting_long_for_bodies_wants_a_snapshot_beyond_them() -> None:
    waiting = replace(AT_HOME, applied=480, waits_for_bodies_s=BODIES_PATIENCE_S)
    assert need(waiting, gap=GAP) is None
    longer = replace(waiting, waits_for_bodies_s=BODIES_PATIENCE_S + 1)
    assert need(longer, gap=GAP) == Need(reason=Reason.BODIES_MISSING, least=481)


def test_next_block_that_nobody_gives_wants_a_snapshot_beyond_it() -> None:
    still = replace(AT_HOME, furthest=510, stands_still_s=BLOCKS_PATIENCE_S)
    assert need(still, gap=GAP) is None
    longer = replace(still, stands_still_s=BLOCKS_PATIENCE_S + 1)
    assert need(longer, gap=GAP) == Need(reason=Reason.BLOCKS_MISSING, least=501)


def test_diverged_node_takes_any_state_at_first_and_a_later_one_if_it_diverges_there_again() -> None:
    diverged = replace(AT_HOME, diverged=True)
    assert need(diverged, gap=GAP) == Need(reason=Reason.DIVERGED, least=1)
    assert need(replace(diverged, base=300), gap=GAP) == Need(reason=Reason.DIVERGED, least=300)
    again = replace(diverged, base=300, diverged_before=450)
    assert need(again, gap=GAP) == Need(reason=Reason.DIVERGED, least=450)


def test_lost_state_at_the_base_is_fetched_again() -> None:
    lost = replace(AT_HOME, applied=0, base=300)
    assert need(lost, gap=GAP) == Need(reason=Reason.STATE_LOST, least=300)


@pytest.mark.parametrize("reason", list(Reason))
def test_reasons_are_sentences_for_people(reason: Reason) -> None:
    assert len(reason.value.split()) > 4


def test_whoever_replays_finds_the_bodies_that_it_needs() -> None:
    """A round takes at least one height, so within the gap nobody needs older bodies than are kept."""
    assert SNAPSHOT_GAP < BODIES_KEPT_ROUNDS

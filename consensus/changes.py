"""Run-wide changes: what members of power Q can decide together besides blocks (consensus specification, section 3).

A change is a plain value. It takes effect in the block in which the power of the ACTIVE members that endorsed exactly
this value reaches Q. A change that would change nothing is refused, so that no endorsement lies in wait for later.
"""

from __future__ import annotations

from dataclasses import replace

from consensus.messages import Change, ChangeKind
from consensus.state import Admission, LedgerState
from consensus.text import is_plain_text
from consensus.types import KEY_BYTES, Member, MemberStatus

ENDORSEMENTS_PER_MEMBER_MAX = 4
"""Waiting at the same time; a further one replaces the oldest."""
REASON_CHARS_MAX = 120
ROUND_MS_MAX = 24 * 3600 * 1000
PROBATION_ROUNDS_MAX = 100_000
MEMBERS_MAX = 100
LIMITS = {
    ChangeKind.ROUND_MS: (100, ROUND_MS_MAX),
    ChangeKind.PROBATION_ROUNDS: (1, PROBATION_ROUNDS_MAX),
    ChangeKind.MEMBERS_MAX: (1, MEMBERS_MAX),
    ChangeKind.ADMISSION: (min(Admission), max(Admission)),
}
"""Inclusive bounds of the number of a change of that kind."""


def is_well_formed(change: Change) -> bool:
    """Whether it uses exactly the fields of its kind, within their limits."""
    if change.kind is ChangeKind.REMOVE:
        named = len(change.key) == KEY_BYTES and change.number == 0
        return named and 0 < len(change.text) <= REASON_CHARS_MAX and is_plain_text(change.text)
    if change.key or change.text:
        return False
    lowest, highest = LIMITS.get(change.kind, (0, 0))
    return lowest <= change.number <= highest


def refuse_change(state: LedgerState, change: Change) -> str | None:
    """Why ``change`` cannot be endorsed in ``state``, or None."""
    if not is_well_formed(change):
        return "malformed change"
    if change.kind is ChangeKind.REMOVE:
        member = state.roster.by_key(change.key)
        if member is None or member.status is MemberStatus.BANNED:
            return "no member, or banned already"
        if state.roster.power(change.key) >= state.roster.total_power:
            return "the last member cannot be removed"
        return None
    if change.kind is ChangeKind.MEMBERS_MAX and change.number < len(state.roster.active):
        return "there are more members already"
    return "that would change nothing" if carry_out(state, change) == state else None


def carry_out(state: LedgerState, change: Change) -> LedgerState | Member:
    """The state after ``change``, or the member that it removes: how that is done is the operations' business."""
    rules, number = state.rules, change.number
    match change.kind:
        case ChangeKind.STOP:
            return replace(state, is_stopped=True)
        case ChangeKind.RESUME:
            return replace(state, is_stopped=False)
        case ChangeKind.ROUND_MS:
            return replace(state, rules=replace(rules, round_ms=number))
        case ChangeKind.PROBATION_ROUNDS:
            return replace(state, rules=replace(rules, probation_rounds=number))
        case ChangeKind.MEMBERS_MAX:
            return replace(state, rules=replace(rules, members_max=number))
        case ChangeKind.ADMISSION:
            return replace(state, rules=replace(rules, admission=Admission(number)))
    member = state.roster.by_key(change.key)
    assert member is not None, "a change is refused before it is carried out"
    return member

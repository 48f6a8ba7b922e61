"""What ballots say about their signers: probation, promotion, absence, strikes, return (sections 6 and 7).

The last step of a block, after training and operations. Everything counts appearances in decided blocks, never time:
after a halt of days nobody has been absent.
"""

from __future__ import annotations

from dataclasses import replace

from consensus.messages import Body, Verdict
from consensus.operations import ABSENCE_ROUNDS, suspend
from consensus.state import LedgerState, Standing, Suspension
from consensus.types import CLAMP_FROM_POWER, Member, MemberStatus, Roster, max_faulty

PROMOTION_WINDOW_ROUNDS = 100
RETURN_APPEARANCES = 10
"""A suspended member has its vote back once it stood among the observers of so many blocks."""
STRIKES_MAX = 3
STRIKE_WINDOW_ROUNDS = 50


def observe(before: LedgerState, state: LedgerState, body: Body) -> LedgerState:
    """``state`` after the effects of the block's ballots; ``before`` is the state the block builds on."""
    state = _see(before, state, body)
    if body.training is not None:
        state = _strike(before, state, body)
        state = _suspend_absent(state)
    state = _count_observers(before, state, body)
    state = _bring_back(state)
    return _promote_one(state)


def _see(before: LedgerState, state: LedgerState, body: Body) -> LedgerState:
    standings = list(state.standings)
    for record in body.ballots:
        if record.signer_index >= len(before.standings):
            continue
        standing = standings[record.signer_index]
        if standing.seen_round != before.round:
            standings[record.signer_index] = replace(standing, seen_round=before.round)
    return replace(state, standings=tuple(standings))


def _strike(before: LedgerState, state: LedgerState, body: Body) -> LedgerState:
    """A strike for each author whose proposal voting power of at least Q refused; three of them suspend.

    Power that is Byzantine alone cannot do it: Q holds F+1 that is honest, and its refusals have exact reasons.
    """
    refused = any(Verdict.NO in record.verdicts for record in body.ballots)
    for row, (author, _digest) in enumerate(body.table if refused else ()):
        refusing = sum(
            before.roster.power(before.roster.members[record.signer_index].key)
            for record in body.ballots
            if record.verdicts[row] is Verdict.NO
        )
        if refusing >= before.roster.quorum:
            standing = state.standings[author]
            if before.round not in standing.strikes:
                state = state.with_standing(author, replace(standing, strikes=(*standing.strikes, before.round)))
    for member in state.roster.members:
        standing = state.standings[member.index]
        recent = tuple(at for at in standing.strikes if before.round - at < STRIKE_WINDOW_ROUNDS)
        if recent != standing.strikes:
            state = state.with_standing(member.index, replace(standing, strikes=recent))
        if len(recent) < STRIKES_MAX or member.status not in (MemberStatus.ACTIVE, MemberStatus.PROBATION):
            continue
        if state.may_depart(state.roster.power(member.key)):
            state = suspend(state, member, Suspension.STRIKES)
    return state


def _suspend_absent(state: LedgerState) -> LedgerState:
    """Suspend whom no block showed for long; never more than half of what may be faulty, counted with those away."""
    for member in state.roster.active:
        if state.round - state.standings[member.index].seen_round < ABSENCE_ROUNDS:
            continue
        power = state.roster.power(member.key)
        away = absent_power(state)
        if 2 * (away + power) <= max_faulty(state.roster.total_power + away) and state.may_depart(power):
            state = suspend(state, member, Suspension.ABSENT)
    return state


def absent_power(state: LedgerState) -> int:
    """Nominal power of the members suspended for absence."""
    return sum(
        member.power
        for member in state.roster.members
        if member.status is MemberStatus.SUSPENDED and state.standings[member.index].suspension is Suspension.ABSENT
    )


def _count_observers(before: LedgerState, state: LedgerState, body: Body) -> LedgerState:
    """For members that were on probation or on their way back: blocks with training, or all while nobody trains."""
    if body.training is None and before.contributors():
        return state
    observers = {record.signer_index for record in body.observers}
    for member in before.roster.members:
        was_returning = before.standings[member.index].is_returning
        standing = state.standings[member.index]
        still = _is_watched(state.roster.members[member.index], standing)
        if still and (member.status is MemberStatus.PROBATION or was_returning):
            seen = standing.probation_seen + (member.index in observers)
            counted = replace(standing, probation_blocks=standing.probation_blocks + 1, probation_seen=seen)
            state = state.with_standing(member.index, counted)
    return state


def _is_watched(member: Member, standing: Standing) -> bool:
    return member.status is MemberStatus.PROBATION or standing.is_returning


def _bring_back(state: LedgerState) -> LedgerState:
    """The suspended members that have followed for long enough since they asked to come back."""
    for member in state.roster.members:
        standing = state.standings[member.index]
        if not standing.is_returning or standing.probation_seen < RETURN_APPEARANCES:
            continue
        back = Standing(sequence=standing.sequence, seen_round=state.round)
        state = state.with_member(replace(member, status=MemberStatus.ACTIVE)).with_standing(member.index, back)
    return state


def _promote_one(state: LedgerState) -> LedgerState:
    """Promote the first member on probation that has stood long enough; suspend those that did not follow."""
    window = tuple(item for item in state.promotions if state.round - item[0] < PROMOTION_WINDOW_ROUNDS)
    state = replace(state, promotions=window)
    from_four = state.roster.total_power >= CLAMP_FROM_POWER
    promoted = _promotion_blocked(state.roster, window)
    for member in state.roster.members:
        standing = state.standings[member.index]
        if member.status is not MemberStatus.PROBATION or standing.probation_blocks < state.rules.probation_rounds:
            continue
        if 2 * standing.probation_seen < standing.probation_blocks:
            state = state.with_member(replace(member, status=MemberStatus.SUSPENDED))
            state = state.with_standing(member.index, Standing(sequence=standing.sequence))
        elif not promoted:
            promoted = True
            state = state.with_member(replace(member, status=MemberStatus.ACTIVE, power=1))
            state = state.with_standing(member.index, replace(standing, seen_round=state.round))
            if from_four:
                state = replace(state, promotions=(*window, (state.round, 1)))
    return state


def _promotion_blocked(roster: Roster, window: tuple[tuple[int, int], ...]) -> bool:
    """From W = 4 on at most max(1, F) promoted power in the window."""
    if roster.total_power < CLAMP_FROM_POWER:
        return False
    return sum(power for _round, power in window) + 1 > max(1, roster.faulty_power)

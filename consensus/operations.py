"""What each operation demands of the ledger's state and does to it (consensus specification, sections 3, 6 and 7).

``refuse_operation`` is the only judge of validity: leaders choose by it, members check blocks by it, and owners learn
from it why theirs does not get in. Signatures are the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from consensus.changes import ENDORSEMENTS_PER_MEMBER_MAX, carry_out, refuse_change
from consensus.evidence import EVIDENCE_PER_BLOCK_MAX, contradiction, refuse_evidence
from consensus.messages import (
    JOINS_PER_BLOCK_MAX,
    OPERATIONS_PER_SIGNER_MAX,
    Change,
    Invitation,
    Operation,
    OperationKind,
    operations_weight_max,
)
from consensus.state import Admission, LedgerState, Standing, Suspension, is_following, may_join_again
from consensus.types import Member, MemberStatus

PROBATION_MEMBERS_MAX = 32
"""At the same time: under open admission strangers cost nothing, and each of them enters every roster hash."""
ROSTER_ENTRIES_PER_MEMBER_MAX = 10
"""Of those who failed probation the entry stays (indices are join order); so many times members_max in all."""
ABSENCE_ROUNDS = 200
"""A voting member that no block shows for so many training rounds is suspended."""
PRESENT_AFTER_ROUNDS = ABSENCE_ROUNDS // 4
"""From so many rounds without being shown a voting member may announce that it is present."""
PRESENT_HEIGHTS = 4
"""A PRESENT names the last decided height, or one of so many, in all, before the block that holds it."""
PER_BLOCK_MAX = {OperationKind.JOIN: JOINS_PER_BLOCK_MAX, OperationKind.EVIDENCE: EVIDENCE_PER_BLOCK_MAX}
"""Of these kinds in one block."""


def refuse_operation(state: LedgerState, operation: Operation) -> str | None:
    """Why ``operation`` is not valid in ``state``, or None."""
    if operation.weight > operations_weight_max(state.roster):
        return "too large for a block"
    if operation.kind is OperationKind.JOIN:
        return _refuse_join(state, operation)
    member = state.roster.by_key(operation.signer)
    if member is None:
        return "not a member"
    if operation.sequence <= state.standings[member.index].sequence:
        return "sequence already used"
    if member.status is MemberStatus.BANNED:
        return "member is BANNED"
    match operation.kind:
        case OperationKind.LEAVE:
            return _refuse_leave(state, member)
        case OperationKind.REJOIN:
            return _refuse_rejoin(state, member)
        case OperationKind.PRESENT:
            return None if _is_asked_for(state, operation, member) else "presence not asked for, or at another height"
    if not is_following(member):
        return f"member is {member.status.name}"
    match operation.kind:
        case OperationKind.CONTRIBUTE:
            until_round = operation.arguments[0]
            assert isinstance(until_round, int)
            return "that round is over" if 0 < until_round <= state.round else None
        case OperationKind.EVIDENCE:
            return _refuse_accusation(state, operation)
        case OperationKind.ENDORSE:
            if member.status is not MemberStatus.ACTIVE:
                return "only voting members endorse"
            if member in state.endorsers(operation.change):
                return "endorsed already"
            return refuse_change(state, operation.change)
    return "unknown operation"


def _refuse_join(state: LedgerState, operation: Operation) -> str | None:
    members, rules = state.roster.members, state.rules
    member = state.roster.by_key(operation.signer)
    if member is not None and not may_join_again(member):
        return "already a member"
    if member is not None and operation.sequence <= state.standings[member.index].sequence:
        return "sequence already used"
    if refusal := refuse_admission(state, operation.signer, operation.invitation):
        return refusal
    if is_full(state):
        return "the roster is full"
    if sum(other.status is MemberStatus.PROBATION for other in members) >= PROBATION_MEMBERS_MAX:
        return "too many are on probation"
    if member is None and len(members) >= ROSTER_ENTRIES_PER_MEMBER_MAX * rules.members_max:
        return "the roster's list is full"
    return None if operation.sequence >= 1 else "sequence starts at 1"


def is_full(state: LedgerState) -> bool:
    """Whether all ``members_max`` seats are taken: by voting members, and by those on probation or on the way back."""
    taken = sum(
        member.status in (MemberStatus.ACTIVE, MemberStatus.PROBATION) or state.standings[member.index].is_returning
        for member in state.roster.members
    )
    return taken >= state.rules.members_max


def refuse_admission(state: LedgerState, guest: bytes, invitation: Invitation | None) -> str | None:
    """Why ``guest`` is not let in by the rule of admission, whatever room there is; None if it is."""
    if state.rules.admission is Admission.OPEN or guest in state.rules.allowlist:
        return None
    if state.rules.admission is Admission.ALLOWLIST:
        return "not on the allowlist"
    if invitation is None or invitation.guest != guest or not state.roster.is_active(invitation.signer):
        return "no invitation of a voting member"
    return None


def _is_asked_for(state: LedgerState, operation: Operation, member: Member) -> bool:
    """PRESENT of one of the last heights: on probation or on the way back, or by a voting member that no block showed.

    Not of the very last one alone: while blocks come fast, one that names it would always be late.
    """
    height = operation.arguments[0]
    assert isinstance(height, int)
    if not 0 <= state.height - height < PRESENT_HEIGHTS:
        return False
    standing = state.standings[member.index]
    if member.status is MemberStatus.ACTIVE:
        return state.round - standing.seen_round >= PRESENT_AFTER_ROUNDS
    return member.status is MemberStatus.PROBATION or standing.is_returning


def _refuse_leave(state: LedgerState, member: Member) -> str | None:
    if may_join_again(member):
        return "left already"
    power = state.roster.power(member.key)
    if power and power >= state.roster.total_power:
        return "the last member cannot leave"
    return None if state.may_depart(power) else "too much power leaves in one block"


def _refuse_rejoin(state: LedgerState, member: Member) -> str | None:
    if member.status is not MemberStatus.SUSPENDED or may_join_again(member):
        return "only a suspended member comes back"
    if state.standings[member.index].is_returning:
        return "on its way back already"
    return "the roster is full" if is_full(state) else None


def _refuse_accusation(state: LedgerState, operation: Operation) -> str | None:
    proof = operation.evidence
    if proof is None:
        return "no evidence"
    accused = state.roster.by_key(proof.accused)
    if accused is None or accused.status is MemberStatus.BANNED:
        return "the accused is no member, or banned already"
    if refusal := refuse_evidence(proof):
        return refusal
    if state.roster.power(accused.key) >= state.roster.total_power:
        return "the last member cannot be banned"
    return None


def apply_operation(state: LedgerState, operation: Operation) -> LedgerState:
    """State after a valid operation."""
    if operation.kind is OperationKind.JOIN:
        return _join(state, operation)
    member = state.roster.by_key(operation.signer)
    assert member is not None
    standing = replace(state.standings[member.index], sequence=operation.sequence)
    state = state.with_standing(member.index, standing)
    match operation.kind:
        case OperationKind.CONTRIBUTE:
            until_round = operation.arguments[0]
            assert isinstance(until_round, int)
            was_on = state.round < standing.until_round
            since = standing.since_round if was_on or until_round == 0 else state.round
            return state.with_standing(member.index, replace(standing, until_round=until_round, since_round=since))
        case OperationKind.PRESENT:
            return state.with_standing(member.index, replace(standing, seen_round=state.round))
        case OperationKind.LEAVE:
            state = depart(state, member, replace(member, status=MemberStatus.SUSPENDED, power=0))
            state = _without_endorsements(state, member)
            return state.with_standing(member.index, Standing(sequence=operation.sequence))
        case OperationKind.REJOIN:
            returning = replace(standing, is_returning=True, probation_blocks=0, probation_seen=0)
            return state.with_standing(member.index, returning)
        case OperationKind.EVIDENCE:
            assert operation.evidence is not None
            accused = state.roster.by_key(operation.evidence.accused)
            reason = contradiction(operation.evidence.first, operation.evidence.second)
            assert accused is not None and reason is not None
            return ban(state, accused, reason)
        case OperationKind.ENDORSE:
            return _endorse(state, operation, member)
    raise AssertionError(f"{operation.kind.name} was found valid")


def _join(state: LedgerState, operation: Operation) -> LedgerState:
    name = operation.arguments[1]
    assert isinstance(name, str)
    standing = Standing(sequence=operation.sequence)
    known = state.roster.by_key(operation.signer)
    index = len(state.roster.members) if known is None else known.index
    newcomer = Member(index=index, key=operation.signer, power=0, status=MemberStatus.PROBATION, name=name)
    return state.with_member(newcomer).with_standing(index, standing)


def depart(state: LedgerState, member: Member, after: Member) -> LedgerState:
    """``member`` becomes ``after`` and takes its power out of this block's allowance."""
    power = state.roster.power(member.key)
    return replace(state.with_member(after), departed=state.departed + power)


def ban(state: LedgerState, member: Member, reason: str) -> LedgerState:
    """BANNED for ever, with the reason for everybody to read."""
    standing = state.standings[member.index]
    state = state.with_member(replace(member, status=MemberStatus.BANNED, power=0))
    state = _without_endorsements(state, member)
    return state.with_standing(member.index, Standing(sequence=standing.sequence, reason=reason))


def _without_endorsements(state: LedgerState, member: Member) -> LedgerState:
    """Without those by ``member``, which must not count again if it comes back, and those of its removal."""
    kept = tuple(item for item in state.endorsements if item[1] != member.index and item[0].key != member.key)
    return state if kept == state.endorsements else replace(state, endorsements=kept)


def suspend(state: LedgerState, member: Member, why: Suspension) -> LedgerState:
    """SUSPENDED: without a vote. A voting member keeps its nominal power for the way back, others start anew."""
    standing = state.standings[member.index]
    state = depart(state, member, replace(member, status=MemberStatus.SUSPENDED))
    return state.with_standing(member.index, Standing(sequence=standing.sequence, suspension=why))


def _endorse(state: LedgerState, operation: Operation, member: Member) -> LedgerState:
    """Of each member the latest few count; once voting power of at least Q agrees, the change takes effect."""
    change = operation.change
    own = [place for place, (_change, index) in enumerate(state.endorsements) if index == member.index]
    surplus = own[: max(0, len(own) + 1 - ENDORSEMENTS_PER_MEMBER_MAX)]
    kept = tuple(item for place, item in enumerate(state.endorsements) if place not in surplus)
    state = replace(state, endorsements=(*kept, (change, member.index)))
    return fulfil(state, change)


def fulfil(state: LedgerState, change: Change) -> LedgerState:
    """State after ``change`` if voting power of at least Q endorses it, else as it was."""
    power = sum(state.roster.power(endorser.key) for endorser in state.endorsers(change))
    if power < state.roster.quorum:
        return state
    state = replace(state, endorsements=tuple(item for item in state.endorsements if item[0] != change))
    if refuse_change(state, change) is not None:
        return state
    target = carry_out(state, change)
    return target if isinstance(target, LedgerState) else ban(state, target, f"removed by the members: {change.text}")


def fulfil_waiting(state: LedgerState) -> LedgerState:
    """When members lose or gain power, those that endorsed a change already may have become a quorum."""
    for change in dict.fromkeys(change for change, _index in state.endorsements):
        state = fulfil(state, change)
    return state


def select_operations(
    state: LedgerState, candidates: Iterable[Operation], *, weight_max: int | None = None
) -> tuple[tuple[Operation, ...], LedgerState]:
    """The longest prefix-greedy choice of valid ``candidates`` within a block's caps, and the state after it."""
    most = operations_weight_max(state.roster)
    room = most if weight_max is None else min(weight_max, most)
    chosen: list[Operation] = []
    per_signer: dict[bytes, int] = {}
    per_kind: dict[OperationKind, int] = {}
    for operation in candidates:
        if refuse_operation(state, operation) is not None or operation.weight > room:
            continue
        of_signer, of_kind = per_signer.get(operation.signer, 0), per_kind.get(operation.kind, 0)
        if of_signer >= OPERATIONS_PER_SIGNER_MAX or of_kind >= PER_BLOCK_MAX.get(operation.kind, of_kind + 1):
            continue
        state = apply_operation(state, operation)
        chosen.append(operation)
        per_signer[operation.signer], per_kind[operation.kind] = of_signer + 1, of_kind + 1
        room -= operation.weight
    return tuple(chosen), state

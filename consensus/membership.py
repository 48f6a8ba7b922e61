"""The ledger's state as a pure function of the log: roster, contributions, probation (sections 3 and 7).

Nothing here depends on the model, so every replica knows the roster of the next height the moment a block is
decided, whether or not it has applied the block's training yet. Order within a block: training, operations, then
the effects of ballots (promotion).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from consensus.messages import (
    JOINS_PER_BLOCK_MAX,
    OPERATIONS_PER_SIGNER_MAX,
    OPERATIONS_WEIGHT_MAX,
    Block,
    Body,
    Operation,
    OperationKind,
    TrainingDecision,
)
from consensus.types import CLAMP_FROM_POWER, Member, MemberStatus, Roster

EXPECTED_WINDOW_ROUNDS = 8
"""A contributor is waited for while it was included, or switched on, within so many training rounds."""
PROMOTION_WINDOW_ROUNDS = 100
PROBATION_MEMBERS_MAX = 32
"""At the same time: under open admission strangers cost nothing, and each of them enters every roster hash."""
ROSTER_ENTRIES_PER_MEMBER_MAX = 10
"""Of those who failed probation the entry stays (indices are join order); so many times members_max in all."""
NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRules:
    """The run's parameters that the ledger itself needs; from the genesis."""

    probation_rounds: int
    members_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the log says of one member besides its place on the roster."""

    sequence: int = 0
    """Of its last operation in the ledger."""
    until_round: int = 0
    """It contributes to rounds below this one (0: it does not)."""
    since_round: int = NEVER
    """The round in which it last switched on."""
    included_round: int = NEVER
    """The last round in which a proposal of it was included."""
    probation_blocks: int = 0
    probation_seen: int = 0

    def content(self) -> tuple[object, ...]:
        return (
            self.sequence,
            self.until_round,
            self.since_round,
            self.included_round,
            self.probation_blocks,
            self.probation_seen,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """State after the block of ``height`` (0: the genesis). ``standings`` runs parallel to ``roster.members``."""

    height: int
    block_id: bytes
    rules: LedgerRules
    roster: Roster
    round: int
    last_round_empty: bool
    standings: tuple[Standing, ...]
    promotions: tuple[tuple[int, int], ...] = ()
    """(round, power) of promotions within the promotion window."""

    def standing(self, key: bytes) -> Standing | None:
        member = self.roster.by_key(key)
        return None if member is None else self.standings[member.index]

    def contributes(self, key: bytes) -> bool:
        member = self.roster.by_key(key)
        if member is None or member.status not in (MemberStatus.ACTIVE, MemberStatus.PROBATION):
            return False
        return self.round < self.standings[member.index].until_round

    def contributors(self) -> tuple[Member, ...]:
        """Voting members that contribute: while there are none, nobody trains.

        Members on probation may propose to rounds, but a stranger must not keep everybody's rounds going.
        """
        return tuple(member for member in self.roster.active if self.contributes(member.key))

    def expected(self) -> tuple[Member, ...]:
        """``expected(r)``: contributors who were included, or switched on, within the last 8 rounds."""
        result = []
        for member in self.contributors():
            standing = self.standings[member.index]
            if self.round - max(standing.since_round, standing.included_round) <= EXPECTED_WINDOW_ROUNDS:
                result.append(member)
        return tuple(result)

    def content(self) -> tuple[object, ...]:
        """Enters the state hash, so that replicas that derived another ledger find out at the next block."""
        return (
            self.height,
            self.block_id,
            self.roster.content(),
            self.round,
            self.last_round_empty,
            tuple(standing.content() for standing in self.standings),
            self.promotions,
        )


def genesis_state(founders: Iterable[tuple[bytes, int, str]], network_id: bytes, rules: LedgerRules) -> LedgerState:
    """The state at height 0: all founders ACTIVE, nobody contributing."""
    members = tuple(
        Member(index=index, key=key, power=power, status=MemberStatus.ACTIVE, name=name)
        for index, (key, power, name) in enumerate(founders)
    )
    return LedgerState(
        height=0,
        block_id=network_id,
        rules=rules,
        roster=Roster(epoch=0, members=members),
        round=0,
        last_round_empty=False,
        standings=tuple(Standing() for _ in members),
    )


def refuse_operation(state: LedgerState, operation: Operation) -> str | None:
    """Why ``operation`` is not valid in ``state``, or None. Signatures are the caller's business."""
    member = state.roster.by_key(operation.signer)
    if operation.kind is OperationKind.JOIN:
        return _refuse_join(state, operation)
    if member is None:
        return "not a member"
    standing = state.standings[member.index]
    if operation.sequence <= standing.sequence:
        return "sequence already used"
    if member.status not in (MemberStatus.ACTIVE, MemberStatus.PROBATION):
        return f"member is {member.status.name}"
    if operation.kind is OperationKind.CONTRIBUTE:
        until_round = operation.arguments[0]
        assert isinstance(until_round, int)
        if 0 < until_round <= state.round:
            return "that round is over"
        return None
    if member.status is not MemberStatus.PROBATION:
        return "only members on probation announce presence"
    return None if operation.arguments[0] == state.height else "presence at another height"


def may_join_again(member: Member) -> bool:
    """A member that failed its probation: it never had power, and asks again like a newcomer."""
    return member.status is MemberStatus.SUSPENDED and member.power == 0


def _refuse_join(state: LedgerState, operation: Operation) -> str | None:
    members, rules = state.roster.members, state.rules
    member = state.roster.by_key(operation.signer)
    if member is not None and not may_join_again(member):
        return "already a member"
    if member is not None and operation.sequence <= state.standings[member.index].sequence:
        return "sequence already used"
    on_probation = sum(other.status is MemberStatus.PROBATION for other in members)
    if len(state.roster.active) + on_probation >= rules.members_max:
        return "the roster is full"
    if on_probation >= PROBATION_MEMBERS_MAX:
        return "too many are on probation"
    if member is None and len(members) >= ROSTER_ENTRIES_PER_MEMBER_MAX * rules.members_max:
        return "the roster's list is full"
    return None if operation.sequence >= 1 else "sequence starts at 1"


def apply_operation(state: LedgerState, operation: Operation) -> LedgerState:
    """State after a valid operation."""
    if operation.kind is OperationKind.JOIN:
        return _join(state, operation)
    member = state.roster.by_key(operation.signer)
    assert member is not None
    standing = replace(state.standings[member.index], sequence=operation.sequence)
    if operation.kind is OperationKind.CONTRIBUTE:
        until_round = operation.arguments[0]
        assert isinstance(until_round, int)
        was_on = state.round < standing.until_round
        since = standing.since_round if was_on or until_round == 0 else state.round
        standing = replace(standing, until_round=until_round, since_round=since)
    return _with_standing(state, member.index, standing)


def _join(state: LedgerState, operation: Operation) -> LedgerState:
    name = operation.arguments[1]
    assert isinstance(name, str)
    members, standing = state.roster.members, Standing(sequence=operation.sequence)
    known = state.roster.by_key(operation.signer)
    index = len(members) if known is None else known.index
    newcomer = Member(index=index, key=operation.signer, power=0, status=MemberStatus.PROBATION, name=name)
    roster = Roster(epoch=state.roster.epoch + 1, members=(*members[:index], newcomer, *members[index + 1 :]))
    return replace(state, roster=roster, standings=(*state.standings[:index], standing, *state.standings[index + 1 :]))


def _with_standing(state: LedgerState, index: int, standing: Standing) -> LedgerState:
    standings = (*state.standings[:index], standing, *state.standings[index + 1 :])
    return replace(state, standings=standings)


def select_operations(
    state: LedgerState,
    candidates: Iterable[Operation],
    *,
    weight_max: int = OPERATIONS_WEIGHT_MAX,
) -> tuple[tuple[Operation, ...], LedgerState]:
    """The longest prefix-greedy choice of valid ``candidates`` within a block's caps, and the state after it."""
    chosen: list[Operation] = []
    per_signer: dict[bytes, int] = {}
    weight = joins = 0
    for operation in candidates:
        if refuse_operation(state, operation) is not None:
            continue
        is_join = operation.kind is OperationKind.JOIN
        count = per_signer.get(operation.signer, 0)
        too_many = count >= OPERATIONS_PER_SIGNER_MAX or (is_join and joins >= JOINS_PER_BLOCK_MAX)
        if too_many or weight + operation.weight > weight_max:
            continue
        state = apply_operation(state, operation)
        chosen.append(operation)
        per_signer[operation.signer] = count + 1
        weight += operation.weight
        joins += is_join
    return tuple(chosen), state


def apply_training(state: LedgerState, training: TrainingDecision) -> LedgerState:
    """Round r is over: the next one begins, with or without proposals in it."""
    assert training.round == state.round, "a block's training belongs to the state's round"
    standings = list(state.standings)
    for index, _digest in training.included:
        standings[index] = replace(standings[index], included_round=training.round)
    return replace(state, round=state.round + 1, last_round_empty=not training.included, standings=tuple(standings))


def next_state(state: LedgerState, body: Body, *, block_id: bytes) -> LedgerState | None:
    """State after a block with ``body``, or None if an operation of it is not valid where it stands."""
    before = state
    if body.training is not None:
        state = apply_training(state, body.training)
    chosen, state = select_operations(state, body.operations)
    if chosen != body.operations:
        return None
    state = _observe_probation(before, state, body)
    state = _promote_one(state)
    return replace(state, height=state.height + 1, block_id=block_id)


def apply_block(state: LedgerState, block: Block, *, block_id: bytes) -> LedgerState | None:
    """State after a decided block. None if it does not apply, which a quorum decides only if more than F are faulty."""
    training = block.body.training
    if block.height != state.height + 1 or block.header.previous_block_id != state.block_id:
        return None
    if training is not None:
        known = all(state.roster.by_index(author) is not None for author, _digest in training.included)
        if training.round != state.round or not known:
            return None
    return next_state(state, block.body, block_id=block_id)


def _observe_probation(before: LedgerState, state: LedgerState, body: Body) -> LedgerState:
    """Count this block for members that were on probation before it: blocks with training, or all while idle."""
    if body.training is None and before.contributors():
        return state
    observers = {record.signer_index for record in body.observers}
    standings = list(state.standings)
    for member in before.roster.members:
        if member.status is MemberStatus.PROBATION:
            standing = standings[member.index]
            standings[member.index] = replace(
                standing,
                probation_blocks=standing.probation_blocks + 1,
                probation_seen=standing.probation_seen + (member.index in observers),
            )
    return replace(state, standings=tuple(standings))


def _promote_one(state: LedgerState) -> LedgerState:
    """Promote the first member on probation that has stood long enough; suspend those that did not follow."""
    window = tuple(item for item in state.promotions if state.round - item[0] < PROMOTION_WINDOW_ROUNDS)
    state = replace(state, promotions=window)
    limit = max(1, state.roster.faulty_power)
    from_four = state.roster.total_power >= CLAMP_FROM_POWER
    blocked = from_four and sum(power for _round, power in window) + 1 > limit
    promoted = False
    for member in state.roster.members:
        standing = state.standings[member.index]
        if member.status is not MemberStatus.PROBATION or standing.probation_blocks < state.rules.probation_rounds:
            continue
        if 2 * standing.probation_seen < standing.probation_blocks:
            state = _with_member(state, replace(member, status=MemberStatus.SUSPENDED))
            state = _with_standing(state, member.index, Standing(sequence=standing.sequence))
        elif not blocked and not promoted:
            promoted = True
            state = _with_member(state, replace(member, status=MemberStatus.ACTIVE, power=1))
            if from_four:
                state = replace(state, promotions=(*window, (state.round, 1)))
    return state


def _with_member(state: LedgerState, member: Member) -> LedgerState:
    members = state.roster.members
    roster = Roster(
        epoch=state.roster.epoch + 1, members=(*members[: member.index], member, *members[member.index + 1 :])
    )
    return replace(state, roster=roster)

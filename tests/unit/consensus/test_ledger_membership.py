"""The ledger as a function of its log: operations, contributions, probation, promotion."""

import functools
from dataclasses import replace

import pytest

from aicpnode.simulation import playbook
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook
from consensus.membership import (
    EXPECTED_WINDOW_ROUNDS,
    PROBATION_MEMBERS_MAX,
    PROMOTION_WINDOW_ROUNDS,
    LedgerRules,
    LedgerState,
    apply_block,
    apply_operation,
    apply_training,
    next_state,
    refuse_operation,
    select_operations,
)
from consensus.messages import (
    JOINS_PER_BLOCK_MAX,
    OPERATIONS_PER_SIGNER_MAX,
    Body,
    ObserverRecord,
    Operation,
    OperationKind,
    TrainingDecision,
)
from consensus.types import MemberStatus

RULES = LedgerRules(probation_rounds=4, members_max=8)
founders = functools.partial(playbook.founders, rules=RULES)
NAME = b"\x0b" * 32


def operation(signer: int, kind: OperationKind, *arguments: int | bytes | str, sequence: int = 1) -> Operation:
    return Operation(kind=kind, signer=simulated_key(signer), sequence=sequence, arguments=arguments)


def join(signer: int) -> Operation:
    return operation(signer, OperationKind.JOIN, bytes(16), f"node-{signer}")


def contribute(signer: int, until_round: int, sequence: int = 1) -> Operation:
    return operation(signer, OperationKind.CONTRIBUTE, until_round, sequence=sequence)


def body(*operations: Operation, observers: tuple[int, ...] = (), training: TrainingDecision | None = None) -> Body:
    records = tuple(ObserverRecord(signer_index=index, signature=bytes(64)) for index in observers)
    return Body(table=(), ballots=(), observers=records, training=training, operations=operations)


def after(state: LedgerState, *bodies: Body) -> LedgerState:
    for item in bodies:
        following = next_state(state, item, block_id=NAME)
        assert following is not None
        state = following
    return state


def trained(state: LedgerState, *included: int) -> Body:
    pairs = tuple((index, bytes([index]) * 32) for index in included)
    return body(training=TrainingDecision(round=state.round, included=pairs))


# ---- operations


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (join(0), "already a member"),
        (contribute(9, 5), "not a member"),
        (operation(9, OperationKind.PRESENT, 0), "not a member"),
        (operation(0, OperationKind.PRESENT, 0), "not asked for"),
        (operation(4, OperationKind.PRESENT, 1), "another height"),
        (replace(join(9), sequence=0), "starts at 1"),
        (contribute(0, 5, sequence=0), "already used"),
    ],
)
def test_operation_is_refused_with_its_reason(refused: Operation, reason: str) -> None:
    assert reason in str(refuse_operation(founders(4, observers=1), refused))


def test_operation_cannot_be_replayed() -> None:
    state = after(founders(4), body(contribute(0, 5, sequence=7)))
    assert refuse_operation(state, contribute(0, 9, sequence=7)) == "sequence already used"
    assert refuse_operation(state, contribute(0, 9, sequence=6)) == "sequence already used"
    assert refuse_operation(state, contribute(0, 9, sequence=8)) is None


def test_contribution_to_a_past_round_is_refused() -> None:
    state = founders(4, round_=5)
    assert refuse_operation(state, contribute(0, 5)) == "that round is over"
    assert refuse_operation(state, contribute(0, 6)) is None
    assert refuse_operation(state, contribute(0, 0)) is None


def test_full_roster_takes_nobody_in() -> None:
    assert refuse_operation(founders(8), join(9)) == "the roster is full"


def test_block_with_an_invalid_operation_has_no_next_state() -> None:
    assert next_state(founders(4), body(contribute(9, 5)), block_id=NAME) is None


def test_operations_are_valid_in_their_order_only() -> None:
    first, second = contribute(0, 5, sequence=1), contribute(0, 6, sequence=2)
    assert next_state(founders(4), body(first, second), block_id=NAME) is not None
    assert next_state(founders(4), body(second, first), block_id=NAME) is None


def test_same_key_joins_once_in_a_block() -> None:
    assert next_state(founders(4), body(join(9), replace(join(9), sequence=2)), block_id=NAME) is None


def test_caps_of_a_block_are_per_signer_and_for_joins() -> None:
    many = [contribute(0, 5 + n, sequence=n) for n in range(1, 20)] + [join(10 + n) for n in range(6)]
    chosen, _state = select_operations(founders(2, rules=LedgerRules(probation_rounds=2, members_max=64)), many)
    assert sum(o.kind is OperationKind.CONTRIBUTE for o in chosen) == OPERATIONS_PER_SIGNER_MAX
    assert sum(o.kind is OperationKind.JOIN for o in chosen) == JOINS_PER_BLOCK_MAX


def test_weight_bounds_the_operations_of_a_block() -> None:
    chosen, _state = select_operations(founders(4), [join(9), join(10)], weight_max=join(9).weight)
    assert chosen == (join(9),)


# ---- contributions


def test_expected_are_contributors_that_were_included_or_began_lately() -> None:
    state = after(founders(4), body(contribute(0, 100), contribute(1, 100)))
    assert [m.index for m in state.expected()] == [0, 1]
    for _ in range(EXPECTED_WINDOW_ROUNDS + 1):
        state = after(state, trained(state, 0))
    assert [m.index for m in state.contributors()] == [0, 1]
    assert [m.index for m in state.expected()] == [0], "1 was included in none of the last 8 rounds"


def test_switching_off_and_on_again_is_expected_again() -> None:
    state = after(founders(4), body(contribute(0, 100)))
    for _ in range(20):
        state = after(state, trained(state))
    assert state.expected() == ()
    state = after(state, body(contribute(0, 0, sequence=2), contribute(0, 200, sequence=3)))
    assert [m.index for m in state.expected()] == [0]


def test_extending_a_contribution_is_no_new_beginning() -> None:
    state = after(founders(4), body(contribute(0, 100)))
    for _ in range(20):
        state = after(state, trained(state))
    state = after(state, body(contribute(0, 200, sequence=2)))
    assert state.expected() == ()


def test_contribution_ends_before_its_round() -> None:
    state = after(founders(4), body(contribute(0, 2)))
    assert [state.contributes(simulated_key(0))] == [True]
    state = after(state, trained(state), trained(replace(state, round=1)))
    assert state.round == 2 and not state.contributors()


def test_round_advances_only_with_training() -> None:
    state = after(founders(4), body(contribute(0, 9)))
    assert (state.height, state.round) == (1, 0)
    state = after(state, trained(state, 0))
    assert (state.height, state.round, state.last_round_empty) == (2, 1, False)
    assert after(state, trained(state)).last_round_empty


# ---- probation and promotion


def on_probation(state: LedgerState, blocks: int, seen: int, index: int = 4) -> LedgerState:
    for number in range(blocks):
        state = after(state, body(observers=(index,) if number < seen else ()))
    return state


def test_newcomer_is_on_probation_without_power() -> None:
    state = after(founders(4), body(join(9)))
    newcomer = state.roster.members[4]
    assert (newcomer.status, state.roster.power(newcomer.key)) == (MemberStatus.PROBATION, 0)
    assert (state.roster.epoch, state.roster.quorum) == (1, 3)
    assert state.standings[4].probation_blocks == 0, "the block of its own JOIN does not count"


def test_promotion_after_half_of_the_blocks_of_probation() -> None:
    state = on_probation(after(founders(4), body(join(9))), blocks=3, seen=2)
    assert state.roster.members[4].status is MemberStatus.PROBATION
    promoted = on_probation(state, blocks=1, seen=0)
    assert promoted.roster.members[4].status is MemberStatus.ACTIVE
    assert (promoted.roster.total_power, promoted.roster.epoch) == (5, 2)


def test_those_who_were_absent_lose_their_place_and_may_ask_again() -> None:
    state = on_probation(after(founders(4), body(join(9))), blocks=4, seen=1)
    assert state.roster.members[4].status is MemberStatus.SUSPENDED
    assert refuse_operation(state, join(9)) == "sequence already used"
    again = replace(join(9), sequence=join(9).sequence + 1)
    assert refuse_operation(state, again) is None
    state = after(state, body(again))
    assert (len(state.roster.members), state.roster.members[4].status) == (5, MemberStatus.PROBATION)
    assert (state.standings[4].probation_blocks, state.standings[4].probation_seen) == (0, 0)


def test_strangers_on_probation_do_not_close_the_run_for_ever() -> None:
    rules = replace(RULES, members_max=100)
    state = founders(4, rules=rules)
    strangers = [join(100 + number) for number in range(PROBATION_MEMBERS_MAX + 4)]
    for first in range(0, len(strangers), JOINS_PER_BLOCK_MAX):
        chosen, state = select_operations(state, strangers[first : first + JOINS_PER_BLOCK_MAX])
        assert all(refuse_operation(state, late) is not None for late in chosen)
    assert sum(m.status is MemberStatus.PROBATION for m in state.roster.members) == PROBATION_MEMBERS_MAX
    assert refuse_operation(state, join(9)) == "too many are on probation"
    state = on_probation(state, blocks=rules.probation_rounds, seen=0)
    assert refuse_operation(state, join(9)) is None


def test_a_stranger_that_contributes_does_not_keep_rounds_going() -> None:
    state = after(founders(4), body(join(9)))
    state = after(state, body(contribute(9, 1_000, sequence=2)))
    assert state.contributes(simulated_key(9))
    assert (state.contributors(), state.expected()) == ((), ())


def test_while_somebody_trains_only_blocks_with_training_count() -> None:
    state = after(founders(4), body(join(9), contribute(0, 100)))
    state = on_probation(state, blocks=10, seen=10)
    assert state.standings[4].probation_blocks == 0
    state = after(state, replace(trained(state, 0), observers=body(observers=(4,)).observers))
    assert state.standings[4].probation_blocks == 1


def test_one_promotion_a_block() -> None:
    state = after(founders(1), body(join(5), join(6)))
    both = body(observers=(1, 2))
    state = after(state, both, both, both)
    assert len(after(state, both).roster.active) == 2
    assert len(after(state, both, both).roster.active) == 3


def test_from_four_members_on_promotions_wait_for_their_window() -> None:
    state = after(founders(4), body(join(5), join(6), contribute(0, 1_000)))
    for _ in range(PROMOTION_WINDOW_ROUNDS):
        watched = replace(trained(state, 0), observers=body(observers=(4, 5)).observers)
        state = after(state, watched)
    assert [m.status for m in state.roster.members[4:]] == [MemberStatus.ACTIVE, MemberStatus.PROBATION]
    for _ in range(4):
        state = after(state, trained(state, 0))
    assert state.roster.members[5].status is MemberStatus.ACTIVE
    assert len(state.promotions) == 1, "the window forgets"


def test_promotions_below_four_members_enter_no_window() -> None:
    state = after(founders(1), body(join(5)))
    state = on_probation(state, blocks=4, seen=4, index=1)
    assert (len(state.roster.active), state.promotions) == (2, ())


# ---- decided blocks


def test_decided_block_applies_to_its_own_ledger_only() -> None:
    table = Playbook(founders(4))
    block = table.block()
    decided = apply_block(table.ledger, block, block_id=table.name(block))
    assert decided is not None and decided.height == 1 and decided.block_id == table.name(block)
    assert apply_block(decided, block, block_id=NAME) is None
    header = replace(block.header, previous_block_id=NAME)
    assert apply_block(table.ledger, replace(block, header=header), block_id=NAME) is None


@pytest.mark.parametrize(
    "training",
    [TrainingDecision(round=3, included=()), TrainingDecision(round=0, included=((99, bytes(32)),))],
    ids=["another round", "author beyond the roster"],
)
def test_decided_block_with_impossible_training_does_not_apply(training: TrainingDecision) -> None:
    table = Playbook(founders(4))
    block = table.block()
    block = replace(block, body=replace(block.body, training=training))
    assert apply_block(table.ledger, block, block_id=NAME) is None


def test_next_state_leaves_its_argument_alone() -> None:
    state = founders(4)
    content = state.content()
    after(state, body(contribute(0, 9), join(9)))
    assert state.content() == content
    assert apply_operation(state, contribute(0, 9)) != state
    assert apply_training(state, TrainingDecision(round=0, included=())).round == 1

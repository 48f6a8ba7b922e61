"""Operations that wait for a block: bounded per signer and in all, in arrival order."""

import functools
from collections.abc import Iterator
from dataclasses import replace

from aicpnode.simulation import playbook
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook
from consensus.evidence import evidence
from consensus.membership import LedgerRules, LedgerState, apply_operation
from consensus.messages import Operation, OperationKind
from consensus.pool import (
    EVIDENCE_PER_SIGNER_KEPT,
    OPERATIONS_KEPT,
    OPERATIONS_PER_SIGNER_KEPT,
    STRANGERS_KEPT,
    OperationPool,
    operation_subject,
)
from consensus.types import NIL, MemberStatus, Roster

RULES = LedgerRules(probation_rounds=2, members_max=100)
founders = functools.partial(playbook.founders, rules=RULES)


def contribute(signer: int, sequence: int = 1, until_round: int = 9) -> Operation:
    return Operation(
        kind=OperationKind.CONTRIBUTE, signer=simulated_key(signer), sequence=sequence, arguments=(until_round,)
    )


def join(signer: int, sequence: int = 1) -> Operation:
    return Operation(
        kind=OperationKind.JOIN, signer=simulated_key(signer), sequence=sequence, arguments=(bytes(16), "new")
    )


def filled(ledger: LedgerState, operations: Iterator[Operation]) -> OperationPool:
    pool = OperationPool()
    for operation in operations:
        pool.add(operation, ledger, own=False)
    return pool


def test_operations_come_out_in_arrival_order() -> None:
    pool = filled(founders(4), (contribute(signer) for signer in (2, 0, 1)))
    assert [operation.signer for operation in pool] == [simulated_key(i) for i in (2, 0, 1)]


def test_second_content_of_a_sequence_does_not_replace_the_first() -> None:
    ledger, pool = founders(4), OperationPool()
    assert pool.add(contribute(0), ledger, own=False)
    assert not pool.add(contribute(0, until_round=77), ledger, own=False)
    assert [operation.arguments for operation in pool] == [(9,)]


def test_members_are_capped_each() -> None:
    pool = filled(founders(4), (contribute(0, sequence) for sequence in range(1, 100)))
    assert len(pool) == OPERATIONS_PER_SIGNER_KEPT
    assert pool.add(contribute(1), founders(4), own=False)


def test_accusations_of_one_member_are_few() -> None:
    """Each may fill a block: 16 of every member would be a hundred megabytes."""
    table = Playbook()

    def accusation(signer: int, accused: int, sequence: int) -> Operation:
        proof = evidence(table.commit(accused, 0, bytes(32)), table.commit(accused, 0, NIL))
        key = simulated_key(signer)
        return Operation(kind=OperationKind.EVIDENCE, signer=key, sequence=sequence, evidence=proof)

    ledger = founders(7)
    pool = filled(ledger, (accusation(0, accused, sequence=accused) for accused in range(1, 7)))
    assert len(pool) == EVIDENCE_PER_SIGNER_KEPT
    assert pool.add(contribute(0, sequence=9), ledger, own=False)
    assert pool.add(accusation(1, 3, sequence=1), ledger, own=False)


def test_pool_is_capped_in_all() -> None:
    ledger = founders(100)
    pool = filled(ledger, (contribute(signer, n) for signer in range(100) for n in range(1, 17)))
    assert len(pool) == OPERATIONS_KEPT


def test_strangers_are_capped_and_leave_room_for_members() -> None:
    pool = filled(founders(4), (join(signer) for signer in range(10, 400)))
    assert len(pool) == STRANGERS_KEPT
    assert pool.add(contribute(0), founders(4), own=False)


def test_strangers_may_only_ask_to_join_and_once() -> None:
    """Else 64 keys with operations that can never be valid would keep every newcomer out for ever."""
    ledger = founders(4)
    pool = filled(ledger, (contribute(signer) for signer in range(10, 400)))
    assert len(pool) == 0
    assert pool.add(join(9), ledger, own=False)
    assert not pool.add(join(9, sequence=2), ledger, own=False)


def test_own_operation_that_peers_gave_back_is_sent_again() -> None:
    ledger, pool = founders(4), OperationPool()
    pool.add(contribute(0), ledger, own=False)
    assert pool.own() == []
    assert not pool.add(contribute(0), ledger, own=True)
    assert pool.own() == [contribute(0)]


def test_settled_operations_are_forgotten() -> None:
    ledger = founders(4)
    pool = filled(ledger, iter([contribute(0, 1), contribute(0, 2), contribute(1, 1)]))
    pool.ripen(operation_subject(contribute(0, 1)))
    pool.settle(apply_operation(ledger, contribute(0, 1)))
    assert list(pool) == [contribute(0, 2), contribute(1, 1)]
    assert not pool.has_ripe(ledger)


def test_ripe_means_valid_now() -> None:
    ledger, pool = founders(4), OperationPool()
    late = contribute(0)
    pool.add(late, ledger, own=False)
    assert not pool.has_ripe(ledger)
    pool.ripen(operation_subject(late))
    assert pool.has_ripe(ledger)
    assert not pool.has_ripe(apply_operation(ledger, late))


def test_timer_of_an_unknown_operation_is_harmless() -> None:
    pool = OperationPool()
    pool.ripen(b"gone")
    assert not pool.has_ripe(founders(4))


def test_operation_that_a_block_passed_over_is_passed_on_once() -> None:
    ledger, pool = founders(4), OperationPool()
    held, own, unripe = contribute(1), contribute(0), contribute(2)
    for operation in (held, own, unripe):
        pool.add(operation, ledger, own=operation is own)
    pool.ripen(operation_subject(held))
    pool.ripen(operation_subject(own))
    assert pool.passed_over(ledger) == [held], "own ones are sent again anyway"
    assert pool.passed_over(ledger) == []


def test_settled_operation_is_not_taken_again() -> None:
    ledger = apply_operation(founders(4), contribute(0, 5))
    pool = OperationPool()
    assert not pool.add(contribute(0, 5), ledger, own=False)
    assert not pool.add(join(0), ledger, own=False)
    assert not pool.add(contribute(1, until_round=0, sequence=0), ledger, own=False)


def suspended(ledger: LedgerState, *indices: int) -> LedgerState:
    """As those that failed their probation are: without power."""
    members = tuple(
        replace(member, status=MemberStatus.SUSPENDED, power=0) if member.index in indices else member
        for member in ledger.roster.members
    )
    return replace(ledger, roster=Roster(epoch=1, members=members))


def test_operation_of_a_member_that_was_suspended_meanwhile_is_forgotten() -> None:
    """It can never be valid, and while it waits its owner would not ask to join again."""
    ledger, pool = founders(4, observers=1), OperationPool()
    pool.add(contribute(4), ledger, own=True)
    ledger = suspended(ledger, 4)
    pool.settle(ledger)
    assert pool.own() == []
    assert pool.add(join(4, sequence=2), ledger, own=True)


def test_those_who_failed_their_probation_are_strangers_to_the_pool() -> None:
    ledger = suspended(founders(4, observers=90), *range(4, 94))
    pool = filled(ledger, (contribute(signer, n) for signer in range(4, 94) for n in range(1, 17)))
    assert len(pool) == 0
    pool = filled(ledger, (join(signer, n) for signer in range(4, 94) for n in (2, 3)))
    assert len(pool) == STRANGERS_KEPT


def test_operations_of_one_signer_are_offered_in_their_order_however_they_came() -> None:
    """A lower sequence after a higher one would never be valid again."""
    pool = filled(founders(4), (contribute(0, sequence=2), contribute(1), contribute(0, sequence=1)))
    assert [(o.signer, o.sequence) for o in pool] == [
        (simulated_key(0), 1),
        (simulated_key(1), 1),
        (simulated_key(0), 2),
    ]


def test_presence_that_is_not_asked_for_any_more_is_forgotten() -> None:
    """An owner brings forward one operation at a time: one that can never be valid would be its last."""
    ledger, pool = founders(4, observers=1), OperationPool()
    presence = Operation(kind=OperationKind.PRESENT, signer=simulated_key(4), sequence=1, arguments=(0,))
    assert pool.add(presence, ledger, own=True)
    promoted = ledger.with_member(replace(ledger.roster.members[4], status=MemberStatus.ACTIVE, power=1))
    pool.settle(replace(promoted, height=1))
    assert pool.own() == []
    assert not pool.add(presence, replace(promoted, height=1), own=True)


def test_what_is_not_valid_yet_is_ripe_in_the_state_that_it_is_valid_in() -> None:
    ledger, pool = founders(4, observers=1), OperationPool()
    presence = Operation(kind=OperationKind.PRESENT, signer=simulated_key(4), sequence=1, arguments=(1,))
    assert pool.add(presence, ledger, own=False)
    pool.ripen(operation_subject(presence))
    assert not pool.has_ripe(ledger) and not pool.has_ripe(ledger)
    assert pool.has_ripe(replace(ledger, height=1))

"""Quorums overlap, and the ledger is a function of its log."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.simulation import playbook
from aicpnode.simulation.crypto import simulated_key
from consensus.membership import LedgerRules, LedgerState, next_state, refuse_operation, select_operations
from consensus.messages import (
    OPERATIONS_PER_SIGNER_MAX,
    OPERATIONS_WEIGHT_MAX,
    Body,
    ObserverRecord,
    Operation,
    OperationKind,
    TrainingDecision,
)
from consensus.types import Member, MemberStatus, Roster

RULES = LedgerRules(probation_rounds=2, members_max=8)
founders = functools.partial(playbook.founders, rules=RULES)
rosters = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(list(MemberStatus))), min_size=1, max_size=12).filter(
    lambda members: any(status is MemberStatus.ACTIVE for _power, status in members)
)


def roster_of(members: list[tuple[int, MemberStatus]]) -> Roster:
    return Roster(
        epoch=0,
        members=tuple(
            Member(index=i, key=simulated_key(i), power=power, status=status)
            for i, (power, status) in enumerate(members)
        ),
    )


@given(rosters, st.randoms(use_true_random=False))
def test_two_quorums_share_an_honest_member(members: list[tuple[int, MemberStatus]], rng) -> None:
    roster = roster_of(members)

    def quorum() -> set[bytes]:
        chosen: set[bytes] = set()
        keys = [member.key for member in roster.active]
        rng.shuffle(keys)
        for key in keys:
            if sum(map(roster.power, chosen)) < roster.quorum:
                chosen.add(key)
        return chosen

    shared = sum(roster.power(key) for key in quorum() & quorum())
    assert shared >= roster.faulty_power + 1 == roster.weak_quorum


@given(rosters)
def test_honest_power_is_a_quorum_without_any_f(members: list[tuple[int, MemberStatus]]) -> None:
    roster = roster_of(members)
    assert roster.total_power - roster.faulty_power >= roster.quorum
    if roster.total_power >= 4:
        assert all(roster.power(member.key) <= max(1, roster.faulty_power) for member in roster.active)


operations = st.one_of(
    st.builds(
        Operation,
        kind=st.just(OperationKind.JOIN),
        signer=st.integers(0, 12).map(simulated_key),
        sequence=st.integers(1, 4),
        arguments=st.just((bytes(16), "new")),
    ),
    st.builds(
        Operation,
        kind=st.sampled_from([OperationKind.CONTRIBUTE, OperationKind.PRESENT]),
        signer=st.integers(0, 12).map(simulated_key),
        sequence=st.integers(1, 4),
        arguments=st.integers(0, 9).map(lambda argument: (argument,)),
    ),
)


@st.composite
def logs(draw: st.DrawFn) -> list[Body]:
    """Bodies that apply one after the other to four founders."""
    state: LedgerState = founders(4)
    log = []
    for _ in range(draw(st.integers(1, 8))):
        members = len(state.roster.members)
        included = draw(st.lists(st.integers(0, members - 1), max_size=3, unique=True).map(sorted))
        trains = draw(st.booleans())
        training = TrainingDecision(round=state.round, included=tuple((i, bytes(32)) for i in included))
        empty = Body(table=(), ballots=(), observers=(), training=training if trains else None, operations=())
        base = next_state(state, empty, block_id=bytes(32))
        assert base is not None
        candidates = draw(st.lists(operations, max_size=6))
        observers = draw(st.lists(st.integers(0, members - 1), max_size=4, unique=True).map(sorted))
        for chosen in (candidates, []):
            body = Body(
                table=(),
                ballots=(),
                observers=tuple(ObserverRecord(signer_index=i, signature=bytes(64)) for i in observers),
                training=empty.training,
                operations=select_operations(state, chosen)[0],
            )
            following = next_state(state, body, block_id=bytes([len(log)]) * 32)
            if following is not None:
                log.append(body)
                state = following
                break
    return log


def replayed(log: list[Body]) -> LedgerState:
    state: LedgerState = founders(4)
    for number, body in enumerate(log):
        following = next_state(state, body, block_id=bytes([number]) * 32)
        assert following is not None
        state = following
    return state


@settings(deadline=None)
@given(logs())
def test_ledger_is_a_function_of_its_log(log: list[Body]) -> None:
    one, two = replayed(log), replayed(log)
    assert one == two and one.content() == two.content()
    assert one.height == len(log)
    assert len(one.standings) == len(one.roster.members)
    assert len(one.roster.active) <= RULES.members_max
    assert one.roster.quorum <= one.roster.total_power


@settings(deadline=None)
@given(logs(), st.lists(operations, max_size=30))
def test_chosen_operations_keep_all_caps_and_apply(log: list[Body], candidates: list[Operation]) -> None:
    state = replayed(log)
    chosen, after = select_operations(state, candidates)
    assert sum(operation.weight for operation in chosen) <= OPERATIONS_WEIGHT_MAX
    signers = [operation.signer for operation in chosen]
    assert all(signers.count(signer) <= OPERATIONS_PER_SIGNER_MAX for signer in signers)
    again, same = select_operations(state, chosen)
    assert (again, same) == (chosen, after)
    for operation in chosen:
        assert refuse_operation(after, operation) is not None, "nothing applies twice"

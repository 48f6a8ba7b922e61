"""The ledger's state as a pure function of the log (sections 3, 6 and 7): the way through one block.

Order within a block: training, operations, then the effects of ballots. The parts are ``state`` (the values),
``operations`` (what each one demands and does), ``changes`` (what a quorum endorses) and ``conduct`` (probation,
absence, strikes); whoever only derives ledgers finds all of it here.
"""

from __future__ import annotations

from dataclasses import replace

from consensus.conduct import PROMOTION_WINDOW_ROUNDS, observe
from consensus.messages import Block, Body, TrainingDecision
from consensus.operations import (
    PROBATION_MEMBERS_MAX,
    ROSTER_ENTRIES_PER_MEMBER_MAX,
    apply_operation,
    fulfil_waiting,
    refuse_admission,
    refuse_operation,
    select_operations,
)
from consensus.state import (
    EXPECTED_WINDOW_ROUNDS,
    NEVER,
    Admission,
    LedgerRules,
    LedgerState,
    Standing,
    Suspension,
    genesis_state,
    may_join_again,
)


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
    state = fulfil_waiting(observe(before, state, body))
    return replace(state, height=state.height + 1, block_id=block_id, departed=0)


def apply_block(state: LedgerState, block: Block, *, block_id: bytes) -> LedgerState | None:
    """State after a decided block. None if it does not apply, which a quorum decides only if more than F are faulty."""
    body, known = block.body, len(state.roster.members)
    if block.height != state.height + 1 or block.header.previous_block_id != state.block_id:
        return None
    if any(author >= known for author, _digest in body.table):
        return None
    if any(record.signer_index >= known or len(record.verdicts) != len(body.table) for record in body.ballots):
        return None
    training = body.training
    if training is not None and training.round != state.round:
        return None
    if training is not None and any(author >= known for author, _digest in training.included):
        return None
    return next_state(state, body, block_id=block_id)


__all__ = [
    "EXPECTED_WINDOW_ROUNDS",
    "NEVER",
    "PROBATION_MEMBERS_MAX",
    "PROMOTION_WINDOW_ROUNDS",
    "ROSTER_ENTRIES_PER_MEMBER_MAX",
    "Admission",
    "LedgerRules",
    "LedgerState",
    "Standing",
    "Suspension",
    "apply_block",
    "apply_operation",
    "apply_training",
    "genesis_state",
    "may_join_again",
    "next_state",
    "refuse_admission",
    "refuse_operation",
    "select_operations",
]

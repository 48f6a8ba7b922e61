"""Members that run twice under one key, and whether runs with them would notice a protocol that is wrong.

Longer searches run the same seeds: ``python -m aicpnode.simulation.twins FIRST LAST``; a seed that fails there becomes
a named test below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from aicpnode.errors import UserError
from aicpnode.simulation.member import Violation
from aicpnode.simulation.twins import Seen, draw, play, play_twins
from aicpnode.simulation.twins.laws import Blame, Laws
from aicpnode.simulation.twins.schedule import KINDS
from aicpnode.simulation.twins.search import main, parse_twins
from consensus.events import Decide, Step
from consensus.evidence import Evidence
from consensus.membership import LedgerState
from consensus.messages import CommitCert, PrepareCert
from consensus.replica import Replica
from consensus.types import NIL, NO_VIEW, Roster

NODES = (4, 5, 6, 7)
SEEDS = 50
"""Of each number of members."""
MUTANT_SEEDS = range(40)
"""Some of those that a right protocol passes above: what is found is the fault, not the schedule."""
ENOUGH = 4
CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
@pytest.mark.parametrize("nodes", NODES)
def test_twins_decide_and_break_no_invariant(nodes: int, first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = play_twins(seed, nodes)
        assert outcome.decided, str(outcome)


@pytest.mark.parametrize("nodes", [4, 7])
def test_seeds_contain_all_that_a_search_should_meet(nodes: int) -> None:
    seen: set[Seen] = set()
    for seed in range(SEEDS):
        seen |= play_twins(seed, nodes).seen
    assert seen == set(Seen)


@pytest.mark.parametrize("nodes", NODES)
def test_schedules_vary_in_what_matters(nodes: int) -> None:
    drawn = [draw(seed, nodes) for seed in range(200)]
    assert {len(schedule.twinned) for schedule in drawn} == set(range(1, (nodes - 1) // 3 + 1))
    assert {index for schedule in drawn for index in schedule.twinned} == set(range(nodes)), "anybody may be twinned"
    leaders = {schedule.leader(schedule.start_height + 1, 0) for schedule in drawn}
    assert leaders == set(range(nodes)), "anybody may lead first"
    for schedule in drawn:
        everybody = (1 << schedule.instances) - 1
        assert all(
            kind in KINDS and len(masks) == schedule.instances for (_h, _v, kind), masks in schedule.reach.items()
        )
        assert all(0 <= mask <= everybody for masks in schedule.reach.values() for mask in masks)
    for choice in ("holds_back", "twins_meet", "deaf_from_view", "wishes", "authors", "accuses"):
        assert {bool(getattr(schedule, choice)) for schedule in drawn} == {False, True}, choice


def test_same_seed_gives_the_same_trace_in_any_process() -> None:
    program = "from aicpnode.simulation.twins import play_twins; print(*(play_twins(s, 7).trace for s in range(3)))"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert traces == {" ".join(play_twins(seed, 7).trace for seed in range(3))}
    assert len(set(traces.pop().split())) == 3, "and another seed another one"


# ---- protocols that are wrong


class _DecisionsOnly(Blame):
    """Nothing is wrong but two decided blocks: whether a fault does harm, not whether it shows early."""

    def accused(self, instance: int, proof: Evidence) -> None:
        return

    def decides(self, instance: int, ledger: LedgerState, decision: Decide, state_hash: object) -> None:
        height, name = decision.ledger.height, decision.certificate.block_id
        _view, first = self.decided.setdefault(height, (decision.certificate.view, decision))
        if first.certificate.block_id != name:
            raise Violation(f"invariant 1: two blocks decided at height {height}")


class _WithoutLock(Replica):
    """Accepts what a lock forbids."""

    def _is_free(self) -> bool:
        return True

    def _try_accept(self) -> bool:
        lock = self.locked_view, self.locked_id
        if self._is_free():
            self.locked_view, self.locked_id = NO_VIEW, NIL
        try:
            return super()._try_accept()
        finally:
            self.locked_view, self.locked_id = lock


class _UnlockedByNil(_WithoutLock):
    """A quorum for nil ends the lock (what it shows of its lock stays, so that only the harm can be noticed)."""

    _freed = (0, NO_VIEW)

    def _is_free(self) -> bool:
        return self._freed == (self.height, self.locked_view)

    def _try_give_up(self) -> bool:
        nil = [prepare for prepare in self.book.prepares(self.view) if prepare.block_id == NIL]
        if self.step is Step.PREPARE and self.book.power(nil) >= self.roster.quorum:
            self._freed = (self.height, self.locked_view)
        return super()._try_give_up()


def _two_thirds(total_power: int) -> int:
    """What is not enough: two such groups may share nobody but the faulty."""
    return 2 * total_power // 3


def _forks(
    nodes: int, replica: type[Replica], laws: type[Laws] = _DecisionsOnly, *, enough: int = ENOUGH
) -> dict[int, str]:
    """By seed, what went wrong in the first ``enough`` of ``MUTANT_SEEDS`` that do."""
    found: dict[int, str] = {}
    for seed in MUTANT_SEEDS:
        try:
            play(draw(seed, nodes), replica=replica, laws=laws)
        except Violation as violation:
            found[seed] = str(violation)
            if len(found) == enough:
                break
    return found


@pytest.mark.parametrize("nodes", [4, 7])
def test_without_the_lock_rule_seeds_fork(nodes: int) -> None:
    forks = _forks(nodes, _WithoutLock)
    assert forks and all("two blocks decided" in fork for fork in forks.values()), forks


@pytest.mark.parametrize("nodes", [4, 7])
def test_with_locks_that_nil_releases_seeds_fork(nodes: int) -> None:
    forks = _forks(nodes, _UnlockedByNil)
    assert forks and all("two blocks decided" in fork for fork in forks.values()), forks


@pytest.mark.parametrize("nodes", [4, 7])
def test_with_a_quorum_of_two_thirds_seeds_fork(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consensus.types.quorum", _two_thirds)
    forks = _forks(nodes, Replica)
    assert forks and all("two blocks decided" in fork for fork in forks.values()), forks


class _FirstSigns(Laws):
    """All invariants but the one that looks at the power of certificates."""

    def _certificate(self, certificate: PrepareCert | CommitCert, roster: Roster) -> None:
        return


@pytest.mark.parametrize("replica", [_WithoutLock, _UnlockedByNil])
def test_votes_show_a_missing_lock_before_anybody_decides(replica: type[Replica]) -> None:
    """Votes are counted as they are signed: wherever harm is done it is seen, and in other runs it is seen to come."""
    early = _forks(4, replica, _FirstSigns, enough=len(MUTANT_SEEDS))
    assert set(early) >= set(_forks(4, replica, enough=len(MUTANT_SEEDS)))
    assert any("another block was prepared" in text for text in early.values()), early


# ---- the search


def test_search_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "8", "--nodes", "4,5", "--jobs", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["runs"], result["violations"], result["undecided"]) == (8, 0, 0)
    assert set(result["seen"]) <= {seen.name.lower() for seen in Seen} and result["seen"]


def test_search_takes_turns_through_the_numbers_of_members() -> None:
    choice = parse_twins("4,7")
    assert (choice.play(1).nodes, choice.play(2).nodes) == (7, 4)
    assert choice.command(1) == "aicp-node simulate --twins --nodes 7 --seeds 1"


@pytest.mark.parametrize("nodes", ["3", "any", "4,17"])
def test_search_refuses_numbers_of_members_with_nobody_to_twin(nodes: str) -> None:
    with pytest.raises(UserError):
        parse_twins(nodes)

"""More than F members that contradict themselves: the network halts, or it forks and the decisions convict F+1.

Keys with two instances stand on both sides of a divided network, so that both may be a quorum. All instances are
production replicas: what they decide, and what they keep behind their decisions, is what a node would have on disk.
Fewer than a quorum are faulty throughout: those who are one can decide by themselves and show nobody why.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from aicpnode.simulation.crypto import SimulatedCrypto, simulated_key
from aicpnode.simulation.playbook import NETWORK_ID
from aicpnode.simulation.twins import Schedule, Table, divide, draw
from aicpnode.simulation.twins.laws import Blame
from consensus.events import Decide
from consensus.evidence import Decision, contradiction, culprits, refuse_evidence
from consensus.types import Roster, max_faulty, quorum

SEEDS = range(40)
LIMIT_MS = 20_000
"""Beyond the time at which all is healed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Two blocks of one height, each with the decisions of the honest members that have it in their logs."""

    schedule: Schedule
    height: int
    roster: Roster
    sides: tuple[tuple[Decide, ...], tuple[Decide, ...]]

    @property
    def views(self) -> set[int]:
        return {decision.certificate.view for side in self.sides for decision in side}


def _fork(schedule: Schedule) -> Fork | None:
    """The first fork among honest members. Honest members are accused of nothing meanwhile (``Blame``)."""
    table = Table(schedule, laws=Blame)
    table.run(limit_ms=LIMIT_MS)
    logs: dict[int, dict[bytes, list[Decide]]] = {}
    for instance in table.honest:
        for decision in instance.decisions:
            logs.setdefault(decision.ledger.height, {}).setdefault(decision.certificate.block_id, []).append(decision)
    for height, blocks in sorted(logs.items()):
        if len(blocks) > 1:
            one, other = list(blocks.values())[:2]
            roster = one[0].before.roster
            return Fork(schedule=schedule, height=height, roster=roster, sides=(tuple(one), tuple(other)))
    return None


def _proof(decision: Decide) -> Decision:
    return Decision(certificate=decision.certificate, prepares=decision.prepares, block=decision.block)


def _assert_convicts(fork: Fork) -> set[str]:
    """Some log of one side and one of the other name at least F+1 power; no two name anybody honest, and each proof
    holds. Returns what the proofs say, in the words before the place."""
    crypto = SimulatedCrypto(simulated_key(0), NETWORK_ID, honest=False)
    twinned = {simulated_key(index) for index in fork.schedule.twinned}
    where = f"seed {fork.schedule.seed}, {fork.schedule.nodes} nodes"
    named: list[int] = []
    said: set[str] = set()
    for one in fork.sides[0]:
        for other in fork.sides[1]:
            found = culprits(_proof(one), _proof(other), fork.roster)
            assert set(found) <= twinned, f"{where}: an honest member is accused"
            for key, proof in found.items():
                assert proof.accused == key and refuse_evidence(proof) is None
                fault = contradiction(proof.first, proof.second)
                assert fault is not None
                said.add(fault.split(" at ")[0])
                assert crypto.verify(proof.first) and crypto.verify(proof.second)
            named.append(sum(map(fork.roster.power, found)))
    assert max(named) >= fork.roster.weak_quorum, f"{where}: only {max(named)} of {fork.roster.weak_quorum} are named"
    return said


@pytest.mark.parametrize(("nodes", "faulty", "seeds"), [(4, 2, 60), (5, 3, 40), (7, 3, 40), (7, 4, 40), (10, 6, 8)])
def test_forks_convict_at_least_f_plus_one_and_nobody_honest(nodes: int, faulty: int, seeds: int) -> None:
    forks = [fork for seed in range(seeds) if (fork := _fork(divide(seed, nodes, faulty=faulty))) is not None]
    assert len(forks) >= 5, "otherwise these seeds show nothing"
    said = set().union(*map(_assert_convicts, forks))
    assert len(said) > 1, f"two contents of one slot, and locks that were forgotten: {said}"
    assert any(len(fork.views) > 1 for fork in forks), "decided in two views: locks that one instance did not know of"


def test_fork_in_a_single_view_convicts_too() -> None:
    forks = [fork for seed in SEEDS if (fork := _fork(divide(seed, 4, faulty=2))) is not None and len(fork.views) == 1]
    assert forks, "otherwise these seeds show nothing"
    for fork in forks:
        _assert_convicts(fork)


@pytest.mark.parametrize("seed", [126, 138])
def test_seeds_of_ten_only_honest_member_behind_one_block_decides_the_other(seed: int) -> None:
    """It was locked on the first; what had led to that was forgotten, and with it the only proof that it held."""
    fork = _fork(divide(seed, 10, faulty=6))
    assert fork is not None
    _assert_convicts(fork)


@pytest.mark.parametrize(("nodes", "faulty"), [(4, 1), (7, 2), (5, 2), (6, 2)])
def test_fewer_faulty_than_two_quorums_share_fork_nothing(nodes: int, faulty: int) -> None:
    """With up to F; and with F+1 where two quorums share more than that: then they can only halt."""
    shared = 2 * quorum(nodes) - nodes
    assert faulty < shared and faulty in (max_faulty(nodes), max_faulty(nodes) + 1)
    for seed in SEEDS:
        assert _fork(divide(seed, nodes, faulty=faulty)) is None, seed


@pytest.mark.parametrize(("nodes", "faulty"), [(4, 2), (7, 3)])
def test_any_schedule_with_too_many_twins_accuses_nobody_honest(nodes: int, faulty: int) -> None:
    """The schedules of ordinary searches, deaf twins included, with one twin too many."""
    for seed in SEEDS:
        fork = _fork(draw(seed, nodes, faulty=faulty))
        if fork is not None:
            _assert_convicts(fork)

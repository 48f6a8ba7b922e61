"""More than F members run twice, one instance in each half of a parted network: whoever forks the ledger is convicted.

The halves know nothing of each other, and in each some views fail, so that the two blocks of a height are decided in
different views: then equivocation, or a lock that was forgotten, has to be found in the PrepareCerts behind them.
"""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.twins import Schedule, Table, draw
from aicpnode.simulation.twins.schedule import KINDS
from consensus.events import Decide
from consensus.evidence import Decision, Evidence, contradiction, culprits, refuse_evidence
from consensus.messages import MessageKind

SEEDS = 40
FORKS_MIN = 5
EVENTS_MAX = 4_000
"""What has forked never agrees again: such a run is looked at after so many events."""
VIEWS = 6
HEALS_MS = 6_400


def parted(seed: int, nodes: int, faulty: int) -> Schedule:
    """``faulty`` members twinned; each half has as many honest members as it needs for a quorum, and all twins."""
    rng = random.Random(seed)
    twinned = tuple(sorted(rng.sample(range(nodes), faulty)))
    honest = [index for index in range(nodes) if index not in twinned]
    rng.shuffle(honest)
    cut = len(honest) // 2
    seconds = {nodes + place for place in range(faulty)}
    halves = ({*honest[:cut], *twinned}, {*honest[cut:], *seconds})
    start = rng.randrange(2 * nodes)
    reach: dict[tuple[int, int, MessageKind], tuple[int, ...]] = {}
    for view in range(VIEWS):
        for kind in KINDS:
            masks = [0] * (nodes + faulty)
            for half in halves:
                fails = view < VIEWS - 2 and rng.random() < 0.15
                for sender in half:
                    masks[sender] = 0 if fails else sum(1 << other for other in half)
            reach[start + 1, view, kind] = tuple(masks)
    return Schedule(
        seed=seed,
        nodes=nodes,
        twinned=twinned,
        start_height=start,
        heights=1,
        reach=reach,
        side=(0,) * (nodes + faulty),
        heal_ms=HEALS_MS,
        holds_back=rng.random() < 0.5,
        ready_ms=(0,) * (nodes + faulty),
        apply_ms=(0,) * (nodes + faulty),
    )


def forks(table: Table) -> list[tuple[Decide, Decide]]:
    """Pairs of decisions of honest members on the first height on which they disagree."""
    by_height: dict[int, dict[bytes, Decide]] = {}
    for instance in table.honest:
        for decision in instance.decisions:
            by_height.setdefault(decision.ledger.height, {}).setdefault(decision.certificate.block_id, decision)
    for _height, blocks in sorted(by_height.items()):
        if len(blocks) > 1:
            return list(combinations(blocks.values(), 2))
    return []


def convicted(one: Decide, other: Decide) -> dict[bytes, Evidence]:
    first, second = (Decision(certificate=d.certificate, prepares=d.prepares, block=d.block) for d in (one, other))
    return culprits(first, second, one.before.roster)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aicpnode.simulation.twins.table.EVENTS_MAX", EVENTS_MAX)


def played(schedule: Schedule) -> Table:
    table = Table(schedule, laws=None)
    table.run()
    return table


@pytest.mark.parametrize(("nodes", "faulty"), [(4, 2), (5, 3), (7, 3)])
def test_fork_convicts_more_than_f_members_and_nobody_honest(nodes: int, faulty: int) -> None:
    limit = (nodes - 1) // 3
    forked = 0
    views = set()
    kinds = set()
    for seed in range(SEEDS):
        schedule = parted(seed, nodes, faulty)
        table = played(schedule)
        guilty = {simulated_key(index) for index in schedule.twinned}
        for one, other in forks(table):
            forked += 1
            views.add(one.certificate.view == other.certificate.view)
            found = convicted(one, other)
            roster = one.before.roster
            assert sum(roster.power(key) for key in found) > limit, f"seed {seed}: {len(found)} convicted"
            assert found.keys() <= guilty, f"seed {seed}: an honest member is convicted"
            assert all(refuse_evidence(proof) is None for proof in found.values())
            kinds |= {(contradiction(proof.first, proof.second) or "").split(" at ")[0] for proof in found.values()}
        for instance in table.honest:
            assert instance.accused <= guilty, f"seed {seed}: an honest member is accused"
    assert forked >= FORKS_MIN, f"{forked} forks"
    assert views == {True, False}, "blocks that were decided in one view, and in different ones"
    assert len(kinds) > 1, kinds


@pytest.mark.parametrize("nodes", [4, 7])
def test_random_schedules_beyond_the_bound_never_accuse_an_honest_member(nodes: int) -> None:
    for seed in range(SEEDS // 2):
        schedule = draw(seed, nodes, faulty=(nodes - 1) // 3 + 1)
        table = played(schedule)
        guilty = {simulated_key(index) for index in schedule.twinned}
        for instance in table.honest:
            assert instance.accused <= guilty, f"seed {seed}"
        for one, other in forks(table):
            found = convicted(one, other)
            assert len(found) > (nodes - 1) // 3 and found.keys() <= guilty, f"seed {seed}"

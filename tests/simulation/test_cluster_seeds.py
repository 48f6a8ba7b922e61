"""Many heights by production replicas on a seeded network, with liars, loss, partitions, crashes and newcomers.

Invariants are checked at every step (``aicpnode.simulation.checks``). Longer searches run the same scenarios:
``python -m aicpnode.simulation.scenario FIRST LAST SECONDS``; a seed that fails there becomes a named test below.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aicpnode.replication.intent import Wish
from aicpnode.replication.recovery import SAFE_HEIGHTS
from aicpnode.simulation.cluster import Behaviour, Cluster, Faults, Occurrence, Violation
from aicpnode.simulation.faults import FIELDS
from aicpnode.simulation.scenario import Scenario, play, run
from consensus.events import Decide, Received
from consensus.messages import Change, ChangeKind, Commit
from consensus.types import MemberStatus

CHUNK = 25
SEEDS = 2_000
LARGE = range(10, 17)
LARGE_SEEDS = 4
CALM = Faults(late_share=0.0, quiet_after_ms=0)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_decide_and_break_no_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run(seed)
        assert outcome.decided, str(outcome)


@pytest.mark.parametrize("nodes", LARGE)
def test_seeds_of_larger_clusters_decide_and_break_no_invariant(nodes: int) -> None:
    for seed in range(LARGE_SEEDS):
        outcome = play(Scenario.draw(seed, nodes=nodes))
        assert outcome.decided, str(outcome)


def test_scenarios_cover_what_they_should() -> None:
    drawn = [Scenario.draw(seed) for seed in range(SEEDS)]
    assert {len(scenario.founders) for scenario in drawn} == {1, 2, 3, 4, 5, 7}
    assert {behaviour for scenario in drawn for behaviour in scenario.founders} == set(Behaviour)
    for fault in FIELDS:
        assert any(getattr(scenario.faults, fault) for scenario in drawn), fault
    assert any(back is None for scenario in drawn for _at, _index, back in scenario.leaves)
    assert any(back is not None for scenario in drawn for _at, _index, back in scenario.leaves)
    changes = {change.kind for scenario in drawn for _at, change in scenario.changes}
    assert {ChangeKind.STOP, ChangeKind.REMOVE, ChangeKind.ROUND_MS} <= changes
    assert any(scenario.promotions for scenario in drawn)
    assert any(behaviour is not Behaviour.HONEST for scenario in drawn for behaviour in scenario.joiners)


@pytest.mark.parametrize("lie", [behaviour for behaviour in Behaviour if behaviour is not Behaviour.HONEST])
@pytest.mark.parametrize("count", [4, 7])
def test_every_misbehaviour_alone_is_harmless(lie: Behaviour, count: int) -> None:
    faulty = (count - 1) // 3
    cluster = Cluster(seed=count, behaviours=[Behaviour.HONEST] * (count - faulty) + [lie] * faulty, faults=CALM)
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 12 and min(cluster.rounds()) >= 4, limit_ms=200_000), (
        cluster.heights()
    )


def test_training_is_not_starved_on_a_calm_network() -> None:
    """Invariant 15: no block without content more than once in a row, and most blocks are rounds."""
    cluster = Cluster(seed=1, behaviours=[Behaviour.HONEST] * 4, faults=CALM)
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.rounds()) >= 30, limit_ms=200_000)
    assert cluster.checks.empty_in_a_row_max <= 1
    assert max(cluster.heights()) <= 30 + 8, "four CONTRIBUTEs, and rounds"


def test_joiners_are_promoted_after_probation_and_have_power() -> None:
    cluster = Cluster(seed=3, behaviours=[Behaviour.HONEST], faults=CALM, joiners=[Behaviour.HONEST] * 3)
    cluster.start()
    assert cluster.run(until=lambda: cluster.promoted() == 3, limit_ms=200_000), cluster.statuses()
    roster = cluster.honest[0].ledger.roster
    assert (roster.total_power, roster.quorum) == (4, 3)


def test_joiner_of_an_idle_run_is_promoted_by_its_presence() -> None:
    """Nobody trains: PRESENT operations ask for the blocks in which probation is served."""
    behaviours = [Behaviour.HONEST] * 2
    cluster = Cluster(seed=4, behaviours=behaviours, faults=CALM, joiners=[Behaviour.HONEST], wish=Wish.OFF)
    cluster.start()
    assert cluster.run(until=lambda: cluster.promoted() == 1, limit_ms=200_000), cluster.statuses()
    assert min(cluster.rounds()) == 0


def test_silent_joiner_is_never_promoted() -> None:
    cluster = Cluster(seed=5, behaviours=[Behaviour.HONEST] * 4, faults=CALM, joiners=[Behaviour.CHAOS])
    joiner = cluster.keys[-1]
    cluster.start()
    member = cluster.members[joiner]
    assert cluster.run(until=lambda: member.name in cluster.statuses(), limit_ms=100_000)
    cluster.schedule(1, member.crash)
    assert cluster.run(until=lambda: min(cluster.rounds()) >= 25, limit_ms=300_000)
    assert cluster.statuses()[member.name] is MemberStatus.SUSPENDED, "it failed its probation"


def test_height_that_was_late_does_not_make_the_next_ones_wait() -> None:
    """A minute without a quorum must not become the unit of waiting of everybody afterwards."""
    cluster = Cluster(seed=2, behaviours=[Behaviour.HONEST] * 3 + [Behaviour.SILENT], faults=CALM)
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 2, limit_ms=100_000)
    island = frozenset(member.key for member in cluster.honest[:1])
    cluster.part(island)
    parted_at, height = cluster.now_ms, max(cluster.heights())
    assert not cluster.run(until=lambda: min(cluster.heights()) > height + 1, limit_ms=parted_at + 120_000)
    cluster.heal(island)
    assert cluster.run(until=lambda: min(cluster.heights()) >= height + 8, limit_ms=parted_at + 300_000)
    deltas = [member.replica.pacemaker.delta_ms for member in cluster.honest if member.replica is not None]
    assert len(deltas) == 3
    assert max(deltas) <= 4 * CALM.delay_ms[1] * 4, deltas


@pytest.mark.parametrize(("seed", "nodes"), [(1027, 5), (1328, 7)])
def test_seeds_whose_timeouts_once_fed_on_themselves(seed: int, nodes: int) -> None:
    """Timeouts that were measured as the pace of decisions made the next ones longer, up to a minute each."""
    outcome = play(Scenario.draw(seed, nodes=nodes, byzantine=1))
    assert outcome.decided, str(outcome)


def test_seed_6268_promoted_member_forgets_its_presence_and_endorses() -> None:
    """Its last PRESENT could not be valid any more, and kept it from endorsing what the others waited for."""
    outcome = play(Scenario.draw(6268, nodes=5, byzantine=1))
    assert outcome.decided, str(outcome)


def test_seed_58_joiner_that_failed_its_probation_asks_again() -> None:
    """Its pending operation could never become valid and kept it from joining again."""
    honest = Behaviour.HONEST
    scenario = Scenario(
        seed=58,
        founders=(honest, honest, Behaviour.EQUIVOCATE, honest),
        joiners=(honest,),
        faults=Faults(loss=0.05, duplication=0.05, crashes=3, power_cuts=20, partitions=5),
        wishes=((19_005, 0, Wish.OFF), (16_044, 1, Wish.ON)),
    )
    outcome = play(scenario)
    assert outcome.decided, str(outcome)


def test_observer_sees_what_happens_and_changes_nothing() -> None:
    scenario = Scenario.draw(5, nodes=4, byzantine=1, faults={"loss", "crashes", "partitions"})
    assert sum(behaviour is not Behaviour.HONEST for behaviour in scenario.founders) == 1
    seen: list[tuple[Occurrence, object]] = []
    observed = play(scenario, lambda _now, what, _sender, _receiver, said: seen.append((what, said)))
    assert {Occurrence.STARTED, Occurrence.SENT, Occurrence.ARRIVED, Occurrence.DECIDED} <= {what for what, _ in seen}
    assert sum(what is Occurrence.DECIDED for what, _said in seen) == observed.cluster.checks.decisions
    assert play(scenario).cluster.trace == observed.cluster.trace


def test_scenario_draws_only_the_chosen_faults_and_refuses_unknown_names() -> None:
    for seed in range(20):
        calm = Scenario.draw(seed, nodes=5, byzantine=0, faults=())
        assert calm.founders == (Behaviour.HONEST,) * 5
        assert (calm.faults.loss, calm.faults.crashes, calm.faults.partitions, calm.joiners, calm.wishes) == (
            (0, 0, 0, (), ())
        )
    with pytest.raises(ValueError, match="earthquakes"):
        Scenario.draw(1, faults={"earthquakes"})
    with pytest.raises(ValueError, match="honest"):
        Scenario.draw(1, nodes=4, byzantine=4)


def test_member_that_lost_its_disk_votes_again_three_heights_later() -> None:
    cluster = Cluster(seed=6, behaviours=[Behaviour.HONEST] * 4, faults=CALM)
    victim = cluster.members[cluster.keys[2]]
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 5, limit_ms=100_000)
    victim.lose_disk()
    victim.start()
    assert victim.ledger.height == 0
    assert victim.replica is not None
    assert victim.replica.is_mute
    assert cluster.run(until=lambda: victim.disk.voting_from is not None, limit_ms=cluster.now_ms + 60_000)
    voting_from = victim.disk.voting_from
    assert voting_from is not None
    assert voting_from >= 5 + SAFE_HEIGHTS
    assert cluster.run(until=lambda: victim.ledger.height > voting_from + 4, limit_ms=cluster.now_ms + 100_000)
    own = [decision for decision in victim.disk.decisions if _signs(victim.index, decision)]
    assert own, "it counts again"
    since = [decision for decision in own if decision.ledger.height > 8]
    assert all(decision.ledger.height >= voting_from for decision in since)


def _signs(index: int, decision: Decide) -> bool:
    return index in [signer for signer, _signature in decision.certificate.votes]


def test_member_whose_lost_disk_leaves_no_quorum_observes_for_ever_and_nobody_decides() -> None:
    cluster = Cluster(seed=7, behaviours=[Behaviour.HONEST] * 3, faults=CALM)
    victim = cluster.members[cluster.keys[0]]
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 5, limit_ms=100_000)
    victim.lose_disk()
    victim.start()
    head = max(cluster.heights())
    cluster.run(until=lambda: False, limit_ms=cluster.now_ms + 60_000)
    assert max(cluster.heights()) <= head + 1, "at most what was signed before"
    assert victim.replica is not None
    assert victim.replica.is_mute
    assert victim.amnesia is not None
    assert victim.amnesia.is_hopeless(victim.ledger)


@pytest.mark.parametrize("count", [2, 4, 7])
def test_halves_of_a_parted_network_decide_nothing_and_go_on_when_it_heals(count: int) -> None:
    """Invariant 8."""
    cluster = Cluster(seed=8, behaviours=[Behaviour.HONEST] * count, faults=CALM)
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 3, limit_ms=100_000)
    island = frozenset(cluster.keys[: count // 2])
    cluster.part(island)
    cluster.run(until=lambda: False, limit_ms=cluster.now_ms + cluster.links.longest_ms)
    standing = max(cluster.heights())
    quorum = cluster.genesis.roster.quorum
    cluster.run(until=lambda: False, limit_ms=cluster.now_ms + 30_000)
    others = [m.ledger.height for m in cluster.honest if m.key not in island]
    assert max(m.ledger.height for m in cluster.honest if m.key in island) <= standing
    assert (max(others) > standing) == (len(others) >= quorum)
    cluster.heal(island)
    assert cluster.run(until=lambda: min(cluster.heights()) > max(others) + 3, limit_ms=cluster.now_ms + 60_000)


def test_member_that_hears_nobody_decides_nothing_though_all_hear_it() -> None:
    cluster = Cluster(seed=9, behaviours=[Behaviour.HONEST] * 4, faults=CALM)
    deaf = cluster.members[cluster.keys[1]]
    cluster.start()
    cluster.part(frozenset((deaf.key,)), speaks=True)
    assert cluster.run(until=lambda: sorted(cluster.heights())[1] >= 5, limit_ms=100_000)
    assert deaf.ledger.height == 0
    cluster.heal(frozenset((deaf.key,)))
    assert cluster.run(until=lambda: deaf.ledger.height >= 5, limit_ms=cluster.now_ms + 60_000)


def test_member_that_left_joins_again() -> None:
    cluster = Cluster(seed=10, behaviours=[Behaviour.HONEST] * 3, faults=CALM)
    leaver = cluster.members[cluster.keys[2]]
    cluster.start()
    leaver.wish(Wish.LEAVE)
    assert cluster.run(until=lambda: cluster.statuses()[leaver.name] is MemberStatus.SUSPENDED, limit_ms=100_000)
    assert cluster.honest[0].ledger.roster.total_power == 2
    leaver.wish(Wish.ON)
    assert cluster.run(until=lambda: cluster.statuses()[leaver.name] is MemberStatus.ACTIVE, limit_ms=200_000)
    assert cluster.honest[0].ledger.roster.total_power == 3


def test_any_exception_of_a_replica_is_a_violation_that_shows_the_input() -> None:
    """Invariant 12."""
    cluster = Cluster(seed=11, behaviours=[Behaviour.HONEST], faults=CALM)
    member = cluster.members[cluster.keys[0]]
    cluster.start()
    assert member.replica is not None
    member.replica.roster = None  # type: ignore[assignment]
    vote = Commit(height=1, view=0, block_id=b"", signer=member.key)
    with pytest.raises(Violation, match=r"invariant 12: AttributeError.*node-0 on Received\(message=Commit"):
        member.handle(Received(message=vote))


def test_seed_1432_members_that_answer_one_request_of_four_keep_nobody_behind() -> None:
    """Two liars with endless claims were asked first again after each block: a joiner stayed behind for ever."""
    honest = Behaviour.HONEST
    founders = (honest, honest, Behaviour.STALE, honest, honest, Behaviour.SELECTIVE, honest)
    faults = Faults(wide_area=True, duplication=0.05, slow_members=1, slow_trainers=1, quiet_after_ms=4_000)
    changes = ((715, Change(kind=ChangeKind.STOP)),)
    wishes = ((3_120, 0, Wish.FOLLOW), (8, 0, Wish.ON))
    scenario = Scenario(seed=1432, founders=founders, joiners=(honest,), faults=faults, wishes=wishes, changes=changes)
    outcome = play(scenario)
    assert outcome.decided, str(outcome)


SEED_OF_EVERYTHING = next(
    seed
    for seed in range(1000)
    if (s := Scenario.draw(seed)).faults.power_cuts
    and s.faults.loss
    and s.faults.partitions
    and Behaviour.CHAOS in s.founders
)


def test_same_seed_gives_the_same_trace_in_any_process() -> None:
    outcome = run(SEED_OF_EVERYTHING)
    program = f"from aicpnode.simulation.scenario import run; print(run({SEED_OF_EVERYTHING}).cluster.trace)"
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
    assert traces == {outcome.cluster.trace}


def test_different_seeds_give_different_traces() -> None:
    assert run(2).cluster.trace != run(10).cluster.trace

"""Members that are far behind, or lost their disk, begin at snapshots; liars among the donors change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.simulation.cluster import Behaviour, Cluster, Faults, Violation
from aicpnode.simulation.scenario import Scenario, play
from aicpnode.simulation.snapshots import BLOCKS_KEPT, Taker
from consensus.headers import HeaderChain

HONEST = Behaviour.HONEST
CALM = Faults(late_share=0.0, quiet_after_ms=0, snapshots=True)
LIARS = (Behaviour.CHAOS, Behaviour.EQUIVOCATE, Behaviour.LIAR, Behaviour.STALE)
SEEDS = range(8)


def lonely(behaviours, seed: int) -> tuple[Cluster, object]:
    """A cluster whose first member was cut off for so long that nobody gives it the blocks it lacks."""
    cluster = Cluster(seed=seed, behaviours=behaviours, faults=CALM)
    member = cluster.members[cluster.keys[0]]
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 3, limit_ms=100_000)
    cluster.part(frozenset((member.key,)))
    goal = member.ledger.height + 2 * BLOCKS_KEPT
    assert cluster.run(until=lambda: sorted(cluster.heights())[1] >= goal, limit_ms=300_000)
    cluster.heal(frozenset((member.key,)))
    return cluster, member


def catch_up(cluster: Cluster) -> None:
    goal = max(cluster.heights()) + 3
    limit_ms = cluster.now_ms + 200_000
    assert cluster.run(until=lambda: min(cluster.heights()) >= goal, limit_ms=limit_ms), cluster.heights()


def test_member_that_was_away_for_long_begins_at_a_snapshot_and_votes_again() -> None:
    cluster, member = lonely([HONEST] * 4, seed=1)
    before = member.ledger.height
    catch_up(cluster)
    assert cluster.takeovers == 1
    assert member.disk.shelf.base_height > before
    assert member.disk.decided(before) == []
    base = member.disk.shelf.base_height

    def votes_again() -> bool:
        return any(vote.signer == member.key and vote.height > base for vote in cluster.checks.votes())

    assert cluster.run(until=votes_again, limit_ms=cluster.now_ms + 60_000)


def test_member_that_lost_its_disk_begins_at_a_snapshot() -> None:
    cluster = Cluster(seed=2, behaviours=[HONEST] * 4, faults=CALM)
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 2 * BLOCKS_KEPT, limit_ms=300_000)
    victim = cluster.members[cluster.keys[3]]
    victim.lose_disk()
    victim.start()
    catch_up(cluster)
    assert victim.disk.shelf.base_height > 0
    assert cluster.run(until=lambda: victim.disk.voting_from is not None, limit_ms=cluster.now_ms + 60_000)


@pytest.mark.parametrize("liar", LIARS)
def test_lying_donors_are_refused_until_an_honest_one_is_asked(liar: Behaviour) -> None:
    refused = 0
    for seed in SEEDS:
        cluster, member = lonely([HONEST] * 6 + [liar], seed)
        catch_up(cluster)
        assert member.disk.shelf.base_height > 0
        refused += member.taker.refused
    assert refused > 0


def test_state_that_is_not_compared_with_the_certified_one_is_a_violation(monkeypatch) -> None:
    """Whoever takes any state for the certified one is led astray, and the checks see it."""
    monkeypatch.setattr(HeaderChain, "extend", lambda _self, _link: None)
    monkeypatch.setattr(HeaderChain, "certified_state", lambda _self, _height: b"")
    original = Taker._check

    def gullible(self: Taker, given):
        self._member.state_hash, honest = (lambda _ledger: b""), self._member.state_hash
        try:
            return original(self, given)
        finally:
            self._member.state_hash = honest

    monkeypatch.setattr(Taker, "_check", gullible)
    with pytest.raises(Violation, match="takes over another state"):
        for seed in range(40):
            cluster, _member = lonely([HONEST] * 6 + [Behaviour.CHAOS], seed)
            catch_up(cluster)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_scenarios_with_snapshots_decide_and_break_no_invariant(seed: int) -> None:
    scenario = Scenario.draw(seed, faults="all")
    outcome = play(replace(scenario, faults=replace(scenario.faults, snapshots=True)))
    assert outcome.decided, str(outcome)

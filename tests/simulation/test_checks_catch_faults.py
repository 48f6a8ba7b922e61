"""The checks of the simulation find what they are for: each rule of the protocol that is broken here is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aicpnode.simulation.cluster import Behaviour, Cluster, Faults, Violation
from consensus.blocks import certified
from consensus.events import Decide, Effect, Input, PersistSafety, PersistVote
from consensus.membership import LedgerState, select_operations
from consensus.messages import Ballot, Block, CommitCert
from consensus.replica import Replica
from consensus.types import NIL, NO_VIEW, Roster

HONEST = Behaviour.HONEST
SEEDS = 40
ROUGH = Faults(delay_ms=(1, 60), loss=0.1, crashes=4, power_cuts=10, partitions=3, quiet_after_ms=15_000)
STORMY = Faults(
    delay_ms=(1, 250), loss=0.25, late_share=0.1, partitions=6, isolated_deciders=0.5, quiet_after_ms=25_000
)


def caught(behaviours: list[Behaviour], faults: Faults, *, seeds: int = SEEDS, heights: int = 12) -> str:
    """What the first violation says that any of the seeds shows; empty if none does."""
    for seed in range(seeds):
        cluster = Cluster(seed=seed, behaviours=behaviours, faults=faults)
        cluster.start()
        try:
            cluster.run(until=lambda at=cluster: min(at.heights()) >= heights, limit_ms=60_000)  # type: ignore[misc]
        except Violation as violation:
            return str(violation)
    return ""


def dropping(kind: type[Effect]) -> Callable[[Replica, Input], list[Effect]]:
    genuine = Replica.handle

    def handle(self: Replica, event: Input) -> list[Effect]:
        return [effect for effect in genuine(self, event) if not isinstance(effect, kind)]

    return handle


def test_unbroken_protocol_passes_where_the_broken_ones_are_caught() -> None:
    assert caught([HONEST] * 4, ROUGH, seeds=3) == ""
    assert caught([HONEST, Behaviour.STALE, HONEST, HONEST], STORMY, seeds=3) == ""


def test_vote_that_is_not_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "handle", dropping(PersistVote))
    assert "invariant 3" in caught([HONEST] * 4, ROUGH)


def test_lock_that_is_not_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "handle", dropping(PersistSafety))
    assert "invariant 4" in caught([HONEST] * 4, ROUGH)


def test_quorum_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "quorum", property(lambda self: 2 * self.total_power // 3))
    assert caught([HONEST] * 4, STORMY).startswith("invariant")


def test_lock_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that never remembers which block it locked votes for any other."""
    genuine = Replica._try_accept

    def forgetful(self: Replica) -> bool:
        kept = self.locked_view, self.locked_id, self.valid_view, self.valid_id, self.valid_certificate
        self.locked_view, self.locked_id = NO_VIEW, NIL
        accepted = genuine(self)
        self.locked_view, self.locked_id = kept[:2]
        return accepted

    monkeypatch.setattr(Replica, "_try_accept", forgetful)
    cut_off = Faults(delay_ms=(1, 40), loss=0.3, isolated_deciders=1.0, quiet_after_ms=25_000)
    assert "forgotten" in caught([HONEST, Behaviour.STALE, HONEST, HONEST], cut_off, seeds=150)


def test_proposal_without_a_yes_quorum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(ballots: list[Ballot], roster: Roster) -> tuple[tuple[int, bytes], ...]:
        rows = {(e.author_index, e.digest) for ballot in ballots for e in ballot.entries if e.accepted}
        return tuple(sorted(rows))

    assert certified is not generous
    monkeypatch.setattr("consensus.blocks.certified", generous)
    assert "invariant 6" in caught([HONEST] * 4, Faults(delay_ms=(1, 40), quiet_after_ms=0), heights=30)


def test_decision_of_too_few_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that decides alone is told so by its certificate, and by who was in its reach."""

    def alone(self: Replica, block: Block, certificate: CommitCert) -> bool:
        return genuine(self, block, replace(certificate, votes=certificate.votes[:1]))

    genuine = Replica._decide
    monkeypatch.setattr(Replica, "_decide", alone)
    assert "invariant 5" in caught([HONEST] * 4, ROUGH)


def test_minority_that_decides_is_out_of_reach_of_a_quorum() -> None:
    """Invariant 8 by itself: the certificate is genuine, but nobody could have sent it."""
    cluster = Cluster(seed=1, behaviours=[HONEST] * 4, faults=Faults(quiet_after_ms=0))
    cluster.start()
    assert cluster.run(until=lambda: min(cluster.heights()) >= 3, limit_ms=60_000)
    member = cluster.honest[0]
    decision: Decide = member.disk.decisions[-1]
    others = frozenset(cluster.keys[1:])
    cluster.checks.reach.links_changed(frozenset((key, member.key) for key in others))
    cluster.now_ms += 10_000
    height = decision.ledger.height
    cluster.checks.reach.decided(member, decision)  # what it rests on came before the links broke
    after: LedgerState = decision.ledger
    following = replace(decision, before=after, ledger=replace(after, height=after.height + 1))
    with pytest.raises(Violation, match="invariant 8"):
        cluster.checks.reach.decided(member, following)
    assert height >= 3


def test_starved_operation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders that never include operations."""

    def none(state: LedgerState, _operations: object, **limits: int) -> object:
        return select_operations(state, (), **limits)

    monkeypatch.setattr("consensus.blocks.select_operations", none)
    said = caught([HONEST] * 4, Faults(delay_ms=(1, 20), quiet_after_ms=0), seeds=3, heights=100)
    assert "invariant 15" in said, said


def test_view_that_leads_nowhere_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that never accept a proposal after the first two heights."""
    genuine = Replica._try_accept

    def refusing(self: Replica) -> bool:
        return self.height <= 2 and genuine(self)

    monkeypatch.setattr(Replica, "_try_accept", refusing)
    faults = Faults(delay_ms=(1, 10), quiet_after_ms=0)
    assert "invariant 14" in caught([HONEST] * 4, faults, seeds=3, heights=100)

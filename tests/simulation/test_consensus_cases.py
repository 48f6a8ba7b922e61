"""Faults that real consensus systems had, each with the report it comes from, and what happens here instead.

Names are those of the project's collection of cases. The first half are playbooks, the second half whole networks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aicpnode.identity import Identity
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.replication.intent import Wish
from aicpnode.replication.ledger import LedgerStore
from aicpnode.simulation.cluster import Behaviour, Cluster, Faults
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import NETWORK_ID, Playbook, founders, of_kind, said
from aicpnode.storage.database import Database
from consensus.events import (
    BlockReceived,
    Decide,
    Fetch,
    OperationReceived,
    PersistSafety,
    PersistVote,
    Send,
    SetTimer,
    Step,
    TimerKind,
)
from consensus.messages import Ballot, Commit, OperationKind, Prepare, SetMessage
from consensus.pool import operation_subject
from consensus.replica import Replica
from consensus.types import NIL, NO_VIEW, quorum

X = b"x" * 32
CALM = Faults(late_share=0.0, quiet_after_ms=0)
HONEST = Behaviour.HONEST


def run_cluster(
    behaviours: list[Behaviour], *, seed: int = 1, faults: Faults = CALM, heights: int = 12, rounds: int = 4
) -> Cluster:
    cluster = Cluster(seed=seed, behaviours=behaviours, faults=faults)
    cluster.start()
    enough = cluster.run(
        until=lambda: min(cluster.heights()) >= heights and min(cluster.rounds()) >= rounds, limit_ms=300_000
    )
    assert enough, (cluster.heights(), cluster.rounds())
    return cluster


# ---- C1 to C5: what a crash must not take away


def test_case_C01_vote_is_on_disk_before_it_leaves_and_is_sent_again(tmp_path: Path) -> None:
    """narwhal 488: the last voted view was lost on restart, and a second vote signed."""
    table = Playbook(founders(4, until_round=9))
    with Database.open(tmp_path) as database:
        store = LedgerStore(database, NETWORK_ID)
        store.persist(table.hear(table.fresh(table.block(voters=(1, 2, 3)))))
        first = said(table.log, Prepare)
    with Database.open(tmp_path) as database:
        restored = LedgerStore(database, NETWORK_ID).restored(1)
        replica = Replica(
            key=table.key,
            crypto=table.crypto,
            timing=table.timing,
            ledger=table.genesis,
            restored=restored,
        )
        again = said(replica.start(), Prepare)
    assert again == first and [p.signature for p in again] == [p.signature for p in first]
    assert (replica.view, replica.step) == (0, Step.PREPARE)


@pytest.mark.parametrize("seed", range(6))
def test_case_C01_C02_C04_power_cuts_between_signing_writing_and_sending(seed: int) -> None:
    """narwhal 488, aptos-core 18298, telcoin 934. The cluster checks that whatever leaves is durable, and never
    contradicts what left before."""
    faults = Faults(power_cuts=60, loss=0.05, quiet_after_ms=20_000)
    cluster = run_cluster([HONEST] * 4, seed=seed, faults=faults, heights=15)
    assert cluster._power_cuts_left < 60


def test_case_C05_restarted_member_goes_on_with_its_stored_vote() -> None:
    """diem 4390: after a crash the node refused its own round and stalled."""
    table = Playbook()
    block = table.block()
    table.hear(table.fresh(block))
    table.restart()
    table.apply()
    effects = table.hear(*(table.prepare(i, 0, table.name(block)) for i in (1, 2)))
    assert said(effects, Commit)
    assert of_kind(table.hear(*(table.commit(i, 0, table.name(block)) for i in (1, 2))), Decide)


# ---- C6 and C7: quorums


@pytest.mark.parametrize("count", [2, 3, 5, 6, 8, 9])
def test_case_C06_quorum_where_n_is_not_3f_plus_1(count: int) -> None:
    """celo 253, quorum 796: 2f+1 votes were taken for a quorum."""
    table = Playbook(founders(count))
    needed, wrong = table.ledger.roster.quorum, 2 * ((count - 1) // 3) + 1
    assert needed == quorum(count) > wrong
    block = table.block(voters=range(needed))
    name = table.name(block)
    table.hear(table.fresh(block))
    others = list(range(1, count))
    for signer in others[: needed - 2]:
        assert not said(table.hear(table.prepare(signer, 0, name)), Commit)
    assert said(table.hear(table.prepare(others[needed - 2], 0, name)), Commit)


@pytest.mark.parametrize("total", [3, 6, 9, 12, 300, 999])
def test_case_C07_quorum_where_3_divides_the_power(total: int) -> None:
    """go-ibft 86: ceil(2W/3) is one too few there."""
    assert quorum(total) == 2 * total // 3 + 1 == -(-2 * total // 3) + 1


# ---- C8, C9: duplicates


def test_case_C08_duplicate_with_other_signature_bytes_is_no_second_vote() -> None:
    """nethermind 11027: duplicates were told apart by their signatures."""
    table = Playbook()
    block = table.block()
    name = table.name(block)
    vote = table.prepare(1, 0, name)
    table.hear(table.fresh(block), vote, *(replace(vote, signature=bytes([n]) * 64) for n in range(5)))
    assert table.replica.book.power(table.replica.book.prepares(0)) == 2
    assert not said(table.log, Commit)


def test_case_C09_duplicate_vote_does_not_block_the_certificate() -> None:
    """relab/hotstuff 244."""
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block), *[table.prepare(1, 0, name)] * 3)
    assert said(table.hear(table.prepare(2, 0, name)), Commit)
    assert of_kind(table.hear(*[table.commit(1, 0, name)] * 3, table.commit(2, 0, name)), Decide)


# ---- C11 to C15: views


def test_case_C11_locks_on_two_sides_do_not_deadlock() -> None:
    """quorum 305, pbft-consensus 82: one member is locked on a block that the next leader never saw."""
    locked, leader = Playbook(), Playbook(me=2)
    block = locked.block()
    name = locked.name(block)
    locked.lock(block)
    (ballot,) = said(locked.reach_view(1), Ballot)
    leader.reach_view(1)
    (proposal,) = said(leader.hear(ballot, leader.ballot(1, 1), leader.ballot(3, 1)), SetMessage)
    assert (proposal.block_id, proposal.valid_view) == (name, 0)
    (prepare,) = [p for p in said(locked.hear(proposal), Prepare) if p.view == 1]
    assert prepare.block_id == name, "its lock is no obstacle"
    leader.handle(BlockReceived(block=block))
    (prepare,) = [p for p in said(leader.log, Prepare) if p.view == 1]
    assert prepare.block_id == name


def test_case_C12_member_that_waits_for_commits_is_not_stuck() -> None:
    """tendermint 3003, 7452, 1496: no timer while precommits disagree; a wrong threshold for skipping rounds."""
    table = Playbook(founders(7))
    effects = table.hear(*(table.commit(i, 0, NIL if i % 2 else X) for i in range(1, 6)))
    assert TimerKind.COMMIT in {t.timer.kind for t in of_kind(effects, SetTimer)}
    table.fire(TimerKind.COMMIT)
    assert table.replica.view == 1
    table.hear(table.commit(1, 4, NIL), table.commit(2, 4, NIL))
    assert table.replica.view == 1, "F"
    table.hear(table.commit(3, 4, NIL))
    assert table.replica.view == 4, "F+1"


@pytest.mark.parametrize("seed", range(4))
def test_case_C13_members_split_across_views_come_together(seed: int) -> None:
    """neo-modules 792, BFT-SMaRt 19: livelock after members were parted."""
    faults = Faults(loss=0.1, partitions=8, crashes=4, quiet_after_ms=15_000)
    cluster = run_cluster([HONEST] * 4, seed=100 + seed, faults=faults)
    assert max(cluster.heights()) - min(cluster.heights()) <= 2


def test_case_C13_decision_soon_after_the_network_heals() -> None:
    """Invariant 14: no view takes longer than its timeouts, and those are bounded."""
    faults = Faults(loss=0.9, late_share=0.0, quiet_after_ms=30_000)
    cluster = Cluster(seed=7, behaviours=[HONEST] * 4, faults=faults)
    cluster.start()
    cluster.run(until=lambda: False, limit_ms=30_000)
    before = min(cluster.heights())
    assert cluster.run(until=lambda: min(cluster.heights()) > before, limit_ms=120_000)
    views = max(member.disk.decisions[before].certificate.view for member in cluster.honest)
    highest = max(member.replica.view for member in cluster.honest if member.replica is not None)
    assert highest <= views + 6


def test_case_C14_timeouts_grow_and_are_capped() -> None:
    """SmartBFT 365, fabric 274: a storm of view changes."""
    table = Playbook()
    waits = []
    for view in range(1, 40):
        in_view = [t for t in of_kind(table.reach_view(view), SetTimer) if t.timer.kind is TimerKind.PROPOSE]
        waits.append(in_view[-1].delay_ms)
    assert waits == sorted(waits) and waits[-1] == table.timing.timeout_max_ms
    (again,) = [t for t in of_kind(table.fire(TimerKind.RESEND), SetTimer) if t.timer.kind is TimerKind.RESEND]
    assert again.jitter


# ---- C16, C22: who said it, and where


def test_case_C16_proposal_of_anybody_but_the_leader_is_dropped() -> None:
    """libhotstuff 22."""
    table = Playbook()
    for impostor in (0, 2, 3):
        table.hear(table.fresh(table.block(), signer=impostor))
    assert table.replica.step is Step.PROPOSE
    assert said(table.hear(table.fresh(table.block())), Prepare)


def test_case_C17_votes_count_by_the_roster_of_their_height() -> None:
    """allways 181: votes of a removed validator counted. Here: of one that has no power yet."""
    table = Playbook(founders(4, observers=1))
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block), table.prepare(1, 0, name), table.prepare(4, 0, name))
    assert not said(table.log, Commit)


def test_case_C22_signature_of_one_run_is_worthless_in_another() -> None:
    """Simplex 554: the chain's id was not signed."""
    identity = Identity.generate()
    vote = Commit(height=1, view=0, block_id=X, signer=identity.key)
    signed = MemberCrypto(identity, b"\x01" * 32).sign(vote)
    other = MemberCrypto(Identity.generate(), b"\x02" * 32)
    assert MemberCrypto(Identity.generate(), b"\x01" * 32).verify(signed) and not other.verify(signed)


def test_case_C25_double_proposal_is_evidence_and_no_crash() -> None:
    """flow-go 105."""
    table = Playbook()
    one, two = table.block(voters=(0, 1, 2)), table.block(voters=(1, 2, 3))
    table.hear(table.fresh(one), table.fresh(two), table.fresh(two))
    assert [type(effect).__name__ for effect in table.log].count("Accusation") == 1


# ---- C27: the predecessor


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_case_C27_isolated_node_never_decides(count: int) -> None:
    """floor(1 * 0.67) = 0 votes were enough there. Here one alone decides only if it is alone by agreement."""
    table = Playbook(founders(count))
    operation = table.operation(0, OperationKind.CONTRIBUTE, 9)
    table.handle(OperationReceived(operation=operation, own=True))
    table.fire(TimerKind.OPERATION, subject=operation_subject(operation))
    for _ in range(5):
        for kind in TimerKind:
            table.fire(kind)
    assert bool(of_kind(table.log, Decide)) == (count == 1)


def test_case_C27_duplicates_and_rejections_are_no_prepares() -> None:
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block))
    table.hear(*[table.prepare(1, 0, name)] * 10, table.prepare(2, 0, NIL), table.prepare(3, 0, NIL))
    assert not said(table.log, Commit) and table.replica.locked_view == NO_VIEW


@pytest.mark.parametrize("dead", range(4))
def test_case_C27_one_dead_member_of_four_stops_nobody(dead: int) -> None:
    behaviours = [HONEST] * 4
    behaviours[dead] = Behaviour.SILENT
    cluster = run_cluster(behaviours)
    views = [decision.certificate.view for decision in cluster.honest[0].disk.decisions]
    assert max(views) <= 2, "its own heights take the next view"


@pytest.mark.parametrize("liar", range(4))
def test_case_C27_equivocating_leader_makes_nobody_execute_another_operation(liar: int) -> None:
    behaviours = [HONEST] * 4
    behaviours[liar] = Behaviour.EQUIVOCATE
    cluster = run_cluster(behaviours)
    logs = [[decision.block.body.operations for decision in member.disk.decisions[:12]] for member in cluster.honest]
    assert logs[0] == logs[1] == logs[2]


def test_case_C27_votes_of_unknown_members_execute_nothing() -> None:
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block), *(table.prepare(i, 0, name) for i in range(10, 20)))
    table.hear(*(table.commit(i, 0, name) for i in range(10, 20)))
    assert not said(table.log, Commit) and not of_kind(table.log, Decide)


# ---- C28 to C32: found by simulating earlier texts of the specification


@pytest.mark.parametrize("seed", range(4))
def test_case_C28_commit_sent_to_one_member_only_strands_nobody(seed: int) -> None:
    """That one moved on and nobody followed: n = 4 halted for ever. Entry proofs take the others along."""
    run_cluster([HONEST, HONEST, Behaviour.SELECTIVE, HONEST], seed=seed, heights=15)


def test_case_C28_one_that_moved_on_proves_it() -> None:
    ahead, behind = Playbook(), Playbook(me=3)
    nil = [ahead.commit(i, 0, NIL) for i in (1, 2, 3)]
    ahead.hear(*nil)
    assert ahead.replica.view == 1
    lagging = behind.signed(Commit(height=1, view=0, block_id=NIL, signer=simulated_key(3)))
    proof = [s.message for s in of_kind(ahead.hear(ahead.prepare(3, 0, NIL)), Send) if s.to == simulated_key(3)]
    assert proof == nil and lagging in proof
    behind.hear(*(message for message in proof if isinstance(message, Commit)))
    assert behind.replica.view == 1


def test_case_C29_prepared_block_that_some_never_got_is_fetched() -> None:
    """An equivocating leader left a prepared block whose body was missing: halt in a network without loss."""
    table = Playbook()
    block = table.block(voters=(1, 2, 3))
    name = table.name(block)
    table.hear(table.fresh(table.block(voters=(0, 1, 2))))
    effects = table.hear(*(table.prepare(i, 0, name) for i in (1, 2, 3)))
    (fetch,) = of_kind(effects, Fetch)
    assert fetch.targets == tuple(simulated_key(i) for i in (1, 2, 3))
    assert said(table.handle(BlockReceived(block=block)), Commit)
    table.reach_view(1)
    effects = table.hear(table.again(table.prepare_certificate(0, name), 1))
    assert said(effects, Prepare), "and its SET is accepted in the next view"


@pytest.mark.parametrize("seed", range(4))
def test_case_C29_equivocating_leader_halts_no_network_without_loss(seed: int) -> None:
    run_cluster([HONEST, Behaviour.EQUIVOCATE, HONEST, HONEST], seed=20 + seed, heights=15)


def test_case_C30_run_without_contributors_rests() -> None:
    """It was vacuously ready: thousands of empty rounds spun."""
    cluster = Cluster(seed=1, behaviours=[HONEST] * 4, faults=CALM, wish=Wish.OFF)
    cluster.start()
    cluster.run(until=lambda: False, limit_ms=120_000)
    assert (cluster.heights(), cluster.rounds()) == ([0] * 4, [0] * 4)


def test_case_C30_empty_rounds_wait_for_their_deadline() -> None:
    """Contributors that propose nothing cost one round a deadline, not a spin."""
    table = Playbook(founders(4, until_round=1 << 40))
    assert not said(table.log, Ballot)
    table.hear(*(table.ballot(i, ready=True) for i in (1, 2, 3)))
    assert not said(table.log, Ballot), "others' readiness is no reason to be ready"


def test_case_C31_amnesia_needs_two_blocks() -> None:
    """Evidence that took nil for a block accused an honest member in 300 of 300 runs: what an honest member signs in
    later views after COMMIT(id) is nil, or id again; never another block without a certificate above its COMMIT."""
    for seed in range(4):
        cluster = run_cluster(
            [HONEST, HONEST, Behaviour.CHAOS, HONEST], seed=seed, faults=Faults(loss=0.1, quiet_after_ms=10_000)
        )
        votes = cluster.checks.votes()
        commits = [v for v in votes if isinstance(v, Commit) and v.block_id != NIL]
        prepares = [v for v in votes if isinstance(v, Prepare) and v.block_id != NIL]
        for commit in commits:
            for prepare in prepares:
                same = (commit.signer, commit.height) == (prepare.signer, prepare.height)
                if same and prepare.view > commit.view and prepare.block_id != commit.block_id:
                    assert prepare.valid_view >= commit.view


def test_case_C32_ballots_of_the_slow_do_not_starve_training() -> None:
    """On a WAN early unready ballots kept training from ever getting a ready quorum."""
    faults = Faults(delay_ms=(80, 200), late_share=0.0, quiet_after_ms=0)
    cluster = run_cluster([HONEST] * 4, seed=3, faults=faults, heights=20, rounds=10)
    assert cluster.checks.empty_in_a_row_max <= 1


def test_case_C32_leader_waits_for_the_ready_ones() -> None:
    table = Playbook(founders(4, until_round=9), me=1)
    table.opine()
    effects = table.hear(table.ballot(0), table.ballot(2, ready=True))
    assert not said(effects + table.fire(TimerKind.LEADER_SOFT), SetMessage)
    (proposal,) = said(table.hear(table.ballot(3, ready=True)), SetMessage)
    assert proposal.block is not None and proposal.block.body.training is not None


# ---- found by reviewing this implementation


@pytest.mark.parametrize("seed", range(6))
def test_stingy_leader_that_shows_its_set_to_one_member_halts_nobody(seed: int) -> None:
    """That member sends no ballot any more; counted by ballots alone, the others waited for it for ever."""
    run_cluster([HONEST] * 3 + [Behaviour.STINGY], seed=seed, heights=20)


def test_safety_and_vote_of_one_step_are_one_transaction() -> None:
    """aptos-core 18298, as a playbook: both leave ``handle`` together, before the message."""
    table = Playbook()
    effects = table.lock(table.block())
    kinds = [type(effect) for effect in effects]
    last_send = len(kinds) - 1 - kinds[::-1].index(Send)
    assert PersistVote in kinds[:last_send] and PersistSafety in kinds[:last_send]

"""Participants that exchange proposals over a network in memory, with real disks. Tests move the clock."""

from dataclasses import replace

import numpy as np
import pytest
import trio

from aicpnode.envelop.codec import Kind
from aicpnode.errors import MalformedError, UserError
from aicpnode.genesis import Rule
from aicpnode.gradients.contributor import RoundTask
from aicpnode.gradients.exchange import POWERLESS_FETCHES_MAX, SILENT_S
from aicpnode.gradients.grad import read_grad, sealed_grad
from aicpnode.gradients.participant import CertifiedProposalUnusable
from aicpnode.gradients.proposal import Header, body_root, build_package, proposal_digest, split_package
from aicpnode.gradients.state import encode_snapshot
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.storage.faults import StorageFull
from kernels.codec import encode


async def test_three_participants_end_each_round_with_one_hash(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers() as peers:
        hashes = [await cluster.whole_round(peers, seed) for seed in range(3)]
        assert len({model_hash for model_hash, _ in hashes}) == 3
        bits = {peer.participant.state.theta.tobytes() for peer in peers}
        assert len(bits) == 1
        statistics = peers[0].participant.statistics()
        assert (statistics.accepted, statistics.refused, statistics.mine_accepted) == (9, 0, 3)
        assert [record.accepted for record in statistics.rounds] == [3, 3, 3]
        assert set(statistics.rounds[0].phases_ms) == {
            "first_grad",
            "all_grads",
            "reveal",
            "bodies",
            "judged",
            "ready",
        }


async def test_momentum_and_other_rules_agree_too(make_cluster, mock_clock):
    cluster = make_cluster(2, momentum_q16=58982, nesterov=True, rule=Rule.CLIP, k=64, bits=4)
    async with cluster.peers() as peers:
        for seed in range(2):
            await cluster.whole_round(peers, seed)
        assert peers[0].participant.state.momentum is not None


async def test_initial_model_is_fetched_from_a_peer(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peer(0) as holder, cluster.peer(1, holds_model=False) as other:
        assert other.participant.state.model_hash == holder.participant.state.model_hash
        assert other.blobs.has(cluster.genesis.initial_model)


async def test_node_without_the_initial_model_says_that_it_waits(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with trio.open_nursery() as nursery:

        async def start():
            async with cluster.peer(0, holds_model=False) as peer:
                assert peer.participant.state.round == 0
                nursery.cancel_scope.cancel()

        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked()
        async with cluster.peer(1):
            cluster.network.wake()
            await trio.sleep_forever()


async def test_genesis_with_another_model_hash_is_refused(make_cluster, mock_clock):
    cluster = make_cluster(1)
    cluster.genesis = replace(cluster.genesis, initial_model_hash=bytes(32))
    with pytest.raises(ExceptionGroup) as caught:
        async with cluster.peer(0):
            raise AssertionError("it must not start")
    assert caught.group_contains(UserError, match="another one than it says")


async def test_bodies_are_served_only_after_the_reveal(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first, second])
        digest = await first.propose()
        serve = first.mesh.bodies.providers[Namespace.GRADIENT]
        assert serve(digest) is None
        assert not first.participant._exchange.core.saw_body
        await second.propose()
        assert (await second.accepts(2))[0] == digest
        assert serve(digest).size == len(first.participant._packages.read(digest))


async def test_dead_member_costs_the_round_until_the_reveal_timer(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers(2) as peers:
        cluster.begin(peers)
        for peer in peers:
            await peer.propose()
        dead = cluster.identities[2].key
        (wait,) = peers[0].participant.why()
        assert wait.who == (dead,)
        assert "9.0 s" in wait.next
        mock_clock.jump(9.0)
        for peer in peers:
            assert set(await peer.accepts(2)) == {0, 1}
        assert peers[0].participant.why() == []


async def test_member_that_was_away_replays_with_bodies_of_the_others(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers() as peers:
        cluster.network.cut.add(peers[2].key)
        rounds = [await cluster.whole_round(peers[:2], seed) for seed in range(3)]
        cluster.network.cut.clear()
        for model_hash, decision in rounds:
            assert await peers[2].participant.apply(decision) == model_hash
        served = peers[2].mesh.bodies.providers[Namespace.GRADIENT]
        digest = rounds[0][1].included[0].digest
        peers[2].participant._exchange.core.round = 3
        assert served(digest) is not None  # and serves them to the next one


async def test_apply_waits_for_a_donor_and_says_so(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers() as peers, trio.open_nursery() as nursery:
        cluster.network.cut.add(peers[2].key)
        model_hash, decision = await cluster.whole_round(peers[:2])
        applied = []

        async def apply():
            applied.append(await peers[2].participant.apply(decision))

        nursery.start_soon(apply)
        while len(peers[2].mesh.bodies.asked) < 2:
            await trio.lowlevel.checkpoint()
        (wait,) = peers[2].participant.why()
        assert wait.what == "bodies of decided round 0"
        assert set(wait.who) == {peers[0].key, peers[1].key}
        cluster.network.cut.clear()
        cluster.network.wake()
        while not applied:
            await trio.lowlevel.checkpoint()
        assert applied == [model_hash]
        assert peers[2].participant.why() == []


async def test_damaged_package_is_fetched_again_at_apply(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first, second])
        digest = await first.propose()
        await second.propose()
        agreed = await first.accepts(2)
        await second.accepts(2)
        blob = first.participant._packages.find(digest).blob
        path = first.blobs.directory / blob.hex()[:2] / blob.hex()
        path.write_bytes(b"rot" + path.read_bytes()[3:])
        decision = cluster.decision(0, agreed)
        assert await first.participant.apply(decision) == await second.participant.apply(decision)


async def test_no_decision_and_an_empty_round_change_no_bit(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peers() as (peer,):
        before = peer.participant.state.model_hash
        assert await peer.participant.apply(None) == before
        assert peer.participant.state.round == 0
        assert await peer.participant.apply(cluster.decision(0, {})) == before
        assert peer.participant.state.round == 1


async def test_the_same_decision_again_is_harmless(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as peers:
        model_hash, decision = await cluster.whole_round(peers)
        assert await peers[0].participant.apply(decision) == model_hash
        assert peers[0].participant.state.round == 1
        with pytest.raises(AssertionError, match="decided round 5"):
            await peers[0].participant.apply(cluster.decision(5, {}))


async def test_proposals_without_power_weigh_nothing_and_are_not_fetched(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first, second])
        await first.propose()
        agreed = {0: (await first.opinion(lambda o: o.entries)).entries[0].digest, 1: b"?" * 32}
        with_power = await first.participant.apply(cluster.decision(0, agreed, powers={1: 0}))
        mock_clock.jump(9.0)
        assert with_power == await second.participant.apply(cluster.decision(0, {0: agreed[0]}))


async def test_certified_package_that_does_not_decode_stops_the_node(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        digest = serve_forged(second, cluster, body=lambda body: b"\xff" * len(body))
        with pytest.raises(CertifiedProposalUnusable, match="does not decode"):
            await first.participant.apply(cluster.decision(0, {1: digest}))
        assert first.participant.state.round == 0


async def test_certificate_overrules_the_own_verdict(make_cluster, mock_clock):
    """A proposal that this node refuses (it has another base) is applied all the same once it is certified."""
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        await make_package(first, cluster)
        digest = serve_forged(second, cluster, base_hash=b"?" * 32)
        before = first.participant.state.model_hash
        assert await first.participant.apply(cluster.decision(0, {1: digest})) != before


async def test_refused_proposals_get_a_no_with_a_reason(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first], expected=frozenset({first.key, second.key}))
        await first.propose()
        size = len(first.participant._packages.read(own_digest(first, 0)))
        digest = serve_forged(second, cluster, base_hash=b"?" * 32)
        second.mesh.broadcast(grad_of(second, cluster, digest=digest, size=size))
        opinion = await first.opinion(lambda opinion: len(opinion.entries) == 2)
        assert [entry.accepted for entry in opinion.entries] == [True, False]
        await first.participant.apply(cluster.decision(0, {0: own_digest(first, 0)}))
        outcomes = {outcome.author: outcome for outcome in first.participant.statistics().last}
        assert outcomes[second.key].reason == "stale: made from another base model"
        assert outcomes[first.key].accepted


async def test_size_that_fits_no_proposal_is_refused_without_fetching(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first])
        await first.propose()
        second.mesh.broadcast(grad_of(second, cluster, digest=b"d" * 32, size=1 << 39))
        opinion = await first.opinion(lambda opinion: len(opinion.entries) == 2)
        assert not opinion.entries[1].accepted
        assert first.mesh.bodies.asked == []


async def test_malformed_grads_cost_the_peer(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        handler = first.mesh.handlers[Kind.GRAD]
        good = grad_of(second, cluster, digest=b"d" * 32, size=100)
        with pytest.raises(MalformedError):
            handler(good, b"attachment", second.key)
        for body in (b"d" * 32, (b"d" * 31, 100), (b"d" * 32, 0), (b"d" * 32, True), (b"d" * 32, 1 << 41), (1, 2, 3)):
            with pytest.raises(MalformedError):
                handler(replace(good, body=body), b"", second.key)


async def test_equivocation_is_reported_once(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first])
        one, two = (grad_of(second, cluster, digest=bytes([n]) * 32, size=400) for n in (1, 2))
        for grad in (one, one, two, two, one, two):
            second.mesh.broadcast(grad)
        assert [{a.identity, b.identity} for a, b in first.equivocations] == [{one.identity, two.identity}]
        assert first.participant.statistics().equivocations == 1


async def test_the_own_key_in_another_process_is_noticed(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first])
        await first.propose()
        twin = grad_of(first, cluster, digest=b"t" * 32, size=400)
        first.mesh.handlers[Kind.GRAD](twin, b"", second.key)
        assert first.equivocations == []
        assert any("Another process signs" in text for text in first.texts("error"))


async def test_restart_sends_the_same_grad_again_and_trains_no_second_time(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peer(0) as first:
        cluster.begin([first])
        digest = await first.propose()
        sent = cluster.network.sent[-1]
    async with cluster.peer(0) as first, cluster.peer(1) as second:
        cluster.begin([second])
        cluster.begin([first])
        await second.propose()
        assert (await second.accepts(2))[0] == digest
        assert {grad.identity for grad in cluster.network.sent if grad.sender == first.key} == {sent.identity}
        with trio.move_on_after(0) as scope:
            await first.participant.wait_round(-1)
        assert scope.cancelled_caught
        task = replace_task(first)
        again = await first.participant.submit(task, np.ones(6000, dtype=np.float32), offsets_hash=bytes(32), tokens=1)
        assert again == digest


async def test_own_grad_is_sent_again_every_two_seconds_until_the_round_ends(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, _second):
        cluster.begin([first])
        await first.propose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(cluster.network.sent) == 1
        for count in (2, 3):
            mock_clock.jump(2.0)
            await trio.testing.wait_all_tasks_blocked()
            assert len(cluster.network.sent) == count
        await first.participant.apply(cluster.decision(0, {}))
        mock_clock.jump(10.0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(cluster.network.sent) == 3


async def test_delta_that_is_not_finite_proposes_nothing(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        await cluster.whole_round([first, second])
        stored = first.database.latest_proposal()
        cluster.begin([first, second])
        bad = np.zeros(6000, dtype=np.float32)
        bad[17] = np.nan
        assert await first.propose(bad) is None
        assert any("NaN or an infinity" in text for text in first.texts("error"))
        assert first.database.latest_proposal() == stored
        assert await first.propose() is not None  # the round goes on


async def test_proposal_that_others_would_refuse_is_not_sent(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peers() as (peer,):
        cluster.begin([peer])
        assert await peer.propose(np.zeros(6000, dtype=np.float32)) is None
        assert any("zero" in text for text in peer.texts("warning"))
        assert cluster.network.sent == []


async def test_late_proposal_is_not_made(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers() as (first, second, third):
        cluster.begin([first, second, third], expected=frozenset({first.key, second.key}))
        task = await third.participant.wait_round(-1)
        await first.propose()
        await second.propose()
        await third.accepts(2)
        delta = np.ones(6000, dtype=np.float32)
        assert await third.participant.submit(task, delta, offsets_hash=bytes(32), tokens=1) is None
        assert any("was late" in text for text in third.texts("warning"))


async def test_proposal_for_a_decided_round_is_not_made(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peers() as (peer,):
        cluster.begin([peer])
        task = await peer.participant.wait_round(-1)
        await peer.participant.apply(cluster.decision(0, {}))
        cluster.begin([peer])
        delta = np.ones(6000, dtype=np.float32)
        assert await peer.participant.submit(task, delta, offsets_hash=bytes(32), tokens=1) is None
        assert peer.participant.statistics().round == 1


async def test_full_disk_costs_the_proposal_and_not_the_node(make_cluster, mock_clock, monkeypatch):
    cluster = make_cluster(1)
    async with cluster.peers() as (peer,):
        cluster.begin([peer])

        def full(data):
            raise StorageFull(peer.blobs.directory)

        with monkeypatch.context() as patch:
            patch.setattr(peer.blobs, "put", full)
            assert await peer.propose() is None
        assert any("is full" in text for text in peer.texts("error"))
        assert await peer.propose() is not None


async def test_wait_round_ends_only_for_a_round_to_train_in(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (peer, _other):
        with trio.move_on_after(0) as scope:
            await peer.participant.wait_round(-1)
        assert scope.cancelled_caught
        for changes in ({"contributing_here": False}, {"my_index": None}, {"contributing": False}):
            cluster.begin([peer], **changes)
            with trio.move_on_after(0) as scope:
                await peer.participant.wait_round(-1)
            assert scope.cancelled_caught, changes
        cluster.begin([peer])
        task = await peer.participant.wait_round(-1)
        assert task.stop_at == trio.current_time() + 8.0
        assert (task.round, task.author_index, task.theta.size) == (0, 0, 6000)
        with pytest.raises(ValueError, match="read-only"):
            task.theta[0] = 1
        for after, clock_s in ((0, 0.0), (-1, 8.5)):
            mock_clock.jump(clock_s)
            with trio.move_on_after(0) as scope:
                await peer.participant.wait_round(after)
            assert scope.cancelled_caught


async def test_paused_participant_hands_out_no_round_and_ends_the_running_one(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peers() as (peer,), trio.open_nursery() as nursery:
        cluster.begin([peer])
        task = await peer.participant.wait_round(-1)
        over = []

        async def trainer():
            await peer.participant.wait_over(task.round)
            over.append(task.round)

        nursery.start_soon(trainer)
        await trio.testing.wait_all_tasks_blocked()
        assert over == []
        peer.participant.pause(True)
        await trio.testing.wait_all_tasks_blocked()
        assert over == [0]
        with trio.move_on_after(0) as scope:
            await peer.participant.wait_round(-1)
        assert scope.cancelled_caught
        peer.participant.pause(False)
        assert (await peer.participant.wait_round(-1)).round == 0


async def test_state_of_others_takes_the_place_of_one_that_waits_for_bodies(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers() as peers:
        behind = peers[2].participant
        cluster.network.cut.add(peers[2].key)
        _, decision = await cluster.whole_round(peers[:2])
        model_hash, _ = await cluster.whole_round(peers[:2], 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(behind.apply, decision)
            while behind.waits_for_bodies_s() is None:
                await trio.lowlevel.checkpoint()
            mock_clock.jump(40.0)
            assert behind.waits_for_bodies_s() == 40.0
            nursery.cancel_scope.cancel()
        assert (behind.waits_for_bodies_s(), behind.why()) == (None, [])
        data = encode_snapshot(peers[0].participant.state)
        assert len(data) <= behind.snapshot_bytes_max
        await behind.restore(peers[2].blobs.put(data), model_hash)
        assert behind.state.round == 2
        cluster.network.cut.clear()
        await cluster.whole_round(peers, 2)


async def test_bodies_of_old_rounds_are_forgotten(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as peers:
        decisions = [(await cluster.whole_round(peers, seed))[1] for seed in range(4)]
        await peers[0].participant.forget_bodies(2)
        served = peers[0].mesh.bodies.providers[Namespace.GRADIENT]
        kept = [served(decision.included[1].digest) is not None for decision in decisions]
        assert kept == [False, False, True, True]
        await cluster.whole_round(peers, 4)


async def test_waiting_trainer_is_woken_by_the_round(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peers() as (peer,), trio.open_nursery() as nursery:
        tasks = []

        async def trainer():
            tasks.append(await peer.participant.wait_round(-1))

        nursery.start_soon(trainer)
        await trio.testing.wait_all_tasks_blocked()
        cluster.begin([peer])
        await trio.testing.wait_all_tasks_blocked()
        assert [task.round for task in tasks] == [0]


async def test_restart_from_a_snapshot_goes_on_with_the_same_bits(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peer(1) as second:
        async with cluster.peer(0) as first:
            await cluster.whole_round([first, second], 0)
            model_hash, _ = await cluster.whole_round([first, second], 1)
            snapshot = await first.participant.snapshot()
            first.database.put_applied(
                height=9, round=2, state_hash=bytes(32), model_hash=model_hash, snapshot=snapshot
            )
        async with cluster.peer(0) as first:
            assert first.participant.restored_from.height == 9
            assert first.participant.state.round == 2
            assert first.participant.state.history == second.participant.state.history
            await cluster.whole_round([first, second], 2)


async def test_restart_replays_own_packages_from_its_own_disk(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as peers:
        rounds = [await cluster.whole_round(peers, seed) for seed in range(2)]
    async with cluster.peer(0) as alone:
        for model_hash, decision in rounds:
            assert await alone.participant.apply(decision) == model_hash
        assert alone.mesh.bodies.asked == []


async def test_lost_snapshot_falls_back_to_an_older_one(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peer(0) as peer:
        snapshot = await peer.participant.snapshot()
        model_hash = peer.participant.state.model_hash
        record = {"round": 0, "state_hash": bytes(32), "model_hash": model_hash}
        peer.database.put_applied(height=1, snapshot=snapshot, **record)
        peer.database.put_applied(height=2, snapshot=b"lost" * 8, **record)
    async with cluster.peer(0) as peer:
        assert peer.participant.restored_from.height == 1
        assert any("height 2 is lost" in text for text in peer.texts("warning"))


async def test_snapshot_of_another_state_is_refused(make_cluster, mock_clock):
    cluster = make_cluster(1)
    async with cluster.peer(0) as peer:
        snapshot = await peer.participant.snapshot()
        with pytest.raises(UserError, match="not the state"):
            await peer.participant.restore(snapshot, bytes(32))


async def test_residual_starts_from_zero_after_a_long_absence(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        await cluster.whole_round([first, second])
        for round in range(1, 5):
            for peer in (first, second):
                await peer.participant.apply(cluster.decision(round, {}))
        cluster.begin([first])
        await first.propose()
        assert any("4 rounds were missed" in text for text in first.texts("warning"))


def own_digest(peer, round):
    return read_grad(peer.participant._own.stored(round))[0]


def grad_of(peer, cluster, *, digest, size, round=0):
    return sealed_grad(peer.identity, network_id=cluster.genesis.network_id, round=round, digest=digest, size=size)


async def make_package(peer, cluster):
    """A package of ``peer`` for round 0, stored on its disk."""
    cluster.begin([peer], expected=frozenset())
    return await peer.propose()


def serve_forged(peer, cluster, *, body=bytes, **changes):
    """Let ``peer`` serve a proposal with a changed body or header; returns its digest."""
    layout = peer.participant._run.parameters.layout
    records = honest_body(layout)
    changed = body(records)
    fields = {
        "network_id": cluster.genesis.network_id,
        "round": 0,
        "base_hash": peer.participant.state.model_hash,
        "author": peer.key,
        "k": layout.k,
        "bits": layout.bits,
        "chunks": 2,
        "offsets_hash": bytes(32),
        "body_root": body_root(changed, layout),
        "tokens": 1,
    }
    header = Header(**{**fields, **changes}).encode()
    package = build_package(header, changed)
    assert split_package(package)
    peer.mesh.bodies.providers[Namespace.GRADIENT] = lambda digest: BodySource.of(package)
    return proposal_digest(header)


def honest_body(layout):
    vector = (np.random.default_rng(5).standard_normal(2 * 4096) * 1e-3).astype(np.float32)
    return encode(vector, k=layout.k, bits=layout.bits).tobytes()


def replace_task(peer):
    state = peer.participant.state
    return RoundTask(
        round=state.round, theta=state.values, base_hash=state.model_hash, author_index=peer.index, stop_at=0.0
    )


async def test_bodies_that_do_not_exist_of_strangers_do_not_delay_a_member_s(make_cluster, mock_clock):
    cluster = make_cluster(8)
    members = frozenset(identity.key for identity in cluster.identities[:2])
    async with cluster.peers() as (first, second, *strangers):
        for stranger in strangers:
            cluster.network.cut.add(stranger.key)
        cluster.begin([first, second], expected=members, voters=members)
        promised = {bytes([index]) * 32 for index in range(len(strangers))}
        for stranger, digest in zip(strangers, sorted(promised), strict=True):
            grad = grad_of(stranger, cluster, digest=digest, size=first.participant._run.package_bytes_max)
            first.mesh.handlers[Kind.GRAD](grad, b"", second.key)
        await first.propose()
        await second.propose()
        assert set(await first.accepts(2)) == {0, 1}
        assert len(promised & set(first.mesh.bodies.asked)) == POWERLESS_FETCHES_MAX
        assert first.participant.why() == []


async def test_silent_author_is_not_asked_first_again_in_the_round(make_cluster, mock_clock):
    cluster = make_cluster(3)
    async with cluster.peers() as (first, second, silent):
        cluster.begin([first], expected=frozenset({silent.key}))
        cluster.network.cut.add(silent.key)
        one, two = bytes([1]) * 32, bytes([2]) * 32
        handler = first.mesh.handlers[Kind.GRAD]
        handler(grad_of(silent, cluster, digest=one, size=first.participant._run.package_bytes_max), b"", second.key)
        await trio.testing.wait_all_tasks_blocked()
        assert first.mesh.bodies.preferred[one] == (silent.key,)
        mock_clock.jump(SILENT_S)
        await trio.testing.wait_all_tasks_blocked()
        handler(grad_of(silent, cluster, digest=two, size=first.participant._run.package_bytes_max), b"", second.key)
        await trio.testing.wait_all_tasks_blocked()
        assert first.mesh.bodies.preferred[two] == ()
        assert await first.participant.apply(cluster.decision(0, {})) == first.participant.state.model_hash
        cluster.begin([first])
        assert first.participant._exchange.asked_first(silent.key) == (silent.key,)


async def test_what_the_ledger_tells_a_participant_that_has_stopped_starts_nothing(make_cluster, mock_clock):
    cluster = make_cluster(2)
    async with cluster.peers() as (first, second):
        cluster.begin([first, second])
        await second.propose()
        (grad,) = {envelop.identity: envelop for envelop in cluster.network.sent}.values()
        opinions, sent = len(first.opinions), len(cluster.network.sent)
    # Both nurseries are closed now.
    exchange = first.participant._exchange
    cluster.begin([first, second])
    cluster.begin([first], contributing=False)
    cluster.begin([first])
    exchange.offer(grad)
    first.mesh.handlers[Kind.GRAD](grad, b"", second.key)
    exchange._spawn(exchange._resend, grad)
    assert (len(first.opinions), len(cluster.network.sent)) == (opinions, sent)

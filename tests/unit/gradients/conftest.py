"""A small network in memory, and participants on it with real databases and blobs.

Envelops are delivered at once and verified as the real mesh does; bodies are pulled from whoever provides them. A node
can be cut off. Time stands still unless a test moves the clock.
"""

import hashlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import trio

from aicpnode.envelop.signing import verify
from aicpnode.events import EventBus, Notice
from aicpnode.genesis import (
    ConsensusSpec,
    DataSpec,
    Founder,
    Genesis,
    ModelSpec,
    RoundSpec,
    TrainingSpec,
)
from aicpnode.gradients.exchange import RoundContext
from aicpnode.gradients.participant import DecidedProposal, DecidedRound, Participant
from aicpnode.gradients.state import array_bytes, initial_state
from aicpnode.identity import Identity
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database

PARAMETERS = 6000
ROUND_S = 10.0


class FakeNetwork:
    def __init__(self):
        self.meshes = {}
        self.cut = set()
        self.changed = trio.Event()
        self.sent = []

    def mesh(self, key):
        self.meshes[key] = FakeMesh(self, key)
        return self.meshes[key]

    def wake(self):
        self.changed.set()
        self.changed = trio.Event()

    def reachable(self, key):
        return [] if key in self.cut else [other for other in self.meshes if other != key and other not in self.cut]


class FakeMesh:
    def __init__(self, network, key):
        self.network = network
        self.key = key
        self.handlers = {}
        self.bodies = FakeBodies(self)

    def subscribe(self, kinds, handler):
        self.handlers.update(dict.fromkeys(kinds, handler))

    def broadcast(self, envelop, attachment=b""):
        assert verify(envelop)
        self.network.sent.append(envelop)
        peers = self.network.reachable(self.key)
        for peer in peers:
            handler = self.network.meshes[peer].handlers.get(envelop.kind)
            if handler is not None:
                handler(envelop, attachment, self.key)
        return len(peers)


class FakeBodies:
    def __init__(self, mesh):
        self.mesh = mesh
        self.providers = {}
        self.asked = []
        self.preferred = {}

    def register(self, namespace, provider):
        self.providers[namespace] = provider

    def announce(self, namespace, digest, size):
        self.mesh.network.wake()

    async def fetch(self, namespace, digest, *, max_size, verify, prefer=()):
        self.asked.append(digest)
        self.preferred[digest] = tuple(prefer)
        network = self.mesh.network
        while True:
            changed = network.changed
            await trio.lowlevel.checkpoint()
            for donor in network.reachable(self.mesh.key):
                provider = network.meshes[donor].bodies.providers.get(namespace)
                source = provider(digest) if provider else None
                if source is not None and source.size <= max_size:
                    body = source.read(0, source.size)
                    if verify(body):
                        return body
            await changed.wait()


def theta0():
    return (np.random.default_rng(0).standard_normal(PARAMETERS) * 0.02).astype(np.float32)


def make_genesis(founders, **round_options):
    blob = bytes(array_bytes(theta0()))
    spec = RoundSpec(round_ms=int(1000 * ROUND_S), **{"k": 41, "bits": 2, **round_options})
    state = initial_state(theta0(), parameters=PARAMETERS, momentum_q16=spec.momentum_q16, norm_cap=spec.norm_cap)
    return Genesis(
        name="test",
        nonce=bytes(16),
        created="2024-01-01",
        model=ModelSpec(layers=1, heads=1, kv_heads=1, width=8, ffn_width=8, context=16),
        parameters=PARAMETERS,
        layout_hash=bytes(32),
        initial_model=hashlib.sha256(blob).digest(),
        initial_model_hash=state.model_hash,
        data=DataSpec(shards=()),
        training=TrainingSpec(
            inner_steps=1,
            batch_size=1,
            sequence_length=8,
            inner_lr_micro=1,
            warmup_steps=0,
            weight_decay_milli=0,
            beta1_milli=900,
            beta2_milli=950,
            clip_milli=0,
        ),
        round=spec,
        roster=tuple(Founder(key=identity.key, name=f"n{i}") for i, identity in enumerate(founders)),
        consensus=ConsensusSpec(),
    )


@dataclass
class Peer:
    """One participant, what it said, and its disk."""

    identity: Identity
    index: int
    participant: Participant
    database: Database
    blobs: Blobs
    mesh: FakeMesh
    notices: list = field(default_factory=list)
    opinions: list = field(default_factory=list)
    equivocations: list = field(default_factory=list)
    said: trio.Event = field(default_factory=trio.Event)

    @property
    def key(self):
        return self.identity.key

    def on_opinion(self, opinion):
        self.opinions.append(opinion)
        self.said.set()
        self.said = trio.Event()

    async def opinion(self, wanted):
        """The first opinion from now on, or the present one, for which ``wanted`` is true."""
        with trio.fail_after(1000):
            while not (self.opinions and wanted(self.opinions[-1])):
                await self.said.wait()
        return self.opinions[-1]

    async def accepts(self, count):
        """Digests that this peer says yes to, by author index, once it is ready and there are ``count``."""

        def wanted(opinion):
            return opinion.ready and sum(entry.accepted for entry in opinion.entries) == count

        opinion = await self.opinion(wanted)
        return {entry.author_index: entry.digest for entry in opinion.entries if entry.accepted}

    async def propose(self, delta=None, *, seed=0):
        task = await self.participant.wait_round(-1)
        if delta is None:
            rng = np.random.default_rng([seed, self.index, task.round])
            delta = (rng.standard_normal(PARAMETERS) * 1e-3).astype(np.float32)
        return await self.participant.submit(task, delta, offsets_hash=bytes(32), tokens=8)

    def texts(self, level):
        return [notice.text for notice in self.notices if notice.level == level]


class Cluster:
    """Peers of one genesis; ``begin`` and ``decide`` play the ledger."""

    def __init__(self, size, path, round_options):
        self.identities = [Identity.generate() for _ in range(size)]
        self.genesis = make_genesis(self.identities, **round_options)
        self.network = FakeNetwork()
        self.path = path
        self.authors = {identity.key: index for index, identity in enumerate(self.identities)}

    @asynccontextmanager
    async def peer(self, index, *, holds_model=True, disk=None):
        """A running participant; entering it again with the same ``disk`` is a restart."""
        identity = self.identities[index]
        path = self.path / (disk or f"n{index}")
        with Database.open(path) as database, Blobs.open(path / "blobs") as blobs:
            if holds_model:
                blobs.put(array_bytes(theta0()))
            events = EventBus()
            mesh = self.network.mesh(identity.key)
            mesh.bodies.register(Namespace.BLOB, lambda digest: blob_source(blobs, digest))
            peer = Peer(identity=identity, index=index, participant=None, database=database, blobs=blobs, mesh=mesh)
            events.publish = lambda event: peer.notices.append(event) if isinstance(event, Notice) else None
            peer.participant = Participant(
                identity=identity,
                genesis=self.genesis,
                database=database,
                blobs=blobs,
                mesh=mesh,
                events=events,
                on_opinion=peer.on_opinion,
                on_equivocation=lambda first, second: peer.equivocations.append((first, second)),
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(peer.participant.run)
                yield peer
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def peers(self, count=None):
        async with AsyncExitStack() as stack:
            running = range(len(self.identities) if count is None else count)
            yield [await stack.enter_async_context(self.peer(index)) for index in running]

    def begin(self, peers, **changes):
        for peer in peers:
            context = RoundContext(
                round=peer.participant.state.round,
                authors=self.authors,
                **{
                    "expected": frozenset(self.authors),
                    "last_round_empty": False,
                    "contributing": True,
                    "contributing_here": True,
                    "my_index": peer.index,
                    "voters": frozenset(self.authors),
                    **changes,
                },
            )
            peer.participant.begin_round(context)

    def decision(self, round, digests, powers=None):
        included = tuple(
            DecidedProposal(author=self.identities[index].key, power=(powers or {}).get(index, 1), digest=digest)
            for index, digest in sorted(digests.items())
        )
        return DecidedRound(round=round, included=included)

    async def whole_round(self, peers, seed=0):
        """Everybody proposes, judges and applies; returns the one model hash and the decision."""
        round = peers[0].participant.state.round
        self.begin(peers, expected=frozenset(peer.key for peer in peers))
        for peer in peers:
            await peer.propose(seed=seed)
        agreed = [await peer.accepts(len(peers)) for peer in peers]
        assert all(digests == agreed[0] for digests in agreed)
        decision = self.decision(round, agreed[0])
        hashes = {await peer.participant.apply(decision) for peer in peers}
        assert len(hashes) == 1
        return hashes.pop(), decision


def blob_source(blobs, digest):
    return BodySource.of(blobs.get(digest)) if blobs.has(digest) else None


@pytest.fixture
def make_cluster(tmp_path):
    def make(size=3, **round_options):
        return Cluster(size, tmp_path, round_options)

    return make

"""Drivers with real databases and keys on a network in memory, replicating an application that only hashes.

Every message goes through its wire form, and its signature is checked, as the mesh does it. The hub keeps every vote it
carries, so that a member that signs one slot twice is seen whatever else happens.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, decode, encode, pack, unpack
from aicpnode.envelop.kinds import VOTE_KINDS, parse_vote
from aicpnode.errors import MalformedError, RemoteError
from aicpnode.events import EventBus, Notice
from aicpnode.identity import Identity
from aicpnode.network.bodies import Provider, Verify
from aicpnode.network.peers import PeerInfo
from aicpnode.replication.agreement import Agreement
from aicpnode.replication.application import DecidedTraining, RoundContext, SnapshotFacts
from aicpnode.replication.driver import AMNESIA_META, Driver, Upkeep
from aicpnode.replication.intent import Intent, Wish
from aicpnode.replication.takeover import BODIES_PATIENCE_S
from aicpnode.storage.database import Database
from consensus.events import Opinion
from consensus.membership import LedgerRules, genesis_state
from consensus.messages import BallotEntry, Invitation
from consensus.pacemaker import Timing

NETWORK_ID = hashlib.sha256(b"a network in memory").digest()
PATIENCE_S = 60.0
POLL_S = 0.005
Handler = Callable[[Envelop, bytes, bytes], None]


class Port:
    """One member's place at the hub: the transport of its driver."""

    def __init__(self, hub: Hub, key: bytes) -> None:
        self._hub = hub
        self._key = key
        self.handlers: dict[Kind, list[Handler]] = {}
        self.callbacks: list[Callable[[PeerInfo], None]] = []
        self.head: Callable[[], int] = lambda: 0
        self.bodies = BodyPort(hub, key)

    def send(self, peer: bytes, envelop: Envelop, attachment: bytes = b"") -> bool:
        return self._hub.carry(self._key, peer, encode(envelop, attachment))

    def broadcast(self, envelop: Envelop, attachment: bytes = b"") -> int:
        data = encode(envelop, attachment)
        return sum(self._hub.carry(self._key, peer, data) for peer in self._hub.others(self._key))

    def subscribe(self, kinds: Iterable[Kind], handler: Handler) -> None:
        for kind in kinds:
            self.handlers.setdefault(kind, []).append(handler)

    def on_connect(self, callback: Callable[[PeerInfo], None]) -> None:
        self.callbacks.append(callback)

    def met(self, key: bytes, head: int) -> None:
        info = PeerInfo(
            key=key, name=key[:4].hex(), node_type="full", address=None, inbound=False, connected_since=time.time(),
            rtt_ms=None, bytes_sent=0, bytes_received=0, head_height=head,
        )  # fmt: skip
        for callback in self.callbacks:
            callback(info)


class BodyPort:
    """Bodies are pulled whole from whoever provides them, the preferred first. ``fetched`` counts bytes."""

    def __init__(self, hub: Hub, key: bytes) -> None:
        self._hub = hub
        self._key = key
        self.providers: dict[int, Provider] = {}
        self.fetched = 0

    def register(self, namespace: int, provider: Provider) -> None:
        self.providers[namespace] = provider

    def announce(self, namespace: int, digest: bytes, size: int) -> None:
        """Nobody needs it here."""

    async def fetch(
        self, namespace: int, digest: bytes, *, max_size: int, verify: Verify, prefer: Sequence[bytes] = ()
    ) -> bytes:
        while True:
            for donor in (*prefer, *self._hub.others(self._key)):
                body = self._hub.body(self._key, donor, namespace, digest, max_size)
                if body is not None and verify(body):
                    self.fetched += len(body)
                    return body
            await trio.sleep(POLL_S)


class Hub:
    """Carries bytes between ports. ``faults`` are (receiver, sender, reason) of what a handler refused. Members in
    different groups of ``parts`` do not reach each other."""

    def __init__(self) -> None:
        self.parts: tuple[frozenset[bytes], ...] = ()
        self._ports: dict[bytes, Port] = {}
        self._contents: dict[tuple[bytes, Kind, int, int], bytes] = {}
        self.contradictions: list[tuple[bytes, Kind, int, int]] = []
        self.votes: list[tuple[bytes, int]] = []
        """(signer, height) of every vote that was sent, in order."""
        self.faults: list[tuple[bytes, bytes, str]] = []

    def plug(self, key: bytes) -> Port:
        self._ports[key] = Port(self, key)
        return self._ports[key]

    def connect(self, key: bytes) -> None:
        """Let a member and all others learn of each other, as after a handshake."""
        for other in self.others(key):
            self._ports[key].met(other, self._ports[other].head())
            self._ports[other].met(key, self._ports[key].head())

    def unplug(self, key: bytes) -> None:
        self._ports.pop(key, None)

    def others(self, key: bytes) -> list[bytes]:
        return [other for other in self._ports if other != key]

    def reaches(self, one: bytes, other: bytes) -> bool:
        both = one in self._ports and other in self._ports
        return both and (not self.parts or any(one in part and other in part for part in self.parts))

    def body(self, asker: bytes, donor: bytes, namespace: int, digest: bytes, max_size: int) -> bytes | None:
        provider = self._ports[donor].bodies.providers.get(namespace) if self.reaches(asker, donor) else None
        source = None if provider is None else provider(digest)
        return None if source is None or source.size > max_size else source.read(0, source.size)

    def carry(self, sender: bytes, receiver: bytes, data: bytes) -> bool:
        port = self._ports.get(receiver)
        if port is None or not self.reaches(sender, receiver):
            return False
        envelop, attachment = decode(data)
        assert signing.verify(envelop), "members sign what they send"
        if envelop.kind in VOTE_KINDS:
            self._note_vote(envelop, attachment)
            self.votes.append((envelop.sender, envelop.height))
        for handler in port.handlers.get(envelop.kind, ()):
            try:
                handler(envelop, attachment, sender)
            except RemoteError as error:
                self.faults.append((receiver, sender, error.reason))
        return True

    def heights_voted(self, key: bytes, *, since: int = 0) -> list[int]:
        """Heights of the votes of ``key``, in the order of sending, without the first ``since`` votes of all."""
        return [height for signer, height in self.votes[since:] if signer == key]

    def voters(self, height: int) -> set[bytes]:
        return {signer for signer, voted in self.votes if voted == height}

    def _note_vote(self, envelop: Envelop, attachment: bytes) -> None:
        slot = (envelop.sender, envelop.kind, envelop.height, parse_vote(envelop, attachment).view)
        if self._contents.setdefault(slot, envelop.identity) != envelop.identity:
            self.contradictions.append(slot)


class HashingApplication:
    """Its state is a hash over all that it applied. As an author it offers one digest a round, and likes all others.

    Snapshots are files in ``folder``, so that they outlive a crash. Bodies of decided rounds are available from
    ``bodies_from`` on: of earlier ones ``apply`` waits without end.
    """

    def __init__(
        self,
        key: bytes,
        folder: Path,
        *,
        rounds: int = 0,
        lie_in_round: int | None = None,
        bodies_from: int = 0,
    ) -> None:
        self._key = key
        self._folder = folder
        self._rounds = rounds
        self._lie_in_round = lie_in_round
        self._bodies_from = bodies_from
        self._waits_since: float | None = None
        self.round = 0
        self.forgotten_below = 0
        self.pauses: list[bool] = []
        self.opine: Callable[[Opinion], None] = lambda _opinion: None
        self.state = bytes(32)
        self.applied: list[DecidedTraining] = []

    def model_hash(self) -> bytes:
        return self.state

    def agreed_root(self) -> bytes:
        return hashlib.sha256(b"root" + self.state).digest()

    async def apply(self, training: DecidedTraining) -> bytes:
        await trio.lowlevel.checkpoint()
        if training.round < self._bodies_from:
            self._waits_since = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                self._waits_since = None
        said = repr(training) if training.round != self._lie_in_round else "something else"
        self.state = hashlib.sha256(self.state + said.encode()).digest()
        self.round = training.round + 1
        self.applied.append(training)
        return self.state

    def begin_round(self, context: RoundContext) -> None:
        if context.round < self._rounds and context.contributing:
            entries = tuple(
                BallotEntry(author_index=context.authors[key], digest=proposal(key, context.round), accepted=True)
                for key in sorted(context.expected, key=lambda key: context.authors[key])
            )
            self.opine(Opinion(round=context.round, ready=True, entries=entries))

    async def snapshot(self) -> bytes:
        return await self.store_snapshot(self.encoded())

    def encoded(self) -> bytes:
        return pack((self.round, self.state))

    async def forget_snapshot(self, digest: bytes) -> None:
        (self._folder / digest.hex()).unlink()

    snapshot_bytes_max = 100

    def snapshot_size(self, digest: bytes) -> int | None:
        path = self._folder / digest.hex()
        return path.stat().st_size if path.exists() else None

    def read_snapshot(self, digest: bytes, offset: int, length: int) -> bytes:
        return (self._folder / digest.hex()).read_bytes()[offset : offset + length]

    def inspect_snapshot(self, data: bytes) -> SnapshotFacts:
        match unpack(data):
            case (int(round_), bytes(state)):
                root = hashlib.sha256(b"root" + state).digest()
                return SnapshotFacts(round=round_, model_hash=state, agreed_root=root)
        raise MalformedError("no snapshot")

    async def store_snapshot(self, data: bytes) -> bytes:
        digest = hashlib.sha256(data).digest()
        self._folder.mkdir(exist_ok=True)
        (self._folder / digest.hex()).write_bytes(data)
        return digest

    async def restore(self, digest: bytes, model_hash: bytes) -> None:
        value = unpack(self.read_snapshot(digest, 0, self.snapshot_bytes_max))
        self.round, self.state = value
        assert self.state == model_hash

    async def forget_bodies(self, below_round: int) -> None:
        self.forgotten_below = below_round

    def waits_for_bodies_s(self) -> float | None:
        """As if it had waited for long."""
        return None if self._waits_since is None else BODIES_PATIENCE_S + trio.current_time() - self._waits_since

    def pause(self, paused: bool) -> None:
        self.pauses.append(paused)


def proposal(author: bytes, round_number: int) -> bytes:
    return hashlib.sha256(b"proposal" + author + bytes([round_number])).digest()


@dataclass(eq=False)
class Member:
    """One driver and all that is its own. ``application`` is a new one at each start: it replays from the disk."""

    identity: Identity
    name: str
    directory: Path
    network: Network
    rounds: int = 0
    wish: Wish | None = None
    """By default on if there are rounds to do."""
    lie_in_round: int | None = None
    invitation: Invitation | None = None
    bodies_from: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the driver's upkeep."""
    has_lost_database: bool = False
    """Set before a start on a new directory: what the node does when it finds its key used and no database."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    stopped: trio.Event = field(default_factory=trio.Event)
    notices: list[Notice] = field(default_factory=list)
    nursery: trio.Nursery | None = None
    """Where it runs, if not with the others: what raises there ends nobody else."""

    @property
    def key(self) -> bytes:
        return self.identity.key

    async def start(self) -> None:
        """Open the database, replay it, and take part. Returns once the driver runs."""
        self.scope, self.stopped = trio.CancelScope(), trio.Event()
        await (self.nursery or self.network.nursery).start(self._run)
        self.network.hub.connect(self.key)

    async def stop(self) -> None:
        """As a crash would: nothing is written any more."""
        self.network.hub.unplug(self.key)
        self.scope.cancel()
        await self.stopped.wait()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        events = EventBus()
        port = self.port = self.network.hub.plug(self.key)
        self.application = HashingApplication(
            self.key,
            self.directory / "snapshots",
            rounds=self.rounds,
            lie_in_round=self.lie_in_round,
            bodies_from=self.bodies_from,
        )
        try:
            with self.scope, Database.open(self.directory) as database:
                self.database = database
                if self.has_lost_database:
                    database.set_meta(AMNESIA_META, pack((0, 0)))
                self.driver = Driver(
                    identity=self.identity,
                    name=self.name,
                    agreement=self.network.agreement,
                    database=database,
                    transport=port,
                    application=self.application,
                    events=events,
                    trains=True,
                    invitation=self.invitation,
                    default_intent=Intent(
                        wish=self.wish if self.wish is not None else Wish.ON if self.rounds else Wish.OFF
                    ),
                    upkeep=Upkeep(dump_dir=self.directory, **self.settings),
                )
                applied = await self._restore(database)
                self.driver.can_train = True
                port.head = lambda: self.driver.head
                self.application.opine = self.driver.opinion
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, events)
                    await nursery.start(
                        lambda task_status: self.driver.run(applied_height=applied, task_status=task_status)
                    )
                    task_status.started()
        finally:
            self.stopped.set()

    async def _restore(self, database: Database) -> int:
        """As the participant does: the newest snapshot that is there, else the beginning."""
        for record in database.snapshots():
            if self.application.snapshot_size(record.snapshot) is not None:
                await self.application.restore(record.snapshot, record.model_hash)
                return record.height
        return 0

    async def _listen(self, events: EventBus) -> None:
        async for event in events.subscribe():
            if isinstance(event, Notice):
                self.notices.append(event)

    def states(self) -> dict[int, tuple[Any, ...]]:
        """By height: round, state hash and model hash, as they stand on the disk."""
        rows = self.database._rows("applied", "ORDER BY height", ())
        return {row[0]: row[1:4] for row in rows}

    def blocks(self) -> dict[int, bytes]:
        """Decided blocks by height, as they stand on the disk."""
        first = self.database.base_height() + 1
        return {height: block for height, block, _certificate in self.database.decisions(first, 1 << 30)}


class Network:
    """Founders with fixed keys, and whoever else a test adds."""

    def __init__(self, nursery: trio.Nursery, folder: Path, founders: int) -> None:
        self.nursery = nursery
        self.hub = Hub()
        self._folder = folder
        self.identities = [Identity(bytes([index + 1]) * 32) for index in range(founders)]
        named = [(identity.key, 1, f"m{index}") for index, identity in enumerate(self.identities)]
        self.agreement = Agreement(
            network_id=NETWORK_ID,
            genesis=genesis_state(named, NETWORK_ID, LedgerRules(probation_rounds=2, members_max=64)),
            timing=Timing(operation_delay_ms=20),
            k=64,
            bits=2,
        )

    def member(self, index: int, **settings: Any) -> Member:
        """A member that is not started yet; indexes from the number of founders on are strangers."""
        while index >= len(self.identities):
            self.identities.append(Identity(bytes([len(self.identities) + 1]) * 32))
        directory = self._folder / f"m{index}"
        directory.mkdir(exist_ok=True)
        return Member(self.identities[index], f"m{index}", directory, self, **settings)

    @asynccontextmanager
    async def nested(self) -> AsyncIterator[trio.Nursery]:
        """For a member that is to fail alone."""
        async with trio.open_nursery() as nursery:
            yield nursery

    async def start_all(self, members: Sequence[Member]) -> None:
        for member in members:
            await member.start()

    @staticmethod
    async def until(condition: Callable[[], bool], what: str, members: Sequence[Member] = ()) -> None:
        """Poll ``condition``; the polling never decides a test. Fails with where the members stand."""
        with trio.move_on_after(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the condition is the test's, not an event of ours
                await trio.sleep(POLL_S)
            return
        stand = [f"{m.name}: height {m.driver.head}, view {m.driver.replica.view}" for m in members]
        pytest.fail(f"not within {PATIENCE_S:.0f} s: {what}; {stand}")

    def assert_equal(self, members: Sequence[Member]) -> int:
        """All blocks and states of all members are equal; how many heights all have applied."""
        states = [member.states() for member in members]
        blocks = [member.blocks() for member in members]
        common = set.intersection(*(set(found) for found in states))
        for height in sorted(common):
            assert len({found[height] for found in states}) == 1, f"states after height {height}"
            assert len({found[height] for found in blocks if height in found}) == 1, f"blocks of height {height}"
        assert self.hub.contradictions == []
        return len(common)


@pytest.fixture
async def make_network(tmp_path: Path) -> AsyncIterator[Callable[[int], Network]]:
    """``make_network(founders)``; everything started in it ends with the test."""
    async with trio.open_nursery() as nursery:
        yield lambda founders: Network(nursery, tmp_path, founders)
        nursery.cancel_scope.cancel()

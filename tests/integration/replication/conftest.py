"""Drivers with real databases and keys on a network in memory, replicating an application that only hashes.

Every message goes through its wire form, and its signature is checked, as the mesh does it. The hub keeps every vote it
carries, so that a member that signs one slot twice is seen whatever else happens.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, decode, encode, pack
from aicpnode.envelop.kinds import VOTE_KINDS, parse_vote
from aicpnode.errors import RemoteError
from aicpnode.events import EventBus, Notice
from aicpnode.identity import Identity
from aicpnode.network.peers import PeerInfo
from aicpnode.replication.agreement import Agreement
from aicpnode.replication.application import DecidedTraining, RoundContext
from aicpnode.replication.driver import AMNESIA_META, Driver
from aicpnode.replication.intent import Intent, Wish
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


class Hub:
    """Carries bytes between ports. ``faults`` are (receiver, sender, reason) of what a handler refused."""

    def __init__(self) -> None:
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

    def carry(self, sender: bytes, receiver: bytes, data: bytes) -> bool:
        port = self._ports.get(receiver)
        if sender not in self._ports or port is None:
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
    """Its state is a hash over all that it applied. As an author it offers one digest a round, and likes all others."""

    def __init__(self, key: bytes, *, rounds: int = 0, lie_in_round: int | None = None) -> None:
        self._key = key
        self._rounds = rounds
        self._lie_in_round = lie_in_round
        self.opine: Callable[[Opinion], None] = lambda _opinion: None
        self.state = bytes(32)
        self.applied: list[DecidedTraining] = []
        self.snapshots: dict[bytes, bytes] = {}

    def model_hash(self) -> bytes:
        return self.state

    def agreed_root(self) -> bytes:
        return hashlib.sha256(b"root" + self.state).digest()

    async def apply(self, training: DecidedTraining) -> bytes:
        await trio.lowlevel.checkpoint()
        said = repr(training) if training.round != self._lie_in_round else "something else"
        self.state = hashlib.sha256(self.state + said.encode()).digest()
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
        digest = hashlib.sha256(self.state).digest()
        self.snapshots[digest] = self.state
        return digest

    async def forget_snapshot(self, digest: bytes) -> None:
        del self.snapshots[digest]


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
    has_lost_database: bool = False
    """Set before a start on a new directory: what the node does when it finds its key used and no database."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    stopped: trio.Event = field(default_factory=trio.Event)
    notices: list[Notice] = field(default_factory=list)

    @property
    def key(self) -> bytes:
        return self.identity.key

    async def start(self) -> None:
        """Open the database, replay it, and take part. Returns once the driver runs."""
        self.scope, self.stopped = trio.CancelScope(), trio.Event()
        await self.network.nursery.start(self._run)
        self.network.hub.connect(self.key)

    async def stop(self) -> None:
        """As a crash would: nothing is written any more."""
        self.network.hub.unplug(self.key)
        self.scope.cancel()
        await self.stopped.wait()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        events = EventBus()
        port = self.network.hub.plug(self.key)
        self.application = HashingApplication(self.key, rounds=self.rounds, lie_in_round=self.lie_in_round)
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
                )
                self.driver.can_train = True
                port.head = lambda: self.driver.head
                self.application.opine = self.driver.opinion
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, events)
                    await nursery.start(lambda task_status: self.driver.run(applied_height=0, task_status=task_status))
                    task_status.started()
        finally:
            self.stopped.set()

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
        return {height: block for height, block, _certificate in self.database.decisions(1, 1 << 30)}


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
            assert len({found[height] for found in blocks}) == 1, f"blocks of height {height}"
        assert self.hub.contradictions == []
        return len(common)


@pytest.fixture
async def make_network(tmp_path: Path) -> AsyncIterator[Callable[[int], Network]]:
    """``make_network(founders)``; everything started in it ends with the test."""
    async with trio.open_nursery() as nursery:
        yield lambda founders: Network(nursery, tmp_path, founders)
        nursery.cancel_scope.cancel()

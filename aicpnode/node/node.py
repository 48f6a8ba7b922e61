"""One node: storage, network, replication, gradients and training under one nursery, started and stopped in order.

Storage opens first, because everything answers to it: lock, key, database, blobs, genesis. The network and the control
socket come next, so that peers can be asked for what the genesis names (initial model, data) and people can ask what
the node waits for. Then the model is loaded, the ledger replayed, voting begins, and, in nodes that train, the engine.
Leaving the ``async with`` stops in reverse order: training, a last checkpoint, a snapshot, sockets, database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

import trio

from aicpnode.config import NodeConfig, NodeType
from aicpnode.envelop.codec import digest as sha256
from aicpnode.errors import NotAvailableYet
from aicpnode.events import Event, EventBus
from aicpnode.genesis import Genesis
from aicpnode.gradients.grad import GradientMesh
from aicpnode.gradients.participant import Participant
from aicpnode.identity import Identity
from aicpnode.interfaces.control import CommandSurface
from aicpnode.interfaces.registry import serve_announced
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.network.mesh import Mesh
from aicpnode.network.peers import Address
from aicpnode.node import commands, report
from aicpnode.node.application import GradientApplication
from aicpnode.node.rounds import RoundKeeper
from aicpnode.node.start import genesis_blobs, note_first_use, settle_genesis
from aicpnode.replication.agreement import Agreement
from aicpnode.replication.driver import Driver, Transport, Upkeep
from aicpnode.replication.explain import Wait
from aicpnode.replication.intent import WITHOUT_END, Intent, Wish
from aicpnode.replication.invitation import read_invitation
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.lock import DataDirLock

if TYPE_CHECKING:
    from aicpnode.node.role import TrainingRole

BLOBS_FOLDER = "blobs"
STOP_DEADLINE_S = 10.0
"""For the last checkpoint and snapshot; afterwards the node stops without."""

log = logging.getLogger(__name__)


class Network(Transport, GradientMesh, Protocol):
    """What consensus and gradients use of the network; ``Mesh`` is one."""


Interpose = Callable[[Mesh, Identity, Genesis, Callable[[], bytes]], Network]
"""Stands between the node and its network: how one is made to misbehave on purpose. The last argument gives the hash
of the model that the node holds."""


class Node:
    """``async with Node(config) as node``: running inside the block, stopped cleanly behind it.

    ``surface`` holds every command; ``stats``, ``health`` and ``events`` are the same for programs.
    """

    def __init__(
        self, config: NodeConfig, *, lock: DataDirLock | None = None, interpose: Interpose | None = None
    ) -> None:
        """``lock`` is that of the data directory, if the caller holds it already; it stays the caller's."""
        if config.node_type is NodeType.ANNOTATION:
            raise NotAvailableYet("The node type annotation")
        self.config = config
        self.surface = CommandSurface()
        self.bus = EventBus()
        self.phase = "opening"
        self.started_s = time.monotonic()
        self.address = Address(config.p2p_host, config.p2p_port)
        self.role: TrainingRole | None = None
        self._lock = lock
        self._interpose = interpose
        self._stack = AsyncExitStack()
        self._stop = trio.Event()
        self.running = trio.Event()
        """Set once the model is loaded, the ledger replayed, and this node votes."""
        self.is_loaded = False
        self._missing: dict[bytes, int] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException as error:
            # What was opened is closed even when opening the rest failed or was cancelled.
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, *exception: Any) -> bool | None:
        return await self._stack.__aexit__(*exception)

    # ---- for programs

    def stats(self) -> dict[str, Any]:
        """The result of ``status``."""
        return report.status(self)

    def health(self) -> dict[str, Any]:
        """The result of ``health``: ``healthy`` and the single checks."""
        return report.health(self)

    def why(self) -> dict[str, Any]:
        """The result of ``why``: what this node waits for."""
        return report.why(self)

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[Event]]:
        """``async with node.events() as events: async for event in events``: everything that happens from now on."""
        subscription = self.bus.subscribe()
        try:
            yield subscription
        finally:
            self.bus.unsubscribe(subscription)

    async def run_until_stopped(self) -> None:
        """Until ``stop`` is called."""
        await self._stop.wait()

    def stop(self) -> None:
        """Ask the node to stop; the owner of the ``async with`` leaves the block."""
        self._stop.set()

    async def train(self, until_round: int = WITHOUT_END) -> None:
        """Contribute to rounds below ``until_round`` from now on."""
        if self.role is None and not self.config.trains:
            raise NotAvailableYet(f"Training on a {self.config.node_type.value} node")
        await self.driver.set_intent(Intent(wish=Wish.ON, until_round=until_round))

    async def stop_training(self) -> None:
        """Contribute no more, and do not follow others either."""
        await self.driver.set_intent(Intent(wish=Wish.OFF))

    # ---- opening, in order

    async def _open(self) -> None:
        directory = self.config.directory
        await trio.to_thread.run_sync(lambda: directory.mkdir(mode=0o700, parents=True, exist_ok=True))
        if self._lock is None:
            self._stack.enter_context(DataDirLock(directory))
        self.identity = await trio.to_thread.run_sync(Identity.load_or_create, self.config.key_path)
        self.database = self._stack.enter_context(await trio.to_thread.run_sync(Database.open, directory))
        self.blobs = self._stack.enter_context(Blobs.open(directory / BLOBS_FOLDER))
        await trio.to_thread.run_sync(note_first_use, directory, self.identity.key, self.database)
        self.genesis = await settle_genesis(self.config, self.identity, self.database, self.blobs)
        self.network_id = self.genesis.network_id
        self._connect_rooms()
        nursery = await self._stack.enter_async_context(_stopping_nursery(self._before_stop))
        self.address = await nursery.start(self.mesh.run)
        await nursery.start(self._serve_control)
        nursery.start_soon(self.rounds.run)
        nursery.start_soon(self._bring_up)

    def _connect_rooms(self) -> None:
        config = self.config
        self.mesh = Mesh(
            identity=self.identity,
            network_id=self.network_id,
            node_type=config.node_type.value,
            node_name=config.name,
            host=config.p2p_host,
            port=config.p2p_port,
            explicit_port=config.p2p_port_explicit,
            bootstrap=[Address.parse(text) for text in config.bootstrap_peers],
            head_height=lambda: self.driver.head,
            is_member=lambda key: self.driver.ledger.roster.by_key(key) is not None,
            blacklisted=lambda key: self.driver.is_banned(key),
            events=self.bus,
            peer_store=self.database,
            heartbeat_seconds=config.heartbeat_interval_ms / 1000,
            partition_timeout_seconds=config.partition_timeout_ms / 1000,
            encrypted=config.is_encrypted,
        )
        self.mesh.bodies.register(Namespace.GENESIS, self._provide_genesis)
        self.mesh.bodies.register(Namespace.BLOB, self._provide_blob)
        network: Network = self.mesh
        if self._interpose is not None:
            network = self._interpose(self.mesh, self.identity, self.genesis, self._model_hash)
        self.participant = Participant(
            identity=self.identity,
            genesis=self.genesis,
            database=self.database,
            blobs=self.blobs,
            mesh=network,
            events=self.bus,
            may_propose=lambda round_number: self.driver.may_propose(round_number),
            on_opinion=lambda opinion: self.driver.opinion(opinion),
            on_equivocation=lambda first, second: self.driver.note_equivocation(first, second),
        )
        self.driver = Driver(
            identity=self.identity,
            name=config.name,
            agreement=Agreement.of(self.genesis),
            database=self.database,
            transport=network,
            application=GradientApplication(self.participant, self.identity.key, self.blobs),
            events=self.bus,
            trains=config.trains,
            default_intent=self._default_intent(),
            on_banned=lambda key: self.mesh.leave(key, "blacklisted by the members"),
            invitation=None
            if config.invite is None
            else read_invitation(config.invite, network_id=self.network_id, guest=self.identity.key),
            upkeep=Upkeep(dump_dir=config.directory),
        )
        self.rounds = RoundKeeper(self)
        commands.register(self)

    def _model_hash(self) -> bytes:
        return self.participant.state.model_hash

    def _default_intent(self) -> Intent:
        """A node with rounds to do, or of type training, contributes at once; a full one follows the others."""
        if self.config.train_rounds is not None:
            return Intent(wish=Wish.ON, until_round=self.config.train_rounds)
        return Intent(wish=Wish.ON if self.config.node_type is NodeType.TRAINING else Wish.FOLLOW)

    def _provide_genesis(self, digest: bytes) -> BodySource | None:
        return BodySource.of(self.genesis.encode()) if digest == self.network_id else None

    def _provide_blob(self, digest: bytes) -> BodySource | None:
        """Only what the genesis names: residuals and snapshots are nobody else's business."""
        if digest not in genesis_blobs(self.genesis) or not self.blobs.has(digest):
            return None
        return BodySource(size=self.blobs.size(digest), read=lambda at, length: self.blobs.read(digest, at, length))

    async def _serve_control(self, task_status: trio.TaskStatus[Any]) -> None:
        await serve_announced(
            self.surface,
            data_dir=self.config.directory,
            node_id=self.config.name,
            p2p=str(self.address),
            network=self.network_id.hex(),
            task_status=task_status,
        )

    async def _bring_up(self) -> None:
        """From a connected node to a voting and, if it trains, a training one."""
        self.phase = "loading the model"
        async with trio.open_nursery() as nursery:
            await nursery.start(self.participant.run)
            self.is_loaded = True
            restored = self.participant.restored_from
            applied = 0 if restored is None else restored.height
            self.phase = "replaying the ledger"
            await nursery.start(lambda task_status: self.driver.run(applied_height=applied, task_status=task_status))
            self.phase = "running"
            self.running.set()
            if self.config.trains:
                await self._train(nursery)

    async def _train(self, nursery: trio.Nursery) -> None:
        for shard in self.genesis.data.shards:
            await self._fetch_blob(shard.sha256, shard.size)
        role = await trio.to_thread.run_sync(self._make_role)
        self.role = role
        self.driver.can_train = True
        nursery.start_soon(role.run)

    def _make_role(self) -> TrainingRole:
        # Torch is imported here and nowhere else, so that other nodes never map it.
        from aicpnode.node.role import TrainingRole

        return TrainingRole(self)

    async def _fetch_blob(self, digest: bytes, size: int) -> None:
        if self.blobs.has(digest):
            return
        self._missing[digest] = size
        data = await self.mesh.bodies.fetch(
            Namespace.BLOB, digest, max_size=size, verify=lambda body: sha256(body) == digest
        )
        await trio.to_thread.run_sync(self.blobs.put, data)
        del self._missing[digest]

    # ---- stopping

    async def _before_stop(self) -> None:
        """While everything still runs: the last checkpoint, and a snapshot so that a restart replays nothing."""
        if self.phase != "running":
            return
        self.phase = "stopping"
        with trio.move_on_after(STOP_DEADLINE_S) as scope:
            if self.role is not None:
                self.role.stop()
                if self.applied_round > 0:
                    await self.role.checkpoint()
            await self.driver.record_snapshot()
        if scope.cancelled_caught:
            log.warning("stopped without a last checkpoint: it took longer than %g s", STOP_DEADLINE_S)

    # ---- what reports need

    @property
    def model_hash_hex(self) -> str | None:
        return self.participant.state.model_hash.hex() if self.is_loaded else None

    @property
    def applied_round(self) -> int:
        """Rounds whose outcome is in the model that this node holds."""
        return self.participant.state.round if self.is_loaded else 0

    def name_of(self, key: bytes) -> str:
        """A member's or peer's name for people."""
        return report.name_of(self, key)

    def engine_statistics(self) -> Mapping[str, Any]:
        return {} if self.role is None else self.role.engine.statistics()

    def proposals(self) -> dict[str, Any]:
        return self.rounds.proposals() if self.is_loaded else {}

    def shown_until(self, until_round: int | None) -> int | None:
        """A contribution without end is shown as none."""
        return None if until_round is None or until_round >= WITHOUT_END else until_round

    def start_waits(self) -> list[Wait]:
        if not self._missing:
            return []
        total = sum(self._missing.values())
        return [
            Wait(
                what=f"{len(self._missing)} pieces of the data set ({total} bytes)",
                next="they are pulled from any peer that has them",
            )
        ]

    def participant_waits(self) -> list[Wait]:
        return self.rounds.waits()


@asynccontextmanager
async def _stopping_nursery(before_stop: Callable[[], Any]) -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks go on while ``before_stop`` runs, and are cancelled after it.

    If one of them fails, the others are cancelled at once, and there is nothing left that could be stopped in order.
    """
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        finally:
            if not nursery.cancel_scope.cancel_called:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_DEADLINE_S + 1):
                    await before_stop()
            nursery.cancel_scope.cancel()

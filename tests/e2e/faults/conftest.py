"""A listener that belongs to no roster and keeps every signed message it ever hears: who contradicts itself is seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import trio

from aicpnode.envelop.codec import Envelop, Kind, decode
from aicpnode.envelop.kinds import VOTE_KINDS, parse_vote
from aicpnode.events import EventBus
from aicpnode.identity import Identity
from aicpnode.network.mesh import Mesh
from aicpnode.network.peers import Address

START_S = 30.0
Slot = tuple[bytes, str, int, int]
"""(signer, kind, height, view); a GRAD's height is its round."""


class Observer:
    """Connected to all nodes; says nothing. Runs in a thread of its own until ``stop``."""

    def __init__(self, network_id: bytes, addresses: Sequence[str], identity: Identity) -> None:
        self._network_id = network_id
        self._addresses = [Address.parse(address) for address in addresses]
        self._identity = identity
        self._contents: dict[Slot, bytes] = {}
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._run, name="observer")
        self.contradictions: list[Slot] = []
        self.peers = 0

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(START_S), "the observer starts"

    def stop(self) -> None:
        """Raises what ended the observer, if anything did."""
        if self._thread.is_alive():
            trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def votes_of(self, key: bytes) -> list[Slot]:
        """The slots of votes that ``key`` signed, by height and view."""
        slots = [slot for slot in list(self._contents) if slot[0] == key and slot[1] != Kind.GRAD.name]
        return sorted(slots, key=lambda slot: slot[2:])

    def signers(self) -> set[bytes]:
        return {slot[0] for slot in list(self._contents)}

    def told_otherwise(self, other: Observer) -> list[Slot]:
        """Slots in which ``other`` heard another content."""
        theirs = dict(other._contents)
        return [slot for slot, content in dict(self._contents).items() if theirs.get(slot, content) != content]

    def note_stored(self, raw_votes: Sequence[bytes]) -> None:
        """Votes as a node keeps them on its disk: all that it signed at the running height, sent or not."""
        for raw in raw_votes:
            self._hear(*decode(raw), b"")

    def _hear(self, envelop: Envelop, attachment: bytes, _peer: bytes) -> None:
        view = 0 if envelop.kind is Kind.GRAD else parse_vote(envelop, attachment).view
        slot = (envelop.sender, envelop.kind.name, envelop.height, view)
        if self._contents.setdefault(slot, envelop.identity) != envelop.identity:
            self.contradictions.append(slot)

    def _run(self) -> None:
        try:
            trio.run(self._listen)
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _listen(self) -> None:
        mesh = Mesh(
            identity=self._identity,
            network_id=self._network_id,
            node_type="lightweight",
            node_name="observer",
            host="127.0.0.1",
            port=0,
            explicit_port=True,
            bootstrap=self._addresses,
            head_height=lambda: 0,
            events=EventBus(),
        )
        mesh.subscribe((*VOTE_KINDS, Kind.GRAD), self._hear)
        mesh.on_connect(lambda _peer: self._count(mesh))
        mesh.on_disconnect(lambda _peer: self._count(mesh))
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(mesh.run)
                self._started.set()

    def _count(self, mesh: Mesh) -> None:
        self.peers = len(mesh.peers())


@pytest.fixture
def observe(until: Callable[..., None]) -> Iterator[Callable[..., Observer]]:
    """``observe(cluster)``: an observer that is connected to all of its running nodes."""
    observers: list[Observer] = []

    def make(cluster: Any, identity: Identity | None = None) -> Observer:
        addresses = [node.address for node in cluster.nodes]
        observer = Observer(cluster.genesis.network_id, addresses, identity or Identity.generate())
        observers.append(observer)
        observer.start()
        running = [node for node in cluster.nodes if node.process is not None]
        until(lambda: observer.peers >= len(running), "the observer is connected to all nodes", running)
        return observer

    yield make
    for observer in observers:
        observer.stop()

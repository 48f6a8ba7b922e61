"""One simulated member: the production replica, its signer and its store, on one virtual processor core and one line.

It does what the driver does, in the same order: what has queued up is handled together, everything durable of that is
written to a real database in one synced transaction, and only then anything is sent. Instead of training it waits, then
announces a proposal, and is ready once it has heard of everybody's; it says yes to all.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from aicpnode.bench.consensus.wire import Grad, Packet, Request
from aicpnode.identity import Identity
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.replication.driver import BATCH_INPUTS_MAX, JITTER
from aicpnode.replication.ledger import DURABLE, LedgerStore, state_hash
from aicpnode.simulation.latency import Line, delay_ms
from aicpnode.simulation.processor import Processor
from consensus.events import (
    Accusation,
    Applied,
    Decide,
    DeltaMeasured,
    Diverged,
    Effect,
    Fetch,
    Input,
    Opinion,
    Received,
    RequestDecisions,
    Send,
    ServeDecision,
    SetTimer,
    Timer,
    TimerFired,
)
from consensus.membership import LedgerState
from consensus.messages import Ballot, BallotEntry, Operation
from consensus.pacemaker import Timing
from consensus.replica import Replica

if TYPE_CHECKING:
    from aicpnode.bench.consensus.wide_area import WideArea

AGREED_ROOT = bytes(32)
"""Stands for the model, which nobody trains here."""
K, BITS = 64, 2
MEDIAN_OF = 16
"""Decision times from which the driver sets delta."""
DECISIONS_KEPT = 64


@dataclass(slots=True)
class Counts:
    messages: int = 0
    """Own ones; a broadcast counts once."""
    bytes: int = 0
    verifications: int = 0
    decision_ms: list[float] = field(default_factory=list)
    fetches: int = 0


class SimulatedMember:
    """Member ``index`` of ``run``."""

    def __init__(self, run: WideArea, index: int, identity: Identity, ledger: LedgerState, timing: Timing) -> None:
        self._run = run
        self.index = index
        self.identity = identity
        self.counts = Counts()
        self.processor = Processor(run.time)
        self.crypto = MemberCrypto(identity, run.network_id)
        self.replica = Replica(key=identity.key, crypto=self.crypto, timing=timing, ledger=ledger)
        self.store: LedgerStore | None = None
        self._rng = random.Random(f"{run.seed}/{index}")
        self._up, self._down = Line(), Line()
        self._inbox: deque[Input] = deque()
        self._driving = False
        self._timers: dict[Timer, int] = {}
        self._timers_set = 0
        self._began_ms: float | None = None
        self._round = -1
        self._grads: dict[int, dict[bytes, bytes]] = {}
        self._decisions: dict[int, Decide] = {}
        self._arrivals_ms: dict[int, float] = {}
        self._peers: list[SimulatedMember] = []

    def start(self, peers: list[SimulatedMember]) -> None:
        """Connect to ``peers``, in an order of its own, and begin."""
        self._peers = [peer for peer in peers if peer is not self]
        self._rng.shuffle(self._peers)
        self._perform(self.replica.start())
        self._apply(self.replica.ledger)

    # ---- the network

    def _broadcast(self, packet: Packet) -> None:
        for peer in self._peers:
            self._transmit(packet, peer)

    def _send_to(self, key: bytes, packet: Packet) -> None:
        peer = self._run.by_key.get(key)
        if peer is not None and peer is not self:
            self._transmit(packet, peer)

    def _transmit(self, packet: Packet, peer: SimulatedMember) -> None:
        """Over this member's line, the sea, and the peer's line; messages of one connection stay in order."""
        self.counts.bytes += packet.size_bytes
        left_ms = self._up.pass_ms(self._run.time.now_ms, packet.size_bytes)
        arrives_ms = left_ms + delay_ms(self.index, peer.index, self._rng)
        arrives_ms = self._arrivals_ms[peer.index] = max(arrives_ms, self._arrivals_ms.get(peer.index, 0.0))
        self._run.time.at(arrives_ms, lambda: peer.arrive(packet))

    def arrive(self, packet: Packet) -> None:
        taken_ms = self._down.pass_ms(self._run.time.now_ms, packet.size_bytes)
        self._run.time.at(
            taken_ms, lambda: self.processor.submit(lambda: (packet.receive_ms, lambda: self._take(packet)))
        )

    def _take(self, packet: Packet) -> None:
        self.counts.verifications += not packet.repeated
        match packet.content:
            case Grad() as grad:
                self._on_grad(grad)
            case Request() as request:
                self._on_request(request)
            case event:
                self.crypto.note_verified(packet.envelop)
                if isinstance(event, Received) and isinstance(event.message, Ballot):
                    self._began(event.message.height)
                self._put(event)

    def _began(self, height: int) -> None:
        """The first ballot of the running height was seen: as in the driver, its decision is timed from here."""
        if self._began_ms is None and height == self.replica.height:
            self._began_ms = self._run.time.now_ms

    def _on_request(self, request: Request) -> None:
        wire, now_ms = self._run.wire, self._run.time.now_ms
        decided = self._decisions.get(request.height)
        name = request.block_id
        block = None if name is None else self.replica.block(name)
        if name is not None and block is not None and block.height == request.height:
            self._send(wire.block(self.identity, request.asker, name, block, now_ms), request.asker)
        elif decided is not None:
            self._send(wire.decision(self.identity, request.asker, decided, now_ms), request.asker)

    def _send(self, packet: Packet, to: bytes | None) -> None:
        """Make it, put it into the sockets, and let it go."""
        sockets = len(self._peers) if to is None else 1
        cost_ms = packet.encode_ms + sockets * packet.send_ms
        self.counts.messages += 1

        go = partial(self._broadcast, packet) if to is None else partial(self._send_to, to, packet)
        self.processor.submit(lambda: (cost_ms, go))

    # ---- the driver

    def _put(self, event: Input) -> None:
        self._inbox.append(event)
        if not self._driving:
            self._driving = True
            self.processor.submit(self._handle)

    def _handle(self) -> tuple[float, Callable[[], None]]:
        effects: list[Effect] = []
        total_ms = 0.0
        before = self.crypto.verifications
        for _ in range(min(BATCH_INPUTS_MAX, len(self._inbox))):
            event = self._inbox.popleft()
            name = event.message.kind.name if isinstance(event, Received) else type(event).__name__
            more, cost_ms, _elapsed = self._run.meter.time(f"handle {name}", partial(self.replica.handle, event))
            effects += more
            total_ms += cost_ms
        self.counts.verifications += self.crypto.verifications - before
        return total_ms, partial(self._persist, effects)

    def _persist(self, effects: list[Effect]) -> None:
        """The driver waits for the disk; meanwhile the processor may take messages."""
        store = self.store
        if store is None or not any(isinstance(effect, DURABLE) for effect in effects):
            self._perform(effects)
            return

        def write() -> tuple[float, Callable[[], None]]:
            _, cost_ms, elapsed_ms = self._run.meter.time("persist", partial(store.persist, effects))
            return cost_ms, lambda: self._run.time.after(elapsed_ms - cost_ms, partial(self._perform, effects))

        self.processor.submit(write)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._driving = bool(self._inbox)
        if self._driving:
            self.processor.submit(self._handle)

    def _carry_out(self, effect: Effect) -> None:
        wire, now_ms = self._run.wire, self._run.time.now_ms
        match effect:
            case Send(message=message, to=to):
                assert not isinstance(message, Operation), "nobody asks the ledger for anything here"
                if isinstance(message, Ballot) and message.signer == self.identity.key and to is None:
                    self._began(message.height)
                self._send(wire.vote(message, now_ms), to)
            case SetTimer(timer=timer, delay_ms=delay, jitter=jitter):
                spread = self._rng.uniform(1 - JITTER, 1 + JITTER) if jitter else 1.0
                self._set_timer(timer, delay * spread)
            case Fetch(height=height, block_id=name, targets=targets):
                self.counts.fetches += len(targets)
                for target in targets:
                    self._send(wire.request(self.identity, target, height, name, now_ms), target)
            case RequestDecisions(height=height, target=target):
                self._send(wire.request(self.identity, target, height, None, now_ms), target)
            case ServeDecision(height=height, to=to):
                self._on_request(Request(asker=to, height=height, block_id=None))
            case Decide():
                self._decided(effect)
            case Accusation() | Diverged():
                raise AssertionError(f"everybody is honest here: {effect}")

    def _set_timer(self, timer: Timer, delay_ms: float) -> None:
        self._timers_set += 1
        serial = self._timers[timer] = self._timers_set

        def fire() -> None:
            if self._timers.get(timer) == serial:
                del self._timers[timer]
                self._put(TimerFired(timer=timer))

        self._run.time.after(delay_ms, fire)

    # ---- rounds

    def _decided(self, decision: Decide) -> None:
        """Told after it is on the disk, as in the driver."""
        began_ms, self._began_ms = self._began_ms, None
        if began_ms is not None:
            self.counts.decision_ms.append(self._run.time.now_ms - began_ms)
            measured = int(2 * median(self.counts.decision_ms[-MEDIAN_OF:]))
            self._put(DeltaMeasured(delta_ms=measured))
        height = decision.ledger.height
        self._decisions[height] = decision
        self._decisions.pop(height - DECISIONS_KEPT, None)
        self.crypto.forget_slots(height + 1)
        self._run.decided(self, decision)
        self._apply(decision.ledger)

    def _apply(self, ledger: LedgerState) -> None:
        def hashed() -> tuple[float, Callable[[], None]]:
            digest, cost_ms, _elapsed = self._run.meter.time(
                "state hash", lambda: state_hash(ledger, k=K, bits=BITS, agreed_root=AGREED_ROOT)
            )
            return cost_ms, lambda: self._begin_round(ledger, digest)

        self.processor.submit(hashed)

    def _begin_round(self, ledger: LedgerState, digest: bytes) -> None:
        self._put(Applied(height=ledger.height, state_hash=digest))
        self._round = ledger.round
        self._grads = {round_: heard for round_, heard in self._grads.items() if round_ >= ledger.round}
        self._run.time.after(self._run.training_ms, partial(self._propose, ledger.round))
        self._judge()

    def _propose(self, round_: int) -> None:
        digest = hashlib.sha256(b"%d/%d" % (round_, self.index)).digest()
        self._send(self._run.wire.grad(self.identity, round_, digest, self._run.time.now_ms), None)
        self._on_grad(Grad(round=round_, author=self.identity.key, digest=digest))

    def _on_grad(self, grad: Grad) -> None:
        self._grads.setdefault(grad.round, {})[grad.author] = grad.digest
        if grad.round == self._round:
            self._judge()

    def _judge(self) -> None:
        """Ready once everybody's proposal is here; each of them is good."""
        heard = self._grads.get(self._round, {})
        if len(heard) < len(self._run.members):
            return
        entries = tuple(
            BallotEntry(author_index=member.index, digest=heard[member.identity.key], accepted=True)
            for member in self._run.members
        )
        self._put(Opinion(round=self._round, ready=True, entries=entries))

"""Production replicas on a simulated network: virtual time, seeded delays, loss, partitions, crashes, adversaries.

Every member has a durable part (votes, safety, blocks, decisions) and a volatile part; a crash keeps the former and
loses the latter. Nothing a member sends leaves before what precedes it is durable, as in the driver. Invariants of
the consensus specification, section 9, are checked after every event; ``Violation`` names the broken one.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from aicpnode.simulation.crypto import SimulatedCrypto, signature_of, simulated_key
from consensus.blocks import ballots_of
from consensus.events import (
    Applied,
    BlockReceived,
    Decide,
    DecisionReceived,
    Diverged,
    Effect,
    Fetch,
    HeadAnnounced,
    Input,
    OperationReceived,
    Opinion,
    PersistBlock,
    PersistSafety,
    PersistVote,
    Received,
    RequestDecisions,
    Safety,
    Send,
    ServeDecision,
    SetTimer,
    TimerFired,
)
from consensus.membership import LedgerRules, LedgerState, genesis_state
from consensus.messages import (
    BallotEntry,
    Block,
    Commit,
    CommitCert,
    Crypto,
    Operation,
    OperationKind,
    Prepare,
    SetMessage,
    Vote,
    block_id,
    certificate_holds,
)
from consensus.pacemaker import Timing
from consensus.replica import Replica, Restored
from consensus.types import NIL

HEAD_PERIOD_MS = 5_000
DECISIONS_PER_REPLY = 16


class Violation(AssertionError):
    """An invariant does not hold: the protocol, or its implementation, is wrong."""


class Behaviour(Enum):
    HONEST = "honest"
    SILENT = "silent"
    EQUIVOCATE = "equivocate"
    SELECTIVE = "selective"
    """Sends each COMMIT to a single member only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the network and the machines do. Times in milliseconds of virtual time."""

    delay_ms: tuple[int, int] = (1, 40)
    loss: float = 0.0
    duplication: float = 0.0
    crashes: int = 0
    partitions: int = 0
    quiet_after_ms: int = 60_000
    """From then on: no loss, no partition, everybody up."""


@dataclass(slots=True)
class Disk:
    """What survives a crash."""

    safety: Safety | None = None
    votes: list[Vote] = field(default_factory=list)
    blocks: dict[bytes, Block] = field(default_factory=dict)
    decisions: list[Decide] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    """Own operations: submitted again after a restart, as a node does with what its owner asked for."""


class SimulatedMember:
    """One member: its disk, its replica while it is up, and a stand-in for training that takes virtual time."""

    def __init__(self, cluster: Cluster, key: bytes, behaviour: Behaviour, genesis: LedgerState) -> None:
        self.cluster = cluster
        self.key = key
        self.behaviour = behaviour
        self.genesis = genesis
        self.crypto = SimulatedCrypto(key, cluster.network_id, honest=behaviour is Behaviour.HONEST)
        self.disk = Disk()
        self.replica: Replica | None = None
        self.incarnation = 0
        self.opinions_round = -1

    @property
    def honest(self) -> bool:
        return self.behaviour is Behaviour.HONEST

    def start(self) -> None:
        ledger = self.disk.decisions[-1].ledger if self.disk.decisions else self.genesis
        restored = Restored(
            safety=self.disk.safety, votes=list(self.disk.votes), blocks=list(self.disk.blocks.values())
        )
        self.replica = Replica(
            key=self.key,
            crypto=self.crypto,
            rules=self.cluster.rules,
            timing=self.cluster.timing,
            ledger=ledger,
            restored=restored,
        )
        self.incarnation += 1
        self._do(self.replica.start())
        self.after(1, Applied(height=ledger.height, state_hash=self.state_hash(ledger)))
        self._begin_round(ledger)
        for operation in self.disk.operations:
            self.after(2, OperationReceived(operation=operation, own=True))

    def crash(self) -> None:
        self.replica = None
        self.incarnation += 1

    def after(self, delay_ms: int, event: Input) -> None:
        incarnation = self.incarnation

        def deliver() -> None:
            if self.incarnation == incarnation:
                self.handle(event)

        self.cluster.schedule(delay_ms, deliver)

    def handle(self, event: Input) -> None:
        if self.replica is None:
            return
        self._do(self.replica.handle(event))
        self.cluster.check(self)

    def state_hash(self, ledger: LedgerState) -> bytes:
        """Stands for the model: a chain over the blocks."""
        return hashlib.sha256(b"state" + ledger.block_id + repr(ledger.content()).encode()).digest()

    def _begin_round(self, ledger: LedgerState) -> None:
        """Train for a random while, then hold an opinion: yes to every honest contributor's proposal of the round."""
        if not ledger.contributors() or self.opinions_round >= ledger.round:
            return
        self.opinions_round = ledger.round
        entries = tuple(
            BallotEntry(
                author_index=member.index,
                digest=hashlib.sha256(b"%d/%d" % (ledger.round, member.index)).digest(),
                accepted=True,
            )
            for member in ledger.contributors()
            if self.cluster.members[member.key].honest
        )
        delay = self.cluster.random.randint(50, self.cluster.round_ms)
        self.after(delay, Opinion(round=ledger.round, ready=True, entries=entries))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._persist(effect)
        for effect in effects:
            self._carry_out(effect)

    def _persist(self, effect: Effect) -> None:
        match effect:
            case PersistVote(message=message):
                self.disk.votes.append(message)
            case PersistSafety(safety=safety):
                self.disk.safety = safety
            case PersistBlock(block_id=name, block=block):
                self.disk.blocks[name] = block
            case Decide():
                self.cluster.decided(self, effect)
                self.disk.decisions.append(effect)
                height = effect.ledger.height
                self.disk.votes = [vote for vote in self.disk.votes if vote.height > height]
                self.disk.blocks = {n: b for n, b in self.disk.blocks.items() if b.height > height}

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(message=message, to=to):
                self.cluster.send(self, message, to)
            case SetTimer(timer=timer, delay_ms=delay, jitter=jitter):
                spread = self.cluster.random.uniform(0.8, 1.2) if jitter else 1.0
                self.after(max(1, int(delay * spread)), TimerFired(timer=timer))
            case Fetch(height=height, block_id=name, targets=targets):
                for target in targets:
                    self.cluster.fetch(self, target, height, name)
            case RequestDecisions(height=height, target=target):
                self.cluster.request_decisions(self, target, height)
            case ServeDecision(height=height, to=to):
                self.cluster.serve_decisions(self, to, height, limit=1)
            case Decide(ledger=ledger):
                delay = self.cluster.random.randint(1, 60)
                self.after(delay, Applied(height=ledger.height, state_hash=self.state_hash(ledger)))
                self._begin_round(ledger)
            case Diverged():
                raise Violation(f"an honest replica diverged: {effect}")

    def block(self, height: int, name: bytes) -> Block | None:
        if 0 < height <= len(self.disk.decisions):
            decided = self.disk.decisions[height - 1]
            return decided.block if decided.certificate.block_id == name else None
        return self.replica.block(name) if self.replica is not None else None


class Cluster:
    """``members`` founders (and late joiners, if any) on one seeded network."""

    def __init__(
        self,
        *,
        seed: int,
        behaviours: list[Behaviour],
        faults: Faults,
        joiners: int = 0,
        round_ms: int = 400,
        timing: Timing | None = None,
        rules: LedgerRules | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.network_id = hashlib.sha256(b"simulated network").digest()
        self.rules = rules or LedgerRules(probation_rounds=2, members_max=64)
        self.timing = timing or Timing()
        self.faults = faults
        self.round_ms = round_ms
        self.now_ms = 0
        self.events = 0
        self.trace = hashlib.sha256()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._islands: list[set[bytes]] = []
        self._certified: dict[int, tuple[bytes, bytes]] = {}
        keys = [simulated_key(index) for index in range(len(behaviours) + joiners)]
        genesis = genesis_state(
            ((key, 1, f"node-{index}") for index, key in enumerate(keys[: len(behaviours)])), self.network_id
        )
        all_behaviours = [*behaviours, *[Behaviour.HONEST] * joiners]
        self.members = {
            key: SimulatedMember(self, key, behaviour, genesis)
            for key, behaviour in zip(keys, all_behaviours, strict=True)
        }
        self.keys = keys

    # ---- time

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now_ms + max(0, delay_ms), self._sequence, action))

    def start(self) -> None:
        for member in self.members.values():
            if member.behaviour is not Behaviour.SILENT:
                member.start()
        self._schedule_faults()
        self._announce_heads()

    def run(self, *, until: Callable[[], bool], limit_ms: int) -> bool:
        """Let virtual time pass until ``until()`` holds (True) or ``limit_ms`` is over (False)."""
        while self._queue and not until():
            at, _sequence, action = heapq.heappop(self._queue)
            if at > limit_ms:
                return False
            self.now_ms = at
            self.events += 1
            action()
        return until()

    def _schedule_faults(self) -> None:
        quiet = self.faults.quiet_after_ms
        honest = [member for member in self.members.values() if member.honest]
        for _ in range(self.faults.crashes):
            victim = self.random.choice(honest)
            at = self.random.randint(0, quiet)
            self.schedule(at, victim.crash)
            self.schedule(min(quiet, at + self.random.randint(10, 5_000)), functools.partial(self._restart, victim))
        for _ in range(self.faults.partitions):
            at = self.random.randint(0, quiet)
            island = set(self.random.sample(self.keys, self.random.randint(1, max(1, len(self.keys) - 1))))
            self.schedule(at, functools.partial(self._islands.append, island))
            self.schedule(
                min(quiet, at + self.random.randint(100, 8_000)), functools.partial(self._islands.remove, island)
            )

    def _restart(self, member: SimulatedMember) -> None:
        if member.replica is None:
            member.opinions_round = -1
            member.start()

    def _announce_heads(self) -> None:
        for member in self.members.values():
            if member.replica is not None:
                head = len(member.disk.decisions)
                for other in self.members.values():
                    self._transmit(member, other, HeadAnnounced(peer=member.key, height=head))
        self.schedule(HEAD_PERIOD_MS, self._announce_heads)

    # ---- the network

    def _transmit(self, sender: SimulatedMember, receiver: SimulatedMember, event: Input) -> None:
        if sender is receiver:
            return
        noisy = self.now_ms < self.faults.quiet_after_ms
        if any((sender.key in island) != (receiver.key in island) for island in self._islands):
            return
        if noisy and self.random.random() < self.faults.loss:
            return
        copies = 2 if noisy and self.random.random() < self.faults.duplication else 1
        for _ in range(copies):
            delay = self.random.randint(*self.faults.delay_ms)
            self.schedule(delay, lambda: receiver.handle(event))

    def send(self, sender: SimulatedMember, message: Vote | Operation, to: bytes | None) -> None:
        self.trace.update(repr((self.now_ms, sender.key[:4], message.fields())).encode())
        receivers = [m for m in self.members.values() if m is not sender and (to is None or m.key == to)]
        if sender.behaviour is Behaviour.SELECTIVE and isinstance(message, Commit):
            receivers = receivers[:1]
        for position, receiver in enumerate(receivers):
            said = message
            if sender.behaviour is Behaviour.EQUIVOCATE and position % 2:
                said = self._other_content(message)
            if isinstance(said, Operation):
                self._transmit(sender, receiver, OperationReceived(operation=said))
            else:
                self._transmit(sender, receiver, Received(message=said))

    def _other_content(self, message: Vote | Operation) -> Vote | Operation:
        """What an equivocator tells the other half in the same slot, properly signed."""
        if isinstance(message, (Prepare, Commit)):
            other = self._some_block_id(message.height) if message.block_id == NIL else NIL
            changed: Vote = (
                replace(message, block_id=other, valid_view=-1)
                if isinstance(message, Prepare)
                else replace(message, block_id=other)
            )
        elif isinstance(message, SetMessage) and message.block is not None:
            header = replace(message.block.header, origin_view=message.view)
            body = replace(message.block.body, operations=())
            block = self._rebuilt(header, body, message.signer)
            if block is None:
                return message
            changed = replace(message, block=block, block_id=block_id(self._crypto(), block.header))
        else:
            return message
        return replace(changed, signature=signature_of(changed, self.network_id))

    def _rebuilt(self, header: object, body: object, signer: bytes) -> Block | None:
        """The same block without its operations, roots recomputed: valid, but another block."""
        from consensus.membership import next_state
        from consensus.messages import Body, Header, operations_root, roster_hash

        assert isinstance(header, Header) and isinstance(body, Body)
        replica = self.members[signer].replica
        if replica is None:
            return None
        after = next_state(replica.ledger, body, self.rules, block_id=NIL)
        if after is None:
            return None
        crypto = self._crypto()
        header = replace(
            header,
            operations_root=operations_root(crypto, body),
            next_roster_hash=roster_hash(crypto, after.roster),
        )
        return Block(header=header, body=body)

    def _some_block_id(self, height: int) -> bytes:
        return hashlib.sha256(b"no such block %d" % height).digest()

    def _crypto(self) -> Crypto:
        return SimulatedCrypto(self.keys[0], self.network_id, honest=False)

    def fetch(self, asker: SimulatedMember, target: bytes, height: int, name: bytes) -> None:
        member = self.members.get(target)
        if member is not None and member.replica is not None and member.honest:
            block = member.block(height, name)
            if block is not None:
                self._transmit(member, asker, BlockReceived(block=block))

    def request_decisions(self, asker: SimulatedMember, target: bytes, height: int) -> None:
        member = self.members.get(target)
        if member is not None:
            delay = self.random.randint(*self.faults.delay_ms)
            self.schedule(delay, lambda: self.serve_decisions(member, asker.key, height, limit=DECISIONS_PER_REPLY))

    def serve_decisions(self, donor: SimulatedMember, to: bytes, height: int, *, limit: int) -> None:
        asker = self.members.get(to)
        if asker is None or donor.replica is None or height < 1:
            return
        for decided in donor.disk.decisions[height - 1 : height - 1 + limit]:
            event = DecisionReceived(block=decided.block, certificate=decided.certificate)
            self._transmit(donor, asker, event)

    # ---- use

    def submit(self, key: bytes, kind: OperationKind, *arguments: int | bytes | str, sequence: int) -> None:
        operation = Operation(kind=kind, signer=key, sequence=sequence, arguments=arguments)
        signed = replace(operation, signature=signature_of(operation, self.network_id))
        self.members[key].disk.operations.append(signed)
        self.members[key].handle(OperationReceived(operation=signed, own=True))

    def honest_heights(self) -> list[int]:
        return [len(member.disk.decisions) for member in self.members.values() if member.honest]

    def honest_rounds(self) -> list[int]:
        return [
            member.disk.decisions[-1].ledger.round if member.disk.decisions else 0
            for member in self.members.values()
            if member.honest
        ]

    # ---- invariants

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """Invariants 1, 5, 6, 7 and 10 at the moment of a decision."""
        height = decision.ledger.height
        certificate: CommitCert = decision.certificate
        if height != len(member.disk.decisions) + 1:
            raise Violation(f"invariant 7: height {height} after {len(member.disk.decisions)}")
        if not certificate_holds(self._crypto(), certificate, decision.before.roster):
            raise Violation(f"invariant 5: certificate of height {height} does not hold")
        fact = (certificate.block_id, self._crypto().content_id("roster", decision.ledger.roster.content()))
        if self._certified.setdefault(height, fact) != fact:
            raise Violation(f"invariant 1 or 10: two blocks or rosters at height {height}")
        training = decision.block.body.training
        if training is not None:
            ballots = ballots_of(decision.block, decision.before)
            assert ballots is not None
            for author, digest in training.included:
                yes = sum(
                    decision.before.roster.power(ballot.signer)
                    for ballot in ballots
                    if any((e.author_index, e.digest, e.accepted) == (author, digest, True) for e in ballot.entries)
                )
                if yes < decision.before.roster.quorum:
                    raise Violation(f"invariant 6: proposal of {author} included with power {yes}")

    def check(self, member: SimulatedMember) -> None:
        """Invariant 4, and that a safety state on disk never falls behind (3)."""
        replica = member.replica
        if replica is None or not member.honest:
            return
        if not replica.locked_view <= replica.valid_view <= replica.view:
            raise Violation(f"invariant 4: locked {replica.locked_view} valid {replica.valid_view} at {replica.view}")
        safety = member.disk.safety
        fell = (
            safety is not None
            and safety.height == replica.height
            and (replica.locked_view < safety.locked_view or replica.valid_view < safety.valid_view)
        )
        if fell:
            raise Violation("invariant 4: a lock fell within a height")

"""Runs the replica: inputs from network, timers and application in; effects persisted, then sent.

One task owns the replica. It takes what has queued up in the inbox, lets the replica handle it all, writes everything
durable of it in one transaction, and only then sends: one sync of the disk serves a whole batch. Other tasks keep the
timers, announce the head, and ask the ledger for what the owner wants; ``applier`` applies what is decided and
``exchange`` asks peers for what is missing here and answers them.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, pack, unpack
from aicpnode.envelop.kinds import (
    VOTE_KINDS,
    decode_block,
    operation_envelop,
    parse_grad,
    parse_operation,
    parse_vote,
    vote_attachment,
    vote_envelop,
)
from aicpnode.errors import UserError
from aicpnode.events import BlockDecided, EventBus, Notice, PhaseReached
from aicpnode.identity import Identity, short
from aicpnode.network.peers import PeerInfo
from aicpnode.replication.agreement import Agreement
from aicpnode.replication.application import Application
from aicpnode.replication.applier import Applier
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.replication.divergence import Divergence, is_curable
from aicpnode.replication.donor import Donor
from aicpnode.replication.exchange import DecisionExchange
from aicpnode.replication.inbox import Inbox
from aicpnode.replication.intent import Applicant, Intent, Wish, wanted
from aicpnode.replication.ledger import DURABLE, DecidedBlock, LedgerStore
from aicpnode.replication.pause import PAUSE_S_MIN, QuorumWatch
from aicpnode.replication.recovery import SAFE_ROUNDS, Amnesia
from aicpnode.replication.snapshot_store import SnapshotStore, VerifiedSnapshot
from aicpnode.replication.takeover import SNAPSHOT_GAP, Position, Takeover
from aicpnode.replication.transport import Transport
from aicpnode.storage.database import Database
from consensus import evidence as evidence_rules
from consensus.events import (
    Accusation,
    Applied,
    Decide,
    DeltaMeasured,
    Diverged,
    Effect,
    Fetch,
    HeadAnnounced,
    OperationReceived,
    Opinion,
    PersistVote,
    Received,
    RequestDecisions,
    Send,
    ServeDecision,
    SetTimer,
    Timer,
    TimerFired,
)
from consensus.evidence import Evidence, contradiction
from consensus.membership import LedgerState
from consensus.messages import Ballot, Invitation, MessageKind, Operation, OperationKind, Vote
from consensus.pacemaker import DecisionPace
from consensus.replica import Replica
from consensus.types import MemberStatus

BATCH_INPUTS_MAX = 64
HEAD_PERIOD_S = 5.0
INTENT_PERIOD_S = 1.0
DECISION_TIMES_KEPT = 64
JITTER = 0.2
JOIN_NONCE_BYTES = 16
INTENT_META = "intent"
EVIDENCE_QUEUED_MAX = 64
QUORUM_CHECKS = 10
"""Looks at who was heard in the shortest time after which this node pauses."""
AMNESIA_META = "amnesia"
"""Absent: this store remembers all that its key signed. Else (voting from height, proposing from round), zeros while
not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What no two members need to agree on: rounds between snapshots, the gap in heights above which one of others is
    taken over, how long without a quorum is a pause, where a state that went astray is kept."""

    snapshot_rounds: int = 10
    snapshot_gap: int = SNAPSHOT_GAP
    pause_s_min: float = PAUSE_S_MIN
    dump_dir: Path | None = None


class Driver:
    """One member's replica on real time, disk and network."""

    def __init__(
        self,
        *,
        identity: Identity,
        name: str,
        agreement: Agreement,
        database: Database,
        transport: Transport,
        application: Application,
        events: EventBus,
        trains: bool,
        default_intent: Intent,
        on_banned: Callable[[bytes], None] = lambda _key: None,
        invitation: Invitation | None = None,
        upkeep: Upkeep | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``on_banned`` is told each key that the members ban; ``invitation`` is shown in this node's JOIN."""
        self._identity = identity
        self._name = name
        self._agreement = agreement
        self._database = database
        self._transport = transport
        self._events = events
        self._random = rng or random.Random()
        self._crypto = MemberCrypto(identity, agreement.network_id)
        self.invitation, self._on_banned = invitation, on_banned
        self._store = LedgerStore(database, agreement.network_id)
        self._snapshots = SnapshotStore(database, agreement.genesis)
        self._application = application
        self._upkeep = upkeep or Upkeep()
        self._quorum_watch = QuorumWatch(identity.key, least_s=self._upkeep.pause_s_min)
        self._to_install: tuple[VerifiedSnapshot, trio.Event] | None = None
        self._inbox = Inbox()
        self._timers: dict[Timer, float] = {}
        self._timers_changed = trio.Event()
        self._intent_wakeup = trio.Event()
        self._deciding_intent = trio.Lock()
        """Held from reading the intent until the next one is kept: the owner's wish is never overwritten unseen."""
        self._last_heard: dict[bytes, float] = {}
        self._decision_s: deque[float] = deque(maxlen=DECISION_TIMES_KEPT)
        self._height_began_s: float | None = None
        self._pace = DecisionPace()
        self._sequence = 0
        self._join_nonce = self._random.randbytes(JOIN_NONCE_BYTES)
        self._changed = trio.Event()
        self.equivocations = 0
        self._proofs = self._store.evidence()
        self._unsaved_proofs: deque[Evidence] = deque(maxlen=EVIDENCE_QUEUED_MAX)
        self.messages_sent = 0
        self.proposing_from: int | None = 0
        self.can_train: bool | None = None if trains else False
        """None until a node that trains has what it needs: only then does it ask the ledger to be waited for."""
        self.amnesia: Amnesia | None = None
        self._take_part_in_snapshots()
        self.replica = self._load()
        self._exchange = DecisionExchange(
            identity=identity,
            network_id=agreement.network_id,
            database=database,
            transport=transport,
            inbox=self._inbox,
            replica=lambda: self.replica,
        )
        self._applying = trio.CancelScope()
        self._applying_ended = trio.Event()
        self._applier = self._new_applier()
        raw = database.get_meta(INTENT_META)
        self.intent = default_intent if raw is None else Intent.decode(raw)

    def _take_part_in_snapshots(self) -> None:
        self._divergence = Divergence(
            database=self._database,
            store=self._snapshots,
            application=self._application,
            events=self._events,
            folder=self._upkeep.dump_dir,
            about={"network": self._agreement.network_id.hex(), "key": self._identity.key.hex(), "name": self._name},
        )
        self._donor = Donor(
            identity=self._identity,
            network_id=self._agreement.network_id,
            transport=self._transport,
            application=self._application,
            store=self._snapshots,
        )
        self._takeover = Takeover(
            host=self,
            identity=self._identity,
            agreement=self._agreement,
            transport=self._transport,
            application=self._application,
            store=self._snapshots,
            events=self._events,
            install=self._install,
            gap=self._upkeep.snapshot_gap,
        )

    def _load(self) -> Replica:
        ledger = self._store.head_state(self._agreement.genesis)
        restored = self._store.restored(ledger.height + 1)
        for vote in restored.votes:
            self._crypto.remember_slot(vote)
        replica = Replica(
            key=self._identity.key,
            crypto=self._crypto,
            timing=self._agreement.timing,
            ledger=ledger,
            restored=restored,
            voting_from=self._remembered(),
        )
        replica.diverged = self._divergence.found is not None
        return replica

    def _new_applier(self) -> Applier:
        return Applier(
            key=self._identity.key,
            agreement=self._agreement,
            database=self._database,
            application=self._application,
            events=self._events,
            head=lambda: self.ledger,
            on_applied=self._on_applied,
            on_diverged=self._on_diverged,
            snapshot_rounds=self._upkeep.snapshot_rounds,
        )

    def _remembered(self) -> int | None:
        """The first height to sign in: 1 unless the store was lost, None while that is not settled."""
        raw = self._database.get_meta(AMNESIA_META)
        if raw is None:
            return 1
        voting_from, proposing_from = cast("tuple[int, int]", unpack(raw))
        if voting_from:
            self.proposing_from = proposing_from
            return voting_from
        self.amnesia, self.proposing_from = Amnesia(self._identity.key), None
        return None

    # ---- for the rooms above

    @property
    def ledger(self) -> LedgerState:
        return self.replica.ledger

    @property
    def head(self) -> int:
        return self.replica.ledger.height

    @property
    def applied_height(self) -> int:
        """The height whose state this node holds: it may lag behind ``head`` while bodies are fetched."""
        return self._applier.applied_height

    @property
    def state_hash(self) -> bytes:
        """Of the state after ``applied_height``."""
        return self._applier.state_hash

    @property
    def is_applied(self) -> bool:
        return self.applied_height == self.head

    @property
    def is_behind(self) -> bool:
        return self.replica.is_behind or not self.is_applied

    def is_banned(self, key: bytes) -> bool:
        """Whether the members have banned ``key``."""
        member = self.ledger.roster.by_key(key)
        return member is not None and member.status is MemberStatus.BANNED

    def invite(self, guest: bytes) -> Invitation:
        """This member's word that ``guest`` may join."""
        return self._crypto.invite(guest)

    @property
    def accused(self) -> frozenset[bytes]:
        """Who broke the rules, as far as this node has the proof."""
        return frozenset(self._proofs)

    @property
    def is_paused(self) -> bool:
        """Whether members with a quorum of power were not heard of for long while this node waits for them."""
        return self._quorum_watch.is_paused

    def unheard(self) -> list[bytes]:
        """Members that were not heard of for as long as it takes to pause."""
        now_s, timeout_ms = trio.current_time(), self._timeout_ms
        return self._quorum_watch.missing(now_s, self.ledger.roster, self._last_heard, timeout_ms=timeout_ms)

    @property
    def takeover_progress(self) -> str:
        """What is being done to take over a state of others, for people; empty if nothing is."""
        return self._takeover.progress

    def position(self, furthest: int) -> Position:
        """Where this node stands, for whoever decides whether it has to take over a state of others."""
        return Position(
            head=self.head,
            applied=self.applied_height,
            base=self._database.base_height(),
            furthest=furthest,
            diverged=self._divergence.found is not None,
            diverged_before=self._divergence.again_at,
            waits_for_bodies_s=self._application.waits_for_bodies_s(),
        )

    @property
    def _timeout_ms(self) -> int:
        return self.replica.pacemaker.timeout_ms(self.replica.view)

    @property
    def dropped_inputs(self) -> int:
        """Messages of peers that exceeded their share and were dropped: they are sent again."""
        return self._inbox.dropped

    @property
    def verifications(self) -> int:
        return self._crypto.verifications

    def last_heard_s(self, key: bytes) -> float | None:
        """Seconds since anything signed by ``key`` arrived; None if nothing did."""
        at = self._last_heard.get(key)
        return None if at is None else trio.current_time() - at

    def note_heard(self, key: bytes) -> None:
        """Something signed by ``key`` arrived by another way than votes."""
        if self.ledger.roster.by_key(key) is not None:
            self._last_heard[key] = trio.current_time()

    def decision_seconds(self) -> list[float]:
        """Recent times from this node's first sight of a height's ballots to its decision."""
        return list(self._decision_s)

    def opinion(self, opinion: Opinion) -> None:
        """What the gradient participant thinks of the running round."""
        self._inbox.put(opinion)

    async def set_intent(self, intent: Intent) -> None:
        """The owner's wish; durable before this returns."""
        async with self._deciding_intent:
            await self._keep_intent(intent)
        self._intent_wakeup.set()

    async def _keep_intent(self, intent: Intent) -> None:
        await trio.to_thread.run_sync(self._database.set_meta, INTENT_META, intent.encode())
        self.intent = intent

    def submit(
        self,
        kind: OperationKind,
        *arguments: int | bytes | str,
        evidence: Evidence | None = None,
        invitation: Invitation | None = None,
    ) -> Operation:
        """Sign an operation and send it around until it is in the ledger."""
        standing = self.ledger.standing(self._identity.key)
        used = 0 if standing is None else standing.sequence
        # Wall time keeps sequences rising over restarts; the ledger's own count keeps them rising when it is wrong.
        self._sequence = max(self._sequence + 1, used + 1, int(time.time() * 1000))
        operation = self._crypto.sign_operation(
            Operation(
                kind=kind,
                signer=self._identity.key,
                sequence=self._sequence,
                arguments=arguments,
                evidence=evidence,
                invitation=invitation,
            )
        )
        # What others cannot read, this node could not read back from its own ledger either: it must never be decided.
        assert parse_operation(operation_envelop(operation, self._agreement.network_id)) == operation
        self._inbox.put(OperationReceived(operation=operation, own=True))
        return operation

    def may_propose(self, round_number: int) -> bool:
        """False while a lost store may have known another proposal of this key for that round."""
        return self.proposing_from is not None and round_number >= self.proposing_from

    def note_equivocation(self, first: Envelop, second: Envelop) -> None:
        """Two GRADs of one author for one round: kept as evidence by whoever holds them; here counted and said."""
        proof = evidence_rules.evidence(parse_grad(first), parse_grad(second))
        self._accuse(proof)
        self._unsaved_proofs.append(proof)

    def votes_of(self, height: int) -> list[dict[str, object]]:
        """Who voted what in the decided block of ``height``: for people. Blocks, so call it in a thread."""
        decided = self._database.decision(height)
        if decided is None:
            return []
        body = decode_block(decided[0]).body
        members = self.ledger.roster.members
        return [
            {
                "member": members[record.signer_index].name,
                "ready": record.ready,
                "entries": [
                    {"author": members[author].name, "verdict": verdict.name.lower()}
                    for (author, _digest), verdict in zip(body.table, record.verdicts, strict=True)
                    if verdict.name != "NONE"
                ],
            }
            for record in body.ballots
        ]

    async def probe(self) -> int:
        """Have the members decide an operation that changes nothing; the height by which it is decided.

        UserError if this node is no member.
        """
        standing = self.ledger.standing(self._identity.key)
        if standing is None:
            raise UserError("This node is no member yet.", advice="See why.")
        until_round = standing.until_round if self.ledger.contributes(self._identity.key) else 0
        operation = self.submit(OperationKind.CONTRIBUTE, until_round)
        while standing is None or standing.sequence < operation.sequence:
            await self.wait_change()
            standing = self.ledger.standing(self._identity.key)
        return self.head

    async def wait_change(self) -> None:
        """Until a block is decided or applied."""
        await self._changed.wait()

    # ---- running

    async def run(self, *, applied_height: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. The application holds the state after ``applied_height`` and replays from there."""
        self._subscribe()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._start_applier(applied_height)
            nursery.start_soon(self._donor.run)
            nursery.start_soon(self._takeover.run)
            nursery.start_soon(self._watch_quorum)
            nursery.start_soon(self._keep_timers)
            nursery.start_soon(self._announce_head)
            nursery.start_soon(self._exchange.run)
            nursery.start_soon(self._pursue_intent)
            await self._carry_out(self.replica.start())
            task_status.started()
            await self._replicate()

    def _start_applier(self, applied_height: int) -> None:
        """Unless the application's state is known to be wrong, or is older than all blocks that are here."""
        self._applier.applied_height = applied_height
        if self.replica.diverged or applied_height < self._database.base_height():
            self._applying_ended.set()
            return
        for replayed in self._store.replay(self._agreement.genesis, applied_height):
            self._applier.enqueue(replayed)
        self._nursery.start_soon(self._apply, self._applier, self._applying, self._applying_ended)

    @staticmethod
    async def _apply(applier: Applier, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await applier.run()
        finally:
            ended.set()

    def _subscribe(self) -> None:
        transport = self._transport
        transport.subscribe(VOTE_KINDS, self._on_vote)
        transport.subscribe([Kind.OPERATION], self._on_operation)
        transport.subscribe([Kind.HEAD], self._on_head)
        self._exchange.subscribe()
        self._donor.subscribe()
        self._takeover.subscribe()
        transport.on_connect(self._on_connect)

    async def _replicate(self) -> None:
        while True:
            if self._to_install is not None:
                await self._begin_again(*self._to_install)
            effects: list[Effect] = []
            for event in await self._inbox.take(BATCH_INPUTS_MAX):
                effects += self.replica.handle(event)
            await self._carry_out(effects)

    async def _install(self, snapshot: VerifiedSnapshot) -> None:
        """Hand it to the task that owns the replica; returns once it is in place, or was found to be of no use."""
        done = trio.Event()
        self._to_install = snapshot, done
        self._inbox.interrupt()
        await done.wait()

    async def _begin_again(self, snapshot: VerifiedSnapshot, done: trio.Event) -> None:
        """Take over ``snapshot`` on disk, then start again from the disk, as after a crash."""
        base = self._database.base_height()
        is_lost = self.applied_height < base
        height = snapshot.ledger.height
        if height >= base and (self._divergence.found is not None or is_lost or height > self.applied_height):
            self._applying.cancel()
            await self._applying_ended.wait()
            dropped = await trio.to_thread.run_sync(self._snapshots.install, snapshot)
            await self._application.restore(snapshot.blob, snapshot.model_hash)
            for blob in dropped:
                await self._application.forget_snapshot(blob)
            self._inbox.forget_states()
            self._timers.clear()
            self._divergence.settled()
            self._height_began_s = None
            self.replica = self._load()
            self._applying, self._applying_ended = trio.CancelScope(), trio.Event()
            self._applier = self._new_applier()
            self._start_applier(height)
            await self._carry_out(self.replica.start())
            for peer, head in self._takeover.claims():
                self._inbox.put(HeadAnnounced(peer=peer, height=head))
            self._announce_change()
        self._to_install = None
        done.set()

    async def _carry_out(self, effects: list[Effect]) -> None:
        if any(isinstance(effect, DURABLE) for effect in effects):
            await trio.to_thread.run_sync(self._store.persist, effects)
        for effect in effects:
            self._perform(effect)
        await trio.lowlevel.checkpoint()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(message=message, to=to):
                self._send(message, to)
            case SetTimer(timer=timer, delay_ms=delay_ms, jitter=jitter):
                spread = self._random.uniform(1 - JITTER, 1 + JITTER) if jitter else 1.0
                self._timers[timer] = trio.current_time() + delay_ms * spread / 1000
                self._timers_changed.set()
            case PersistVote(message=message):
                self._pace.cast(message, 1000 * trio.current_time())
            case Fetch(height=height, block_id=name, targets=targets):
                for target in targets:
                    self._exchange.ask_block(target, height, name)
            case RequestDecisions(height=height, target=target):
                if not self._takeover.is_certain:
                    self._exchange.ask_decisions(target, height)
            case ServeDecision(height=height, to=to):
                self._exchange.serve_later(to, to, height, 1)
            case Decide():
                self._on_decided(effect)
            case Accusation(evidence=proof):
                self._accuse(proof)
            case Diverged():
                self._on_diverged(effect)

    def _accuse(self, proof: Evidence) -> None:
        """Bring it before the members, as soon as nothing else is in the way."""
        self.equivocations += 1
        self._proofs.setdefault(proof.accused, proof)
        fault = contradiction(proof.first, proof.second)
        self._notice("warning", f"{self._member_name(proof.accused)} broke the rules: {fault}")
        self._intent_wakeup.set()

    def _notice(self, level: str, text: str) -> None:
        self._events.publish(Notice(level=level, text=text))

    def _member_name(self, key: bytes) -> str:
        member = self.ledger.roster.by_key(key)
        return short(key) if member is None else f"{member.name} ({short(key)})"

    # ---- sending

    def _send(self, message: Vote | Operation, to: bytes | None) -> None:
        self.messages_sent += 1
        network_id = self._agreement.network_id
        if isinstance(message, Operation):
            envelop, attachment = operation_envelop(message, network_id), b""
        else:
            envelop, attachment = vote_envelop(message, network_id), vote_attachment(message)
            if isinstance(message, Ballot) and message.signer == self._identity.key and to is None:
                self._began(message.height)
                self._phase("ballot sent", message)
        if to is None:
            self._transport.broadcast(envelop, attachment)
        else:
            self._transport.send(to, envelop, attachment)

    def _phase(self, phase: str, message: Vote) -> None:
        self._events.publish(
            PhaseReached(
                phase=phase,
                height=message.height,
                round=self.ledger.round,
                member=message.signer,
                detail=f"view {message.view}",
            )
        )

    # ---- receiving: called by the network, must not block

    def _on_connect(self, peer: PeerInfo) -> None:
        self._takeover.heard(peer.key, peer.head_height)
        self._inbox.put_from(peer.key, HeadAnnounced(peer=peer.key, height=peer.head_height))

    def _on_vote(self, envelop: Envelop, attachment: bytes, peer: bytes) -> None:
        if self.ledger.roster.by_key(envelop.sender) is None:
            return  # a stranger, or a newcomer of a block that is not decided here yet: it says it again
        message = parse_vote(envelop, attachment)
        self._crypto.note_verified(envelop)
        self.note_heard(message.signer)
        if message.height == self.replica.height:
            if isinstance(message, Ballot) and self.ledger.roster.is_active(message.signer):
                self._began(message.height)
            self._phase(f"{message.kind.name} received", message)
        self._inbox.put_from(peer, Received(message=message))

    def _began(self, height: int) -> None:
        if self._height_began_s is None and height == self.replica.height:
            self._height_began_s = trio.current_time()

    def _on_operation(self, envelop: Envelop, attachment: bytes, peer: bytes) -> None:
        operation = parse_operation(envelop, attachment)
        self._crypto.note_verified(envelop)
        self._inbox.put_from(peer, OperationReceived(operation=operation))

    def _on_head(self, envelop: Envelop, attachment: bytes, peer: bytes) -> None:
        self.note_heard(envelop.sender)
        if self.amnesia is not None and peer == envelop.sender:
            # Only from its signer's own connection: anybody could replay an old head, and it has no date.
            self.amnesia.heard(envelop.sender, envelop.height, self.ledger)
            self._intent_wakeup.set()
        self._takeover.heard(envelop.sender, envelop.height)
        self._inbox.put_from(peer, HeadAnnounced(peer=envelop.sender, height=envelop.height))

    # ---- tasks

    async def _keep_timers(self) -> None:
        while True:
            now = trio.current_time()
            due = [timer for timer, at in self._timers.items() if at <= now]
            for timer in sorted(due, key=lambda timer: self._timers[timer]):
                del self._timers[timer]
                self._inbox.put(TimerFired(timer=timer))
            self._timers_changed = trio.Event()
            next_at = min(self._timers.values(), default=float("inf"))
            with trio.move_on_at(next_at):
                await self._timers_changed.wait()

    async def _announce_head(self) -> None:
        while True:
            envelop = Envelop(
                network_id=self._agreement.network_id,
                kind=Kind.HEAD,
                sender=self._identity.key,
                height=self.head,
                body=(),
            )
            self._transport.broadcast(signing.seal(self._identity, envelop))
            await trio.sleep(HEAD_PERIOD_S * self._random.uniform(1 - JITTER, 1))

    async def _pursue_intent(self) -> None:
        """Ask the ledger for what the owner wants, one operation at a time, never while behind."""
        while True:
            with trio.move_on_after(INTENT_PERIOD_S):
                await self._intent_wakeup.wait()
            self._intent_wakeup = trio.Event()
            while self._unsaved_proofs:
                await trio.to_thread.run_sync(self._store.put_evidence, self._unsaved_proofs.popleft())
            if self.amnesia is not None:
                await self._try_to_remember(self.amnesia)
            async with self._deciding_intent:
                if self.is_behind or self.replica.pool.own() or self._inbox.holds_own_operation:
                    continue
                request, intent = wanted(
                    self.intent,
                    Applicant(
                        key=self._identity.key,
                        name=self._name,
                        nonce=self._join_nonce,
                        trains=self.can_train,
                        invitation=self.invitation,
                    ),
                    self.ledger,
                    [proof for key, proof in self._proofs.items() if not self.replica.pool.accuses(key)],
                )
                if intent != self.intent:
                    await self._keep_intent(intent)
            if request is not None:
                self.submit(request.kind, *request.arguments, evidence=request.evidence, invitation=request.invitation)

    async def _try_to_remember(self, amnesia: Amnesia) -> None:
        """Once enough verified heads are known, settle durably from which height on this member signs again."""
        ledger = self.ledger
        voting_from = amnesia.first_safe_height(ledger)
        if voting_from is None:
            return
        proposing_from = ledger.round + SAFE_ROUNDS
        raw = pack((voting_from, proposing_from))
        await trio.to_thread.run_sync(self._database.set_meta, AMNESIA_META, raw)
        self.replica.voting_from, self.proposing_from, self.amnesia = voting_from, proposing_from, None
        self._notice("warning", f"this store was lost: this member votes again from height {voting_from} on")

    # ---- decisions

    def _on_decided(self, decision: Decide) -> None:
        now = trio.current_time()
        began, self._height_began_s = self._height_began_s, None
        seconds = 0.0 if began is None else now - began
        if began is not None:
            self._decision_s.append(seconds)
        block, certificate = decision.block, decision.certificate
        delta_ms = self._pace.decided(certificate, 1000 * now)
        if delta_ms is not None:
            self._inbox.put(DeltaMeasured(delta_ms=delta_ms))
        self._crypto.forget_slots(decision.ledger.height + 1)
        self._applier.enqueue(
            DecidedBlock(block=block, block_id=certificate.block_id, before=decision.before, after=decision.ledger)
        )
        self._tell_banned(decision)
        training = block.body.training
        self._events.publish(
            BlockDecided(
                height=decision.ledger.height,
                view=certificate.view,
                block_id=certificate.block_id,
                operations=len(block.body.operations),
                training_round=None if training is None else training.round,
                seconds=seconds,
            )
        )
        self._intent_wakeup.set()
        self._observe_quorum()
        self._announce_change()

    def _tell_banned(self, decision: Decide) -> None:
        if decision.before.roster is decision.ledger.roster:
            return
        before = {member.key for member in decision.before.roster.members if member.status is MemberStatus.BANNED}
        for member in decision.ledger.roster.members:
            if member.status is MemberStatus.BANNED and member.key not in before:
                reason = decision.ledger.standings[member.index].reason
                self._notice("warning", f"{self._member_name(member.key)} is banned by the members: {reason}")
                self._on_banned(member.key)

    def _on_applied(self, applied: Applied) -> None:
        self._inbox.put(applied)
        if applied.height == self.head:
            # With short rounds, only now, before the next block is decided, is this node not behind: ask now.
            self._intent_wakeup.set()
        self._announce_change()

    def _on_diverged(self, diverged: Diverged) -> None:
        """Sign nothing, apply nothing, keep what developers need, and then take over a state of others."""
        self.replica.diverged = True
        self._applier.halt()
        self._notice(
            "error",
            f"the state of this node at height {diverged.height} is {short(diverged.own)}, the certified one is "
            f"{short(diverged.certified)}: it signs nothing any more",
        )
        if is_curable(diverged):
            self._nursery.start_soon(self._keep_divergence, diverged)

    async def _keep_divergence(self, diverged: Diverged) -> None:
        await self._divergence.keep(diverged, self._applier.ledger)
        self._takeover.look()

    # ---- the quorum

    async def _watch_quorum(self) -> None:
        while True:
            self._observe_quorum()
            await trio.sleep(self._upkeep.pause_s_min / QUORUM_CHECKS)

    def _observe_quorum(self) -> None:
        replica, watch = self.replica, self._quorum_watch
        spoken = any(replica.book.of(replica.key, kind, replica.view) for kind in MessageKind)
        changed = watch.observe(
            trio.current_time(),
            replica.roster,
            self._last_heard,
            outstanding=spoken,
            timeout_ms=self._timeout_ms,
        )
        if not changed:
            return
        self._application.pause(watch.is_paused)
        if watch.is_paused:
            names = ", ".join(self._member_name(key) for key in self.unheard())
            self._notice("warning", f"PAUSED: no quorum is heard; missing are {names}. Nothing is lost meanwhile")
        else:
            self._notice("info", "a quorum is heard again: this node goes on")
        self._announce_change()

    async def record_snapshot(self) -> None:
        """Store the model as it is now, so that a restart replays nothing (called at a clean stop)."""
        await self._applier.record_snapshot()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


__all__ = ["Agreement", "Driver", "Transport", "Wish"]

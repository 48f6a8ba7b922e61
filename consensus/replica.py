"""One member's state machine: ballots, SET, PREPARE, COMMIT, locks, views (consensus specification, section 4).

Theory of operation. A height is decided in views. Members send BALLOTs to everyone; the leader of the view turns a
quorum of them into a block (SET); members PREPARE it; a quorum of PREPAREs locks a member on the block and makes it
COMMIT; a quorum of COMMITs of any view decides. A view that gets nowhere ends in COMMITs for nil. A locked member
accepts another block only with a PrepareCert from its lock's view or later, and ballots carry the highest
certificate to the next leader, so a block that may have been decided is proposed again.

``handle`` first records the event, then applies every rule until none changes anything. What must survive a crash
leaves as Persist effects in the same list as the messages it precedes. Members that are not ACTIVE run the same
machine and sign nothing but observer ballots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from consensus.blocks import Judgement, ballot_is_well_formed, build_block, judge_block, ready_power
from consensus.catchup import CatchUp
from consensus.certificates import PrepareCerts
from consensus.events import (
    Accusation,
    Applied,
    BlockReceived,
    Decide,
    DecisionReceived,
    DeltaMeasured,
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
    Step,
    Timer,
    TimerFired,
    TimerKind,
)
from consensus.evidence import can_be_brought
from consensus.intake import is_admissible, may_be_kept
from consensus.membership import LedgerState, apply_block
from consensus.messages import (
    Ballot,
    BallotEntry,
    Block,
    Commit,
    CommitCert,
    Crypto,
    MessageKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    VoteT,
    block_binds,
    block_id,
    certificate_holds,
    observer_ballot,
    operation_holds,
)
from consensus.pacemaker import Pacemaker, Timing
from consensus.pool import OperationPool, operation_subject
from consensus.types import NIL, NO_VIEW, MemberStatus
from consensus.votebook import VoteBook
from consensus.watch import Watch

BLOCKS_KEPT = 16
"""Blocks of the running height: those of SETs, plus fetched ones that certificates name."""

FETCH_TARGETS = 3
"""Members that are asked first for a block that is not here; blocks are large, and most members have them."""
DECISION_SERVERS = 4
"""The members that come next to a stuck one on the roster send it the decision; if it repeats itself all the same, four
times as many, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a crash left on disk of the running height."""

    safety: Safety | None = None
    votes: Sequence[Vote] = ()
    blocks: Sequence[Block] = ()


class Replica:
    """The only mutable state of the protocol. ``handle`` never raises on an input."""

    def __init__(
        self,
        *,
        key: bytes,
        crypto: Crypto,
        timing: Timing,
        ledger: LedgerState,
        restored: Restored | None = None,
        voting_from: int | None = 1,
    ) -> None:
        """``voting_from`` is the first height in which this member signs anything: above 1 after it lost its memory of
        what it signed (section 5), None while it is not known yet."""
        self.key = key
        self.ledger = ledger
        self.opinion: Opinion | None = None
        self.pool = OperationPool()
        self.pacemaker = Pacemaker(timing)
        self.diverged = False
        self.voting_from = voting_from
        self.state_hash: bytes | None = None
        self._crypto = crypto
        self._catchup = CatchUp(key)
        self._effects: list[Effect] = []
        self._saved: Safety | None = None
        self._certified: dict[int, bytes] = {}
        self._previous = VoteBook(ledger.roster)
        self._previous_view = 0
        self._watch = self._previous_watch = Watch()
        self._early: dict[bytes, tuple[int, dict[MessageKind, Vote]]] = {}
        self._reset(ledger)
        if restored is not None:
            self._restore(restored)

    # ---- state of one height

    def _reset(self, ledger: LedgerState) -> None:
        self.ledger = ledger
        self.height = ledger.height + 1
        self.roster = ledger.roster
        self.book = VoteBook(self.roster)
        self.view = 0
        self.step = Step.PROPOSE
        self.locked_view, self.locked_id = NO_VIEW, NIL
        self.valid_view, self.valid_id = NO_VIEW, NIL
        self.valid_certificate: PrepareCert | None = None
        self.entry: tuple[Vote, ...] = ()
        self.blocks: dict[bytes, Block] = {}
        self._judged: dict[bytes, Judgement] = {}
        """Of the kept blocks those that were looked at."""
        self._certificates = PrepareCerts(self.height, self.roster, self._crypto, self._on_certificate)
        self._wanted: dict[bytes, tuple[tuple[bytes, ...], int]] = {}
        """Blocks to fetch: whom to ask, and how often somebody was asked."""
        self._stuck: dict[bytes, int] = {}
        self._timers: set[TimerKind] = set()
        self._fired: set[TimerKind] = set()
        self._answered: set[bytes] = set()
        self._watch = Watch()
        self._resend_armed = False

    def _restore(self, restored: Restored) -> None:
        safety = restored.safety
        if safety is not None and safety.height == self.height:
            self.view, self.step = safety.view, safety.step
            self.locked_view, self.locked_id = safety.locked_view, safety.locked_id
            self.valid_view, self.valid_id = safety.valid_view, safety.valid_id
            self.valid_certificate = safety.valid_certificate
            self.entry = safety.entry
            self._saved = safety
        for block in restored.blocks:
            if block.height == self.height:
                self._keep(block_id(self._crypto, block.header), block)
        for vote in restored.votes:
            if vote.height == self.height:
                self.book.add(vote, current_view=self.view)

    @property
    def safety(self) -> Safety:
        return Safety(
            height=self.height,
            view=self.view,
            step=self.step,
            locked_view=self.locked_view,
            locked_id=self.locked_id,
            valid_view=self.valid_view,
            valid_id=self.valid_id,
            valid_certificate=self.valid_certificate,
            entry=self.entry,
        )

    @property
    def is_behind(self) -> bool:
        """Whether F+1 power, so at least one honest member, claims to have decided this height already."""
        claimed = sum(self.roster.power(key) for key in self._catchup.ahead(self.height))
        return claimed >= self.roster.weak_quorum

    @property
    def is_mute(self) -> bool:
        """Whether this member must not sign: its state is not the certified one, or it may have signed before."""
        return self.diverged or self.voting_from is None or self.height < self.voting_from

    @property
    def is_member(self) -> bool:
        return self.roster.by_key(self.key) is not None

    @property
    def is_voter(self) -> bool:
        return self.roster.is_active(self.key) and not self.is_mute

    def statistics(self) -> dict[str, int]:
        """How many of each bounded thing are held."""
        return {
            "votes": len(self.book),
            "previous_votes": len(self._previous),
            "early_votes": sum(len(kept) for _view, kept in self._early.values()),
            "blocks": len(self.blocks),
            "certificates": len(self._certificates),
            "statements": len(self._watch) + len(self._previous_watch),
            "operations": len(self.pool),
        }

    # ---- events

    def start(self) -> list[Effect]:
        """Effects of (re)starting: send again what was signed, re-arm the timers."""
        self._effects = []
        if self.step is Step.PROPOSE and self.view > 0:
            self._start_propose_timers()
        for message in self._own_recent():
            self._effects.append(Send(message=message))
        self._arm_resend()
        self._advance()
        return self._taken()

    def handle(self, event: Input) -> list[Effect]:
        self._effects = []
        match event:
            case Received(message=message):
                if not self._on_message(message):
                    return self._taken()
            case TimerFired(timer=timer):
                self._on_timer(timer)
            case Applied(height=height, state_hash=state_hash):
                self._on_applied(height, state_hash)
            case Opinion(round=round_):
                if round_ >= self.ledger.round and (self.opinion is None or round_ >= self.opinion.round):
                    self.opinion = event
            case OperationReceived(operation=operation, own=own):
                is_bare = operation.evidence is None and operation.invitation is None
                holds = own or is_bare or operation_holds(self._crypto, operation)
                if holds and self.pool.add(operation, self.ledger, own=own):
                    subject = operation_subject(operation)
                    timer = Timer(kind=TimerKind.OPERATION, height=0, subject=subject)
                    self._effects.append(SetTimer(timer=timer, delay_ms=self.pacemaker.timing.operation_delay_ms))
                    if own:
                        self._effects.append(Send(message=operation))
                        self._arm_resend()
            case BlockReceived(block=block):
                self._on_block(block)
            case DecisionReceived(block=block, certificate=certificate):
                self._on_decision(block, certificate)
            case HeadAnnounced(peer=peer, height=height):
                if self._catchup.heard(peer, height, self.height, is_member=self.roster.by_key(peer) is not None):
                    self._arm_catchup(self.pacemaker.delta_ms)
            case DeltaMeasured(delta_ms=delta_ms):
                self.pacemaker.measured(delta_ms)
        self._advance()
        return self._taken()

    def _taken(self) -> list[Effect]:
        if not self._is_saved():
            safety = self.safety
            if (self.view, self.step, self.valid_view) != (0, Step.PROPOSE, NO_VIEW):
                self._effects.insert(0, PersistSafety(safety=safety))
            self._saved = safety
        effects, self._effects = self._effects, []
        return effects

    def _is_saved(self) -> bool:
        """Whether ``safety`` is what it was after the last event. Each of its other parts changes with one of these."""
        saved = self._saved
        return saved is not None and (
            saved.height == self.height
            and saved.view == self.view
            and saved.step is self.step
            and saved.locked_view == self.locked_view
            and saved.valid_view == self.valid_view
        )

    def _on_message(self, message: Vote) -> bool:
        """Whether it was recorded at the running height: if not, no rule can have anything new to say."""
        if self.roster.by_key(message.signer) is None:
            return False
        if message.height < self.height:
            self._on_late(message)
            return False
        if message.height > self.height:
            self._on_early(message)
            return False
        stored = self.book.of(message.signer, message.kind, message.view)
        recorded = False
        if stored is None:
            if not is_admissible(message, self.roster, self._crypto, self._proves):
                return False
            recorded, _conflict = self.book.add(message, current_view=self.view)
        self._compare(self._watch, message)
        if self.book.highest_view(message.signer) < self.view and self._may_help(message.signer):
            # Nothing of this view was heard of it: it may not know how far this height is.
            self._effects.extend(Send(message=proof, to=message.signer) for proof in self.entry)
        return recorded

    def _on_late(self, message: Vote) -> None:
        """A message of a decided height: if it is said twice, its sender is stuck there."""
        if message.height == self.height - 1 and can_be_brought(message, self.roster):
            self._compare(self._previous_watch, message)
            recorded, _conflict = self._previous.add(_without_attachment(message), current_view=self._previous_view)
            if recorded:
                return
        if self._may_help(message.signer):
            self._effects.append(ServeDecision(height=message.height, to=message.signer))

    def _may_help(self, signer: bytes) -> bool:
        """Whether it is this member's turn to help one that is stuck: at most once in delta, at first only its
        neighbours on the roster, and more of them each time."""
        if signer in self._answered or signer == self.key:
            return False
        self._answered.add(signer)
        self._arm_window()
        times = self._stuck[signer] = self._stuck.get(signer, 0) + 1
        reach: int = DECISION_SERVERS**times
        return self._distance_from(signer) <= reach

    def _distance_from(self, signer: bytes) -> int:
        """How many places after ``signer`` this member comes on the roster, which it thinks of as a circle."""
        return (self._index(self.key) - self._index(signer)) % len(self.roster.members) if self.is_member else 0

    def _compare(self, watch: Watch, *messages: Vote) -> None:
        """With what their signers said before, wherever that was read. All of them are verified."""
        for message in messages:
            heard = message.signer != self.key and can_be_brought(message, self.roster)
            proof = watch.heard(message) if heard else None
            if proof is not None:
                self._effects.append(Accusation(evidence=proof))

    def _on_early(self, message: Vote) -> None:
        if self._catchup.heard(message.signer, message.height - 1, self.height, is_member=True):
            self._arm_catchup(self.pacemaker.delta_ms)
        if message.height != self.height + 1 or not may_be_kept(message, self.roster, self._crypto):
            return
        view, kept = self._early.get(message.signer, (-1, {}))
        if message.view > view:
            self._early[message.signer] = (message.view, {message.kind: message})
        elif message.view == view:
            kept.setdefault(message.kind, message)

    def _proves(self, certificate: PrepareCert | None, view: int, block: bytes) -> bool:
        return self._certificates.proves(certificate, view, block, above=self.valid_view)

    def _on_certificate(self, certificate: PrepareCert) -> None:
        self._compare(self._watch, *certificate.messages(self.roster) or ())

    def _on_applied(self, height: int, state_hash: bytes) -> None:
        certified = self._certified.pop(height, None)
        if certified is not None and certified != state_hash:
            self._diverge(height, state_hash, certified)
        if height == self.ledger.height:
            self.state_hash = state_hash

    def _diverge(self, height: int, own: bytes, certified: bytes) -> None:
        if not self.diverged:
            self._effects.append(Diverged(height=height, own=own, certified=certified))
        self.diverged = True

    def _on_block(self, block: Block) -> None:
        name = block_id(self._crypto, block.header)
        if name in self._wanted and block.height == self.height and block_binds(self._crypto, block, name):
            self._store(name, block)

    def _on_decision(self, block: Block, certificate: CommitCert) -> None:
        if block.height != self.height or certificate.height != self.height:
            return
        if not block_binds(self._crypto, block, certificate.block_id):
            return
        if not certificate_holds(self._crypto, certificate, self.roster):
            return
        self._compare(self._watch, *certificate.messages(self.roster) or ())
        self._catchup.served()
        if self._decide(block, certificate) and self._catchup.ahead(self.height):
            self._arm_catchup(1)

    # ---- timers

    def _start_timer(self, kind: TimerKind, delay_ms: int) -> None:
        """A timer of the present view, once."""
        if kind not in self._timers:
            self._timers.add(kind)
            timer = Timer(kind=kind, height=self.height, view=self.view)
            self._effects.append(SetTimer(timer=timer, delay_ms=delay_ms))

    def _start_propose_timers(self) -> None:
        """TP, and within its first half the leader's patience."""
        self._start_timer(TimerKind.PROPOSE, self.pacemaker.timeout_ms(self.view))
        if self._leads():
            self._start_timer(TimerKind.LEADER_HARD, self.pacemaker.leader_hard_ms(self.view))

    def _arm_resend(self) -> None:
        if not self._resend_armed and (self._own_recent() or self.pool.own()):
            self._resend_armed = True
            timer = Timer(kind=TimerKind.RESEND, height=0)
            self._effects.append(SetTimer(timer=timer, delay_ms=self.pacemaker.next_resend_ms(), jitter=True))

    def _arm_window(self) -> None:
        timer = Timer(kind=TimerKind.ENTRY, height=0)
        if len(self._answered) == 1:
            self._effects.append(SetTimer(timer=timer, delay_ms=self.pacemaker.delta_ms))

    def _arm_catchup(self, delay_ms: int) -> None:
        self._effects.append(SetTimer(timer=Timer(kind=TimerKind.CATCHUP, height=0), delay_ms=delay_ms))

    def _on_timer(self, timer: Timer) -> None:
        match timer.kind:
            case TimerKind.OPERATION:
                self.pool.ripen(timer.subject)
            case TimerKind.RESEND:
                self._resend_armed = False
                messages: list[Vote] = self._own_recent()
                self._effects.extend(Send(message=message) for message in messages)
                self._effects.extend(Send(message=operation) for operation in self.pool.own())
                self._arm_resend()
            case TimerKind.ENTRY:
                self._answered.clear()
            case TimerKind.CATCHUP:
                target = self._catchup.next_target(self.height)
                if target is not None:
                    self._effects.append(RequestDecisions(height=self.height, target=target))
                    self._arm_catchup(self._catchup.retry_ms(self.pacemaker.delta_ms))
            case TimerKind.FETCH:
                for name in self._wanted:
                    self._fetch(name)
                if self._wanted:
                    self._arm_fetch()
            case _:
                if (timer.height, timer.view) == (self.height, self.view):
                    self._fired.add(timer.kind)

    def _own_recent(self) -> list[Vote]:
        """Own messages of the current and the previous view, in slot order."""
        found = []
        for view in (self.view - 1, self.view):
            for kind in (MessageKind.BALLOT, MessageKind.SET, MessageKind.PREPARE, MessageKind.COMMIT):
                message = self.book.of(self.key, kind, view)
                if message is not None:
                    found.append(message)
        return found

    # ---- rules

    def _advance(self) -> None:
        """Apply every rule until none changes anything. Each True is progress, so this ends."""
        while (
            self._try_decide()
            or self._try_jump()
            or self._try_learn()
            or self._try_ballot()
            or self._try_propose()
            or self._try_accept()
            or self._try_propose_timeout()
            or self._try_lock()
            or self._try_give_up()
            or self._try_next_view()
        ):
            pass

    def _cast(self, message: VoteT) -> VoteT:
        """Sign, keep as received, persist and send to everyone."""
        signed = self._crypto.sign(message)
        self.book.add(signed, current_view=self.view)
        self._effects.append(PersistVote(message=signed))
        self._effects.append(Send(message=signed))
        self._arm_resend()
        return signed

    def _try_decide(self) -> bool:
        for view in self.book.quorate(MessageKind.COMMIT):
            commits = self.book.commits(view)
            for name in sorted({commit.block_id for commit in commits} - {NIL}):
                group = [commit for commit in commits if commit.block_id == name]
                if self.book.power(group) < self.roster.quorum:
                    continue
                block = self.blocks.get(name)
                if block is None:
                    self._want(name, tuple(commit.signer for commit in group))
                    continue
                votes = tuple((self._index(commit.signer), commit.signature) for commit in group)
                if self._decide(block, CommitCert(height=self.height, view=view, block_id=name, votes=votes)):
                    return True
        return False

    def _decide(self, block: Block, certificate: CommitCert) -> bool:
        """False if the block does not apply: then more than F are faulty, and this node must not follow them."""
        before = self.ledger
        judged = self._judged.get(certificate.block_id)
        after = None if judged is None else judged.after
        if after is None:
            after = apply_block(before, block, block_id=certificate.block_id)
        if after is None:
            self._diverge(before.height, self.state_hash or b"", block.header.state_hash)
            return False
        prepares = self._certificates.behind(certificate, self._group, self.valid_certificate)
        self._effects.append(
            Decide(block=block, certificate=certificate, before=before, ledger=after, prepares=prepares)
        )
        if self.state_hash is None:
            self._certified[before.height] = block.header.state_hash
        elif self.state_hash != block.header.state_hash:
            self._diverge(before.height, self.state_hash, block.header.state_hash)
        self.state_hash = None
        self._previous, self._previous_view, self._previous_watch = self.book, self.view, self._watch
        early, self._early = self._early, {}
        self._reset(after)
        self.pool.settle(after)
        self._effects.extend(Send(message=operation) for operation in self.pool.passed_over(after))
        self.pacemaker.progressed()
        self._catchup.progressed()
        for _view, kept in early.values():
            for message in kept.values():
                self._on_message(message)
        return True

    def _try_jump(self) -> bool:
        target = self.book.jump_target(self.view)
        if target is None:
            return False
        self._enter(*target)
        return True

    def _enter(self, view: int, proof: tuple[Vote, ...]) -> None:
        self.view = view
        self.step = Step.PROPOSE
        self.entry = proof
        self._timers.clear()
        self._fired.clear()
        self.book.forget_before(view)
        self.pacemaker.progressed()
        self._start_propose_timers()
        self._resend_armed = False
        self._arm_resend()

    def _try_learn(self) -> bool:
        """Any verified PrepareCert of a view up to ours that is higher than valid* becomes valid*."""
        best = self._certificates.highest(self.valid_view, self.view)
        for view in self.book.quorate(MessageKind.PREPARE):
            if self.valid_view < view <= self.view and (best is None or view > best.view):
                best = self._group(view) or best
        if best is None:
            return False
        self.valid_view, self.valid_id, self.valid_certificate = best.view, best.block_id, best
        self._certificates.learnt(best)
        if best.block_id not in self.blocks:
            self._want(best.block_id, self._signers(best))
        return True

    def _group(self, view: int) -> PrepareCert | None:
        """The PrepareCert that the PREPAREs of ``view`` make, if they make one."""
        if self.book.power_in(MessageKind.PREPARE, view) < self.roster.quorum:
            return None
        prepares = self.book.prepares(view)
        for name, valid_view in sorted({(p.block_id, p.valid_view) for p in prepares if p.block_id != NIL}):
            group = [p for p in prepares if (p.block_id, p.valid_view) == (name, valid_view)]
            if self.book.power(group) >= self.roster.quorum:
                votes = tuple((self._index(p.signer), p.signature) for p in group)
                return PrepareCert(height=self.height, view=view, block_id=name, valid_view=valid_view, votes=votes)
        return None

    def _signers(self, certificate: PrepareCert) -> tuple[bytes, ...]:
        return tuple(self.roster.members[index].key for index, _signature in certificate.votes)

    def _index(self, key: bytes) -> int:
        member = self.roster.by_key(key)
        assert member is not None
        return member.index

    def _try_ballot(self) -> bool:
        member = self.roster.by_key(self.key)
        if member is None or self.state_hash is None or self.is_mute or self.step is not Step.PROPOSE:
            return False
        if self.book.of(self.key, MessageKind.BALLOT, self.view) is not None:
            return False
        if member.status in (MemberStatus.PROBATION, MemberStatus.SUSPENDED):
            self._cast(
                observer_ballot(
                    height=self.height,
                    view=self.view,
                    state_hash=self.state_hash,
                    round_=self.ledger.round,
                    signer=self.key,
                )
            )
            return True
        if not self.is_voter or not (self.view > 0 or self._has_reason_to_ballot()):
            return False
        if self.valid_view == self.view:
            return False  # a quorum has prepared this view's block already: it needs no ballots any more
        opinion = self.opinion if self.opinion is not None and self.opinion.round == self.ledger.round else None
        ballot = Ballot(
            height=self.height,
            view=self.view,
            state_hash=self.state_hash,
            valid_view=self.valid_view,
            valid_id=self.valid_id,
            round=self.ledger.round,
            ready=self._is_ready,
            entries=() if opinion is None else self._still_judged(opinion),
            signer=self.key,
            certificate=self.valid_certificate,
        )
        assert ballot_is_well_formed(ballot, self.roster), "the own opinion is well-formed"
        self._cast(ballot)
        return True

    def _still_judged(self, opinion: Opinion) -> tuple[BallotEntry, ...]:
        """Without authors that were suspended since the round began."""
        return tuple(entry for entry in opinion.entries if entry.author_index in self.roster.authors)

    @property
    def _is_ready(self) -> bool:
        """For a decision on the running round. Without contributors nobody is, whatever was said while there were some:
        members would decide empty blocks without end."""
        opinion = self.opinion
        if opinion is None or opinion.round != self.ledger.round or not opinion.ready:
            return False
        return bool(self.ledger.contributors())

    def _has_reason_to_ballot(self) -> bool:
        """Ready, or an operation has waited, or F+1 power asks for an unready decision."""
        if self._is_ready:
            return True
        if self.pool.has_ripe(self.ledger):
            return True
        if self.book.power_in(MessageKind.BALLOT, 0) < self.roster.weak_quorum:
            return False
        unready = [ballot for ballot in self.book.ballots(0) if not ballot.ready]
        return self.book.power(unready) >= self.roster.weak_quorum

    def _try_propose(self) -> bool:
        if self.view == 0 and self.step is Step.PROPOSE and self.book.power_heard() >= self.roster.quorum:
            # Not of ballots alone: a member that accepted the SET before its own ballot sends none, and if its leader
            # showed the SET to nobody else, the others would wait for that ballot for ever.
            self._start_timer(TimerKind.PROPOSE, self.pacemaker.timeout_ms(0))
        if not self.is_voter or self.state_hash is None or self.step is not Step.PROPOSE:
            return False
        if not self._leads() or self.book.set_message(self.key, self.view) is not None:
            return False
        if self.book.power_in(MessageKind.BALLOT, self.view) < self.roster.quorum:
            return False
        ballots = [ballot for ballot in self.book.ballots(self.view) if self.roster.is_active(ballot.signer)]
        usable = [b for b in ballots if (b.state_hash, b.round) == (self.state_hash, self.ledger.round)]
        if not self._leader_waited_enough(usable):
            return False
        return self._propose(usable)

    def _leads(self) -> bool:
        return self.roster.leader(self.height, self.view).key == self.key

    def _leader_waited_enough(self, ballots: list[Ballot]) -> bool:
        power = self.book.power(ballots)
        if power < self.roster.quorum:
            return False
        if len(ballots) == len(self.roster.active):
            return True
        ready = ready_power(ballots, self.roster)
        self._start_timer(TimerKind.LEADER_HARD, self.pacemaker.leader_hard_ms(self.view))
        enough = ready >= self.roster.quorum or power - ready > self.roster.faulty_power
        if enough:
            self._start_timer(TimerKind.LEADER_SOFT, self.pacemaker.leader_soft_ms())
        return TimerKind.LEADER_HARD in self._fired or (enough and TimerKind.LEADER_SOFT in self._fired)

    def _propose(self, ballots: list[Ballot]) -> bool:
        """False if the ballots held so far make too large a block: others may make a smaller one."""
        if self.valid_certificate is not None:
            # Every certificate that a ballot of this view carries has been learnt already, so valid* is the highest.
            self._cast(
                SetMessage(
                    height=self.height,
                    view=self.view,
                    valid_view=self.valid_view,
                    block_id=self.valid_id,
                    signer=self.key,
                    certificate=self.valid_certificate,
                )
            )
            return True
        assert self.state_hash is not None
        observers = [
            ballot
            for ballot in self.book.ballots(self.view)
            if not self.roster.is_active(ballot.signer)
            and (ballot.state_hash, ballot.round) == (self.state_hash, self.ledger.round)
        ]
        block = build_block(
            ledger=self.ledger,
            crypto=self._crypto,
            view=self.view,
            state_hash=self.state_hash,
            ballots=ballots,
            observers=observers,
            operations=self.pool,
        )
        if block is None:
            return False
        name = block_id(self._crypto, block.header)
        self._cast(
            SetMessage(
                height=self.height, view=self.view, valid_view=NO_VIEW, block_id=name, signer=self.key, block=block
            )
        )
        return True

    def _try_accept(self) -> bool:
        if self.step is not Step.PROPOSE:
            return False
        proposed = self.book.set_message(self.roster.leader(self.height, self.view).key, self.view)
        if proposed is None:
            return False
        if proposed.valid_view == NO_VIEW:
            if self.state_hash is None:
                return False
            assert proposed.block is not None
            self._store(proposed.block_id, proposed.block)
            accepted = (
                self.locked_view == NO_VIEW
                and proposed.block.header.origin_view == self.view
                and self._is_valid(proposed.block_id)
            )
        else:
            if proposed.block_id not in self.blocks:
                assert proposed.certificate is not None
                self._want(proposed.block_id, (proposed.signer, *self._signers(proposed.certificate)))
                return False
            accepted = self.locked_view <= proposed.valid_view and self._is_valid(proposed.block_id)
        if accepted:
            self._prepare(proposed.block_id, proposed.valid_view)
        else:
            self._prepare(NIL, NO_VIEW)
        return True

    def _is_valid(self, name: bytes) -> bool:
        """Valid at its origin view, on this node's state where that is known already."""
        block = self.blocks[name]
        judged = self._judged.get(name)
        if judged is None:
            judged = judge_block(block, block_id=name, ledger=self.ledger, crypto=self._crypto)
            self._judged[name] = judged
            self._compare(self._watch, *judged.ballots)
        return judged.refusal is None and self.state_hash in (None, block.header.state_hash)

    def _prepare(self, name: bytes, valid_view: int) -> None:
        self.step = Step.PREPARE
        if self.is_voter:
            self._cast(
                Prepare(height=self.height, view=self.view, block_id=name, valid_view=valid_view, signer=self.key)
            )

    def _commit(self, name: bytes) -> None:
        self.step = Step.COMMIT
        if self.is_voter:
            self._cast(Commit(height=self.height, view=self.view, block_id=name, signer=self.key))

    def _try_propose_timeout(self) -> bool:
        if self.step is not Step.PROPOSE or TimerKind.PROPOSE not in self._fired:
            return False
        self._prepare(NIL, NO_VIEW)
        return True

    def _try_lock(self) -> bool:
        if self.step is not Step.PREPARE:
            return False
        certificate = self._group(self.view)
        if certificate is None or certificate.block_id not in self.blocks:
            return False
        self.locked_view, self.locked_id = self.view, certificate.block_id
        self._commit(certificate.block_id)
        return True

    def _try_give_up(self) -> bool:
        """PREPAREs that agree on nil, or for too long on nothing, end in COMMIT(nil). Nil never unlocks."""
        if self.step is not Step.PREPARE:
            return False
        if self.book.power_in(MessageKind.PREPARE, self.view) >= self.roster.quorum:
            prepares = self.book.prepares(self.view)
            if self.book.power([p for p in prepares if p.block_id == NIL]) >= self.roster.quorum:
                self._commit(NIL)
                return True
            if self._group(self.view) is None:
                self._start_timer(TimerKind.PREPARE, self.pacemaker.timeout_ms(self.view))
        if TimerKind.PREPARE in self._fired:
            self._commit(NIL)
            return True
        return False

    def _try_next_view(self) -> bool:
        if self.book.power_in(MessageKind.COMMIT, self.view) < self.roster.quorum:
            return False
        commits = self.book.commits(self.view)
        nil = [commit for commit in commits if commit.block_id == NIL]
        if self.book.power(nil) >= self.roster.quorum:
            self._enter(self.view + 1, tuple(nil))
            return True
        # A quorum for one block would have decided, or waits for its body: then the fetch goes on in any view.
        self._start_timer(TimerKind.COMMIT, self.pacemaker.timeout_ms(self.view))
        if TimerKind.COMMIT in self._fired:
            self._enter(self.view + 1, tuple(commits))
            return True
        return False

    # ---- blocks

    def _store(self, name: bytes, block: Block) -> None:
        self._wanted.pop(name, None)
        if name not in self.blocks:
            self._keep(name, block)
            self._effects.append(PersistBlock(block_id=name, block=block))

    def _keep(self, name: bytes, block: Block) -> None:
        """The oldest block gives way, but not the one that is valid or locked: it would be fetched again."""
        if len(self.blocks) >= BLOCKS_KEPT:
            spare = next(n for n in self.blocks if n not in (self.valid_id, self.locked_id))
            del self.blocks[spare]
            self._judged.pop(spare, None)
        self.blocks[name] = block

    def _want(self, name: bytes, targets: tuple[bytes, ...]) -> None:
        """Fetch a block, from a few of ``targets`` at first: each member begins elsewhere among them."""
        if name in self.blocks or name in self._wanted:
            return
        others = tuple(dict.fromkeys(target for target in targets if target != self.key))
        start = self._index(self.key) % len(others) if others and self.is_member else 0
        self._wanted[name] = (*others[start:], *others[:start]), 0
        self._fetch(name)
        self._arm_fetch()

    def _fetch(self, name: bytes) -> None:
        """Ask the next ones in turn, each time as many as so far, so that soon everybody was asked."""
        targets, asked = self._wanted[name]
        count = min(len(targets), max(FETCH_TARGETS, asked))
        start = asked % max(1, len(targets))
        self._wanted[name] = targets, asked + count
        chosen = (*targets, *targets)[start : start + count]
        self._effects.append(Fetch(height=self.height, block_id=name, targets=chosen))

    def _arm_fetch(self) -> None:
        timer = Timer(kind=TimerKind.FETCH, height=0)
        self._effects.append(SetTimer(timer=timer, delay_ms=self.pacemaker.delta_ms))

    def block(self, name: bytes) -> Block | None:
        """For a peer that fetches: a block of the running height."""
        return self.blocks.get(name)


def _without_attachment(message: Vote) -> Vote:
    """For books that only remember who said what."""
    if isinstance(message, SetMessage):
        return replace(message, block=None, certificate=None)
    return replace(message, certificate=None) if isinstance(message, Ballot) else message


__all__ = ["Replica", "Restored"]

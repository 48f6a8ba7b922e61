"""Several replicas on benches of their own, and liars who know everything: each delivery, timer and crash is a choice.

Where a ``Cluster`` draws what happens from one seed, here somebody else decides it step by step: a generator of
examples, or a script that leads to one known danger. Members are ``Playbook``s, so the replica, the disk and the
signing are those of all other tests. After every step the invariants of the consensus specification, section 9, are
checked against all that honest members ever signed, not only against what happened to be seen: two votes that could
make two certificates are a violation before anybody adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.member import Violation
from aicpnode.simulation.playbook import Playbook, founders
from consensus.blocks import build_block
from consensus.events import (
    Accusation,
    BlockReceived,
    Decide,
    DecisionReceived,
    Diverged,
    Effect,
    Fetch,
    Input,
    OperationReceived,
    Received,
    RequestDecisions,
    Safety,
    Send,
    ServeDecision,
    SetTimer,
    Timer,
    TimerFired,
)
from consensus.evidence import refuse_evidence
from consensus.messages import (
    Ballot,
    Block,
    Commit,
    Operation,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_id,
    certificate_holds,
)
from consensus.types import NIL, NO_VIEW

MAIL_KEPT = 200
"""Waiting at one seat: the oldest are lost, as a network may lose them."""
HEARD_KEPT = 2_000
SETTLING_EVENTS_MAX = 400

_VoteT = TypeVar("_VoteT", Ballot, SetMessage, Prepare, Commit)


class Council:
    """Members by join index; those in ``liars`` have no replica, and say what the caller makes them say."""

    def __init__(self, count: int = 4, *, liars: Sequence[int] = (3,)) -> None:
        ledger = founders(count, until_round=1 << 40)
        self.liars = tuple(liars)
        self.seats = {index: Playbook(ledger, me=index) for index in range(count) if index not in liars}
        self.mail: dict[int, list[Input]] = {index: [] for index in self.seats}
        self.timers: dict[int, dict[Timer, None]] = {index: {} for index in self.seats}
        self.unapplied: dict[int, list[int]] = {index: [] for index in self.seats}
        self.heard: list[Vote] = []
        """By liars: whatever an honest member sent, to whomever."""
        self.blocks: dict[bytes, Block] = {}
        self.decided: dict[int, bytes] = {}
        self._signed: dict[tuple[int, int, int, int], Vote] = {}
        self._prepares: dict[int, list[Prepare]] = {}
        self._commits: dict[int, list[Commit]] = {}
        self._records: dict[int, Safety] = {}
        self._power = {index: ledger.roster.power(simulated_key(index)) for index in range(count)}
        self._quorum = ledger.roster.quorum
        for index, table in self.seats.items():
            self._carry_out(index, list(table.log))

    # ---- what can happen to a member

    def hear(self, index: int, event: Input) -> None:
        """``event`` reaches a member, which does all that follows from it."""
        self._carry_out(index, self.seats[index].handle(event))

    def say(self, message: Vote, *to: int) -> None:
        """A liar's message, or a replay of anybody's, waits at the doors of ``to`` (default: everybody's)."""
        for index in to or self.seats:
            self._post(index, Received(message=message))

    def deliver(self, index: int, place: int = 0) -> None:
        """One message that waits at the door, or nothing if none does."""
        if self.mail[index]:
            self.hear(index, self.mail[index].pop(place % len(self.mail[index])))

    def deliver_where(self, index: int, *messages: Vote) -> None:
        """Of what waits at the door, exactly these, in this order."""
        for message in messages:
            self.mail[index].remove(Received(message=message))
            self.hear(index, Received(message=message))

    def settle(self, *indices: int) -> None:
        """Deliver and apply everything among ``indices`` (default: all) until nothing waits. No timer fires."""
        chosen = indices or tuple(self.seats)
        for _ in range(SETTLING_EVENTS_MAX):
            busy = [index for index in chosen if self.mail[index] or self.unapplied[index]]
            if not busy:
                return
            for index in busy:
                self.apply(index)
                self.deliver(index)

    def apply(self, index: int) -> None:
        if self.unapplied[index]:
            height = self.unapplied[index].pop(0)
            self._carry_out(index, self.seats[index].apply(height))

    def fire(self, index: int, place: int) -> None:
        """One of the timers that are running, or nothing if none is."""
        if running := list(self.timers[index]):
            self.fire_timer(index, running[place % len(running)])

    def fire_timer(self, index: int, timer: Timer) -> None:
        self.timers[index].pop(timer, None)
        self.hear(index, TimerFired(timer=timer))

    def crash(self, index: int, *, losing: Input | None = None) -> None:
        """Back from the disk; what ``losing`` would have led to is neither written nor sent."""
        table = self.seats[index]
        if losing is not None:
            table.replica.handle(losing)
        table.votes = [vote for vote in table.votes if vote.height >= table.height]
        table.blocks = [block for block in table.blocks if block.height >= table.height]
        table.crypto.restart(table.votes)
        self.timers[index].clear()
        self._carry_out(index, table.restart())
        self.unapplied[index] = [table.ledger.height]

    # ---- what liars can make of what they heard

    def signed(self, message: _VoteT) -> _VoteT:
        """By a liar, who signs anything in its own name."""
        assert message.signer in map(simulated_key, self.liars), "nobody can sign for honest members"
        return self.seats[min(self.seats)].signed(message)

    def certificates(self, height: int) -> list[PrepareCert]:
        """Every PrepareCert that PREPAREs of honest members and the liars' help can make, lowest view first."""
        groups: dict[tuple[int, bytes, int], dict[int, bytes]] = {}
        for vote in self._prepares.get(height, ()):
            if vote.block_id != NIL:
                group = groups.setdefault((vote.view, vote.block_id, vote.valid_view), {})
                group[self._index(vote.signer)] = vote.signature
        made = []
        for (view, name, valid_view), signatures in sorted(groups.items()):
            for liar in self.liars:
                own = Prepare(
                    height=height, view=view, block_id=name, valid_view=valid_view, signer=simulated_key(liar)
                )
                signatures[liar] = self.signed(own).signature
            if sum(self._power[index] for index in signatures) >= self._quorum:
                votes = tuple(sorted(signatures.items()))
                made.append(PrepareCert(height=height, view=view, block_id=name, valid_view=valid_view, votes=votes))
        return made

    def forged_block(self, view: int, ballots: Iterable[Ballot]) -> Block | None:
        """A fresh block as a lying leader makes it, of real ballots: None if they are no quorum."""
        table = next(iter(sorted(self.seats.items(), key=lambda item: -item[1].height)))[1]
        chosen = {ballot.signer: ballot for ballot in ballots}
        if sum(table.ledger.roster.power(signer) for signer in chosen) < self._quorum:
            return None
        block = build_block(
            ledger=table.ledger,
            crypto=table.crypto,
            view=view,
            state_hash=table.state_hash(table.ledger.height),
            ballots=[chosen[key] for key in sorted(chosen, key=self._index)],
            observers=[],
            operations=(),
        )
        if block is not None:
            self.blocks[block_id(table.crypto, block.header)] = block
        return block

    # ---- effects

    def _post(self, index: int, event: Input) -> None:
        self.mail[index].append(event)
        del self.mail[index][:-MAIL_KEPT]

    def _carry_out(self, index: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message=message, to=to):
                    self._send(index, message, to)
                case SetTimer(timer=timer):
                    self.timers[index][timer] = None
                case Fetch(height=height, block_id=name, targets=targets):
                    self._fetch(index, height, name, targets)
                case RequestDecisions(height=height, target=target):
                    self._serve(self._index(target), index, height)
                case ServeDecision(height=height, to=to):
                    self._serve(index, self._index(to), height)
                case Decide():
                    self._check_decision(effect)
                    self.unapplied[index].append(effect.ledger.height)
                case Accusation(evidence=proof):
                    if self._index(proof.accused) not in self.liars:
                        raise Violation(f"invariant 9: honest member {self._index(proof.accused)} is accused")
                    if refusal := refuse_evidence(proof):
                        raise Violation(f"invariant 9: evidence that proves nothing: {refusal}")
                case Diverged():
                    raise Violation(f"member {index} of one state diverged: {effect}")
        self._check_state(index)

    def _send(self, index: int, message: Vote | Operation, to: bytes | None) -> None:
        others = [other for other in self.seats if other != index and to in (None, simulated_key(other))]
        if isinstance(message, Operation):
            for other in others:
                self._post(other, OperationReceived(operation=message))
            return
        if message.signer == simulated_key(index):
            self._check_vote(index, message)
        if isinstance(message, SetMessage) and message.block is not None:
            self.blocks[message.block_id] = message.block
        self.heard.append(message)
        del self.heard[:-HEARD_KEPT]
        for other in others:
            self._post(other, Received(message=message))

    def _fetch(self, index: int, height: int, name: bytes, targets: tuple[bytes, ...]) -> None:
        for target in targets:
            donor = self.seats.get(self._index(target))
            block = donor.replica.block(name) if donor is not None else None
            if donor is not None and height <= len(donor.decisions):
                block = donor.decisions[height - 1].block
            if block is not None:
                self._post(index, BlockReceived(block=block))

    def _serve(self, donor: int, asker: int, height: int) -> None:
        if donor in self.seats and asker in self.seats:
            for decided in self.seats[donor].decisions[height - 1 : height]:
                self._post(asker, DecisionReceived(block=decided.block, certificate=decided.certificate))

    def _index(self, key: bytes) -> int:
        member = self.seats[min(self.seats)].genesis.roster.by_key(key)
        assert member is not None
        return member.index

    # ---- invariants

    def _check_vote(self, index: int, vote: Vote) -> None:
        """Invariants 2, 3 and the votes' half of 9, at the moment a vote leaves."""
        table = self.seats[index]
        if vote.height >= table.height and vote not in table.votes:
            raise Violation(f"invariant 3: {vote.kind.name} of member {index} left before it was durable")
        slot = (index, int(vote.kind), vote.height, vote.view)
        if slot in self._signed:
            if self._signed[slot] != vote:
                raise Violation(f"invariant 3: member {index} signed two contents in slot {slot}")
            return  # said again
        self._signed[slot] = vote
        if isinstance(vote, Prepare):
            self._check_lock(index, vote)
            self._prepares.setdefault(vote.height, []).append(vote)
        elif isinstance(vote, Commit):
            self._commits.setdefault(vote.height, []).append(vote)
        self._check_certificates(vote.height)

    def _check_lock(self, index: int, vote: Prepare) -> None:
        """What amnesia evidence would say of this PREPARE: an honest member never gives cause for it."""
        for commit in self._commits.get(vote.height, ()):
            own = commit.signer == vote.signer and commit.block_id != NIL and commit.view < vote.view
            if own and vote.block_id != NIL and vote.valid_view < commit.view:
                raise Violation(
                    f"invariant 9: member {index} committed in view {commit.view} and prepared in view {vote.view} "
                    f"with a certificate of view {vote.valid_view}"
                )

    def _check_certificates(self, height: int) -> None:
        """Invariant 2, by what the liars could add to honest votes."""
        prepared = self._possible(self._prepares.get(height, ()))
        committed = self._possible(self._commits.get(height, ()))
        for view, name in prepared:
            if any(other != name for at, other in prepared if at == view):
                raise Violation(f"invariant 2: two PrepareCerts are possible at ({height}, {view})")
            for at, final in committed:
                if at < view and final != name:
                    raise Violation(
                        f"invariant 2: a PrepareCert for another block is possible in view {view} after a decision in "
                        f"view {at} of height {height}"
                    )
        if len({name for _view, name in committed}) > 1:
            raise Violation(f"invariant 1: two decisions are possible at height {height}")

    def _possible(self, votes: Iterable[Prepare | Commit]) -> set[tuple[int, bytes]]:
        """(view, block) of votes that have power of Q if all liars join in."""
        power: dict[tuple[int, bytes, int], int] = {}
        for vote in votes:
            if vote.block_id != NIL:
                group = (vote.view, vote.block_id, vote.valid_view if isinstance(vote, Prepare) else NO_VIEW)
                power[group] = power.get(group, 0) + self._power[self._index(vote.signer)]
        help_of_liars = sum(self._power[liar] for liar in self.liars)
        return {(view, name) for (view, name, _vr), own in power.items() if own + help_of_liars >= self._quorum}

    def _check_decision(self, decision: Decide) -> None:
        """Invariants 1 and 5."""
        height, name = decision.ledger.height, decision.certificate.block_id
        if self.decided.setdefault(height, name) != name:
            raise Violation(f"invariant 1: two blocks at height {height}")
        crypto = self.seats[min(self.seats)].crypto
        if not certificate_holds(crypto, decision.certificate, decision.before.roster):
            raise Violation(f"invariant 5: the certificate of height {height} does not hold")

    def _check_state(self, index: int) -> None:
        """Invariants 4, 5 and 7: in memory, and of what is on the disk."""
        table = self.seats[index]
        replica, record = table.replica, table.safety
        if not NO_VIEW <= replica.locked_view <= replica.valid_view <= replica.view:
            raise Violation(f"invariant 4: locked {replica.locked_view} valid {replica.valid_view} at {replica.view}")
        if [decided.ledger.height for decided in table.decisions] != list(range(1, len(table.decisions) + 1)):
            raise Violation(f"invariant 7: member {index} has gaps")
        if record is None:
            return
        before = self._records.get(index)
        self._records[index] = record
        if before is not None and before.height == record.height:
            fell = record.locked_view < before.locked_view or record.valid_view < before.valid_view
            if fell or record.view < before.view:
                raise Violation(f"invariant 4: {record} on disk after {before}")
        certificate = record.valid_certificate
        if certificate is None or record.height != table.height:
            return
        if not certificate_holds(table.crypto, certificate, table.ledger.roster):
            raise Violation(f"invariant 5: the PrepareCert of view {certificate.view} does not hold")


__all__ = ["Council", "Violation"]

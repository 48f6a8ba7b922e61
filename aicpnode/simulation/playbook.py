"""One replica on a bench: events in, effects out, with the other members' messages made to order.

For playbook tests. The bench holds every member's (simulated) key, so that it can say anything in anybody's name,
honest or not. What the replica persists is kept as a disk would, so that ``restart`` is a crash at that point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from aicpnode.simulation.crypto import SimulatedCrypto, signature_of, simulated_key
from consensus.blocks import build_block
from consensus.events import (
    Applied,
    Decide,
    Effect,
    Input,
    Opinion,
    PersistBlock,
    PersistSafety,
    PersistVote,
    Received,
    Safety,
    Send,
    Timer,
    TimerFired,
    TimerKind,
)
from consensus.membership import LedgerRules, LedgerState, genesis_state
from consensus.messages import (
    Ballot,
    BallotEntry,
    Block,
    Commit,
    CommitCert,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    Vote,
    block_id,
)
from consensus.pacemaker import Timing
from consensus.replica import Replica, Restored
from consensus.types import NIL, NO_VIEW, MemberStatus, Roster

RULES = LedgerRules(probation_rounds=2, members_max=64)
NETWORK_ID = hashlib.sha256(b"simulated network").digest()

_Message = TypeVar("_Message", Ballot, SetMessage, Prepare, Commit, Operation)
_EffectT = TypeVar("_EffectT")


def founders(
    count: int,
    *,
    powers: Sequence[int] | None = None,
    observers: int = 0,
    round_: int = 0,
    until_round: int = 0,
    rules: LedgerRules = RULES,
) -> LedgerState:
    """The genesis of ``count`` ACTIVE members, followed by ``observers`` on probation; all of the former contribute
    below ``until_round``."""
    state = genesis_state(
        (
            (simulated_key(index), powers[index] if powers and index < count else 1, f"node-{index}")
            for index in range(count + observers)
        ),
        NETWORK_ID,
        rules,
    )
    members = tuple(
        replace(member, status=MemberStatus.PROBATION, power=0) if member.index >= count else member
        for member in state.roster.members
    )
    standings = tuple(
        replace(standing, until_round=until_round, since_round=round_) if until_round and index < count else standing
        for index, standing in enumerate(state.standings)
    )
    roster = Roster(epoch=state.roster.epoch, members=members)
    return replace(state, roster=roster, standings=standings, round=round_)


def of_kind(effects: Iterable[Effect], kind: type[_EffectT]) -> list[_EffectT]:
    return [effect for effect in effects if isinstance(effect, kind)]


def said(effects: Iterable[Effect], kind: type[_Message], *, to: bytes | None = None) -> list[_Message]:
    """Messages of one kind that were sent to everybody (or to one member)."""
    sends = of_kind(effects, Send)
    return [send.message for send in sends if isinstance(send.message, kind) and send.to == to]


class Playbook:
    """A replica for member ``me`` of ``ledger``. The leader of (h, v) is member (h + v) mod n."""

    def __init__(
        self,
        ledger: LedgerState | None = None,
        *,
        me: int = 0,
        timing: Timing | None = None,
        applied: bool = True,
        voting_from: int | None = 1,
    ) -> None:
        self.genesis = ledger or founders(4)
        self.ledger = self.genesis
        self.me = me
        self.key = simulated_key(me)
        self.timing = timing or Timing()
        self.crypto = SimulatedCrypto(self.key, NETWORK_ID)
        self.voting_from = voting_from
        self.safety: Safety | None = None
        self.votes: list[Vote] = []
        self.blocks: list[Block] = []
        self.decisions: list[Decide] = []
        self.replica = self._replica(Restored())
        self.log: list[Effect] = []
        self.keep(self.replica.start())
        if applied:
            self.apply()

    def _replica(self, restored: Restored) -> Replica:
        return Replica(
            key=self.key,
            crypto=self.crypto,
            timing=self.timing,
            ledger=self.ledger,
            restored=restored,
            voting_from=self.voting_from,
        )

    # ---- events in, effects out

    def handle(self, event: Input) -> list[Effect]:
        return self.keep(self.replica.handle(event))

    def keep(self, effects: list[Effect]) -> list[Effect]:
        """What is durable goes to the bench's disk."""
        self.log += effects
        for effect in effects:
            match effect:
                case PersistVote(message=message):
                    self.votes.append(message)
                case PersistSafety(safety=safety):
                    self.safety = safety
                case PersistBlock(block=block):
                    self.blocks.append(block)
                case Decide(ledger=ledger):
                    self.decisions.append(effect)
                    self.ledger = ledger
        return effects

    def restart(self) -> list[Effect]:
        """Crash, and come back with what is on the disk; the slot table of the signer is durable too."""
        restored = Restored(safety=self.safety, votes=list(self.votes), blocks=list(self.blocks))
        self.replica = self._replica(restored)
        return self.keep(self.replica.start())

    def hear(self, *messages: Vote) -> list[Effect]:
        effects: list[Effect] = []
        for message in messages:
            effects += self.handle(Received(message=message))
        return effects

    def apply(self, height: int | None = None) -> list[Effect]:
        """The application reaches the state after the present ledger (or ``height``)."""
        at = self.ledger.height if height is None else height
        return self.handle(Applied(height=at, state_hash=self.state_hash(at)))

    def fire(self, kind: TimerKind, *, subject: bytes = b"") -> list[Effect]:
        """A timer of the present view, or one that belongs to no view."""
        of_view = kind <= TimerKind.LEADER_HARD
        height, view = (self.replica.height, self.replica.view) if of_view else (0, 0)
        return self.handle(TimerFired(timer=Timer(kind=kind, height=height, view=view, subject=subject)))

    def opine(self, *entries: BallotEntry, ready: bool = True, round_: int | None = None) -> list[Effect]:
        at = self.ledger.round if round_ is None else round_
        return self.handle(Opinion(round=at, ready=ready, entries=entries))

    # ---- messages to order

    @property
    def height(self) -> int:
        return self.ledger.height + 1

    def state_hash(self, height: int) -> bytes:
        return hashlib.sha256(b"state after %d" % height).digest()

    def leader(self, view: int) -> int:
        return self.ledger.roster.leader(self.height, view).index

    def signed(self, message: _Message) -> _Message:
        return replace(message, signature=signature_of(message, NETWORK_ID))

    def ballot(
        self,
        signer: int,
        view: int = 0,
        *,
        ready: bool = False,
        entries: Sequence[BallotEntry] = (),
        certificate: PrepareCert | None = None,
        state_hash: bytes | None = None,
        round_: int | None = None,
        height: int | None = None,
    ) -> Ballot:
        at = self.height if height is None else height
        ballot = Ballot(
            height=at,
            view=view,
            state_hash=self.state_hash(at - 1) if state_hash is None else state_hash,
            valid_view=NO_VIEW if certificate is None else certificate.view,
            valid_id=NIL if certificate is None else certificate.block_id,
            round=self.ledger.round if round_ is None else round_,
            ready=ready,
            entries=tuple(entries),
            signer=simulated_key(signer),
            certificate=certificate,
        )
        return self.signed(ballot)

    def block(
        self,
        view: int = 0,
        *,
        voters: Iterable[int] = (0, 1, 2),
        observers: Iterable[int] = (),
        ready: bool = False,
        entries: Sequence[BallotEntry] = (),
        operations: Iterable[Operation] = (),
        state_hash: bytes | None = None,
    ) -> Block:
        """A valid fresh block of ``view`` from the ballots of ``voters``."""
        state = self.state_hash(self.ledger.height) if state_hash is None else state_hash
        block = build_block(
            ledger=self.ledger,
            crypto=self.crypto,
            view=view,
            state_hash=state,
            ballots=[self.ballot(i, view, ready=ready, entries=entries, state_hash=state) for i in voters],
            observers=[self.ballot(i, view, state_hash=state) for i in observers],
            operations=operations,
        )
        assert block is not None
        return block

    def name(self, block: Block) -> bytes:
        return block_id(self.crypto, block.header)

    def fresh(self, block: Block, view: int = 0, *, signer: int | None = None) -> SetMessage:
        """SET with vr = -1, by the leader of ``view`` unless somebody else is named."""
        return self.signed(
            SetMessage(
                height=block.height,
                view=view,
                valid_view=NO_VIEW,
                block_id=self.name(block),
                signer=simulated_key(self.leader(view) if signer is None else signer),
                block=block,
            )
        )

    def again(self, certificate: PrepareCert, view: int, *, signer: int | None = None) -> SetMessage:
        """SET with vr >= 0."""
        return self.signed(
            SetMessage(
                height=certificate.height,
                view=view,
                valid_view=certificate.view,
                block_id=certificate.block_id,
                signer=simulated_key(self.leader(view) if signer is None else signer),
                certificate=certificate,
            )
        )

    def prepare(self, signer: int, view: int, name: bytes, valid_view: int = NO_VIEW) -> Prepare:
        return self.signed(
            Prepare(height=self.height, view=view, block_id=name, valid_view=valid_view, signer=simulated_key(signer))
        )

    def commit(self, signer: int, view: int, name: bytes) -> Commit:
        return self.signed(Commit(height=self.height, view=view, block_id=name, signer=simulated_key(signer)))

    def prepare_certificate(
        self, view: int, name: bytes, *, voters: Iterable[int] = (1, 2, 3), valid_view: int = NO_VIEW
    ) -> PrepareCert:
        votes = tuple((i, self.prepare(i, view, name, valid_view).signature) for i in voters)
        return PrepareCert(height=self.height, view=view, block_id=name, valid_view=valid_view, votes=votes)

    def commit_certificate(self, view: int, name: bytes, *, voters: Iterable[int] = (1, 2, 3)) -> CommitCert:
        votes = tuple((i, self.commit(i, view, name).signature) for i in voters)
        return CommitCert(height=self.height, view=view, block_id=name, votes=votes)

    def operation(
        self, signer: int, kind: OperationKind, *arguments: int | bytes | str, sequence: int = 1
    ) -> Operation:
        return self.signed(Operation(kind=kind, signer=simulated_key(signer), sequence=sequence, arguments=arguments))

    # ---- whole passages

    def reach_view(self, view: int) -> list[Effect]:
        """Others' nil COMMITs lead this member from view to view."""
        effects: list[Effect] = []
        for at in range(self.replica.view, view):
            others = [i for i in range(len(self.ledger.roster.active)) if i != self.me]
            effects += self.hear(*(self.commit(i, at, NIL) for i in others))
        return effects

    def lock(self, block: Block, view: int = 0) -> list[Effect]:
        """This member accepts ``block`` in ``view`` (0), and prepares and locks it with two others of four."""
        name = self.name(block)
        effects = self.hear(self.fresh(block, view))
        others = [i for i in range(len(self.ledger.roster.active)) if i != self.me]
        return effects + self.hear(*(self.prepare(i, view, name) for i in others))

    def decide(self, block: Block, view: int = 0, *, apply: bool = True) -> list[Effect]:
        effects = self.lock(block, view)
        others = [i for i in range(len(self.ledger.roster.active)) if i != self.me]
        commits = [self.commit(i, view, self.name(block)) for i in others]
        effects += self.hear(*commits)
        return effects + self.apply() if apply else effects

"""What the replica waits for, in words: whose message, of which phase, and what happens next. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aicpnode.envelop.kinds import COUNTER_MAX
from aicpnode.replication.recovery import Amnesia
from consensus.events import Step
from consensus.membership import may_join_again, refuse_admission, refuse_operation
from consensus.messages import Invitation, MessageKind, Operation, OperationKind
from consensus.replica import Replica
from consensus.types import MemberStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing this node waits for. ``who`` are member names; ``since_s`` is None where nobody counted."""

    what: str
    who: tuple[str, ...] = ()
    since_s: float | None = None
    next: str = ""

    def to_json(self) -> dict[str, object]:
        return {"what": self.what, "who": list(self.who), "since_s": self.since_s, "next": self.next}


def tolerance(replica: Replica) -> str:
    """How many failures the present roster tolerates."""
    roster = replica.roster
    count, faulty = len(roster.active), roster.faulty_power
    members = "1 member" if count == 1 else f"{count} members"
    verb = "tolerates" if count == 1 else "tolerate"
    if faulty == 0:
        return f"{members} {verb} no failure: every one of them is needed"
    return f"{members} {verb} {faulty} faulty or missing"


def replica_waits(replica: Replica, name_of: Callable[[bytes], str]) -> list[Wait]:
    """The waits of the running height; empty while there is nothing to decide."""
    if replica.diverged:
        text = f"nothing: the state of this node at height {replica.height - 1} is not the certified one"
        return [Wait(what=text, next="it signs nothing until it has taken over the certified state of others")]
    if replica.voting_from is None or replica.height < replica.voting_from:
        until = "the heads of a quorum of others" if replica.voting_from is None else f"height {replica.voting_from}"
        text = f"{until}: the store of this member was lost, so it must not sign what it may have signed already"
        if replica.voting_from is None and Amnesia(replica.key).is_hopeless(replica.ledger):
            hopeless = "never: without this member the others are no quorum, so it cannot come back under this key"
            return [Wait(what=text, next=hopeless)]
        return [Wait(what=text, next="it follows and votes again from there on")]
    if replica.is_behind:
        return [Wait(what=f"decided blocks from height {replica.height} on", next="peers that are ahead are asked")]
    if replica.state_hash is None:
        return [Wait(what=f"the state after height {replica.height - 1}", next="it is being applied")]
    return _missing_votes(replica, name_of)


def _missing_votes(replica: Replica, name_of: Callable[[bytes], str]) -> list[Wait]:
    roster, book, view = replica.roster, replica.book, replica.view
    kinds = {Step.PROPOSE: MessageKind.BALLOT, Step.PREPARE: MessageKind.PREPARE, Step.COMMIT: MessageKind.COMMIT}
    kind = kinds[replica.step]
    said = [member for member in roster.active if book.of(member.key, kind, view) is not None]
    if replica.step is Step.PROPOSE and not said:
        return []
    power = sum(roster.power(member.key) for member in said)
    where = f"height {replica.height} view {view}"
    if power >= roster.quorum:
        leader = roster.leader(replica.height, view)
        if replica.step is Step.PROPOSE:
            return [
                Wait(
                    what=f"{where}: the SET of its leader",
                    who=(name_of(leader.key),),
                    next="without it the next view begins after the timeout",
                )
            ]
        return [Wait(what=f"{where}: {kind.name}s that agree", next="the next view begins after the timeout")]
    missing = tuple(name_of(member.key) for member in roster.active if member not in said)
    return [
        Wait(
            what=f"{where}: {kind.name}s, {power} of {roster.quorum} power are here",
            who=missing,
            next="nothing is decided until enough of them answer; locks are kept and messages sent again",
        )
    ]


def probation_wait(replica: Replica, key: bytes, invitation: Invitation | None = None) -> Wait | None:
    """What a newcomer or a member on probation still lacks."""
    needed = replica.ledger.rules.probation_rounds
    member = replica.roster.by_key(key)
    if member is not None and member.status is MemberStatus.BANNED:
        reason = replica.ledger.standings[member.index].reason
        return Wait(what=f"nothing: the members have banned this node: {reason}", next="this key never votes again")
    if member is None or may_join_again(member):
        if refusal := refuse_admission(replica.ledger, key, invitation):
            rule = replica.ledger.rules.admission.name.lower()
            return Wait(what=f"admission, which is by {rule}: {refusal}", next="ask a member: aicp-node invite KEY")
        join = Operation(kind=OperationKind.JOIN, signer=key, sequence=COUNTER_MAX, arguments=(bytes(16), ""))
        refusal = refuse_operation(replica.ledger, join)
        if refusal is not None:
            return Wait(what=f"a place among the members: {refusal}", next="this node asks again until there is one")
        return Wait(what="the JOIN of this node to be decided", next="the members vote on it")
    if member.status is not MemberStatus.PROBATION:
        return None
    standing = replica.ledger.standings[member.index]
    if standing.probation_blocks >= needed:
        text = "promotion: from four members on, at most max(1, F) power is promoted in 100 rounds"
        return Wait(what=text, next="the next block after that promotes this node")
    return Wait(
        what=f"the end of probation: {standing.probation_seen} of {needed} blocks seen",
        next="this node gets a vote once it stood among the observers of at least half of them",
    )

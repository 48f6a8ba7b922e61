"""What this node wants of the ledger, and the operations that bring it about. Pure.

The owner's wish is one of four: follow the run (contribute while others do who decided so themselves), on, off, or
leave, which also keeps a former member from joining again.
A follower remembers whom it followed and stops when all of those have stopped, so that one ``stop`` ends what one
``train`` began, while nobody is stopped who wanted to train on its own account. Whoever still contributes at that
moment may be a follower too, about to stop: it is followed again only once it has been seen to stop. Otherwise
followers would take turns in following each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from aicpnode.envelop.codec import COUNTER_MAX, Value, pack, unpack
from consensus.evidence import Evidence
from consensus.membership import LedgerState, may_join_again, refuse_admission, refuse_operation
from consensus.messages import Invitation, Operation, OperationKind
from consensus.operations import PRESENT_AFTER_ROUNDS
from consensus.types import Member, MemberStatus

WITHOUT_END = (1 << 62) - 1
"""``until_round`` of a contribution without a last round."""


class Wish(IntEnum):
    OFF = 0
    ON = 1
    FOLLOW = 2
    LEAVE = 3
    """To be no member at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The owner's wish, durable. ``followed`` are the keys of the members that a follower switched on after, ``left``
    those of the ones that contributed when it stopped, as long as they have not stopped since."""

    wish: Wish
    until_round: int = WITHOUT_END
    followed: tuple[bytes, ...] = ()
    left: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        return pack((int(self.wish), self.until_round, self.followed, self.left))

    @classmethod
    def decode(cls, raw: bytes) -> Intent:
        value = unpack(raw)
        assert isinstance(value, tuple) and len(value) == 4, "this node wrote its own intent"
        wish, until_round, followed, left = value
        assert isinstance(wish, int) and isinstance(until_round, int)
        return cls(wish=Wish(wish), until_round=until_round, followed=_keys(followed), left=_keys(left))


def _keys(value: Value) -> tuple[bytes, ...]:
    assert isinstance(value, tuple), "this node wrote its own intent"
    return tuple(key for key in value if isinstance(key, bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An operation to sign and submit."""

    kind: OperationKind
    arguments: tuple[int | bytes | str, ...] = ()
    evidence: Evidence | None = None
    invitation: Invitation | None = None


def contribution_wanted(intent: Intent, key: bytes, ledger: LedgerState) -> tuple[int, Intent]:
    """(the ``until_round`` that this node wants in the ledger, its intent from now on)."""
    if intent.wish in (Wish.OFF, Wish.LEAVE):
        return 0, intent
    if intent.wish is Wish.ON:
        return intent.until_round if intent.until_round > ledger.round else 0, intent
    others = {member.key for member in ledger.contributors()} - {key}
    if intent.followed:
        still = tuple(other for other in intent.followed if other in others)
        if not still:
            return 0, Intent(wish=Wish.FOLLOW, left=tuple(sorted(others)))
        return _latest_end(still, ledger), intent
    left = tuple(other for other in intent.left if other in others)
    followed = tuple(sorted(others.difference(left)))
    if ledger.contributes(key) or not followed:
        return 0, Intent(wish=Wish.FOLLOW, left=left)
    return _latest_end(followed, ledger), Intent(wish=Wish.FOLLOW, followed=followed)


def _latest_end(keys: tuple[bytes, ...], ledger: LedgerState) -> int:
    standings = [ledger.standing(key) for key in keys]
    return max(standing.until_round for standing in standings if standing is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """What a node brings along when it asks for anything. ``nonce`` and ``name`` stand in its JOIN; ``trains`` is
    whether it can train, None while it is still getting ready, which changes nothing in the ledger."""

    key: bytes
    name: str
    nonce: bytes
    trains: bool | None
    invitation: Invitation | None = None


def wanted(
    intent: Intent, me: Applicant, ledger: LedgerState, accusations: Iterable[Evidence] = ()
) -> tuple[Request | None, Intent]:
    """The next operation that brings the ledger nearer to the wish (None: it is there), and the intent from now on.

    ``accusations`` are proofs that this node holds and nobody has brought forward yet.
    """
    member = ledger.roster.by_key(me.key)
    if intent.wish is Wish.LEAVE:
        return _wanted_to_leave(member, ledger), intent
    if member is None or may_join_again(member):
        if refuse_admission(ledger, me.key, me.invitation) is not None:
            return None, intent
        request = Request(kind=OperationKind.JOIN, arguments=(me.nonce, me.name), invitation=me.invitation)
        return request, intent
    standing = ledger.standings[member.index]
    if member.status is MemberStatus.SUSPENDED:
        if not standing.is_returning:
            return Request(kind=OperationKind.REJOIN), intent
        return _presence(ledger), intent
    if member.status is MemberStatus.BANNED:
        return None, intent
    for proof in accusations:
        accusation = Operation(kind=OperationKind.EVIDENCE, signer=me.key, sequence=COUNTER_MAX, evidence=proof)
        if refuse_operation(ledger, accusation) is None:
            return Request(kind=OperationKind.EVIDENCE, evidence=proof), intent
    until_round = now = standing.until_round if ledger.contributes(me.key) else 0
    if me.trains is not None and not ledger.is_stopped:
        until_round, intent = contribution_wanted(intent, me.key, ledger) if me.trains else (0, intent)
    if until_round != now:
        return Request(kind=OperationKind.CONTRIBUTE, arguments=(until_round,)), intent
    if member.status is MemberStatus.PROBATION:
        return _presence(ledger), intent
    if ledger.round - standing.seen_round >= PRESENT_AFTER_ROUNDS:
        return Request(kind=OperationKind.PRESENT, arguments=(ledger.height,)), intent
    return None, intent


def _presence(ledger: LedgerState) -> Request | None:
    """While nobody trains no block would ever show that this member follows: its presence asks for one."""
    if ledger.contributors():
        return None
    return Request(kind=OperationKind.PRESENT, arguments=(ledger.height,))


def _wanted_to_leave(member: Member | None, ledger: LedgerState) -> Request | None:
    if member is None or may_join_again(member) or member.status is MemberStatus.BANNED:
        return None
    alone = ledger.roster.power(member.key) == ledger.roster.total_power
    return None if alone else Request(kind=OperationKind.LEAVE)

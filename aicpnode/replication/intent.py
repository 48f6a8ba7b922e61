"""What this node wants of the ledger, and the operations that bring it about. Pure.

The owner's wish is one of three: follow the run (contribute while others do who decided so themselves), on, or off.
A follower remembers whom it followed and stops when all of those have stopped, so that one ``stop`` ends what one
``train`` began, while nobody is stopped who wanted to train on its own account. Whoever still contributes at that
moment may be a follower too, about to stop: it is followed again only once it has been seen to stop. Otherwise
followers would take turns in following each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aicpnode.envelop.codec import Value, pack, unpack
from consensus.membership import LedgerState, may_join_again
from consensus.messages import OperationKind
from consensus.types import MemberStatus

WITHOUT_END = (1 << 62) - 1
"""``until_round`` of a contribution without a last round."""


class Wish(IntEnum):
    OFF = 0
    ON = 1
    FOLLOW = 2


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
    arguments: tuple[int | bytes | str, ...]


def contribution_wanted(intent: Intent, key: bytes, ledger: LedgerState) -> tuple[int, Intent]:
    """(the ``until_round`` that this node wants in the ledger, its intent from now on)."""
    if intent.wish is Wish.OFF:
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


def wanted(
    intent: Intent, *, key: bytes, name: str, nonce: bytes, ledger: LedgerState, trains: bool | None
) -> tuple[Request | None, Intent]:
    """The next operation that brings the ledger nearer to the wish (None: it is there), and the intent from now on.

    ``trains``: whether this node can train; None while it is still getting ready, which changes nothing in the ledger.
    """
    member = ledger.roster.by_key(key)
    if member is None or may_join_again(member):
        return Request(kind=OperationKind.JOIN, arguments=(nonce, name)), intent
    if member.status not in (MemberStatus.ACTIVE, MemberStatus.PROBATION):
        return None, intent
    standing = ledger.standings[member.index]
    until_round = now = standing.until_round if ledger.contributes(key) else 0
    if trains is not None:
        until_round, intent = contribution_wanted(intent, key, ledger) if trains else (0, intent)
    if until_round != now:
        return Request(kind=OperationKind.CONTRIBUTE, arguments=(until_round,)), intent
    if member.status is MemberStatus.PROBATION and not ledger.contributors():
        # Nobody trains, so no block would ever show that this member follows: its presence asks for one.
        return Request(kind=OperationKind.PRESENT, arguments=(ledger.height,)), intent
    return None, intent

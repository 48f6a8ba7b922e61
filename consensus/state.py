"""The ledger's state: roster, standings, rules, endorsements. Values only; how blocks change them: ``membership``.

Nothing here depends on the model, so every replica knows the roster of the next height the moment a block is decided,
whether or not it has applied the block's training yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from consensus.messages import Change
from consensus.types import Member, MemberStatus, Roster, max_faulty

EXPECTED_WINDOW_ROUNDS = 8
"""A contributor is waited for while it was included, or switched on, within so many training rounds."""
NEVER = -1


class Admission(IntEnum):
    """Who may JOIN."""

    OPEN = 0
    """Anybody who reaches a member."""
    INVITE = 1
    """Whom an ACTIVE member has signed an invitation for."""
    ALLOWLIST = 2
    """Whom the genesis names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRules:
    """The run's parameters that the ledger itself needs: from the genesis, some of them changed by endorsements."""

    probation_rounds: int
    members_max: int
    admission: Admission = Admission.OPEN
    round_ms: int = 0
    """How long a training round takes."""
    allowlist: frozenset[bytes] = frozenset()

    def content(self) -> tuple[object, ...]:
        """What can change. The allowlist cannot: the network id binds it."""
        return (self.probation_rounds, self.members_max, int(self.admission), self.round_ms)


class Suspension(IntEnum):
    """Why a SUSPENDED member is."""

    NONE = 0
    ABSENT = 1
    STRIKES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the log says of one member besides its place on the roster."""

    sequence: int = 0
    """Of its last operation in the ledger."""
    until_round: int = 0
    """It contributes to rounds below this one (0: it does not)."""
    since_round: int = NEVER
    """The round in which it last switched on."""
    included_round: int = NEVER
    """The last round in which a proposal of it was included."""
    probation_blocks: int = 0
    """Blocks that counted while it was on probation, or asked to come back."""
    probation_seen: int = 0
    """Those of them that showed it among their observers."""
    seen_round: int = 0
    """The last round in which a block held a ballot or a PRESENT of it."""
    strikes: tuple[int, ...] = ()
    """The rounds in which a quorum refused its proposal, as far as they still count."""
    suspension: Suspension = Suspension.NONE
    is_returning: bool = False
    """Whether a suspended member has asked to come back."""
    reason: str = ""
    """Why it is banned."""

    def content(self) -> tuple[object, ...]:
        return (
            self.sequence,
            self.until_round,
            self.since_round,
            self.included_round,
            self.probation_blocks,
            self.probation_seen,
            self.seen_round,
            self.strikes,
            int(self.suspension),
            self.is_returning,
            self.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """State after the block of ``height`` (0: the genesis). ``standings`` runs parallel to ``roster.members``."""

    height: int
    block_id: bytes
    rules: LedgerRules
    roster: Roster
    round: int
    last_round_empty: bool
    standings: tuple[Standing, ...]
    promotions: tuple[tuple[int, int], ...] = ()
    """(round, power) of promotions within the promotion window."""
    is_stopped: bool = False
    """Whether the members stopped training for the whole run."""
    endorsements: tuple[tuple[Change, int], ...] = ()
    """(change, member index) of changes that have not taken effect, oldest first."""
    departed: int = 0
    """Power that left or was suspended in the block being applied; 0 between blocks."""

    def standing(self, key: bytes) -> Standing | None:
        member = self.roster.by_key(key)
        return None if member is None else self.standings[member.index]

    def contributes(self, key: bytes) -> bool:
        member = self.roster.by_key(key)
        if member is None or self.is_stopped or not is_following(member):
            return False
        return self.round < self.standings[member.index].until_round

    def contributors(self) -> tuple[Member, ...]:
        """Voting members that contribute: while there are none, nobody trains.

        Members on probation may propose to rounds, but a stranger must not keep everybody's rounds going.
        """
        return tuple(member for member in self.roster.active if self.contributes(member.key))

    def expected(self) -> tuple[Member, ...]:
        """``expected(r)``: contributors who were included, or switched on, within the last 8 rounds."""
        result = []
        for member in self.contributors():
            standing = self.standings[member.index]
            if self.round - max(standing.since_round, standing.included_round) <= EXPECTED_WINDOW_ROUNDS:
                result.append(member)
        return tuple(result)

    def endorsers(self, change: Change) -> tuple[Member, ...]:
        """ACTIVE members that have endorsed ``change``."""
        indices = {index for endorsed, index in self.endorsements if endorsed == change}
        return tuple(member for member in self.roster.active if member.index in indices)

    def with_member(self, member: Member) -> LedgerState:
        """With ``member`` at its index: another roster, so another epoch."""
        members = (*self.roster.members[: member.index], member, *self.roster.members[member.index + 1 :])
        return replace(self, roster=Roster(epoch=self.roster.epoch + 1, members=members))

    def with_standing(self, index: int, standing: Standing) -> LedgerState:
        return replace(self, standings=(*self.standings[:index], standing, *self.standings[index + 1 :]))

    def may_depart(self, power: int) -> bool:
        """Whether so much power may still leave in this block: at most max(1, F) a block, and never all of it."""
        total = self.roster.total_power
        limit = max(1, max_faulty(total + self.departed))
        return power == 0 or (power < total and (self.departed == 0 or self.departed + power <= limit))

    def content(self) -> tuple[object, ...]:
        """Enters the state hash, so that replicas that derived another ledger find out at the next block."""
        return (
            self.height,
            self.block_id,
            self.rules.content(),
            self.roster.content(),
            self.round,
            self.last_round_empty,
            tuple(standing.content() for standing in self.standings),
            self.promotions,
            self.is_stopped,
            tuple((change.content(), index) for change, index in self.endorsements),
        )


def is_following(member: Member) -> bool:
    """Whether it has a place in rounds: ACTIVE or on probation."""
    return member.status in (MemberStatus.ACTIVE, MemberStatus.PROBATION)


def may_join_again(member: Member) -> bool:
    """A member that failed its probation or left: it has no power any more, and asks again like a newcomer."""
    return member.status is MemberStatus.SUSPENDED and member.power == 0


def genesis_state(founders: Iterable[tuple[bytes, int, str]], network_id: bytes, rules: LedgerRules) -> LedgerState:
    """The state at height 0: all founders ACTIVE, nobody contributing."""
    members = tuple(
        Member(index=index, key=key, power=power, status=MemberStatus.ACTIVE, name=name)
        for index, (key, power, name) in enumerate(founders)
    )
    return LedgerState(
        height=0,
        block_id=network_id,
        rules=rules,
        roster=Roster(epoch=0, members=members),
        round=0,
        last_round_empty=False,
        standings=tuple(Standing() for _ in members),
    )

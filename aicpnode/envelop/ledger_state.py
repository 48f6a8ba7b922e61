"""Rosters, ledger states and certified headers as bytes, and back, strictly.

A ledger state is encoded as exactly the content that its hash covers (``LedgerState.content``), and what the network
id binds is taken from the genesis: nothing that a donor sends is believed without being hashed. Decoding reads the
values and then encodes the result again: bytes that do not come back the same are refused, which checks every type and
every field at once. So a field that is added to the state and forgotten here shows in the first round trip.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar, cast

from aicpnode.envelop.codec import Packable, Value, pack, unpack
from aicpnode.envelop.kinds import (
    decode_commit_certificate,
    decode_header,
    encode_commit_certificate,
    encode_header,
)
from aicpnode.errors import MalformedError
from consensus.headers import CertifiedHeader
from consensus.messages import Change, ChangeKind
from consensus.state import Admission, LedgerRules, LedgerState, Standing, Suspension
from consensus.types import HASH_BYTES, KEY_BYTES, MEMBER_NAME_CHARS_MAX, Member, MemberStatus, Roster

NOMINAL_POWER_MAX = 1 << 32
"""As in the genesis; what counts is clamped."""
ROSTER_BYTES_MAX = 512 << 10
"""A thousand entries of at most 300 bytes, and as much again."""
LEDGER_STATE_BYTES_MAX = 1 << 20
HEADERS_PER_REPLY_MAX = 512

_ContentT = TypeVar("_ContentT", Roster, LedgerState)
_EnumT = TypeVar("_EnumT", bound=IntEnum)


def encode_roster(roster: Roster) -> bytes:
    return pack(cast(Packable, roster.content()))


def decode_roster(data: bytes) -> Roster:
    """The roster with these bytes. MalformedError if there is none."""
    return _same(_read_roster(unpack(data, max_bytes=ROSTER_BYTES_MAX)), data)


def encode_ledger_state(state: LedgerState) -> bytes:
    """What the state hash covers of it, in canonical form."""
    return pack(cast(Packable, state.content()))


def decode_ledger_state(data: bytes, *, genesis: LedgerState) -> LedgerState:
    """The state with these bytes, in the run of ``genesis``. MalformedError if there is none."""
    match unpack(data, max_bytes=LEDGER_STATE_BYTES_MAX):
        case (
            height,
            bytes(block_id),
            rules,
            roster,
            round_,
            bool(last_round_empty),
            tuple(standings),
            tuple(promotions),
            bool(is_stopped),
            tuple(endorsements),
        ) if len(block_id) == HASH_BYTES:
            members = _read_roster(roster)
            if len(standings) != len(members.members):
                raise MalformedError("a ledger state: one standing belongs to each member")
            state = LedgerState(
                height=_natural(height),
                block_id=block_id,
                rules=_read_rules(rules, genesis.rules),
                roster=members,
                round=_natural(round_),
                last_round_empty=last_round_empty,
                standings=tuple(_read_standing(standing) for standing in standings),
                promotions=tuple(_read_pair(item) for item in promotions),
                is_stopped=is_stopped,
                endorsements=tuple(_read_endorsement(item, len(standings)) for item in endorsements),
            )
            return _same(state, data)
    raise MalformedError("a ledger state: other fields were expected")


def _read_rules(value: Value, genesis: LedgerRules) -> LedgerRules:
    match value:
        case (probation_rounds, members_max, admission, round_ms):
            return LedgerRules(
                probation_rounds=_natural(probation_rounds),
                members_max=_natural(members_max),
                admission=_one_of(Admission, admission),
                round_ms=_natural(round_ms),
                allowlist=genesis.allowlist,
            )
    raise MalformedError("the rules have other fields")


def _read_roster(value: Value) -> Roster:
    match value:
        case (epoch, tuple(entries)) if entries:
            members = tuple(_read_member(index, entry) for index, entry in enumerate(entries))
            if len({member.key for member in members}) == len(members):
                return Roster(epoch=_natural(epoch), members=members)
    raise MalformedError("a roster is its epoch and members with different keys")


def _read_member(index: int, value: Value) -> Member:
    match value:
        case (place, bytes(key), power, status, str(name)):
            sound = _natural(place) == index and len(key) == KEY_BYTES and _natural(power) <= NOMINAL_POWER_MAX
            if sound and len(name) <= MEMBER_NAME_CHARS_MAX:
                return Member(
                    index=index, key=key, power=_natural(power), status=_one_of(MemberStatus, status), name=name
                )
    raise MalformedError("a roster's member is index, key, power, status and name")


def _read_standing(value: Value) -> Standing:
    match value:
        case (
            sequence,
            until_round,
            since_round,
            included_round,
            probation_blocks,
            probation_seen,
            seen_round,
            tuple(strikes),
            suspension,
            bool(is_returning),
            str(reason),
        ):
            return Standing(
                sequence=_natural(sequence),
                until_round=_natural(until_round),
                since_round=_integer(since_round),
                included_round=_integer(included_round),
                probation_blocks=_natural(probation_blocks),
                probation_seen=_natural(probation_seen),
                seen_round=_natural(seen_round),
                strikes=tuple(_natural(strike) for strike in strikes),
                suspension=_one_of(Suspension, suspension),
                is_returning=is_returning,
                reason=reason,
            )
    raise MalformedError("a standing has other fields")


def _read_endorsement(value: Value, members: int) -> tuple[Change, int]:
    match value:
        case ((kind, bytes(key), number, str(text)), index) if _natural(index) < members:
            change = Change(kind=_one_of(ChangeKind, kind), key=key, number=_integer(number), text=text)
            return change, _natural(index)
    raise MalformedError("an endorsement is a change and a member's index")


def _read_pair(value: Value) -> tuple[int, int]:
    match value:
        case (first, second):
            return _natural(first), _natural(second)
    raise MalformedError("a pair of integers was expected")


def _integer(value: Value) -> int:
    if type(value) is not int:  # a bool is none
        raise MalformedError("an integer was expected")
    return value


def _natural(value: Value) -> int:
    number = _integer(value)
    if number < 0:
        raise MalformedError("an integer below zero")
    return number


def _one_of(kind: type[_EnumT], value: Value) -> _EnumT:
    number = _integer(value)
    if number not in list(kind):
        raise MalformedError(f"no {kind.__name__} has this number")
    return kind(number)


def _same(found: _ContentT, data: bytes) -> _ContentT:
    if pack(cast(Packable, found.content())) != data:
        raise MalformedError("bytes that do not come back the same")
    return found


# ---- certified headers


def link_content(link: CertifiedHeader) -> Packable:
    """``(header, certificate, roster or None)``, three byte strings at most."""
    roster = None if link.next_roster is None else encode_roster(link.next_roster)
    return encode_header(link.header), encode_commit_certificate(link.certificate), roster


def read_link(value: Value) -> CertifiedHeader:
    """MalformedError if it is none. Nothing is verified: that is for ``HeaderChain``."""
    match value:
        case (bytes(header), bytes(certificate), None):
            roster = None
        case (bytes(header), bytes(certificate), bytes(encoded)):
            roster = decode_roster(encoded)
        case _:
            raise MalformedError("a certified header has a header, a certificate, and a roster or none")
    return CertifiedHeader(
        header=decode_header(header), certificate=decode_commit_certificate(certificate), next_roster=roster
    )

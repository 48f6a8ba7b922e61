"""Ledger states and rosters as bytes: everything that is agreed comes back, and nothing else is taken."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicpnode.envelop.codec import pack, unpack
from aicpnode.envelop.ledger_state import (
    NOMINAL_POWER_MAX,
    decode_ledger_state,
    decode_roster,
    encode_ledger_state,
    encode_roster,
)
from aicpnode.errors import MalformedError
from consensus.messages import Change, ChangeKind
from consensus.state import Admission, LedgerRules, LedgerState, Standing, Suspension, genesis_state
from consensus.types import MEMBER_NAME_CHARS_MAX, Member, MemberStatus, Roster

COUNTERS = st.integers(0, (1 << 63) - 1)
ROUNDS = st.integers(-1, (1 << 62) - 1)
HASHES = st.binary(min_size=32, max_size=32)
NOT_AGREED = {"LedgerState.departed", "LedgerRules.allowlist"}
"""0 between blocks; bound by the network id."""
ALLOWLIST = frozenset({b"k" * 32})
GENESIS = genesis_state(
    [(bytes([9]) * 32, 1, "founder")], bytes(32), LedgerRules(probation_rounds=5, members_max=7, allowlist=ALLOWLIST)
)

standings = st.builds(
    Standing,
    sequence=COUNTERS,
    until_round=COUNTERS,
    since_round=ROUNDS,
    included_round=ROUNDS,
    probation_blocks=COUNTERS,
    probation_seen=COUNTERS,
    seen_round=COUNTERS,
    strikes=st.lists(COUNTERS, max_size=3).map(tuple),
    suspension=st.sampled_from(list(Suspension)),
    is_returning=st.booleans(),
    reason=st.text(max_size=20),
)
changes = st.builds(
    Change,
    kind=st.sampled_from(list(ChangeKind)),
    key=st.one_of(st.just(b""), HASHES),
    number=COUNTERS,
    text=st.text(max_size=20),
)


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    keys = draw(st.lists(HASHES, min_size=1, max_size=5, unique=True))
    members = tuple(
        Member(
            index=index,
            key=key,
            power=draw(st.integers(0, NOMINAL_POWER_MAX)),
            status=draw(st.sampled_from(list(MemberStatus))),
            name=draw(st.text(max_size=MEMBER_NAME_CHARS_MAX)),
        )
        for index, key in enumerate(keys)
    )
    return Roster(epoch=draw(COUNTERS), members=members)


@st.composite
def states(draw: st.DrawFn) -> LedgerState:
    roster = draw(rosters())
    count = len(roster.members)
    return LedgerState(
        height=draw(COUNTERS),
        block_id=draw(HASHES),
        rules=LedgerRules(
            probation_rounds=draw(COUNTERS),
            members_max=draw(COUNTERS),
            admission=draw(st.sampled_from(list(Admission))),
            round_ms=draw(COUNTERS),
            allowlist=ALLOWLIST,
        ),
        roster=roster,
        round=draw(COUNTERS),
        last_round_empty=draw(st.booleans()),
        standings=tuple(draw(standings) for _ in range(count)),
        promotions=draw(st.lists(st.tuples(COUNTERS, COUNTERS), max_size=3).map(tuple)),
        is_stopped=draw(st.booleans()),
        endorsements=draw(st.lists(st.tuples(changes, st.integers(0, count - 1)), max_size=3).map(tuple)),
    )


@given(states())
def test_ledger_state_comes_back_as_it_was(state: LedgerState) -> None:
    back = decode_ledger_state(encode_ledger_state(state), genesis=GENESIS)
    assert back == state
    assert back.content() == state.content()


@given(rosters())
def test_roster_comes_back_as_it_was(roster: Roster) -> None:
    assert decode_roster(encode_roster(roster)) == roster


@given(states(), st.data())
def test_other_bytes_are_another_state_or_refused(state: LedgerState, data: st.DataObject) -> None:
    raw = bytearray(encode_ledger_state(state))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        other = decode_ledger_state(bytes(raw), genesis=GENESIS)
    except MalformedError:
        return
    assert encode_ledger_state(other) == bytes(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_stand_for_themselves(raw: bytes) -> None:
    for read, write in (
        (decode_roster, encode_roster),
        (lambda data: decode_ledger_state(data, genesis=GENESIS), encode_ledger_state),
    ):
        try:
            found = read(raw)
        except MalformedError:
            continue
        assert write(found) == raw


def other(value: object) -> object:
    """A different value of the same type."""
    match value:
        case bool():
            return not value
        case Enum():
            return next(item for item in type(value) if item is not value)
        case int():
            return value + 1
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"k" * 32
        case str():
            return value + "x"
        case frozenset():
            return value | {b"x" * 32}
        case Roster():
            return Roster(epoch=value.epoch + 1, members=value.members)
        case tuple():
            return (*value, (1, 1))
    raise AssertionError(f"what is another {type(value)}?")


def agreed(kind: type) -> list[str]:
    return [field.name for field in fields(kind) if f"{kind.__name__}.{field.name}" not in NOT_AGREED]


@pytest.mark.parametrize("name", agreed(LedgerState))
def test_every_field_of_the_state_enters_its_hash_and_its_bytes(name: str) -> None:
    """A field that is added to the state and left out of its content could be chosen freely by a donor."""
    value = getattr(GENESIS, name)
    if name == "endorsements":
        changed = replace(GENESIS, endorsements=((Change(kind=ChangeKind.STOP), 0),))
    elif name == "standings":
        changed = replace(GENESIS, standings=(Standing(sequence=1),))
    elif is_dataclass(value) and name == "rules":
        changed = replace(GENESIS, rules=replace(value, members_max=8))
    else:
        changed = replace(GENESIS, **{name: other(value)})
    assert changed.content() != GENESIS.content()
    assert decode_ledger_state(encode_ledger_state(changed), genesis=GENESIS) == changed


@pytest.mark.parametrize("name", agreed(Standing))
def test_every_field_of_a_standing_enters_the_hash_and_the_bytes(name: str) -> None:
    base = GENESIS.standings[0]
    value = (1,) if name == "strikes" else other(getattr(base, name))
    changed = replace(GENESIS, standings=(replace(base, **{name: value}),))
    assert changed.content() != GENESIS.content()
    assert decode_ledger_state(encode_ledger_state(changed), genesis=GENESIS) == changed


@pytest.mark.parametrize("name", agreed(LedgerRules))
def test_every_field_of_the_rules_enters_the_hash_and_the_bytes(name: str) -> None:
    rules = replace(GENESIS.rules, **{name: other(getattr(GENESIS.rules, name))})
    changed = replace(GENESIS, rules=rules)
    assert changed.content() != GENESIS.content()
    assert decode_ledger_state(encode_ledger_state(changed), genesis=GENESIS) == changed


@pytest.mark.parametrize("field", fields(Member), ids=lambda field: field.name)
def test_every_field_of_a_member_enters_the_hash(field) -> None:
    member = GENESIS.roster.members[0]
    changed = replace(member, **{field.name: other(getattr(member, field.name))})
    assert changed.content() != member.content()


def test_allowlist_comes_from_the_genesis_and_not_from_the_bytes() -> None:
    raw = encode_ledger_state(replace(GENESIS, rules=replace(GENESIS.rules, allowlist=frozenset())))
    assert decode_ledger_state(raw, genesis=GENESIS).rules.allowlist == ALLOWLIST


MALFORMED = {
    "two members with one key": lambda value: (*value[:3], (0, value[3][1] * 2), *value[4:]),
    "an index out of order": lambda value: (
        *value[:3],
        (0, tuple((7, *member[1:]) for member in value[3][1])),
        *value[4:],
    ),
    "no members": lambda value: (*value[:3], (0, ()), *value[4:]),
    "too much power": lambda value: (
        *value[:3],
        (0, tuple((*member[:2], NOMINAL_POWER_MAX + 1, *member[3:]) for member in value[3][1])),
        *value[4:],
    ),
    "a status that does not exist": lambda value: (
        *value[:3],
        (0, tuple((*member[:3], 99, member[4]) for member in value[3][1])),
        *value[4:],
    ),
    "no standing": lambda value: (*value[:6], (), *value[7:]),
    "a number for a truth": lambda value: (*value[:5], 1, *value[6:]),
    "a truth for a number": lambda value: (True, *value[1:]),
    "a negative height": lambda value: (-1, *value[1:]),
    "a short block id": lambda value: (value[0], b"", *value[2:]),
    "a field too many": lambda value: (*value, 0),
    "a field too few": lambda value: value[:-1],
    "an endorsement by nobody": lambda value: (*value[:9], (((1, b"", 0, ""), 5),)),
    "a change that does not exist": lambda value: (*value[:9], (((99, b"", 0, ""), 0),)),
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=[name.replace(" ", "-") for name in MALFORMED])
def test_malformed_ledger_state_is_refused(change) -> None:
    value = unpack(encode_ledger_state(GENESIS))
    assert isinstance(value, tuple)
    with pytest.raises(MalformedError):
        decode_ledger_state(pack(change(value)), genesis=GENESIS)

"""Everything that the next block depends on is in what the state hash covers, field by field."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from aicpnode.simulation.playbook import founders
from consensus.membership import Admission, LedgerRules, LedgerState, Standing, Suspension
from consensus.messages import Change, ChangeKind
from consensus.types import Member, MemberStatus, Roster

STATE = founders(4)
OTHERS: dict[type, dict[str, object]] = {
    LedgerState: {
        "height": 7,
        "block_id": b"b" * 32,
        "rules": replace(STATE.rules, probation_rounds=9),
        "roster": Roster(epoch=9, members=STATE.roster.members),
        "round": 3,
        "last_round_empty": True,
        "standings": (replace(STATE.standings[0], sequence=5), *STATE.standings[1:]),
        "promotions": ((1, 1),),
        "is_stopped": True,
        "endorsements": ((Change(kind=ChangeKind.STOP), 2),),
    },
    Standing: {
        "sequence": 1,
        "until_round": 2,
        "since_round": 3,
        "included_round": 4,
        "probation_blocks": 5,
        "probation_seen": 6,
        "seen_round": 7,
        "strikes": (1, 2),
        "suspension": Suspension.ABSENT,
        "is_returning": True,
        "reason": "why",
    },
    LedgerRules: {"probation_rounds": 9, "members_max": 5, "admission": Admission.INVITE, "round_ms": 1},
    Member: {"index": 9, "key": b"k" * 32, "power": 7, "status": MemberStatus.BANNED, "name": "other"},
}
"""Of each field another value than the one in the example."""
EXAMPLES = {
    LedgerState: STATE,
    Standing: Standing(),
    LedgerRules: STATE.rules,
    Member: STATE.roster.members[0],
}
FIXED = {(LedgerState, "departed"), (LedgerRules, "allowlist")}
"""Zero between blocks; and bound by the network id."""


def cases() -> list[tuple[type, str]]:
    return [(kind, field.name) for kind in EXAMPLES for field in fields(kind) if (kind, field.name) not in FIXED]


@pytest.mark.parametrize(("kind", "name"), cases(), ids=lambda value: getattr(value, "__name__", value))
def test_content_depends_on_every_field(kind: type, name: str) -> None:
    example = EXAMPLES[kind]
    changed = replace(example, **{name: OTHERS[kind][name]})  # type: ignore[type-var]
    assert changed.content() != example.content()  # type: ignore[attr-defined]

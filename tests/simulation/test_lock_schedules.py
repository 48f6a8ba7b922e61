"""Schedules that lead straight to what locks are for: a decision that one member alone has seen, and a liar who leads.

Random schedules hardly ever come here. Each step is delivered by hand; ``Council`` checks the invariants, and would
find two blocks that could both be decided before anybody decides the second.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from aicpnode.simulation.council import Council
from aicpnode.simulation.crypto import simulated_key
from consensus.events import Opinion, Received, TimerKind
from consensus.messages import Commit, MessageKind, Prepare, PrepareCert, SetMessage, Vote
from consensus.types import NIL, NO_VIEW

A, B, C, LIAR = 0, 1, 2, 3
"""Of height 1 member 1 leads view 0, 2 view 1, and the liar views 2 and 6."""


class Table(Council):
    """A council with the few moves that these schedules consist of."""

    def sent(self, index: int, kind: MessageKind, view: int) -> Vote:
        key = simulated_key(index)
        return next(m for m in self.heard if (m.signer, m.kind, m.view, m.height) == (key, kind, view, 1))

    def tell(self, index: int, messages: Iterable[Vote]) -> None:
        for message in messages:
            self.hear(index, Received(message=message))

    def expire(self, index: int, kind: TimerKind) -> None:
        (timer,) = [timer for timer in self.timers[index] if timer.kind is kind and timer.view == self.view(index)]
        self.fire_timer(index, timer)

    def view(self, index: int) -> int:
        return self.seats[index].replica.view

    def lie(self, name: bytes, view: int, *, commits: bool) -> Vote:
        key = simulated_key(LIAR)
        if commits:
            return self.signed(Commit(height=1, view=view, block_id=name, signer=key))
        return self.signed(Prepare(height=1, view=view, block_id=name, valid_view=NO_VIEW, signer=key))

    def fail_view(self, *members: int) -> None:
        """Nobody sees a SET: nil by everybody, the liar included."""
        view = self.view(members[0])
        for index in members:
            self.expire(index, TimerKind.PROPOSE)
        for kind, commits in ((MessageKind.PREPARE, False), (MessageKind.COMMIT, True)):
            said = [self.sent(index, kind, view) for index in members] + [self.lie(NIL, view, commits=commits)]
            for index in members:
                self.tell(index, said)
        assert {self.view(index) for index in members} == {view + 1}


def decision_that_one_member_saw() -> tuple[Table, bytes, PrepareCert]:
    """X is prepared in view 0, which only the liar can prove. Y is decided in view 1 by A alone; B is locked on it, C
    is not. B and C are in view 2, where the liar leads. Returns Y's id, and X's certificate."""
    table = Table(4, liars=(LIAR,))
    for index in (A, B, C):
        table.hear(index, Opinion(round=0, ready=True, entries=()))
    table.tell(B, [table.sent(A, MessageKind.BALLOT, 0), table.sent(C, MessageKind.BALLOT, 0)])
    table.expire(B, TimerKind.LEADER_SOFT)
    table.tell(A, [table.sent(B, MessageKind.SET, 0)])
    table.tell(C, [table.sent(A, MessageKind.BALLOT, 0), table.sent(B, MessageKind.BALLOT, 0)])
    table.expire(C, TimerKind.PROPOSE)
    split = [table.sent(index, MessageKind.PREPARE, 0) for index in (A, B, C)]
    for index in (A, B, C):
        table.tell(index, split)
        table.expire(index, TimerKind.PREPARE)
    giving_up = [table.sent(index, MessageKind.COMMIT, 0) for index in (A, B, C)]
    for index in (A, B, C):
        table.tell(index, giving_up)
    assert [table.view(index) for index in (A, B, C)] == [1, 1, 1]
    (hidden,) = table.certificates(1)

    table.tell(C, [table.sent(A, MessageKind.BALLOT, 1), table.sent(B, MessageKind.BALLOT, 1)])
    table.expire(C, TimerKind.LEADER_SOFT)
    proposal = table.sent(C, MessageKind.SET, 1)
    assert isinstance(proposal, SetMessage) and proposal.block_id != hidden.block_id
    for index in (A, B):
        table.tell(index, [proposal])
    prepares = [table.sent(index, MessageKind.PREPARE, 1) for index in (A, B, C)]
    table.tell(A, prepares)
    table.tell(B, prepares)
    table.tell(A, [table.sent(B, MessageKind.COMMIT, 1), table.lie(proposal.block_id, 1, commits=True)])
    assert table.decided == {1: proposal.block_id}, "A decided alone"
    table.tell(C, [prepares[1], table.lie(NIL, 1, commits=False)])
    table.expire(C, TimerKind.PREPARE)
    for index, other in ((B, C), (C, B)):
        table.tell(index, [table.sent(other, MessageKind.COMMIT, 1), table.lie(NIL, 1, commits=True)])
        table.expire(index, TimerKind.COMMIT)
    assert [table.view(index) for index in (B, C)] == [2, 2]
    assert table.seats[B].replica.locked_view == 1 and table.seats[C].replica.locked_view == NO_VIEW
    return table, proposal.block_id, hidden


def propose_again(table: Table, certificate: PrepareCert) -> None:
    """The liar proposes the older block, rightly proved, to B and C, which get its body where they lack it."""
    view = table.view(B)
    again = SetMessage(
        height=1,
        view=view,
        valid_view=certificate.view,
        block_id=certificate.block_id,
        signer=simulated_key(LIAR),
        certificate=certificate,
    )
    for index in (B, C):
        table.tell(index, [table.signed(again)])
        table.settle(index)


def assert_all_decide(table: Table, name: bytes) -> None:
    """The network heals; the liar says nothing more."""
    for _ in range(40):
        table.settle()
        for index in (A, B, C):
            for timer in list(table.timers[index]):
                table.fire_timer(index, timer)
            table.settle()
        if min(len(table.seats[index].decisions) for index in (A, B, C)) >= 1:
            break
    assert [table.seats[index].decisions[0].certificate.block_id for index in (A, B, C)] == [name] * 3


def test_older_certificate_does_not_overrule_a_later_lock() -> None:
    table, name, hidden = decision_that_one_member_saw()
    table.mail[B].clear()
    propose_again(table, hidden)
    prepare = table.sent(B, MessageKind.PREPARE, 2)
    assert isinstance(prepare, Prepare) and prepare.block_id == NIL
    assert_all_decide(table, name)


@pytest.mark.parametrize("crashes", [False, True])
def test_lock_outlives_views_for_nil_and_a_crash(crashes: bool) -> None:
    table, name, hidden = decision_that_one_member_saw()
    while table.view(B) < 6:
        table.mail[B].clear()
        table.mail[C].clear()
        table.fail_view(B, C)
    if crashes:
        table.crash(B)
        table.apply(B)
    table.mail[B].clear()
    propose_again(table, hidden)
    prepare = table.sent(B, MessageKind.PREPARE, 6)
    assert isinstance(prepare, Prepare) and prepare.block_id == NIL
    assert_all_decide(table, name)

"""Large blocks and many members: nobody is asked, or answered, by everybody at once, yet in the end by everybody."""

from __future__ import annotations

from dataclasses import replace

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind
from consensus.events import BlockReceived, Fetch, ServeDecision, TimerKind
from consensus.messages import Vote
from consensus.replica import DECISION_SERVERS, FETCH_TARGETS
from consensus.types import NIL

MEMBERS = 40
QUORUM = 27
SIGNERS = range(13, 40)


def missing_block(me: int) -> tuple[Playbook, list[Fetch]]:
    """A member that holds a quorum of PREPAREs for a block that it has not seen."""
    table = Playbook(founders(MEMBERS), me=me)
    name = table.name(table.block(voters=SIGNERS))
    return table, of_kind(table.hear(*(table.prepare(i, 0, name) for i in SIGNERS)), Fetch)


def test_block_is_fetched_from_a_few_signers_first_and_from_all_in_the_end() -> None:
    table, (first,) = missing_block(me=0)
    assert len(first.targets) == FETCH_TARGETS < QUORUM
    asked = list(first.targets)
    turns = 0
    while set(asked) < {simulated_key(i) for i in SIGNERS}:
        (fetch,) = of_kind(table.fire(TimerKind.FETCH), Fetch)
        asked += fetch.targets
        turns += 1
    assert turns <= 4, "each turn asks as many as all before it"
    assert len(asked[: len(SIGNERS)]) == len(set(asked[: len(SIGNERS)])), "nobody twice before everybody once"


def test_fetching_goes_on_after_everybody_was_asked() -> None:
    table, _ = missing_block(me=0)
    for _ in range(20):
        (fetch,) = of_kind(table.fire(TimerKind.FETCH), Fetch)
        assert len(set(fetch.targets)) == len(fetch.targets) <= len(SIGNERS)
    table.handle(BlockReceived(block=table.block(voters=SIGNERS)))
    assert not of_kind(table.fire(TimerKind.FETCH), Fetch)


def test_members_that_lack_one_block_do_not_all_ask_the_same_signers() -> None:
    asked = [missing_block(me)[1][0].targets for me in range(13)]
    assert len(set(asked)) == len(asked)


def servers_of(stuck: int, windows: int) -> list[int]:
    """Who has sent ``stuck`` the decision by the time it has repeated itself in so many windows."""
    found = []
    for me in (i for i in range(MEMBERS) if i != stuck):
        table = Playbook(founders(MEMBERS), me=me)
        table.decide(table.block(voters=range(QUORUM)))
        late: Vote = table.signed(replace(table.prepare(stuck, 4, NIL), height=1))
        table.hear(late)
        answers = []
        for _ in range(windows):
            answers += of_kind(table.hear(late), ServeDecision)
            table.fire(TimerKind.ENTRY)
        if answers:
            found.append(me)
    return found


def test_stuck_member_is_helped_by_those_that_come_next_on_the_roster() -> None:
    assert servers_of(5, windows=1) == [6, 7, 8, 9] and DECISION_SERVERS == 4
    assert servers_of(38, windows=1) == [0, 1, 2, 39], "the roster is a circle"


def test_stuck_member_that_goes_on_is_helped_by_everybody() -> None:
    assert servers_of(5, windows=2) == list(range(6, 22))
    assert servers_of(5, windows=3) == [i for i in range(MEMBERS) if i != 5]

"""Which messages of a height are kept, whose first one counts, and when others are ahead."""

from dataclasses import replace

import pytest

from aicpnode.simulation.playbook import Playbook, founders
from consensus.messages import MessageKind
from consensus.types import NIL
from consensus.votebook import PAST_VIEWS_KEPT, VoteBook

ONE, TWO = b"\x01" * 32, b"\x02" * 32


@pytest.fixture
def table() -> Playbook:
    return Playbook(founders(4, observers=1))


@pytest.fixture
def book(table: Playbook) -> VoteBook:
    return VoteBook(table.ledger.roster)


def test_first_message_of_a_slot_is_recorded(table: Playbook, book: VoteBook) -> None:
    assert book.add(table.prepare(1, 0, ONE), current_view=0) == (True, None)
    assert [p.block_id for p in book.prepares(0)] == [ONE]


def test_duplicate_is_no_second_vote(table: Playbook, book: VoteBook) -> None:
    vote = table.prepare(1, 0, ONE)
    book.add(vote, current_view=0)
    assert book.add(replace(vote, signature=b"other bytes of the same signer"), current_view=0) == (False, None)
    assert book.power(book.prepares(0)) == 1


def test_conflicting_second_vote_never_overwrites(table: Playbook, book: VoteBook) -> None:
    first, second = table.prepare(1, 0, ONE), table.prepare(1, 0, TWO)
    book.add(first, current_view=0)
    assert book.add(second, current_view=0) == (False, first)
    assert [p.block_id for p in book.prepares(0)] == [ONE]


def test_votes_of_members_without_power_do_not_count(table: Playbook, book: VoteBook) -> None:
    book.add(table.prepare(4, 0, ONE), current_view=0)
    book.add(table.commit(4, 0, ONE), current_view=0)
    assert book.prepares(0) == [] and book.commits(0) == []


def test_power_in_a_slot_is_that_of_its_messages_through_all_changes(table: Playbook, book: VoteBook) -> None:
    """Votes of members with and without power, repeats, contradictions, jumps ahead and views that fall off behind."""
    kinds = (MessageKind.BALLOT, MessageKind.PREPARE, MessageKind.COMMIT)
    for number in range(400):
        author, view = number * 7 % 5, number * number % 41
        said = (table.prepare if number % 2 else table.commit)(author, view, (ONE, TWO, NIL)[number % 3])
        book.add(said, current_view=number // 20)
        book.forget_before(number // 20)
        for view in range(41):
            found = (book.ballots(view), book.prepares(view), book.commits(view))
            for kind, messages in zip(kinds, found, strict=True):
                assert book.power_in(kind, view) == sum(table.ledger.roster.power(m.signer) for m in messages)
    assert any(book.power_in(MessageKind.COMMIT, view) for view in range(41))


def test_whoever_speaks_is_heard_once(table: Playbook, book: VoteBook) -> None:
    for view in range(3):
        book.add(table.prepare(1, view, ONE), current_view=view)
    assert book.power_heard() == 1
    book.add(table.commit(4, 0, ONE), current_view=2)
    assert book.power_heard() == 1, "an observer has no power"
    book.add(table.commit(2, 0, ONE), current_view=2)
    assert book.power_heard() == 2


def test_strangers_are_not_recorded(table: Playbook, book: VoteBook) -> None:
    assert book.add(table.commit(9, 0, ONE), current_view=0) == (False, None)
    assert len(book) == 0


def test_case_C15_memory_stays_bounded_under_a_flood_of_views(table: Playbook, book: VoteBook) -> None:
    current = 20
    for view in (*range(200), *range(10_000, 10_200), 5_000):
        book.add(table.commit(1, view, NIL), current_view=current)
    kept = [view for view in range(11_000) if book.commits(view)]
    assert kept == [*range(current - PAST_VIEWS_KEPT, current + 1), 10_199]


def test_views_fall_off_behind_as_the_view_grows(table: Playbook, book: VoteBook) -> None:
    for view in range(30):
        book.add(table.commit(1, view, NIL), current_view=view)
        book.forget_before(view)
    assert [view for view in range(40) if book.commits(view)] == list(range(29 - PAST_VIEWS_KEPT, 30))


def test_quorate_views_are_those_with_messages_of_a_quorum(table: Playbook, book: VoteBook) -> None:
    for index in (0, 1):
        book.add(table.commit(index, 3, ONE), current_view=0)
        book.add(table.commit(index, 7, NIL), current_view=3)
    assert book.quorate(MessageKind.COMMIT) == []
    book.add(table.commit(2, 7, ONE), current_view=3)
    book.add(table.commit(2, 7, ONE), current_view=3)
    assert book.quorate(MessageKind.COMMIT) == [7], "whatever they say, each member once"
    assert book.quorate(MessageKind.PREPARE) == []


def test_view_is_no_longer_quorate_once_its_messages_are_forgotten(table: Playbook, book: VoteBook) -> None:
    for index in range(3):
        book.add(table.commit(index, 5, ONE), current_view=0)
    assert book.quorate(MessageKind.COMMIT) == [5]
    book.add(table.commit(0, 9, ONE), current_view=0)
    assert book.quorate(MessageKind.COMMIT) == [], "of the views to come only the highest one of each member is kept"


def test_jump_needs_f_plus_one_not_f(table: Playbook, book: VoteBook) -> None:
    book.add(table.commit(1, 7, NIL), current_view=2)
    assert book.jump_target(2) is None
    book.add(table.commit(2, 5, NIL), current_view=2)
    target = book.jump_target(2)
    assert target is not None
    view, proof = target
    assert view == 5, "the largest view that F+1 have reached"
    assert {message.view for message in proof} == {5, 7}


def test_jump_ignores_members_without_power(table: Playbook, book: VoteBook) -> None:
    book.add(table.commit(1, 7, NIL), current_view=2)
    book.add(table.ballot(4, 7), current_view=2)
    assert book.jump_target(2) is None


def test_jump_is_proved_by_the_smallest_messages(table: Playbook, book: VoteBook) -> None:
    for index in (1, 2):
        book.add(table.ballot(index, 4), current_view=0)
        book.add(table.commit(index, 4, NIL), current_view=0)
    target = book.jump_target(0)
    assert target is not None
    assert [message.kind for message in target[1]] == [MessageKind.COMMIT, MessageKind.COMMIT]


def test_power_heard_counts_each_member_once_whatever_it_said(table: Playbook, book: VoteBook) -> None:
    book.add(table.ballot(0), current_view=0)
    book.add(table.prepare(0, 0, ONE), current_view=0)
    book.add(table.prepare(1, 0, ONE), current_view=0)
    book.add(table.ballot(4), current_view=0)
    assert book.power_heard() == 2

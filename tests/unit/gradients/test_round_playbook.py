"""Playbooks of the round: events in, expected actions out."""

import pytest

from aicpnode.gradients.judge import YES, Reason, abstention, refusal
from aicpnode.gradients.round import (
    Begin,
    BodyReceived,
    BodyServed,
    DeadlineDue,
    FetchBody,
    GradReceived,
    JudgeBody,
    Judged,
    Opine,
    Reveal,
    RevealDue,
    Round,
    StartTimers,
)
from consensus.events import Opinion
from consensus.messages import BallotEntry

A, B, C, D = (letter * 32 for letter in (b"a", b"b", b"c", b"d"))
INDEX = {A: 0, B: 1, C: 2, D: 3}
NO = refusal(Reason.LOSS, "the loss rises")
R = 5


def begin(round=R, *, expected=(A, B, C), empty=False, contributing=True, authors=INDEX, voters=()):
    return Begin(
        round=round,
        authors=authors,
        expected=frozenset(expected),
        last_round_empty=empty,
        contributing=contributing,
        voters=frozenset(voters),
    )


def digest(author, number=0):
    return author[:31] + bytes([number])


def grad(author, number=0, round=R):
    return GradReceived(round=round, author=author, digest=digest(author, number), size=100)


def body(author, number=0, round=R):
    return BodyReceived(round=round, digest=digest(author, number))


def judged(author, verdict=YES, number=0, round=R):
    return Judged(round=round, author=author, digest=digest(author, number), verdict=verdict)


def fetch(author, number=0, round=R, *, counts=True):
    return FetchBody(round=round, author=author, digest=digest(author, number), size=100, counts=counts)


def judge(author, number=0, round=R):
    return JudgeBody(round=round, author=author, digest=digest(author, number), size=100)


def opine(*entries, ready=False, round=R):
    """Entries are (author, accepted) or (author, accepted, number)."""
    made = (
        BallotEntry(author_index=INDEX[author], digest=digest(author, *number), accepted=accepted)
        for author, accepted, *number in entries
    )
    return Opine(opinion=Opinion(round=round, ready=ready, entries=tuple(made)))


def play(core, *steps):
    """Each step is an event followed by the actions expected of it."""
    for number, (event, *expected) in enumerate(steps):
        assert core.handle(event) == expected, f"step {number}: {event}"


def started(*, heard=(), **options):
    """A round that has begun and heard these authors' GRADs."""
    core = Round()
    core.handle(begin(**options))
    for author in heard:
        core.handle(grad(author))
    return core


def test_plain_round_of_three():
    play(
        Round(),
        (begin(), StartTimers(round=R), opine()),
        (grad(A),),
        (judged(A), opine((A, True))),  # the own one: judged before it was sent
        (grad(B),),
        (grad(C), Reveal(round=R), fetch(B), fetch(C)),
        (body(B), judge(B)),
        (judged(B), opine((A, True), (B, True))),
        (body(C), judge(C)),
        (judged(C, NO), opine((A, True), (B, True), (C, False), ready=True)),
        (DeadlineDue(round=R),),
    )


def test_nothing_is_fetched_before_the_reveal():
    play(started(), (grad(A),), (grad(B),), (grad(B),), (grad(C), Reveal(round=R), fetch(A), fetch(B), fetch(C)))


def test_dead_member_is_waited_for_until_the_reveal_timer_only():
    core = started(heard=(A, B))
    play(
        core,
        (RevealDue(round=R), Reveal(round=R), fetch(A), fetch(B)),
        (body(A), judge(A)),
        (body(B), judge(B)),
        (judged(A), opine((A, True))),
        (judged(B), opine((A, True), (B, True), ready=True)),
    )
    assert core.missing() == [C]


def test_member_that_dies_before_revealing_is_waited_for_until_the_deadline():
    play(
        started(heard=(A, B, C)),
        (RevealDue(round=R),),
        (body(A), judge(A)),
        (judged(A), opine((A, True))),
        (body(B), judge(B)),
        (judged(B), opine((A, True), (B, True))),
        (DeadlineDue(round=R), opine((A, True), (B, True), ready=True)),
    )


def test_verdicts_after_ready_still_count():
    play(
        started(heard=(A, B, C)),
        (DeadlineDue(round=R), opine(ready=True)),
        (body(A), judge(A)),
        (judged(A), opine((A, True), ready=True)),
    )


@pytest.mark.parametrize("first_body", [BodyServed(round=R), body(A)])
def test_grad_first_heard_after_a_body_gets_no_opinion(first_body):
    core = started(heard=(A, B))
    core.handle(RevealDue(round=R))
    core.handle(first_body)
    play(core, (grad(C),), (body(C),), (judged(C),))
    assert [(held.author, held.late) for held in core.grads()] == [(A, False), (B, False), (C, True)]
    assert core.missing() == []


def test_grad_heard_after_the_reveal_but_before_any_body_counts():
    core = started(heard=(A, B))
    core.handle(RevealDue(round=R))
    play(core, (grad(C), fetch(C)), (body(C), judge(C)), (judged(C), opine((C, True))))


def test_late_grad_of_an_expected_member_delays_nobody():
    core = started(heard=(A, B))
    core.handle(RevealDue(round=R))
    core.handle(body(A))
    core.handle(grad(C))
    core.handle(judged(A))
    core.handle(body(B))
    play(core, (judged(B), opine((A, True), (B, True), ready=True)))


def test_two_grads_of_one_author_at_most_one_yes():
    core = started(heard=(A, B))
    core.handle(grad(C, 1))
    core.handle(grad(C, 2))
    core.handle(grad(C, 3))  # a third is not even kept
    core.handle(body(C, 1))
    core.handle(body(C, 2))
    play(
        core,
        (judged(C, number=2),),  # waits for the one heard first
        (judged(C, number=1), opine((C, True, 1))),
        (judged(C, number=3),),
    )
    assert len(list(core.grads())) == 4


def test_second_grad_of_an_author_is_accepted_if_the_first_is_refused():
    core = started(heard=(A, B))
    core.handle(grad(C, 1))
    core.handle(grad(C, 2))
    play(
        core,
        (judged(C, number=2),),
        (judged(C, NO, number=1), opine((C, False, 1), (C, True, 2))),
    )


def test_two_authors_of_one_digest_are_judged_each_for_itself():
    core = started(expected=(A, B))
    core.handle(grad(A))
    stolen = GradReceived(round=R, author=B, digest=digest(A), size=100)
    play(
        core,
        (stolen, Reveal(round=R), fetch(A)),
        (body(A), judge(A), JudgeBody(round=R, author=B, digest=digest(A), size=100)),
    )


def test_author_of_a_stolen_digest_that_comes_after_the_fetch_is_judged_too():
    core = started(heard=(A, B))
    core.handle(RevealDue(round=R))
    stolen = GradReceived(round=R, author=C, digest=digest(A), size=100)
    play(
        core,
        (stolen,),
        (body(A), judge(A), JudgeBody(round=R, author=C, digest=digest(A), size=100)),
    )


def test_abstention_settles_without_an_entry():
    core = started(heard=(A, B, C))
    core.handle(judged(A))
    core.handle(judged(B))
    play(core, (judged(C, abstention("a copy")), opine((A, True), (B, True), ready=True)))


def test_after_an_empty_round_only_timers_make_ready():
    core = started(heard=(A, B, C), empty=True)
    for author in (A, B):
        core.handle(judged(author))
    play(
        core,
        (judged(C), opine((A, True), (B, True), (C, True))),
        (RevealDue(round=R), opine((A, True), (B, True), (C, True), ready=True)),
    )


def test_round_in_which_nobody_proposes_ends_at_the_deadline():
    play(
        started(expected=()),
        (RevealDue(round=R), Reveal(round=R)),
        (DeadlineDue(round=R), opine(ready=True)),
    )


def test_grad_after_an_empty_reveal_waits_for_the_deadline():
    core = started(expected=())
    core.handle(RevealDue(round=R))
    play(core, (grad(A), fetch(A)), (body(A), judge(A)), (judged(A), opine((A, True))))


def test_nobody_contributes_nothing_is_ready():
    play(
        Round(),
        (begin(contributing=False, expected=()), opine()),
        (grad(A),),
        (DeadlineDue(round=R),),
        (RevealDue(round=R), Reveal(round=R), fetch(A)),
    )


def test_timers_start_again_when_somebody_contributes_again():
    core = started(expected=(A,))
    play(
        core,
        (DeadlineDue(round=R), opine(ready=True)),
        (begin(expected=(), contributing=False), opine()),
        (begin(expected=(A,)), StartTimers(round=R)),
        (DeadlineDue(round=R), opine(ready=True)),
    )


def test_same_round_with_another_roster_keeps_grads_and_verdicts():
    core = started(expected=(A, B), heard=(A,))
    core.handle(judged(A))
    play(
        core,
        (begin(expected=(A,)), Reveal(round=R), opine((A, True), ready=True)),
        (grad(D), fetch(D)),
        (begin(expected=(A,), authors={B: 1}), opine(ready=True)),  # an author that left has no entry
    )


def test_early_grads_of_the_next_round_are_replayed():
    core = started(expected=(A, B))
    for early in (grad(A, 0, R + 1), grad(A, 0, R + 1), grad(A, 1, R + 1), grad(A, 2, R + 1), grad(B, 0, R + 2)):
        assert core.handle(early) == []
    play(
        core,
        (begin(R + 1, expected=(A, B)), StartTimers(round=R + 1), opine(round=R + 1)),
        (grad(B, 0, R + 1), Reveal(round=R + 1), *(fetch(*who, round=R + 1) for who in ((A, 0), (A, 1), (B, 0)))),
    )


def test_early_grads_are_dropped_when_their_round_is_skipped():
    core = started()
    core.handle(grad(A, 0, R + 1))
    core.handle(begin(R + 3))
    assert list(core.grads()) == []
    core.handle(begin(R + 1))
    assert list(core.grads()) == []


def test_events_of_other_rounds_and_strangers_change_nothing():
    core = started(heard=(A,))
    stranger = GradReceived(round=R, author=b"?" * 32, digest=bytes(32), size=1)
    for event in (
        grad(B, 0, R - 1),
        stranger,
        GradReceived(round=R + 1, author=b"?" * 32, digest=bytes(32), size=1),
        RevealDue(round=R - 1),
        DeadlineDue(round=R + 1),
        BodyServed(round=R - 1),
        body(A, 0, R - 1),
        judged(A, round=R - 1),
        judged(B),
        judged(A, number=9),
    ):
        assert core.handle(event) == []
    assert not core.saw_body
    assert core.missing() == [B, C]


def test_events_before_the_first_round_change_nothing():
    core = Round()
    for event in (grad(A), RevealDue(round=R), body(A), judged(A)):
        assert core.handle(event) == []


def test_a_new_round_forgets_the_old_one():
    core = started(heard=(A, B, C))
    core.handle(body(A))
    core.handle(DeadlineDue(round=R))
    core.handle(begin(R + 1))
    assert not (core.revealed or core.saw_body or core.ready)
    assert list(core.grads()) == []
    play(core, (judged(A),), (grad(A, 0, R + 1),))


def test_first_verdict_on_a_proposal_stays():
    core = started(heard=(A,))
    play(core, (judged(A), opine((A, True))), (judged(A, NO),))


def test_unsettled_names_whom_the_round_waits_for():
    core = started(heard=(B, A, C))
    core.handle(judged(B))
    assert core.unsettled() == [A, C]


def test_bodies_of_authors_with_power_are_fetched_first():
    core = started(heard=(D, C), expected=(A, B, C), voters=(A, B, C))
    play(core, (RevealDue(round=R), Reveal(round=R), fetch(C), fetch(D, counts=False)))


def test_author_without_power_is_judged_but_delays_nobody():
    core = started(heard=(D, A, B), expected=(A, B, C), voters=(A, B, C))
    play(
        core,
        (judged(A), opine((A, True))),
        (RevealDue(round=R), Reveal(round=R), fetch(B), fetch(D, counts=False)),
        (body(B), judge(B)),
        (judged(B), opine((A, True), (B, True), ready=True)),  # the body of D is not here
    )
    assert core.unsettled() == []
    play(
        core,
        (body(D), judge(D)),
        (judged(D), opine((A, True), (B, True), (D, True), ready=True)),
    )


def test_proposals_of_authors_without_power_alone_make_nothing_ready():
    core = started(heard=(D,), expected=(A, B, C), voters=(A, B, C))
    play(
        core,
        (RevealDue(round=R), Reveal(round=R), fetch(D, counts=False)),
        (body(D), judge(D)),
        (judged(D), opine((D, True))),
        (DeadlineDue(round=R), opine((D, True), ready=True)),
    )


def test_stranger_that_commits_to_a_member_s_digest_does_not_put_its_body_last():
    core = started(expected=(A, B), voters=(A, B, C))
    stolen = GradReceived(round=R, author=D, digest=digest(B), size=100)
    slow = FetchBody(round=R, author=D, digest=digest(B), size=100, counts=False)
    play(
        core,
        (RevealDue(round=R), Reveal(round=R)),
        (stolen, slow),
        (grad(B), fetch(B)),
        (grad(C), fetch(C)),
        (body(B), JudgeBody(round=R, author=D, digest=digest(B), size=100), judge(B)),
    )

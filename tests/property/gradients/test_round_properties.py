"""Any sequence of events leaves the round within its rules."""

from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.gradients.judge import YES, Reason, abstention, refusal
from aicpnode.gradients.round import (
    GRADS_PER_AUTHOR_MAX,
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
)

AUTHORS = [bytes([letter]) * 32 for letter in range(5)]
DIGESTS = [bytes([number]) * 32 for number in range(100, 104)]
INDEX = {author: index for index, author in enumerate(AUTHORS[:4])}  # the fifth is a stranger
ROUNDS = st.integers(3, 5)
VERDICTS = st.sampled_from([YES, refusal(Reason.STALE, "old"), abstention("a copy")])

EVENTS = st.one_of(
    st.builds(
        Begin,
        round=ROUNDS,
        authors=st.just(INDEX),
        expected=st.frozensets(st.sampled_from(AUTHORS[:4])),
        last_round_empty=st.booleans(),
        contributing=st.booleans(),
        voters=st.frozensets(st.sampled_from(AUTHORS)),
    ),
    st.builds(
        GradReceived,
        round=ROUNDS,
        author=st.sampled_from(AUTHORS),
        digest=st.sampled_from(DIGESTS),
        size=st.integers(1, 3),
    ),
    st.builds(RevealDue, round=ROUNDS),
    st.builds(DeadlineDue, round=ROUNDS),
    st.builds(BodyServed, round=ROUNDS),
    st.builds(BodyReceived, round=ROUNDS, digest=st.sampled_from(DIGESTS)),
    st.builds(
        Judged,
        round=ROUNDS,
        author=st.sampled_from(AUTHORS),
        digest=st.sampled_from(DIGESTS),
        verdict=VERDICTS,
    ),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_round_keeps_its_rules(events):
    core, said, contributing, revealed, fetched = Round(), None, False, False, {}
    for event in events:
        was_ready, was_round = core.ready, core.round
        if isinstance(event, Begin):
            contributing = event.contributing
            if event.round != was_round:
                revealed, fetched, said = False, {}, None
        for action in core.handle(event):
            match action:
                case Reveal():
                    assert not revealed, "once a round"
                    revealed = True
                case FetchBody():
                    assert revealed, "nothing is asked for before the reveal"
                    assert action.counts > fetched.get(action.digest, -1), (
                        "nothing is fetched twice, unless it now counts"
                    )
                    fetched[action.digest] = action.counts
                case JudgeBody():
                    assert core.saw_body
                case Opine():
                    assert action.opinion != said, "only news"
                    said = action.opinion
        if core.round is None:
            continue
        check(core, said, contributing)
        if was_ready and not isinstance(event, Begin):
            assert core.ready, "ready stays"


def check(core, said, contributing):
    assert said is not None
    assert (said.round, said.ready) == (core.round, core.ready)
    assert contributing or not core.ready
    keys = [(entry.author_index, entry.digest) for entry in said.entries]
    assert keys == sorted(set(keys))
    yes = [entry.author_index for entry in said.entries if entry.accepted]
    assert len(yes) == len(set(yes)), "at most one yes an author"
    late = {(INDEX[grad.author], grad.digest) for grad in core.grads() if grad.late}
    assert not late & set(keys), "no opinion on what came late"
    assert all(grad.author in INDEX for grad in core.grads())
    for author in INDEX:
        assert sum(grad.author == author for grad in core.grads()) <= GRADS_PER_AUTHOR_MAX


@settings(max_examples=200, deadline=None)
@given(order=st.permutations(range(8)), verdicts=st.lists(VERDICTS, min_size=4, max_size=4))
def test_order_of_arrival_does_not_change_the_opinion(order, verdicts):
    """Honest authors, all GRADs before any body: whatever comes first, the opinion at the end is one."""
    core = Round()
    everyone = frozenset(AUTHORS[:4])
    core.handle(Begin(round=3, authors=INDEX, expected=everyone, last_round_empty=False, contributing=True))
    steps = [("grad", number) for number in order if number < 4] + [
        ("body", number - 4) for number in order if number >= 4
    ]
    said = None
    for kind, number in steps:
        author, digest = AUTHORS[number], DIGESTS[number]
        if kind == "grad":
            events = [GradReceived(round=3, author=author, digest=digest, size=1)]
        else:
            verdict = verdicts[number]
            events = [
                BodyReceived(round=3, digest=digest),
                Judged(round=3, author=author, digest=digest, verdict=verdict),
            ]
        for event in events:
            said = next((action for action in core.handle(event) if isinstance(action, Opine)), said)
    assert said.opinion.ready
    expected = [(index, verdict is YES) for index, verdict in enumerate(verdicts) if verdict.ruling.value != "abstain"]
    assert [(entry.author_index, entry.accepted) for entry in said.opinion.entries] == expected

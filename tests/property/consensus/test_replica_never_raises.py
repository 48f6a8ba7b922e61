"""No input raises (invariant 12), and locks only rise (4), whatever arrives in whatever order."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind
from consensus.events import (
    Applied,
    BlockReceived,
    DecisionReceived,
    DeltaMeasured,
    HeadAnnounced,
    Input,
    OperationReceived,
    Opinion,
    PersistSafety,
    PersistVote,
    Received,
    Timer,
    TimerFired,
    TimerKind,
)
from consensus.messages import (
    Ballot,
    BallotEntry,
    BallotRecord,
    Block,
    Body,
    Commit,
    CommitCert,
    Header,
    ObserverRecord,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    TrainingDecision,
    Verdict,
    ballots_root,
    block_id,
    operations_root,
    training_hash,
)
from consensus.types import NIL, NO_VIEW

COUNTER = (1 << 63) - 1
TABLE = Playbook(founders(4, observers=1, until_round=1 << 40))
"""Only for making messages; every example has a replica of its own."""
BLOCKS = [
    TABLE.block(voters=(0, 1, 2)),
    TABLE.block(voters=(1, 2, 3), ready=True, entries=(BallotEntry(author_index=1, digest=b"x" * 32, accepted=True),)),
    TABLE.block(view=1, observers=(4,), operations=(TABLE.operation(2, OperationKind.CONTRIBUTE, 1 << 41),)),
]
NAMES = [TABLE.name(block) for block in BLOCKS]

views = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 9, (1 << 31) - 1])
pointers = st.sampled_from([NO_VIEW, NO_VIEW, 0, 1, 2, (1 << 31) - 1])
heights = st.sampled_from([0, 1, 1, 1, 1, 2, 2, 3, COUNTER])
names = st.sampled_from([NIL, *NAMES, *NAMES, b"?" * 32])
members = st.integers(0, 5)
keys = members.map(simulated_key)
indices = st.sampled_from([0, 1, 2, 3, 4, 5, 1 << 20])
hashes = st.sampled_from([bytes(32), TABLE.state_hash(0), TABLE.state_hash(1)])
digests = st.sampled_from([b"x" * 32, b"y" * 32])
signatures = st.just(bytes(64))


def certificate_votes(draw: st.DrawFn, view: int, name: bytes, valid_view: int | None) -> tuple[tuple[int, bytes], ...]:
    """Mostly real signatures, in any order and number."""
    chosen = draw(st.lists(indices, max_size=5) | st.just([1, 2, 3]) | st.just([0, 1, 2]))
    votes = []
    for index in chosen:
        signer = min(index, 9)
        message = (
            TABLE.commit(signer, view, name) if valid_view is None else TABLE.prepare(signer, view, name, valid_view)
        )
        votes.append((index, message.signature))
    return tuple(votes)


@st.composite
def prepare_certificates(draw: st.DrawFn) -> PrepareCert:
    view, name, valid_view = draw(views), draw(names), draw(pointers)
    votes = certificate_votes(draw, view, name, valid_view)
    return PrepareCert(height=draw(heights), view=view, block_id=name, valid_view=valid_view, votes=votes)


@st.composite
def commit_certificates(draw: st.DrawFn) -> CommitCert:
    view, name = draw(views), draw(names)
    votes = certificate_votes(draw, view, name, None)
    return CommitCert(height=draw(heights), view=view, block_id=name, votes=votes)


entries = st.lists(
    st.builds(BallotEntry, author_index=indices, digest=digests, accepted=st.booleans()), max_size=4
).map(tuple)
operations = st.one_of(
    st.builds(
        Operation,
        kind=st.just(OperationKind.JOIN),
        signer=keys,
        sequence=st.sampled_from([1, 2, COUNTER]),
        arguments=st.just((bytes(16), "new")),
        signature=signatures,
    ),
    st.builds(
        Operation,
        kind=st.sampled_from([OperationKind.CONTRIBUTE, OperationKind.PRESENT]),
        signer=keys,
        sequence=st.sampled_from([1, 2, COUNTER]),
        arguments=st.sampled_from([0, 1, 5, COUNTER]).map(lambda argument: (argument,)),
        signature=signatures,
    ),
).map(lambda operation: TABLE.signed(operation))


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """An honest body with any of its parts changed."""
    body = draw(st.sampled_from(BLOCKS)).body
    rows = st.lists(st.tuples(indices, digests), max_size=3).map(tuple)
    table = draw(st.just(body.table) | rows)
    records = st.builds(
        BallotRecord,
        signer_index=indices,
        ready=st.booleans(),
        verdicts=st.lists(st.sampled_from(list(Verdict)), max_size=3).map(tuple),
        signature=signatures,
    )
    observers = st.builds(ObserverRecord, signer_index=indices, signature=signatures)
    training = st.builds(TrainingDecision, round=st.sampled_from([0, 1, COUNTER]), included=rows)
    return Body(
        table=table,
        ballots=draw(st.just(body.ballots) | st.lists(records, max_size=4).map(tuple)),
        observers=draw(st.just(body.observers) | st.lists(observers, max_size=2).map(tuple)),
        training=draw(st.just(body.training) | st.none() | training),
        operations=draw(st.just(body.operations) | st.lists(operations, max_size=3).map(tuple)),
    )


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Bound by right roots as often as not: what a lying leader can make, and what a relay can."""
    header: Header = draw(st.sampled_from(BLOCKS)).header
    body = draw(bodies())
    if draw(st.booleans()):
        header = replace(
            header,
            ballots_root=ballots_root(TABLE.crypto, body),
            training_hash=training_hash(TABLE.crypto, body),
            operations_root=operations_root(TABLE.crypto, body),
        )
    changes = draw(
        st.fixed_dictionaries(
            {}, optional={"height": heights, "origin_view": views, "epoch": st.integers(0, 2), "state_hash": hashes}
        )
    )
    return Block(header=replace(header, **changes), body=body)


@st.composite
def fresh_sets(draw: st.DrawFn) -> SetMessage:
    block, view = draw(st.sampled_from(BLOCKS) | blocks()), draw(views)
    signer = draw(st.just(TABLE.leader(view)) | members)
    return SetMessage(
        height=draw(st.just(block.height) | heights),
        view=view,
        valid_view=NO_VIEW,
        block_id=draw(st.just(block_id(TABLE.crypto, block.header)) | names),
        signer=simulated_key(signer),
        block=draw(st.just(block) | st.none()),
    )


certificates = prepare_certificates()
votes = st.one_of(
    st.builds(Prepare, height=heights, view=views, block_id=names, valid_view=pointers, signer=keys),
    st.builds(Commit, height=heights, view=views, block_id=names, signer=keys),
    fresh_sets(),
    st.builds(
        SetMessage,
        height=heights,
        view=views,
        valid_view=pointers,
        block_id=names,
        signer=keys,
        certificate=st.none() | certificates,
    ),
    st.builds(
        Ballot,
        height=heights,
        view=views,
        state_hash=hashes,
        valid_view=pointers,
        valid_id=names,
        round=st.sampled_from([0, 1, COUNTER]),
        ready=st.booleans(),
        entries=entries,
        signer=keys,
        certificate=st.none() | certificates,
    ),
).map(lambda vote: TABLE.signed(vote))
own_entries = st.sampled_from([(), (BallotEntry(author_index=1, digest=b"x" * 32, accepted=True),)])
timers = st.builds(
    Timer,
    kind=st.sampled_from(list(TimerKind)),
    height=heights,
    view=views,
    subject=st.sampled_from([b"", b"nobody"]),
)
events: st.SearchStrategy[Input] = st.one_of(
    st.builds(Received, message=votes),
    st.builds(Received, message=votes),
    st.builds(OperationReceived, operation=operations, own=st.booleans()),
    st.builds(TimerFired, timer=timers),
    st.builds(Applied, height=st.sampled_from([0, 0, 1]), state_hash=hashes),
    st.builds(Opinion, round=st.sampled_from([0, 0, 1, 7]), ready=st.booleans(), entries=own_entries),
    st.builds(BlockReceived, block=st.sampled_from(BLOCKS) | blocks()),
    st.builds(DecisionReceived, block=st.sampled_from(BLOCKS) | blocks(), certificate=commit_certificates()),
    st.builds(HeadAnnounced, peer=keys, height=heights),
    st.builds(DeltaMeasured, delta_ms=st.integers(0, 1 << 40)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(events, min_size=1, max_size=60), st.sampled_from([0, 1, 4]))
def test_no_input_raises_and_locks_only_rise(inputs: list[Input], me: int) -> None:
    table = Playbook(founders(4, observers=1, until_round=1 << 40), me=me)
    signed: dict[tuple[int, int, int], object] = {}
    last = (table.replica.height, NO_VIEW, NO_VIEW, 0)
    for event in inputs:
        effects = table.handle(event)
        replica = table.replica
        assert NO_VIEW <= replica.locked_view <= replica.valid_view <= replica.view
        now = (replica.height, replica.locked_view, replica.valid_view, replica.view)
        assert now[0] > last[0] or (now[0] == last[0] and all(a >= b for a, b in zip(now, last, strict=True)))
        last = now
        for persisted in of_kind(effects, PersistVote):
            slot = (int(persisted.message.kind), persisted.message.height, persisted.message.view)
            assert signed.setdefault(slot, persisted.message) == persisted.message
        for record in of_kind(effects, PersistSafety):
            assert record.safety.locked_view <= record.safety.valid_view


@settings(max_examples=60, deadline=None)
@given(st.lists(events, min_size=1, max_size=40), st.lists(events, min_size=1, max_size=20))
def test_no_input_raises_after_a_crash(before: list[Input], after: list[Input]) -> None:
    table = Playbook(founders(4, observers=1, until_round=1 << 40))
    for event in before:
        table.handle(event)
    safety = table.replica.safety
    table.votes = [vote for vote in table.votes if vote.height >= table.height]
    table.restart()
    assert (table.replica.locked_view, table.replica.locked_id) == (safety.locked_view, safety.locked_id)
    for event in after:
        table.handle(event)


@settings(max_examples=60, deadline=None)
@given(st.lists(events, min_size=1, max_size=40))
def test_same_inputs_give_the_same_effects(inputs: list[Input]) -> None:
    one, two = (Playbook(founders(4, observers=1, until_round=1 << 40)) for _ in range(2))
    for event in inputs:
        assert one.handle(event) == two.handle(event)


def test_every_input_is_drawn() -> None:
    drawn = {Received, OperationReceived, TimerFired, Applied, Opinion, BlockReceived, DecisionReceived}
    assert {kind.__name__ for kind in (*drawn, HeadAnnounced, DeltaMeasured)} == {
        kind.__name__
        for kind in Input.__args__  # type: ignore[attr-defined]
    }
    assert all(fields(kind) for kind in drawn)

"""Playbooks of refusal: what is dropped unrecorded, what counts once, what memory it may take."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.playbook import Playbook, founders, of_kind, said
from consensus.certificates import CERTIFICATES_KEPT
from consensus.events import (
    Accusation,
    Decide,
    DecisionReceived,
    Diverged,
    HeadAnnounced,
    Input,
    Received,
    RequestDecisions,
    ServeDecision,
    TimerKind,
)
from consensus.evidence import evidence
from consensus.messages import (
    Ballot,
    BallotEntry,
    Block,
    Body,
    Commit,
    MessageKind,
    Operation,
    OperationKind,
    Prepare,
    PrepareCert,
    SetMessage,
    TrainingDecision,
    Vote,
    block_id,
    operations_root,
    training_hash,
)
from consensus.replica import BLOCKS_KEPT
from consensus.types import NIL, NO_VIEW

X = b"x" * 32


def recorded(table: Playbook, message: Vote) -> bool:
    return table.replica.book.of(message.signer, message.kind, message.view) is not None


def dropped(table: Playbook, message: Vote) -> bool:
    table.hear(message)
    return not recorded(table, message)


# ---- who may say what


def test_messages_of_strangers_are_dropped() -> None:
    table = Playbook()
    assert dropped(table, table.prepare(9, 0, X)) and dropped(table, table.ballot(9))


def test_set_from_anybody_but_the_leader_is_dropped() -> None:
    table = Playbook()
    block = table.block()
    assert dropped(table, table.fresh(block, signer=2))
    assert recorded_after(table, table.fresh(block, signer=1))


def recorded_after(table: Playbook, message: Vote) -> bool:
    return not dropped(table, message)


def test_set_of_view_0_by_the_leader_of_another_view_is_dropped() -> None:
    table = Playbook()
    assert dropped(table, table.fresh(table.block(), 0, signer=table.leader(1)))


def test_member_on_probation_may_not_vote() -> None:
    table = Playbook(founders(4, observers=1))
    for message in (table.prepare(4, 0, X), table.commit(4, 0, X), table.fresh(table.block(), signer=4)):
        assert dropped(table, message)


@pytest.mark.parametrize("lie", ["ready", "entries", "certificate"])
def test_observer_ballot_may_claim_nothing(lie: str) -> None:
    table = Playbook(founders(4, observers=1))
    ballot = {
        "ready": table.ballot(4, ready=True),
        "entries": table.ballot(4, entries=(BallotEntry(author_index=0, digest=X, accepted=True),)),
        "certificate": table.ballot(4, 1, certificate=table.prepare_certificate(0, X)),
    }[lie]
    assert dropped(table, ballot)
    assert recorded_after(table, table.ballot(4, ballot.view))


# ---- attachments


def test_set_without_its_block_is_dropped_and_the_whole_one_is_taken() -> None:
    table = Playbook()
    whole = table.fresh(table.block())
    assert dropped(table, replace(whole, block=None))
    (prepare,) = said(table.hear(whole), Prepare)
    assert prepare.block_id == whole.block_id


def test_set_with_another_block_than_it_names_is_dropped() -> None:
    table = Playbook()
    whole = table.fresh(table.block(voters=(0, 1, 2)))
    assert dropped(table, replace(whole, block=table.block(voters=(1, 2, 3))))


def test_set_with_another_body_than_the_header_binds_is_dropped() -> None:
    table = Playbook()
    whole = table.fresh(table.block(voters=(0, 1, 2)))
    assert whole.block is not None
    body = table.block(voters=(1, 2, 3)).body
    assert dropped(table, replace(whole, block=Block(header=whole.block.header, body=body)))


def test_ballot_without_its_certificate_is_dropped_and_the_whole_one_is_taken() -> None:
    table = Playbook()
    whole = table.ballot(1, 1, certificate=table.prepare_certificate(0, X))
    assert dropped(table, replace(whole, certificate=None))
    assert recorded_after(table, whole)


def test_set_again_needs_a_certificate_of_its_valid_view() -> None:
    table = Playbook()
    table.reach_view(2)
    good = table.again(table.prepare_certificate(1, X), 2)
    assert dropped(table, replace(good, certificate=table.prepare_certificate(0, X)))
    assert dropped(table, replace(good, certificate=table.prepare_certificate(1, b"y" * 32)))
    assert dropped(table, replace(good, certificate=None))
    assert recorded_after(table, good)


def test_certificate_for_nil_lets_nobody_propose_nil_again() -> None:
    table = Playbook()
    table.reach_view(2)
    assert dropped(table, table.again(table.prepare_certificate(1, NIL), 2))


def bad_certificates(table: Playbook) -> dict[str, PrepareCert]:
    good = table.prepare_certificate(0, X)
    return {
        "below a quorum": replace(good, votes=good.votes[:2]),
        "repeated index": replace(good, votes=(good.votes[0], *good.votes)),
        "unsorted": replace(good, votes=good.votes[::-1]),
        "beyond the roster": replace(good, votes=(*good.votes[:2], (99, good.votes[2][1]))),
        "signature of another": replace(good, votes=(*good.votes[:2], (3, good.votes[0][1]))),
        "without power": replace(good, votes=(*good.votes, (4, table.prepare(4, 0, X).signature))),
        "another height": replace(good, height=2),
        "another view": replace(good, view=1),
        "another group": replace(good, valid_view=0),
        "nil": table.prepare_certificate(0, NIL),
        "empty": replace(good, votes=()),
    }


@pytest.mark.parametrize("fault", sorted(bad_certificates(Playbook(founders(4, observers=1)))))
def test_certificate_that_does_not_hold_proves_nothing(fault: str) -> None:
    table = Playbook(founders(4, observers=1))
    bad = bad_certificates(table)[fault]
    ballot = table.signed(replace(table.ballot(1, 1, certificate=table.prepare_certificate(0, X)), certificate=bad))
    assert dropped(table, ballot)
    assert table.replica.valid_view == NO_VIEW


# ---- ranges


@pytest.mark.parametrize(("view", "name", "valid_view"), [(0, X, 0), (3, X, 3), (3, X, 7), (3, NIL, 0)], ids=str)
def test_prepare_with_impossible_valid_view_is_dropped(view: int, name: bytes, valid_view: int) -> None:
    table = Playbook()
    assert dropped(table, table.prepare(1, view, name, valid_view))


def test_ballot_whose_certificate_is_not_below_its_view_is_dropped() -> None:
    table = Playbook()
    assert dropped(table, table.ballot(1, 0, certificate=table.prepare_certificate(0, X)))
    assert dropped(table, table.ballot(1, 1, certificate=table.prepare_certificate(1, X)))


def test_ballot_with_half_a_certificate_reference_is_dropped() -> None:
    table = Playbook()
    ballot = table.ballot(1)
    assert dropped(table, table.signed(replace(ballot, valid_id=X)))
    assert dropped(table, table.signed(replace(ballot, view=1, valid_view=0)))


def test_ballot_on_authors_beyond_the_roster_is_dropped() -> None:
    table = Playbook()
    for author in (4, 1 << 20):
        entry = BallotEntry(author_index=author, digest=X, accepted=True)
        assert dropped(table, table.ballot(1, entries=(entry,)))


def test_view_as_large_as_it_can_be_moves_nobody_alone() -> None:
    table = Playbook()
    huge = (1 << 31) - 1
    table.hear(table.commit(1, huge, NIL), table.ballot(1, huge))
    assert table.replica.view == 0
    assert table.replica.pacemaker.timeout_ms(huge) == table.timing.timeout_max_ms


# ---- once


def test_duplicates_are_recognised_by_content_and_not_by_signature() -> None:
    table = Playbook()
    block = table.block()
    name = table.name(block)
    table.hear(table.fresh(block), table.prepare(1, 0, name))
    again = replace(table.prepare(1, 0, name), signature=b"another signature of the same signer" + bytes(28))
    effects = table.hear(again, again)
    assert not said(effects, Commit) and not of_kind(effects, Accusation)


def test_conflicting_second_vote_is_evidence_and_never_overwrites() -> None:
    table = Playbook()
    first, second = table.commit(1, 0, X), table.commit(1, 0, NIL)
    table.hear(first)
    (accusation,) = of_kind(table.hear(second), Accusation)
    assert accusation.evidence == evidence(first, second)
    assert table.replica.book.commits(0) == [first]


def test_one_pair_of_evidence_a_signer_and_height_is_enough() -> None:
    table = Playbook()
    table.hear(table.commit(1, 0, X))
    effects = table.hear(*(table.commit(1, 0, bytes([n]) * 32) for n in range(50)))
    assert len(of_kind(effects, Accusation)) == 1


def test_message_of_another_height_is_not_replayed_into_this_one() -> None:
    table = Playbook()
    old = [table.commit(i, 0, NIL) for i in (1, 2, 3)]
    table.decide(table.block())
    table.hear(*old)
    assert (table.replica.height, table.replica.view) == (2, 0)


# ---- bounds


def size_of(replica: object) -> int:
    """Bytes of all that ``replica`` holds."""
    seen: set[int] = set()
    stack, total = [replica], 0
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += item
        elif hasattr(item, "__dict__"):
            stack += vars(item).values()
        if hasattr(item, "__slots__"):
            stack += [getattr(item, name) for name in item.__slots__ if hasattr(item, name)]
    return total


def flood(table: Playbook, kind: str, number: int) -> Input:
    """One of endlessly many different messages that member 1 alone can make."""
    height = table.height
    view = number + 1
    match kind:
        case "future views":
            return Received(message=table.commit(1, view, X))
        case "future ballots":
            return Received(message=table.ballot(1, view))
        case "late views":
            return Received(message=table.signed(replace(table.commit(1, view, X), height=height - 1)))
        case "early views":
            return Received(message=table.signed(replace(table.commit(1, view, X), height=height + 1)))
        case "early heights":
            return Received(message=table.signed(replace(table.commit(1, 0, X), height=height + 2 + number)))
        case "conflicts":
            return Received(message=table.commit(1, 0, number.to_bytes(32, "big")))
        case "certificates":
            # The same fact proved in endlessly many ways: a signer can sign one content with many signatures.
            votes = tuple((i, table.prepare(i, 0, X).signature) for i in (0, 1, 2, 3))
            certificate = PrepareCert(
                height=height, view=0, block_id=X, valid_view=NO_VIEW, votes=votes[:3] if number % 2 else votes
            )
            return Received(message=table.ballot(1, view, certificate=certificate))
        case "heads":
            return HeadAnnounced(peer=number.to_bytes(32, "big"), height=number)
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "future views",
        "future ballots",
        "late views",
        "early views",
        "early heights",
        "conflicts",
        "certificates",
        "heads",
    ],
)
def test_case_C15_memory_stays_bounded_under_flood(kind: str) -> None:
    table = Playbook()
    table.decide(table.block())
    for number in range(200):
        table.replica.handle(flood(table, kind, number))
    before = size_of(table.replica)
    for number in range(200, 1200):
        table.replica.handle(flood(table, kind, number))
    assert size_of(table.replica) < before * 1.1 + 20_000


def test_verified_certificates_are_kept_one_a_view() -> None:
    table = Playbook()
    for view in range(1, 100):
        table.hear(table.ballot(1, view + 1, certificate=table.prepare_certificate(view, X)))
    assert len(table.replica._certificates) <= 2 * CERTIFICATES_KEPT, "to be learnt, and to stand behind the decision"


def test_blocks_of_a_height_are_bounded_but_the_valid_one_stays() -> None:
    table = Playbook()
    valid = table.block()
    table.lock(valid)
    for view in range(1, 60):
        table.reach_view(view)
        if table.leader(view) != table.me:
            table.hear(table.fresh(table.block(view=view), view))
    assert len(table.replica.blocks) <= BLOCKS_KEPT
    assert table.replica.block(table.name(valid)) == valid
    table.restart()
    assert len(table.replica.blocks) <= BLOCKS_KEPT
    assert table.replica.block(table.name(valid)) == valid


# ---- the next height


def next_height_table() -> tuple[Playbook, SetMessage, Block]:
    """A message of height 2 made while this member is still at height 1; and the block of height 1."""
    ahead = Playbook()
    first = ahead.block()
    ahead.decide(first)
    return Playbook(), ahead.fresh(ahead.block()), first


def test_message_of_the_next_height_is_kept_for_it() -> None:
    table, early, first = next_height_table()
    table.hear(early)
    (prepare, *_rest) = [p for p in said(table.decide(first), Prepare) if p.height == 2]
    assert prepare.block_id == early.block_id


def test_stripped_message_of_the_next_height_does_not_take_the_slot_of_the_whole_one() -> None:
    table, early, first = next_height_table()
    table.hear(replace(early, block=None), early)
    (prepare, *_rest) = [p for p in said(table.decide(first), Prepare) if p.height == 2]
    assert prepare.block_id == early.block_id


def test_message_of_the_next_height_is_checked_again_there() -> None:
    table, early, first = next_height_table()
    table.hear(table.signed(replace(early, signer=simulated_key(3))))
    assert not [p for p in said(table.decide(first), Prepare) if p.height == 2]


def test_message_of_the_next_height_with_an_impossible_vote_is_dropped_there() -> None:
    table, _early, first = next_height_table()
    impossible = table.signed(replace(table.prepare(2, 3, X, 3), height=2))
    table.hear(impossible)
    table.decide(first)
    assert table.replica.height == 2 and not recorded(table, impossible)


# ---- decisions from others


def test_decision_with_its_certificate_is_followed() -> None:
    table = Playbook()
    block = table.block()
    certificate = table.commit_certificate(4, table.name(block))
    (decision,) = of_kind(table.handle(DecisionReceived(block=block, certificate=certificate)), Decide)
    assert decision.certificate == certificate
    assert table.replica.height == 2


def test_decision_from_a_liar_changes_nothing() -> None:
    table = Playbook()
    block, other = table.block(), table.block(voters=(1, 2, 3))
    good = table.commit_certificate(0, table.name(block))
    for certificate in (
        replace(good, votes=good.votes[:2]),
        replace(good, votes=(good.votes[0], good.votes[0], good.votes[1])),
        replace(good, votes=good.votes[::-1]),
        replace(good, votes=tuple((i + 50, s) for i, s in good.votes)),
        replace(good, height=2),
        table.commit_certificate(0, table.name(other)),
    ):
        assert not of_kind(table.handle(DecisionReceived(block=block, certificate=certificate)), Decide)
    swapped = Block(header=block.header, body=other.body)
    assert not of_kind(table.handle(DecisionReceived(block=swapped, certificate=good)), Decide)
    assert table.replica.height == 1


def test_decision_of_a_decided_height_said_again_changes_nothing() -> None:
    """Replayed by anybody, it is no decision of the present height that does not apply."""
    table = Playbook()
    block = table.block()
    certificate = table.commit_certificate(0, table.name(block))
    table.decide(block)
    assert table.handle(DecisionReceived(block=block, certificate=certificate)) == []
    assert not table.replica.diverged and table.replica.height == 2


@pytest.mark.parametrize(
    "body_change",
    [
        {"training": TrainingDecision(round=0, included=((99, X),))},
        {"training": TrainingDecision(round=5, included=())},
        {
            "operations": (
                Operation(kind=OperationKind.CONTRIBUTE, signer=simulated_key(77), sequence=1, arguments=(5,)),
            )
        },
    ],
    ids=["author beyond the roster", "another round", "operation of a stranger"],
)
def test_decision_for_an_invalid_block_stops_the_node_and_raises_nothing(body_change: dict[str, object]) -> None:
    """Only more than F faulty members can certify one: this node must not follow them, nor crash over it."""
    table = Playbook()
    honest = table.block()
    body: Body = replace(honest.body, **body_change)  # type: ignore[arg-type]
    header = replace(
        honest.header,
        training_hash=training_hash(table.crypto, body),
        operations_root=operations_root(table.crypto, body),
    )
    certificate = table.commit_certificate(0, block_id(table.crypto, header))
    event = DecisionReceived(block=Block(header=header, body=body), certificate=certificate)
    effects = table.handle(event) + table.handle(event)
    assert len(of_kind(effects, Diverged)) == 1 and not of_kind(effects, Decide)
    assert table.replica.diverged and table.replica.height == 1


# ---- those who are behind or ahead


def test_head_of_one_liar_does_not_make_this_node_think_it_is_behind() -> None:
    """A node that thinks it is behind asks the ledger for nothing: anybody could keep it from joining or training."""
    table = Playbook()
    table.handle(HeadAnnounced(peer=simulated_key(1), height=1 << 60))
    table.handle(HeadAnnounced(peer=b"s" * 32, height=1 << 60))
    assert not table.replica.is_behind
    table.handle(HeadAnnounced(peer=simulated_key(2), height=1))
    assert table.replica.is_behind


def test_greater_height_triggers_a_request_for_this_one() -> None:
    table = Playbook()
    table.hear(table.signed(replace(table.commit(2, 0, X), height=5)))
    (request,) = of_kind(table.fire(TimerKind.CATCHUP), RequestDecisions)
    assert (request.height, request.target) == (1, simulated_key(2))


def test_late_message_is_answered_when_it_is_said_again_and_once_per_window() -> None:
    table = Playbook()
    table.decide(table.block())
    late = table.signed(replace(table.prepare(3, 4, NIL), height=1))
    assert not of_kind(table.hear(late), ServeDecision), "on its way when the decision fell"
    (answer,) = of_kind(table.hear(late), ServeDecision)
    assert (answer.height, answer.to) == (1, simulated_key(3))
    assert not of_kind(table.hear(late, late), ServeDecision)
    table.fire(TimerKind.ENTRY)
    assert of_kind(table.hear(late), ServeDecision)


def test_late_commits_of_members_that_decided_too_are_not_answered() -> None:
    table = Playbook()
    block = table.block()
    table.lock(block)
    late = table.commit(3, 0, table.name(block))
    table.hear(table.commit(1, 0, table.name(block)), table.commit(2, 0, table.name(block)))
    assert table.replica.height == 2
    assert not of_kind(table.hear(late), ServeDecision)


def test_message_of_a_height_long_decided_is_answered_at_once() -> None:
    table = Playbook()
    late = table.commit(3, 0, NIL)
    for _ in range(2):
        table.decide(table.block())
    (answer,) = of_kind(table.hear(late), ServeDecision)
    assert answer.height == 1


def test_stuck_member_in_ever_later_views_is_answered_when_it_repeats_itself() -> None:
    table = Playbook()
    table.decide(table.block())
    for view in range(30):
        late = table.signed(replace(table.prepare(3, view, NIL), height=1))
        table.fire(TimerKind.ENTRY)
        assert of_kind(table.hear(late, late), ServeDecision), f"view {view}"


def test_every_kind_of_message_has_a_slot_kind() -> None:
    assert {Ballot.kind, SetMessage.kind, Prepare.kind, Commit.kind} == set(MessageKind) - {MessageKind.GRAD}

"""One member floods another with messages of greater heights and views, and malformed ones, while the rest decide.

The million of the bar is one command, ``python -m aicpnode.simulation.flood 1000000``; here are fewer, and nothing
depends on seconds: what is kept and how much work is done are counted.
"""

from __future__ import annotations

import pytest
import trio

from aicpnode.replication.inbox import INPUTS_PER_PEER_MAX, PEERS_MAX, Inbox
from aicpnode.simulation.checks.bounds import size_limits
from aicpnode.simulation.crypto import simulated_key
from aicpnode.simulation.flood import FLOODER, Flood, Measured, decision, measure
from aicpnode.simulation.playbook import Playbook
from consensus.events import Decide

FEW, MANY = 4_000, 40_000
NOISE_BYTES = 64 << 10
"""Python's own: dictionaries that once grew, interned integers."""


@pytest.fixture(scope="module")
def few() -> Measured:
    return measure(FEW)


@pytest.fixture(scope="module")
def many() -> Measured:
    return measure(MANY)


def test_flood_leaves_no_more_than_the_bound_allows(many: Measured) -> None:
    assert all(many.kept[name] <= limit for name, limit in many.limits.items()), many.kept
    assert many.kept_bytes <= many.bytes_max


def test_bound_grows_with_members_only() -> None:
    four, forty = size_limits(4), size_limits(40)
    assert all(forty[name] in (limit, 10 * limit) for name, limit in four.items())


def test_ten_times_the_flood_leaves_no_more(few: Measured, many: Measured) -> None:
    assert many.kept == few.kept
    assert many.kept_bytes <= few.kept_bytes + NOISE_BYTES


def test_work_of_a_message_does_not_grow_with_those_before_it(few: Measured, many: Measured) -> None:
    for measured in (few, many):
        assert measured.last_calls <= 1.25 * measured.first_calls
    assert many.last_calls <= 1.25 * few.last_calls
    assert many.last_calls < many.honest_calls, "and is less than an honest one causes"


def test_decision_meanwhile_takes_at_most_twice_the_work(many: Measured) -> None:
    assert many.decision_events == many.calm_events, "it needs no more of the honest"
    assert many.slowdown <= 2.0


async def test_inbox_gives_a_flooder_no_more_than_its_turn() -> None:
    """Handled before the decision: what the honest said, and of the flooder as much as each one of them."""
    table = Playbook(me=0)
    flood = Flood(table.block())
    honest = decision(table)
    inbox = Inbox()
    for event in flood.inputs(20 * INPUTS_PER_PEER_MAX, height=1):
        inbox.put_from(simulated_key(FLOODER), event)
    assert len(inbox) == INPUTS_PER_PEER_MAX and inbox.dropped == 19 * INPUTS_PER_PEER_MAX
    for number, event in enumerate(honest):
        inbox.put_from(simulated_key(1 + number % 2), event)
    handled = 0
    with trio.fail_after(5):
        while not table.decisions:
            for event in await inbox.take(64):
                handled += 1
                if any(isinstance(effect, Decide) for effect in table.handle(event)):
                    break
    assert handled <= 2 * len(honest)


async def test_inbox_is_bounded_whatever_the_number_of_peers() -> None:
    inbox = Inbox()
    flood = Flood(Playbook(me=0).block())
    for number, event in enumerate(flood.inputs(4 * PEERS_MAX, height=1)):
        inbox.put_from(b"peer %d" % number, event)
    assert len(inbox) == PEERS_MAX

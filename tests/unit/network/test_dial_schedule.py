"""Playbooks of the dial schedule, and the PEERS message."""

from __future__ import annotations

import random

import pytest

from aicpnode.envelop.codec import pack
from aicpnode.errors import MalformedError
from aicpnode.network.discovery import (
    BACKOFF_S_MAX,
    HEARSAY_ATTEMPTS_MAX,
    PEERS_TOLD_MAX,
    POLITE_DELAY_S,
    TARGETS_MAX,
    DialSchedule,
    Origin,
    decode_peers,
    encode_peers,
)
from aicpnode.network.framing import PAYLOAD_BYTES_MAX
from aicpnode.network.peers import Address

ME, SMALL, LARGE = b"m" * 32, b"a" * 32, b"z" * 32
HERE, THERE = Address("10.0.0.1", 7777), Address("10.0.0.2", 7777)


def schedule() -> DialSchedule:
    return DialSchedule(me=ME, rng=random.Random(7))


def due(plan, now_s, connected=(), limit=10):
    return plan.due(now_s, connected=connected, limit=limit)


def test_a_bootstrap_is_dialled_at_once_and_only_once_at_a_time():
    plan = schedule()
    plan.add(HERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    assert due(plan, 0.0) == [HERE]
    assert due(plan, 0.0) == []
    assert plan.next_due_s(connected=()) is None


def test_bootstraps_come_first_and_the_limit_holds():
    plan = schedule()
    plan.add(HERE, origin=Origin.HEARSAY, key=LARGE, now_s=0.0)
    plan.add(THERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    assert due(plan, 0.0, limit=1) == [THERE]


@pytest.mark.parametrize("origin", [Origin.BOOTSTRAP, Origin.MET])
def test_bootstraps_and_peers_met_before_are_retried_for_ever_with_backoff_and_jitter(origin):
    plan, now_s, delays = schedule(), 0.0, []
    plan.add(HERE, origin=origin, key=SMALL, now_s=now_s)
    for attempt in range(1, 101):
        assert due(plan, now_s) == [HERE]
        attempts, delay_s, is_bootstrap = plan.failed(HERE, "connection refused", now_s)
        assert attempts == attempt and is_bootstrap is (origin is Origin.BOOTSTRAP)
        assert due(plan, now_s + delay_s * 0.99) == []
        now_s += delay_s
        delays.append(delay_s)
    assert 0.125 <= delays[0] <= 0.25
    assert all(BACKOFF_S_MAX / 2 <= delay_s <= BACKOFF_S_MAX for delay_s in delays[10:])
    assert len(set(delays[10:])) > 80


def test_hearsay_is_forgotten_after_a_few_failures_and_may_be_heard_again():
    plan = schedule()
    plan.add(HERE, origin=Origin.HEARSAY, key=LARGE, now_s=0.0)
    for _ in range(HEARSAY_ATTEMPTS_MAX):
        assert due(plan, 1e6) == [HERE]
        plan.failed(HERE, "timeout", 0.0)
    assert len(plan) == 0
    plan.add(HERE, origin=Origin.HEARSAY, key=LARGE, now_s=0.0)
    assert due(plan, 0.0) == [HERE]


def test_of_two_that_hear_of_each_other_the_larger_key_waits():
    plan = schedule()
    plan.add(HERE, origin=Origin.HEARSAY, key=LARGE, now_s=0.0)
    plan.add(THERE, origin=Origin.HEARSAY, key=SMALL, now_s=0.0)
    assert due(plan, 0.0) == [HERE]
    assert due(plan, POLITE_DELAY_S) == [THERE]


def test_who_is_connected_is_not_dialled_and_is_dialled_again_when_lost():
    plan = schedule()
    plan.add(HERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    due(plan, 0.0)
    plan.succeeded(HERE, LARGE)
    assert due(plan, 1e6, connected={LARGE}) == [] and plan.waiting(0.0, connected={LARGE}) == []
    plan.disconnected(LARGE, 5.0)
    assert due(plan, 5.1) == []
    assert due(plan, 5.25) == [HERE]


def test_an_address_that_answered_with_another_key_belongs_to_that_one():
    plan = schedule()
    plan.add(HERE, origin=Origin.MET, key=SMALL, now_s=0.0)
    due(plan, 0.0)
    plan.succeeded(HERE, LARGE)
    assert due(plan, 0.0, connected={LARGE}) == []


def test_hearsay_does_not_rename_who_was_met():
    plan = schedule()
    plan.add(HERE, origin=Origin.MET, key=LARGE, now_s=0.0)
    plan.add(HERE, origin=Origin.HEARSAY, key=SMALL, now_s=0.0)
    assert due(plan, 0.0, connected={LARGE}) == []


def test_this_node_is_never_dialled():
    plan = schedule()
    plan.add(HERE, origin=Origin.HEARSAY, key=ME, now_s=0.0)
    assert len(plan) == 0
    plan.add(THERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    plan.is_self(THERE)
    plan.add(THERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    assert len(plan) == 0


def test_addresses_are_bounded_and_hearsay_pushes_out_no_bootstrap():
    plan = schedule()
    plan.add(HERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    for number in range(2 * TARGETS_MAX):
        address = Address(f"10.1.{number // 256}.{number % 256}", 1)
        plan.add(address, origin=Origin.HEARSAY, key=number.to_bytes(32, "big"), now_s=0.0)
    assert len(plan) == TARGETS_MAX
    assert HERE in due(plan, 1e6, limit=TARGETS_MAX)


def test_hearsay_pushes_out_nobody_that_was_met():
    plan = schedule()
    for number in range(TARGETS_MAX):
        address = Address(f"10.1.{number // 256}.{number % 256}", 1)
        plan.add(address, origin=Origin.MET, key=number.to_bytes(32, "big"), now_s=0.0)
    plan.add(HERE, origin=Origin.HEARSAY, key=LARGE, now_s=0.0)
    assert HERE not in due(plan, 1e6, limit=TARGETS_MAX)
    plan.add(THERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    assert len(plan) == TARGETS_MAX


def test_waiting_tells_what_why_asks():
    plan = schedule()
    plan.add(HERE, origin=Origin.BOOTSTRAP, key=None, now_s=0.0)
    due(plan, 0.0)
    _, delay_s, _ = plan.failed(HERE, "connection refused", 0.0)
    (state,) = plan.waiting(0.1, connected=())
    assert (state.address, state.attempts, state.last_error, state.bootstrap) == (HERE, 1, "connection refused", True)
    assert state.next_try_s == pytest.approx(delay_s - 0.1)


def test_peers_message_round_trip():
    entries = [(SMALL, HERE), (LARGE, None), (ME, Address("fe80::1%eth0", 1))]
    assert decode_peers(encode_peers(entries)) == [(SMALL, "10.0.0.1:7777"), (LARGE, ""), (ME, "[fe80::1%eth0]:1")]


def test_the_longest_peers_message_fits_into_a_frame():
    address = Address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%interface0", 65535)
    payload = encode_peers([(SMALL, address)] * 1000)
    assert len(decode_peers(payload)) == PEERS_TOLD_MAX and len(payload) < PAYLOAD_BYTES_MAX


@pytest.mark.parametrize(
    "value",
    [
        1,
        [1],
        [[SMALL]],
        [[b"short", ""]],
        [[SMALL, b"10.0.0.1:1"]],
        [[SMALL, "x" * 81]],
        [[SMALL, ""]] * (PEERS_TOLD_MAX + 1),
    ],
)
def test_malformed_peers_messages_are_refused(value):
    with pytest.raises(MalformedError):
        decode_peers(pack(value))

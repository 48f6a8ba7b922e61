"""Liars with habits: each habit really acts, none of them harms, alone or together, and nothing is forged."""

from __future__ import annotations

import random

import pytest

from aicpnode.envelop import kinds
from aicpnode.simulation.cluster import Behaviour, Cluster, Faults, Violation
from aicpnode.simulation.crypto import signature_of
from aicpnode.simulation.habits import Habit
from aicpnode.simulation.malformed import garbled
from aicpnode.simulation.member import SimulatedMember
from aicpnode.simulation.playbook import NETWORK_ID, Playbook
from consensus.events import Input
from consensus.messages import Operation, Vote

HONEST, LIAR = Behaviour.HONEST, Behaviour.LIAR
ROUGH = Faults(loss=0.05, duplication=0.05, crashes=2, power_cuts=3, partitions=2, quiet_after_ms=8_000)
SEEDS = 6


def run(seed: int, count: int, *habits: Habit) -> Cluster:
    faulty = (count - 1) // 3
    cluster = Cluster(seed=seed, behaviours=[HONEST] * (count - faulty) + [LIAR] * faulty, faults=ROUGH)
    for member in cluster.members.values():
        if member.is_liar and habits:
            cluster.adversary.habits.choose(member, *habits)
    cluster.start()
    reached = cluster.run(until=lambda: min(cluster.heights()) >= 10 and min(cluster.rounds()) >= 3, limit_ms=200_000)
    assert reached, (seed, habits, cluster.heights(), cluster.rounds())
    return cluster


@pytest.mark.parametrize("habit", list(Habit))
def test_habit_acts_and_does_no_harm(habit: Habit) -> None:
    acted = sum(run(seed, 4, habit).adversary.habits.acted[habit] for seed in range(SEEDS))
    assert acted >= SEEDS, f"{habit.value} acted {acted} times in {SEEDS} runs"


@pytest.mark.parametrize("seed", range(4))
def test_all_habits_together_do_no_harm(seed: int) -> None:
    cluster = run(seed, 7, *Habit)
    assert all(cluster.adversary.habits.acted[habit] for habit in (Habit.GARBLE, Habit.WITHHOLD, Habit.REPLAY))


def test_habits_are_drawn_from_the_seed() -> None:
    drawn = []
    for _ in range(2):
        cluster = Cluster(seed=5, behaviours=[HONEST, LIAR, HONEST, HONEST], faults=ROUGH)
        drawn.append(cluster.adversary.habits.of(cluster.members[cluster.keys[1]]))
    assert drawn[0] == drawn[1] and drawn[0]


@pytest.mark.parametrize("seed", range(4))
def test_liars_forge_no_signature_of_an_honest_member(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever arrives under an honest name, that member has said."""
    said: set[tuple[bytes, bytes]] = set()
    genuine_send, genuine_transmit = Cluster.send, Cluster._transmit

    def send(self: Cluster, sender: SimulatedMember, message: Vote | Operation, to: bytes | None) -> None:
        if sender.honest and sender.key == message.signer:
            said.add((message.signer, message.signature))
        genuine_send(self, sender, message, to)

    def transmit(self: Cluster, sender: SimulatedMember, receiver: SimulatedMember, event: Input) -> None:
        message = getattr(event, "message", getattr(event, "operation", None))
        if isinstance(message, Vote | Operation) and self.members[message.signer].honest:
            assert (message.signer, message.signature) in said, message
        genuine_transmit(self, sender, receiver, event)

    monkeypatch.setattr(Cluster, "send", send)
    monkeypatch.setattr(Cluster, "_transmit", transmit)
    run(seed, 4, *Habit)
    assert said


def messages() -> list[Vote | Operation]:
    table = Playbook()
    block = table.block()
    table.lock(block)
    certificate = table.prepare_certificate(0, table.name(block))
    return [
        table.fresh(block),
        table.again(certificate, 1),
        table.ballot(1, 1, certificate=certificate),
        table.prepare(2, 0, table.name(block)),
        table.commit(3, 0, table.name(block)),
    ]


def test_garbled_bytes_are_refused_or_read_and_only_attachments_differ() -> None:
    rng = random.Random(1)
    arrived = 0
    for _ in range(300):
        for message in messages():
            got = garbled(message, NETWORK_ID, rng)
            arrived += got is not None
            assert got is None or (got == message and got.signature == signature_of(got, NETWORK_ID))
    assert arrived, "some attachments were changed and still read"


def test_decoder_that_raises_anything_else_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_anything: object) -> Vote:
        raise ValueError("forgot to check")

    monkeypatch.setattr(kinds, "parse_vote", broken)
    with pytest.raises(Violation, match="invariant 12"):
        for seed in range(200):
            garbled(messages()[0], NETWORK_ID, random.Random(seed))

"""A flood: one member says as much as it can to one replica of four, while the others decide (consensus cases, floods).

What it says is of greater heights, of greater views, or malformed: nothing that a rule can use, everything in a slot of
its own where there is one. Two things are measured, both exactly: what the replica keeps, and how much work one message
is, as the number of function calls that it causes. Seconds are told, never judged.

``python -m aicpnode.simulation.flood 1000000`` prints one JSON object.
"""

from __future__ import annotations

import gc
import hashlib
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import FrameType

from aicpnode.simulation.checks.bounds import size_limits
from aicpnode.simulation.crypto import signature_of, simulated_key
from aicpnode.simulation.playbook import Playbook
from consensus.events import BlockReceived, Decide, DecisionReceived, HeadAnnounced, Input, Received
from consensus.messages import Ballot, BallotEntry, Block, Commit, CommitCert, Prepare, PrepareCert, SetMessage, Vote
from consensus.types import NIL, NO_VIEW, SIGNATURE_BYTES

FLOODER = 3
FAR_HEIGHTS = 1 << 40
FAR_VIEWS = 1 << 30
SAMPLE = 400
"""Messages over which work is counted: every kind of them stands in it about equally often."""
KEPT_BYTES_MAX = 4_096
"""Of one message of a flood, as Python keeps it, with its attachment."""
STRANGERS = 200
"""Keys of no members in whose name heads are announced."""


class Flood:
    """Inputs without end, the same for the same seed. They need no signature: verifying comes before the replica."""

    def __init__(self, block: Block, *, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._block = block
        self._key = simulated_key(FLOODER)
        self._strangers = [hashlib.sha256(b"stranger %d" % index).digest() for index in range(STRANGERS)]

    def inputs(self, count: int, *, height: int) -> Iterator[Input]:
        """``count`` of them for a replica that decides ``height``."""
        makers = (self._of_greater_height, self._of_greater_view, self._malformed, self._other)
        for number in range(count):
            yield makers[number % len(makers)](height)

    def _vote(self, height: int, view: int) -> Vote:
        name = self._random.randbytes(32)
        match self._random.randrange(4):
            case 0:
                return Commit(height=height, view=view, block_id=name, signer=self._key)
            case 1:
                return Prepare(height=height, view=view, block_id=name, valid_view=NO_VIEW, signer=self._key)
            case 2:
                return SetMessage(
                    height=height, view=view, valid_view=NO_VIEW, block_id=name, signer=self._key, block=self._block
                )
        return self._ballot(height, view, ())

    def _ballot(self, height: int, view: int, entries: tuple[BallotEntry, ...]) -> Ballot:
        return Ballot(
            height=height,
            view=view,
            state_hash=self._random.randbytes(32),
            valid_view=NO_VIEW,
            valid_id=NIL,
            round=0,
            ready=True,
            entries=entries,
            signer=self._key,
        )

    def _of_greater_height(self, height: int) -> Input:
        near = self._random.random() < 0.5
        ahead = 1 if near else self._random.randrange(2, FAR_HEIGHTS)
        return Received(message=self._vote(height + ahead, self._random.randrange(FAR_VIEWS)))

    def _of_greater_view(self, height: int) -> Input:
        return Received(message=self._vote(height, self._random.randrange(1, FAR_VIEWS)))

    def _malformed(self, height: int) -> Input:
        """What no honest member says, of the running height and view."""
        votes = tuple((index, self._random.randbytes(SIGNATURE_BYTES)) for index in range(3))
        name = self._random.randbytes(32)
        view = self._random.randrange(8)
        certificate = PrepareCert(height=height, view=0, block_id=name, valid_view=NO_VIEW, votes=votes)
        match self._random.randrange(5):
            case 0:
                message: Vote = Prepare(height=height, view=view, block_id=NIL, valid_view=view, signer=self._key)
            case 1:  # no leader of its view, or no certificate that holds
                message = SetMessage(
                    height=height,
                    view=view,
                    valid_view=0,
                    block_id=name,
                    signer=self._key,
                    certificate=certificate,
                )
            case 2:
                entry = BallotEntry(author_index=self._random.randrange(99), digest=name, accepted=True)
                message = self._ballot(height, view, (entry, entry))
            case 3:  # of nobody
                message = Commit(height=height, view=view, block_id=name, signer=self._random.randbytes(32))
            case _:  # its attachment is another block
                message = SetMessage(
                    height=height, view=view, valid_view=NO_VIEW, block_id=name, signer=self._key, block=self._block
                )
        return Received(message=message)

    def _other(self, height: int) -> Input:
        """Heads, blocks that nobody asked for, decisions without a quorum, and what was decided long ago."""
        match self._random.randrange(4):
            case 0:
                peer = self._random.choice(self._strangers)
                return HeadAnnounced(peer=peer, height=self._random.randrange(FAR_HEIGHTS))
            case 1:
                return BlockReceived(block=self._block)
            case 2:
                votes = tuple((index, self._random.randbytes(SIGNATURE_BYTES)) for index in range(3))
                name = self._random.randbytes(32)
                certificate = CommitCert(height=height, view=0, block_id=name, votes=votes)
                return DecisionReceived(block=self._block, certificate=certificate)
        return Received(message=self._vote(self._random.randrange(height), self._random.randrange(FAR_VIEWS)))


class Work:
    """Counts function calls, Python's own and built-in ones, while it is entered."""

    def __init__(self) -> None:
        self.calls = 0

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1

    def __enter__(self) -> Work:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_exception: object) -> None:
        sys.setprofile(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a flood did to a replica. ``*_calls`` are function calls."""

    messages: int
    first_calls: float
    """A message, over the first ``SAMPLE`` after a warm-up."""
    last_calls: float
    """A message, over the last ``SAMPLE``."""
    honest_calls: float
    """A message of the honest members, over a decision without a flood."""
    decision_calls: int
    """By the honest members' messages, for a decision in the midst of the flood; without one: ``calm_calls``."""
    calm_calls: int
    decision_events: int
    calm_events: int
    kept: dict[str, int]
    limits: dict[str, int]
    kept_bytes: int
    """That the flood added to the memory in use."""
    bytes_max: int
    """The bound, from ``limits``."""
    seconds: float

    @property
    def slowdown(self) -> float:
        """How much more work a decision is if, as the inbox sees to, each peer is heard in turn: of three peers one
        floods, so that there is one message of it for two honest ones."""
        flooding = max(self.first_calls, self.last_calls) * self.decision_events / 2
        return (self.decision_calls + flooding) / self.calm_calls


def decision(table: Playbook) -> list[Input]:
    """What the honest members 1 and 2 need to say for a block of theirs."""
    block = table.block(voters=(0, 1, 2))
    name = table.name(block)
    leader = table.leader(0)
    return [
        *(Received(message=table.ballot(i)) for i in (1, 2)),
        Received(message=table.fresh(block, signer=leader)),
        *(Received(message=table.prepare(i, 0, name)) for i in (1, 2)),
        *(Received(message=table.commit(i, 0, name)) for i in (1, 2)),
    ]


def _decide(table: Playbook, between: Sequence[Iterable[Input]] = ()) -> tuple[int, int]:
    """(calls, honest inputs) until this member has decided; ``between`` are handled before each of them."""
    work, height = Work(), table.height
    for number, event in enumerate(decision(table), start=1):
        for other in between[number - 1] if number <= len(between) else ():
            table.replica.handle(other)
        with work:
            effects = table.replica.handle(event)
        table.keep(effects)
        if any(isinstance(effect, Decide) and effect.ledger.height == height for effect in effects):
            return work.calls, number
    raise AssertionError("the honest members' messages make a decision")


def _calls(table: Playbook, inputs: Iterable[Input]) -> float:
    work, count = Work(), 0
    for event in list(inputs):
        with work:
            table.replica.handle(event)
        count += 1
    return work.calls / count


def _in_use() -> int:
    """Bytes, without garbage and what the simulated signatures remember."""
    signature_of.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def measure(messages: int, *, seed: int = 1) -> Measured:
    """Flood one of four members with so many ``messages``, with a decision in their midst. It leads no view."""
    calm = Playbook(me=0)
    flood = Flood(calm.block(), seed=seed)
    calm_calls, calm_events = _decide(calm)
    table = Playbook(me=0)
    handle = table.replica.handle
    for event in flood.inputs(SAMPLE * 4, height=table.height):
        handle(event)
    first = _calls(table, flood.inputs(SAMPLE, height=table.height))
    tracemalloc.start()
    began, before = time.monotonic(), _in_use()
    for event in flood.inputs(messages // 2, height=table.height):
        handle(event)
    between = [flood.inputs(SAMPLE, height=table.height) for _ in range(calm_events + 4)]
    calls, events = _decide(table, between)
    for event in flood.inputs(messages - messages // 2, height=table.height):
        handle(event)
    seconds, after = time.monotonic() - began, _in_use()
    tracemalloc.stop()
    limits = size_limits(len(table.replica.roster.members))
    return Measured(
        messages=messages,
        first_calls=first,
        last_calls=_calls(table, flood.inputs(SAMPLE, height=table.height)),
        honest_calls=calm_calls / calm_events,
        decision_calls=calls,
        calm_calls=calm_calls,
        decision_events=events,
        calm_events=calm_events,
        kept=table.replica.statistics(),
        limits=limits,
        kept_bytes=after - before,
        bytes_max=sum(limits.values()) * KEPT_BYTES_MAX,
        seconds=seconds,
    )


if __name__ == "__main__":
    result = measure(int(sys.argv[1]))
    sys.stdout.write(json.dumps({**asdict(result), "slowdown": round(result.slowdown, 3)}) + "\n")

"""What happens inside a node, as values that metrics, the prompt, plots and ``Node.events()`` observe.

Publishing never blocks and never fails: a subscriber that does not read loses its oldest events, and the
count of lost events is kept, so that an observer can say that it missed something.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import trio

SUBSCRIBER_EVENTS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all node events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConnected(Event):
    key: bytes
    name: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDisconnected(Event):
    key: bytes
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapUnreachable(Event):
    address: str
    error: str
    attempts: int
    next_try_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDecided(Event):
    height: int
    view: int
    block_id: bytes
    operations: int
    training_round: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundApplied(Event):
    round: int
    height: int
    included: int
    model_hash: bytes
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalJudged(Event):
    round: int
    author: bytes
    digest: bytes
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerStep(Event):
    round: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationMeasured(Event):
    round: int
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReached(Event):
    """One phase of a height or a round, for ``test`` and for traces: phase names are those of the specifications."""

    phase: str
    height: int
    round: int
    member: bytes = b""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """A sentence for the operator. ``level`` is info, warning or error."""

    level: str
    text: str


class Subscription:
    """One observer's bounded queue; async iteration waits for the next event."""

    def __init__(self, capacity: int) -> None:
        self._queue: deque[Event] = deque(maxlen=capacity)
        self._wakeup = trio.Event()
        self._closed = False
        self.lost = 0

    def _offer(self, event: Event) -> None:
        if len(self._queue) == self._queue.maxlen:
            self.lost += 1
        self._queue.append(event)
        self._wakeup.set()

    def _close(self) -> None:
        self._closed = True
        self._wakeup.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wakeup = trio.Event()
            await self._wakeup.wait()
        await trio.lowlevel.checkpoint()
        return self._queue.popleft()


class EventBus:
    """Fans events out to any number of bounded subscriptions."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []

    def publish(self, event: Event) -> None:
        for subscription in self._subscriptions:
            subscription._offer(event)

    def subscribe(self, capacity: int = SUBSCRIBER_EVENTS_MAX) -> Subscription:
        subscription = Subscription(capacity)
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        subscription._close()

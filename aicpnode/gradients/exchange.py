"""Carries out what the pure round asks for: timers, fetching, judging, serving, re-sending the own GRAD.

Everything runs in tasks of the participant's nursery and ends with its round. What is fetched is verified by its
digest, made durable, and only then judged, in a worker thread, one proposal at a time. Bodies of the running round are
served only once the round has revealed; bodies of decided rounds to everybody, as long as they are kept, so that those
who were away can replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from aicpnode.envelop.codec import Envelop, Kind
from aicpnode.errors import MalformedError
from aicpnode.events import EventBus, Notice, ProposalJudged
from aicpnode.gradients.grad import GradientMesh, read_grad
from aicpnode.gradients.judge import YES, Expectation, Reason, Score, Verdict, judge, refusal
from aicpnode.gradients.packages import Packages
from aicpnode.gradients.proposal import is_package_of, package_bytes_max, package_bytes_min
from aicpnode.gradients.round import (
    Action,
    Begin,
    BodyReceived,
    BodyServed,
    DeadlineDue,
    Event,
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
from aicpnode.gradients.state import RoundParameters
from aicpnode.gradients.tally import Tally, Wait
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.faults import StorageFull
from consensus.events import Opinion

TRAIN_UNTIL = 0.8
"""Share of the round after which inner steps end."""
REVEAL_AT = 0.9
DEADLINE_AT = 1.0
RESEND_GRAD_S = 2.0
STORAGE_RETRY_S = 5.0
POWERLESS_FETCHES_MAX = 4
"""Bodies of authors without power that are fetched at the same time."""
SILENT_S = 2.0
"""An author whose body did not come within this time is not asked first again in the round."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """What the ledger says about the round that the state now computes.

    ``authors``: every roster key and its index; ``expected``: expected(r); ``contributing``: whether any member
    contributes; ``contributing_here``: whether this one does; ``my_index``: its roster index, if it has one;
    ``voters``: keys with power, empty if unknown: then all count; ``height``: of the ledger, for traces;
    ``round_s``: the length of a round in seconds, None for that of the genesis.
    """

    round: int
    authors: Mapping[bytes, int]
    expected: frozenset[bytes]
    last_round_empty: bool
    contributing: bool
    contributing_here: bool
    my_index: int | None
    voters: frozenset[bytes] = frozenset()
    height: int = 0
    round_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFormat:
    """What the genesis says about proposals. ``round_s``: length of a round in seconds."""

    network_id: bytes
    chunks: int
    parameters: RoundParameters
    round_s: float

    @property
    def package_bytes_max(self) -> int:
        return package_bytes_max(self.chunks, self.parameters.layout)

    def is_package(self, digest: bytes, package: bytes) -> bool:
        """True iff this is the package that ``digest`` commits to."""
        return is_package_of(package, digest, self.parameters.layout)


class Exchange:
    """The running round's I/O. ``open`` it once, ``begin`` it after every block."""

    def __init__(
        self,
        *,
        me: bytes,
        run: RunFormat,
        mesh: GradientMesh,
        packages: Packages,
        blobs: Blobs,
        events: EventBus,
        tally: Tally,
        on_opinion: Callable[[Opinion], None],
        on_equivocation: Callable[[Envelop, Envelop], None],
        score: Score | None,
    ) -> None:
        self.core = Round()
        self.timers_started_s: float | None = None
        """Trio time at which the running round's timers started; None while nobody contributes."""
        self._me = me
        self._run = run
        self._mesh = mesh
        self._packages = packages
        self._blobs = blobs
        self._events = events
        self._tally = tally
        self._on_opinion = on_opinion
        self._on_equivocation = on_equivocation
        self._score = score
        self._nursery: trio.Nursery | None = None
        self._context: RoundContext | None = None
        self._base_hash = b""
        self._pending: deque[Event] = deque()
        self._handling = False
        self._scopes: set[trio.CancelScope] = set()
        self._timers_scope = trio.CancelScope()
        self._judges = trio.CapacityLimiter(1)
        self._first_grads: dict[tuple[int, bytes], Envelop] = {}
        self._accused: set[tuple[int, bytes]] = set()
        self._powerless_fetches = trio.CapacityLimiter(POWERLESS_FETCHES_MAX)
        self._powerless_judges = trio.CapacityLimiter(1)
        self._silent: set[bytes] = set()
        self._closed = False
        self._disk_full_since_s: float | None = None

    @property
    def round_s(self) -> float:
        """The length of the running round: the members may have changed that of the genesis."""
        agreed = None if self._context is None else self._context.round_s
        return self._run.round_s if agreed is None else agreed

    def open(self, nursery: trio.Nursery) -> None:
        """Listen to GRADs and serve packages; tasks go into ``nursery``."""
        self._nursery = nursery
        self._mesh.subscribe([Kind.GRAD], self._on_grad)
        self._mesh.bodies.register(Namespace.GRADIENT, self._serve)

    def close(self) -> None:
        """Ignore everything from now on: the nursery takes no more tasks."""
        self._closed = True

    def begin(self, context: RoundContext, base_hash: bytes) -> bool:
        """The ledger or the state moved on. True if the round is a new one; always False once closed."""
        if self._closed:
            return False
        is_new = context.round != self.core.round
        if is_new:
            self.stop_tasks()
            self._first_grads = {slot: grad for slot, grad in self._first_grads.items() if slot[0] >= context.round}
            self._accused = {slot for slot in self._accused if slot[0] >= context.round}
            self._silent.clear()
        if is_new or not context.contributing:
            self._timers_scope.cancel()
            self.timers_started_s = None
        self._context, self._base_hash = context, base_hash
        self._tally.begin(context.round, context.height)
        self._feed(
            Begin(
                round=context.round,
                authors=context.authors,
                expected=context.expected,
                last_round_empty=context.last_round_empty,
                contributing=context.contributing,
                voters=context.voters,
            )
        )
        return is_new

    def stop_tasks(self) -> None:
        """End fetching, judging and re-sending of the running round: it is decided."""
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()

    def offer(self, grad: Envelop) -> None:
        """Commit to an own proposal, durable and judged: count it here, and send its GRAD until the round ends."""
        if self._closed:
            return
        digest, size = read_grad(grad)
        self._first_grads.setdefault((grad.height, grad.sender), grad)
        self._feed(GradReceived(round=grad.height, author=grad.sender, digest=digest, size=size))
        self._feed(Judged(round=grad.height, author=grad.sender, digest=digest, verdict=YES))
        if self.core.revealed:
            self._mesh.bodies.announce(Namespace.GRADIENT, digest, size)
        self._mesh.broadcast(grad)
        self._spawn(self._resend, grad)

    def asked_first(self, author: bytes) -> tuple[bytes, ...]:
        """Whom to ask first for a body of ``author``: the author, unless it was silent in this round."""
        return () if author in self._silent else (author,)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that stores something; while the disk is full, say so and try again until there is space."""
        while True:
            try:
                result = await trio.to_thread.run_sync(work)
            except StorageFull as error:
                if self._disk_full_since_s is None:
                    self._disk_full_since_s = trio.current_time()
                    self._events.publish(Notice(level="error", text=str(error)))
                await trio.sleep(STORAGE_RETRY_S)
            else:
                self._disk_full_since_s = None
                return result

    def waits(self) -> list[Wait]:
        """What the running round waits for."""
        found: list[Wait] = []
        now_s = trio.current_time()
        if self._disk_full_since_s is not None:
            since_s = now_s - self._disk_full_since_s
            found.append(Wait(what="space on the disk", who=(), since_s=since_s, next="trying again every 5 s"))
        if self._context is None or self.timers_started_s is None or self.core.ready:
            return found
        since_s = now_s - self.timers_started_s
        missing, unsettled = self.core.missing(), self.core.unsettled()
        if missing and not self.core.revealed:
            left_s = max(0.0, REVEAL_AT * self.round_s - since_s)
            what, then = "gradient proposals", f"in {left_s:.1f} s the round goes on without them"
            found.append(Wait(what=what, who=tuple(missing), since_s=since_s, next=then))
        elif unsettled:
            left_s = max(0.0, DEADLINE_AT * self.round_s - since_s)
            what, then = "bodies and verdicts of proposals", f"in {left_s:.1f} s the round goes on without them"
            found.append(Wait(what=what, who=tuple(unsettled), since_s=since_s, next=then))
        return found

    # -- from the network

    def _on_grad(self, envelop: Envelop, attachment: bytes, _from_peer: bytes) -> None:
        digest, size = read_grad(envelop)
        if attachment:
            raise MalformedError("a GRAD has no attachment")
        self._watch_for_two(envelop)
        self._feed(GradReceived(round=envelop.height, author=envelop.sender, digest=digest, size=size))

    def _watch_for_two(self, envelop: Envelop) -> None:
        """Two contents in one slot are evidence, once for each author and round."""
        context = self._context
        if context is None or envelop.sender not in context.authors:
            return
        if envelop.height not in (context.round, context.round + 1):
            return
        slot = (envelop.height, envelop.sender)
        first = self._first_grads.setdefault(slot, envelop)
        if first.identity == envelop.identity or slot in self._accused:
            return
        self._accused.add(slot)
        if envelop.sender == self._me:
            text = "Another process signs proposals with this node's key: stop one of them, or the key will be banned."
            self._events.publish(Notice(level="error", text=text))
            return
        self._tally.equivocations += 1
        self._on_equivocation(first, envelop)

    def _serve(self, digest: bytes) -> BodySource | None:
        """The provider of packages: none of the running round before it is revealed, none of later ones."""
        package = self._packages.find(digest)
        running = self.core.round
        if package is None or running is None or package.round > running:
            return None
        if package.round == running:
            if not self.core.revealed:
                return None
            self._feed(BodyServed(round=running))
        return BodySource(size=self._blobs.size(package.blob), read=partial(self._blobs.read, package.blob))

    # -- the core's actions

    def _feed(self, event: Event) -> None:
        """Give an event to the core and carry out its actions; what they cause comes after, in order."""
        if self._closed:
            return
        self._pending.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._pending:
                actions = self.core.handle(self._pending.popleft())
                self._tally.note(self.core)
                for action in actions:
                    self._carry_out(action)
        finally:
            self._handling = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartTimers():
                self._timers_scope.cancel()
                self._timers_scope = trio.CancelScope()
                self.timers_started_s = trio.current_time()
                self._start(self._timers_scope, self._run_timers, action.round, self.timers_started_s)
            case Reveal():
                for grad in self.core.grads():
                    if self._packages.find(grad.digest) is not None:
                        self._mesh.bodies.announce(Namespace.GRADIENT, grad.digest, grad.size)
            case FetchBody():
                self._spawn(self._fetch, action)
            case JudgeBody():
                self._spawn(self._judge, action)
            case Opine():
                self._on_opinion(action.opinion)

    def _spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task that ends with the round at the latest."""
        if self._closed:
            return
        scope = trio.CancelScope()
        self._scopes.add(scope)
        self._start(scope, task, *arguments)

    def _start(self, scope: trio.CancelScope, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        assert self._nursery is not None, "the exchange is opened before it begins a round"

        async def scoped() -> None:
            with scope:
                await task(*arguments)
            self._scopes.discard(scope)

        self._nursery.start_soon(scoped)

    async def _run_timers(self, round: int, started_s: float) -> None:
        await trio.sleep_until(started_s + REVEAL_AT * self.round_s)
        self._feed(RevealDue(round=round))
        await trio.sleep_until(started_s + DEADLINE_AT * self.round_s)
        self._feed(DeadlineDue(round=round))

    async def _resend(self, grad: Envelop) -> None:
        while True:
            await trio.sleep(RESEND_GRAD_S)
            self._mesh.broadcast(grad)

    async def _fetch(self, action: FetchBody) -> None:
        least = package_bytes_min(self._run.chunks, self._run.parameters.layout)
        if not least <= action.size <= self._run.package_bytes_max:
            verdict = refusal(Reason.MALFORMED, f"a package of {action.size} bytes is not of the agreed format")
            self._settle(action.round, action.author, action.digest, verdict)
            return
        if action.counts:
            await self._obtain(action)
        else:
            # Bodies that do not exist must not take the places of those that count.
            async with self._powerless_fetches:
                await self._obtain(action)
        self._mesh.bodies.announce(Namespace.GRADIENT, action.digest, action.size)
        self._feed(BodyReceived(round=action.round, digest=action.digest))

    async def _obtain(self, action: FetchBody) -> None:
        """Make the package durable here, from whoever has it."""
        if self._packages.find(action.digest) is not None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_silence, action.author)
            package = await self._mesh.bodies.fetch(
                Namespace.GRADIENT,
                action.digest,
                max_size=self._run.package_bytes_max,
                verify=partial(self._run.is_package, action.digest),
                prefer=self.asked_first(action.author),
            )
            nursery.cancel_scope.cancel()
        await self.in_thread(partial(self._packages.put, action.round, action.digest, package))

    async def _note_silence(self, author: bytes) -> None:
        """Cancelled when the body comes. The fetch itself goes on, and keeps what slow donors sent."""
        await trio.sleep(SILENT_S)
        self._silent.add(author)

    async def _judge(self, action: JudgeBody) -> None:
        expectation = Expectation(
            network_id=self._run.network_id,
            round=action.round,
            base_hash=self._base_hash,
            author=action.author,
            size=action.size,
            chunks=self._run.chunks,
            parameters=self._run.parameters,
        )

        def work() -> Verdict:
            return judge(self._packages.read(action.digest), expectation=expectation, score=self._score)

        if self.core.counts(action.author):
            verdict = await trio.to_thread.run_sync(work, limiter=self._judges)
        else:
            async with self._powerless_judges:  # at most one in the queue of those that count
                verdict = await trio.to_thread.run_sync(work, limiter=self._judges)
        self._settle(action.round, action.author, action.digest, verdict)

    def _settle(self, round: int, author: bytes, digest: bytes, verdict: Verdict) -> None:
        if round != self.core.round:
            return
        reason = "" if verdict.reason is None else verdict.reason.value
        self._events.publish(
            ProposalJudged(round=round, author=author, digest=digest, verdict=verdict.ruling.value, reason=reason)
        )
        self._feed(Judged(round=round, author=author, digest=digest, verdict=verdict))

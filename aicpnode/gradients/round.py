"""One training round as seen by one member, pure: events in, actions out. No clock, no I/O.

Theory of operation (gradients specification, section 2, "commit and reveal"; consensus specification, section 3).

A round has two halves. First members commit: a GRAD names a proposal by its digest and nothing else is known of it.
This node reveals (serves and fetches bodies) once it holds the GRADs of all members that are expected to propose, or
at 0.9 of the round. A GRAD first heard after this node has served or received any body of the round may be a copy of
what was revealed, so it gets no opinion: it is *late*.

Then members judge. Each judged proposal is an entry of this member's opinion; those that are late, unheard or not
judged have none. An author may commit twice (that is its crime, and evidence elsewhere): at most two GRADs an author
are kept, and at most one gets a yes, the second only if the first was refused.

The opinion is *ready* when the deadline has fired; or when the last round was not empty and every GRAD of the
expected members is judged; or when the reveal timer has fired and every GRAD held by then of an author with power is
judged, so that one dead member does not cost the whole deadline. Authors without power (on probation, or strangers)
are judged like all others, but nothing waits for them and their bodies come last. Once ready it stays so. While
nobody contributes it is never ready, and timers start again when somebody does. GRADs of the next round that arrive
early are kept until it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aicpnode.gradients.judge import Ruling, Verdict
from consensus.events import Opinion
from consensus.messages import BallotEntry

GRADS_PER_AUTHOR_MAX = 2
"""Two suffice to prove equivocation."""


# -- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The state now computes ``round``; sent again within a round when the ledger changes who takes part.

    ``authors``: every roster key and its index; ``expected``: those whose GRADs are waited for; ``contributing``:
    whether anybody contributes; ``voters``: authors with power, empty if unknown: then all count.
    """

    round: int
    authors: Mapping[bytes, int]
    expected: frozenset[bytes]
    last_round_empty: bool
    contributing: bool
    voters: frozenset[bytes] = frozenset()

    def counts(self, author: bytes) -> bool:
        """Whether the round waits for what ``author`` does."""
        return not self.voters or author in self.voters


@dataclass(frozen=True, slots=True, kw_only=True)
class GradReceived:
    """A verified GRAD; ``size`` is that of the package in bytes."""

    round: int
    author: bytes
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealDue:
    """0.9 of the round is over."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineDue:
    """The round is over."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyServed:
    """This node sends, or is about to send, some body of the round to a peer."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyReceived:
    """The package that ``digest`` commits to is here and durable."""

    round: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on one author's proposal."""

    round: int
    author: bytes
    digest: bytes
    verdict: Verdict


Event = Begin | GradReceived | RevealDue | DeadlineDue | BodyServed | BodyReceived | Judged


# -- actions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimers:
    """Drop all timers; send RevealDue and DeadlineDue of this round, counted from now."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """From now on serve the bodies of the round, the own one first."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBody:
    """Obtain the package of a digest from ``author`` or anybody else, then send BodyReceived.

    ``counts``: an author with power committed to it. A digest may be asked for a second time, once it counts.
    """

    round: int
    author: bytes
    digest: bytes
    size: int
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeBody:
    """Judge a package that is here as a proposal of ``author``, then send Judged."""

    round: int
    author: bytes
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opine:
    """What this member thinks now; replaces what it thought before."""

    opinion: Opinion


Action = StartTimers | Reveal | FetchBody | JudgeBody | Opine


# -- the machine -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Grad:
    """A GRAD held in the running round and what became of it. Read-only outside this file."""

    author: bytes
    digest: bytes
    size: int
    late: bool
    received: bool = False
    verdict: Verdict | None = None

    @property
    def settled(self) -> bool:
        """There is an opinion on it, or never will be."""
        return self.late or self.verdict is not None


@dataclass(slots=True)
class _Early:
    """GRADs of one round that has not begun."""

    round: int = -1
    grads: dict[bytes, list[GradReceived]] = field(default_factory=dict)


class Round:
    """The running round, and the next one's early GRADs. ``handle`` never raises, whatever peers sent."""

    def __init__(self) -> None:
        self.round: int | None = None
        self.revealed = False
        self.saw_body = False
        self.ready = False
        self._begin = Begin(round=-1, authors={}, expected=frozenset(), last_round_empty=False, contributing=False)
        self._grads: dict[bytes, list[Grad]] = {}
        self._fetched: dict[bytes, bool] = {}
        """Digests asked for, and whether they counted."""
        self._reveal_due = False
        self._held_at_reveal: tuple[Grad, ...] = ()
        self._deadline_due = False
        self._said: Opinion | None = None
        self._early = _Early()

    def handle(self, event: Event) -> list[Action]:
        """Take one event; returns what to do, in order. Events of other rounds change nothing."""
        if isinstance(event, Begin):
            return self._on_begin(event)
        if isinstance(event, GradReceived):
            self._on_grad(event)
            return self._progress()
        if event.round != self.round:
            return []
        return [*self._on_round_event(event), *self._progress()]

    # -- what the shell may look at

    def grads(self) -> Iterator[Grad]:
        """All GRADs held in the running round, those of one author in the order heard."""
        for held in self._grads.values():
            yield from held

    def counts(self, author: bytes) -> bool:
        """Whether the round waits for what ``author`` does."""
        return self._begin.counts(author)

    def missing(self) -> list[bytes]:
        """Expected authors of whom no GRAD was heard, in roster order."""
        return self._in_order(author for author in self._begin.expected if author not in self._grads)

    def unsettled(self) -> list[bytes]:
        """Authors that count, with a GRAD that awaits an opinion, in roster order."""
        return self._in_order(
            author
            for author, held in self._grads.items()
            if self.counts(author) and not all(grad.settled for grad in held)
        )

    def _in_order(self, authors: Iterator[bytes]) -> list[bytes]:
        return sorted(authors, key=lambda author: (self._begin.authors.get(author, -1), author))

    # -- events

    def _on_begin(self, event: Begin) -> list[Action]:
        actions: list[Action] = []
        is_new = event.round != self.round
        starts = event.contributing and (is_new or not self._begin.contributing)
        self._begin = event
        if is_new:
            self.round = event.round
            self.revealed = self.saw_body = False
            self._grads, self._fetched, self._said = {}, {}, None
        if is_new or starts:
            self.ready = self._reveal_due = self._deadline_due = False
            self._held_at_reveal = ()
        if starts:
            actions.append(StartTimers(round=event.round))
        if is_new:
            early, self._early = self._early, _Early()
            if early.round == event.round:
                for grads in early.grads.values():
                    for grad in grads:
                        self._on_grad(grad)
        return [*actions, *self._progress()]

    def _on_grad(self, event: GradReceived) -> None:
        if self.round is None or event.author not in self._begin.authors:
            return
        if event.round == self.round + 1:
            if self._early.round != event.round:
                self._early = _Early(round=event.round)
            early = self._early.grads.setdefault(event.author, [])
            if len(early) < GRADS_PER_AUTHOR_MAX and event.digest not in [grad.digest for grad in early]:
                early.append(event)
        if event.round != self.round:
            return
        held = self._grads.setdefault(event.author, [])
        if len(held) < GRADS_PER_AUTHOR_MAX and event.digest not in [grad.digest for grad in held]:
            held.append(Grad(author=event.author, digest=event.digest, size=event.size, late=self.saw_body))

    def _on_round_event(self, event: RevealDue | DeadlineDue | BodyServed | BodyReceived | Judged) -> list[Action]:
        match event:
            case RevealDue():
                if not self._reveal_due:
                    self._reveal_due = True
                    self._held_at_reveal = tuple(grad for grad in self.grads() if self.counts(grad.author))
            case DeadlineDue():
                self._deadline_due = True
            case BodyServed():
                self.saw_body = True
            case BodyReceived():
                self.saw_body = True
                return self._on_body(event.digest)
            case Judged():
                for grad in self._grads.get(event.author, ()):
                    if grad.digest == event.digest and not grad.settled:
                        grad.verdict = event.verdict
        return []

    def _on_body(self, digest: bytes) -> list[Action]:
        """Two authors may have committed to one digest: each is judged for itself."""
        actions: list[Action] = []
        for grad in self.grads():
            if grad.digest == digest and not grad.received:
                grad.received = True
                if not grad.settled:
                    actions.append(_judge_action(self._begin.round, grad))
        return actions

    # -- rules, evaluated after every event

    def _progress(self) -> list[Action]:
        if self.round is None:
            return []
        actions: list[Action] = []
        if not self.revealed and (self._reveal_due or self._all_expected_held()):
            self.revealed = True
            actions.append(Reveal(round=self.round))
        if self.revealed:
            actions.extend(self._fetches(self.round))
        self.ready = self._begin.contributing and (self.ready or self._becomes_ready())
        opinion = Opinion(round=self.round, ready=self.ready, entries=self._entries())
        if opinion != self._said:
            self._said = opinion
            actions.append(Opine(opinion=opinion))
        return actions

    def _all_expected_held(self) -> bool:
        expected = self._begin.expected
        return bool(expected) and all(author in self._grads for author in expected)

    def _becomes_ready(self) -> bool:
        if self._deadline_due:
            return True
        if self._all_expected_held() and not self._begin.last_round_empty:
            expected = self._begin.expected
            if all(grad.settled for author in expected for grad in self._grads[author]):
                return True
        return bool(self._held_at_reveal) and all(grad.settled for grad in self._held_at_reveal)

    def _fetches(self, round: int) -> Iterator[Action]:
        for grad in sorted(self.grads(), key=lambda grad: not self.counts(grad.author)):
            if grad.settled or grad.received:
                continue
            counts = self.counts(grad.author)
            if any(other.received for other in self.grads() if other.digest == grad.digest):
                grad.received = True
                yield _judge_action(round, grad)
            elif grad.digest not in self._fetched or counts > self._fetched[grad.digest]:
                # Who commits to another's digest must not decide when its body comes.
                self._fetched[grad.digest] = counts
                yield FetchBody(round=round, author=grad.author, digest=grad.digest, size=grad.size, counts=counts)

    def _entries(self) -> tuple[BallotEntry, ...]:
        entries: list[BallotEntry] = []
        for author, held in self._grads.items():
            index = self._begin.authors.get(author)
            if index is None:
                continue
            earlier_refused = True
            for grad in held:
                ruling = None if grad.late or grad.verdict is None else grad.verdict.ruling
                if ruling is Ruling.NO or (ruling is Ruling.YES and earlier_refused):
                    accepted = ruling is Ruling.YES
                    entries.append(BallotEntry(author_index=index, digest=grad.digest, accepted=accepted))
                earlier_refused = earlier_refused and ruling is Ruling.NO
        return tuple(sorted(entries, key=lambda entry: (entry.author_index, entry.digest)))


def _judge_action(round: int, grad: Grad) -> JudgeBody:
    return JudgeBody(round=round, author=grad.author, digest=grad.digest, size=grad.size)

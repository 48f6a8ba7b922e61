"""What a participant can say about itself: outcomes of proposals, phases of rounds, and what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aicpnode.events import EventBus, PhaseReached
from aicpnode.gradients.judge import Ruling
from aicpnode.gradients.round import Grad, Round

OUTCOMES_KEPT = 256
ROUNDS_KEPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing that is waited for: what, whom it hangs on (keys), for how long, and what happens next."""

    what: str
    who: tuple[bytes, ...]
    since_s: float
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one proposal. ``reason`` says why it was not included, in this node's words."""

    round: int
    author: bytes
    digest: bytes
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A finished round: counts, and when its phases were reached, in ms since this node began it."""

    round: int
    accepted: int
    refused: int
    phases_ms: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantStatistics:
    """Counts since the start of the process; ``last`` and ``rounds`` with the newest at the end."""

    round: int
    model_hash: bytes
    accepted: int
    refused: int
    mine_accepted: int
    mine_refused: int
    equivocations: int
    last: tuple[Outcome, ...]
    rounds: tuple[RoundRecord, ...]
    phases_ms: dict[str, float]
    """Of the running round."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts outcomes and notes phases; bounded."""

    me: bytes
    events: EventBus
    now_s: Callable[[], float]
    accepted: int = 0
    refused: int = 0
    mine_accepted: int = 0
    mine_refused: int = 0
    equivocations: int = 0
    last: deque[Outcome] = field(default_factory=lambda: deque(maxlen=OUTCOMES_KEPT))
    rounds: deque[RoundRecord] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    round: int = -1
    height: int = 0
    began_s: float = 0.0
    phases_ms: dict[str, float] = field(default_factory=dict)

    def begin(self, round: int, height: int) -> None:
        """A round, or another height within it, begins."""
        self.height = height
        if round != self.round:
            self.round, self.began_s, self.phases_ms = round, self.now_s(), {}

    def note(self, core: Round) -> None:
        """Note the phases that ``core`` has reached, each once, and publish them."""
        grads = list(core.grads())
        judged = core.revealed and bool(grads) and not core.unsettled()
        reached = {
            "first_grad": bool(grads),
            "all_grads": bool(grads) and not core.missing(),
            "reveal": core.revealed,
            "bodies": core.revealed and bool(grads) and all(grad.received or grad.settled for grad in grads),
            "judged": judged,
            "ready": core.ready,
        }
        for phase, is_reached in reached.items():
            if is_reached and phase not in self.phases_ms:
                self.phases_ms[phase] = 1000 * (self.now_s() - self.began_s)
                self.events.publish(PhaseReached(phase=phase, height=self.height, round=self.round))

    def finish(self, round: int, included: Iterable[tuple[bytes, bytes]], grads: Iterable[Grad]) -> None:
        """A round is decided: ``included`` (author, digest), and the GRADs that were held of it."""
        certified = set(included)
        outcomes = [
            Outcome(round=round, author=author, digest=digest, accepted=True) for author, digest in sorted(certified)
        ]
        outcomes += [
            Outcome(round=round, author=grad.author, digest=grad.digest, accepted=False, reason=_why_not(grad))
            for grad in grads
            if (grad.author, grad.digest) not in certified
        ]
        for outcome in outcomes:
            self._count(outcome)
        accepted = len(certified)
        record = RoundRecord(
            round=round, accepted=accepted, refused=len(outcomes) - accepted, phases_ms=dict(self.phases_ms)
        )
        self.rounds.append(record)

    def _count(self, outcome: Outcome) -> None:
        self.last.append(outcome)
        mine = outcome.author == self.me
        if outcome.accepted:
            self.accepted += 1
            self.mine_accepted += mine
        else:
            self.refused += 1
            self.mine_refused += mine


def _why_not(grad: Grad) -> str:
    if grad.late:
        return "late: heard after bodies of the round were revealed"
    if grad.verdict is None:
        return "its body was not judged in time" if grad.received else "its body was not received in time"
    if grad.verdict.ruling is Ruling.YES:
        return "too few members said yes"
    reason = "" if grad.verdict.reason is None else f"{grad.verdict.reason.value}: "
    return f"{reason}{grad.verdict.detail}"

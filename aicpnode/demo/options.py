"""What a demo is asked to do, checked before anything is started.

A demo that asks for more faults than its roster tolerates is refused: nothing is guaranteed then, so its result would
say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aicpnode.config import Fault
from aicpnode.errors import NotAvailableYet, UserError

NODES_MAX = 32
ROUNDS_MAX = 100_000
KILL_LEAD_ROUNDS = 2
"""Rounds that the others go on without the killed node before it is started again."""
LATER_FAULTS = ("sign_flip", "noise", "ipm", "alie", "copycat", "freerider", "nan", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """One demo. Raises ``UserError`` when built with values that make no sense together."""

    nodes: int
    rounds: int
    byzantine: int = 0
    """How many nodes, the last ones, show ``fault``."""
    fault: Fault | None = None
    kill_at: int | None = None
    """Kill the leader once this round is reached, and start it again ``KILL_LEAD_ROUNDS`` later."""
    directory: Path
    """Where keys, data, logs and results go; new or empty."""
    data: Path | None = None
    keep: bool = False
    """Leave the nodes running at the end."""

    def __post_init__(self) -> None:
        _within("--nodes", self.nodes, 1, NODES_MAX)
        _within("--rounds", self.rounds, 1, ROUNDS_MAX)
        if self.kill_at is not None:
            _within("--kill-at", self.kill_at, 1, self.rounds - KILL_LEAD_ROUNDS)
        if self.faults > self.tolerates:
            raise UserError(
                f"{self.nodes} nodes tolerate {self.tolerates} faulty, not {self.faults}.",
                advice=f"Use --nodes {3 * self.faults + 1} or more.",
            )

    @property
    def tolerates(self) -> int:
        """Faulty members that a roster of equal powers tolerates."""
        return (self.nodes - 1) // 3

    @property
    def faults(self) -> int:
        """Faulty members at the worst moment."""
        return self.byzantine + (self.kill_at is not None)

    @property
    def honest(self) -> range:
        """Indexes of the nodes that follow the protocol."""
        return range(self.nodes - self.byzantine)


def parse_byzantine(text: str | None) -> tuple[int, Fault | None]:
    """``K:KIND`` as (how many, which fault); (0, None) for None. ``UserError`` if it is not that."""
    if text is None:
        return 0, None
    count, _, kind = text.partition(":")
    known = [fault.value for fault in Fault]
    if kind in LATER_FAULTS:
        raise NotAvailableYet(f"The fault {kind}")
    if not count.isascii() or not count.isdigit() or int(count) < 1 or kind not in known:
        raise UserError(
            f"{text!r} does not say how many nodes show which fault.", advice=f"Write K:KIND, KIND one of {known}."
        )
    return int(count), Fault(kind)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{name} is {value}.", advice=f"It must lie between {least} and {most}.")

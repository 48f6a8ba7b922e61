"""Which runs to simulate: members, liars and faults, in the words of the command line, and back into a command.

The number of founders follows from the seed alone (seeds take turns through the given numbers), never from where a
range of seeds begins, so that one seed of a long search can be run again by itself.
"""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass

from aicpnode.errors import UserError
from aicpnode.simulation.cluster import Observer
from aicpnode.simulation.record import Lane
from aicpnode.simulation.scenario import FAULTS, Outcome, Scenario, play
from consensus.types import max_faulty

NODES_MAX = 100
RUNS_MAX = 1_000_000
SEED_MAX = 1 << 62
ANY = "any"
ALL = "all"
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Runs that are drawn from their seeds."""

    nodes: tuple[int, ...] = ()
    """Numbers of founders, by turns; empty: each seed draws its own."""
    byzantine: int | None = None
    """Founders that misbehave; None: each seed draws, at most F."""
    faults: tuple[str, ...] | None = None
    """Names; None: all that there are."""

    def scenario(self, seed: int) -> Scenario:
        return Scenario.draw(
            seed,
            nodes=self.nodes[seed % len(self.nodes)] if self.nodes else None,
            byzantine=self.byzantine,
            faults=ALL if self.faults is None else self.faults,
        )

    def play(self, seed: int, observer: Observer | None = None) -> Outcome:
        """Raises Violation if an invariant breaks."""
        return play(self.scenario(seed), observer)

    def lanes(self, seed: int) -> tuple[Lane, ...]:
        """Who takes part, in the order of their keys."""
        scenario = self.scenario(seed)
        members = [(behaviour, False) for behaviour in scenario.founders]
        members += [(behaviour, True) for behaviour in scenario.joiners]
        return tuple(
            Lane(name=f"node-{index}", behaviour=behaviour.value, joins=joins)
            for index, (behaviour, joins) in enumerate(members)
        )

    def title(self, seed: int) -> str:
        """One line about what is run, for a picture."""
        return self.command(seed).removesuffix(" --trace -")

    def command(self, seed: int) -> str:
        """What to type to run this seed alone and read what happened in it."""
        nodes = str(self.nodes[seed % len(self.nodes)]) if self.nodes else ANY
        words = ["aicp-node", "simulate", "--nodes", nodes]
        if self.byzantine is not None:
            words += ["--byzantine", str(self.byzantine)]
        faults = ALL if self.faults is None else ",".join(self.faults) or NONE
        return shlex.join([*words, "--faults", faults, "--seeds", str(seed), "--trace", "-"])

    @property
    def exceeds(self) -> str:
        """A sentence if more members misbehave than the protocol bears; nothing is promised then."""
        for count in self.nodes:
            if self.byzantine is not None and self.byzantine > max_faulty(count):
                return f"{self.byzantine} of {count} misbehave; the protocol bears {max_faulty(count)}."
        return ""


def parse_choice(nodes: str, byzantine: int | None, faults: str) -> Choice:
    """Of ``--nodes``, ``--byzantine`` and ``--faults``. Raises ``UserError``."""
    counts = parse_nodes(nodes)
    if byzantine is not None:
        if not counts:
            raise UserError("--byzantine needs the number of members.", advice="Give --nodes as well, such as 4.")
        if byzantine >= min(counts):
            raise UserError(
                f"--byzantine {byzantine} leaves no honest member of {min(counts)}.",
                advice=f"At most {max_faulty(min(counts))} of {min(counts)} may misbehave without harm.",
            )
    return Choice(nodes=counts, byzantine=byzantine, faults=parse_faults(faults))


def parse_nodes(text: str) -> tuple[int, ...]:
    """``4``, ``4,5,7``, ``10-16`` (both ends included), or ``any``, which is empty. Raises ``UserError``."""
    if text == ANY:
        return ()
    counts: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"--nodes {text}: {part.strip()!r} is no number.", advice="Write 4, or 4,5,7, or 10-16.")
        low, high = int(first), int(last) if dash else int(first)
        if not 1 <= low <= high <= NODES_MAX:
            raise UserError(f"--nodes {text}: members are 1 to {NODES_MAX}, the smaller number first.")
        counts += range(low, high + 1)
    return tuple(counts)


def parse_faults(text: str) -> tuple[str, ...] | None:
    """``all`` (None), ``none`` (empty), or names with commas. Raises ``UserError`` that names the nearest one."""
    if text == ALL:
        return None
    if text == NONE:
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FAULTS:
            near = difflib.get_close_matches(name, FAULTS, n=1, cutoff=0.5)
            known = f"Known: all, none, or of {', '.join(sorted(FAULTS))}."
            raise UserError(f"--faults: {name!r} is no fault.", advice=f"Did you mean {near[0]}?" if near else known)
    return tuple(sorted(set(names)))


def parse_seeds(text: str) -> range:
    """``17``, or ``0:2000``, without the last. Raises ``UserError``."""
    first, colon, last = text.partition(":")
    if not first.isdecimal() or (colon and not last.isdecimal()) or not first.isascii() or not last.isascii():
        raise UserError(f"--seeds {text} is no range.", advice="Write 17, or 0:2000 for the 2000 seeds from 0 on.")
    seeds = range(int(first), int(last) if colon else int(first) + 1)
    if not 0 < len(seeds) <= RUNS_MAX or seeds.stop > SEED_MAX:
        raise UserError(f"--seeds {text}: 1 to {RUNS_MAX} seeds at a time, the smaller number first.")
    return seeds


def parse_window(text: str) -> tuple[int, int]:
    """``200:1500``: from and to, in ms of virtual time. Raises ``UserError``."""
    first, _colon, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and text.isascii()) or int(first) >= int(last):
        raise UserError(f"--window {text} is no span of time.", advice="Write FROM:TO in milliseconds, such as 0:1500.")
    return int(first), int(last)


__all__ = ["Choice", "parse_choice", "parse_faults", "parse_nodes", "parse_seeds", "parse_window"]

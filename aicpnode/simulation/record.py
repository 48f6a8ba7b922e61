"""What happened in one simulated run: heard from the cluster, kept within bounds, told in words.

Times are milliseconds of virtual time. A recorder keeps the beginning and the end of a long run, because a run that
breaks an invariant stops there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from aicpnode.simulation.cluster import Behaviour, Copy, Occurrence
from aicpnode.simulation.crypto import simulated_key
from consensus.events import Applied, BlockReceived, Decide, DecisionReceived, HeadAnnounced, Timer
from consensus.evidence import Evidence
from consensus.messages import Ballot, Commit, Operation, Prepare, SetMessage
from consensus.types import NO_VIEW

FIRST_KEPT = 20_000
LAST_KEPT = 80_000
BLOCK_ID_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A member as a reader of the record knows it."""

    name: str
    behaviour: str
    joins: bool = False
    """Whether it is no founder."""

    @property
    def lies(self) -> bool:
        return self.behaviour != Behaviour.HONEST.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that happened. ``sender`` is who acts; ``said`` what it is about, as ``Occurrence`` says."""

    at_ms: int
    what: Occurrence
    sender: str
    receiver: str | None
    said: object


class Recorder:
    """An observer of one run. ``window`` (first ms, last ms) leaves out the rest."""

    def __init__(self, lanes: Sequence[Lane], *, window: tuple[int, int] | None = None) -> None:
        self.lanes = tuple(lanes)
        self.window = window
        self.left_out = 0
        """Entries between the kept beginning and the kept end."""
        self._first: list[Entry] = []
        self._last: deque[Entry] = deque()

    def __call__(self, at_ms: int, what: Occurrence, sender: str, receiver: str | None, said: object) -> None:
        if self.window is not None and not self.window[0] <= at_ms <= self.window[1]:
            return
        entry = Entry(at_ms=at_ms, what=what, sender=sender, receiver=receiver, said=said)
        if len(self._first) < FIRST_KEPT:
            self._first.append(entry)
            return
        self._last.append(entry)
        if len(self._last) > LAST_KEPT:
            self._last.popleft()
            self.left_out += 1

    @property
    def first(self) -> Sequence[Entry]:
        return self._first

    @property
    def last(self) -> Sequence[Entry]:
        """What followed after ``left_out`` entries that were not kept."""
        return tuple(self._last)


class Wording:
    """Messages and events in words, with members by name."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._names = {simulated_key(index): lane.name for index, lane in enumerate(lanes)}

    def name(self, key: bytes) -> str:
        return self._names.get(key, key.hex()[:BLOCK_ID_DIGITS])

    def of(self, said: object, *, sender: str = "") -> str:
        """One line; names the signer if ``sender`` passes on what somebody else signed."""
        match said:
            case Ballot() | SetMessage() | Prepare() | Commit() | Operation():
                signer = self.name(said.signer)
                return self._message(said) + (f" of {signer}" if sender and signer != sender else "")
            case Copy(said=inner):
                return self.of(inner, sender=sender)
            case Decide(certificate=certificate, ledger=ledger):
                return f"height {ledger.height} in view {certificate.view}: {short(certificate.block_id)}"
            case DecisionReceived(block=block, certificate=certificate):
                return f"decision of height {block.height}: {short(certificate.block_id)}"
            case BlockReceived(block=block):
                return f"block for height {block.height}"
            case HeadAnnounced(height=height):
                return f"head {height}"
            case Applied(height=height, state_hash=state):
                return f"height {height}: state {short(state)}"
            case Timer(kind=kind, height=height, view=view):
                return f"{kind.name} {place(height, view)}" if height else kind.name
            case Evidence(first=first, second=second):
                return f"{self.of(first)} against {self.of(second)}"
        return str(said)

    def _message(self, said: Ballot | SetMessage | Prepare | Commit | Operation) -> str:
        match said:
            case Operation(kind=kind, sequence=sequence):
                return f"operation {kind.name} {sequence}"
            case Ballot(entries=entries):
                accepted = sum(entry.accepted for entry in entries)
                ready = f", ready, accepts {accepted} of {len(entries)}" if said.ready else ""
                locked = "" if said.valid_view == NO_VIEW else f", holds {short(said.valid_id)} of v{said.valid_view}"
                return f"BALLOT {place(said.height, said.view)} round {said.round}{ready}{locked}"
            case SetMessage(valid_view=valid_view):
                again = "" if valid_view == NO_VIEW else f" again, prepared in v{valid_view}"
                return f"SET {place(said.height, said.view)} {short(said.block_id)}{again}"
        return f"{said.kind.name} {place(said.height, said.view)} {short(said.block_id)}"


def place(height: int, view: int) -> str:
    return f"h{height} v{view}"


def short(name: bytes) -> str:
    """The beginning of an id in hex; nil for none."""
    return name.hex()[:BLOCK_ID_DIGITS] if name else "nil"


__all__ = ["Entry", "Lane", "Recorder", "Wording", "place", "short"]

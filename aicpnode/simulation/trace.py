"""A readable log of one simulated run: one line for each thing that happened, in the order in which it happened.

What a member says to everybody is one line; what a liar really tells each of them, what is lost, and what comes late
are lines of their own. Heads that are announced every few seconds are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aicpnode.simulation.cluster import Copy, Occurrence
from aicpnode.simulation.record import Entry, Recorder, Wording
from aicpnode.simulation.sweep import Run, Verdict
from consensus.events import HeadAnnounced

MS_CHARACTERS = 8


def trace_lines(recorder: Recorder, run: Run) -> Iterator[str]:
    """The whole log: who takes part, what happened, how it ended."""
    yield f"# seed {run.seed}; virtual time in ms, h: height, v: view"
    for lane in recorder.lanes:
        yield f"# {lane.name}: {lane.behaviour}{', joins' if lane.joins else ''}"
    if recorder.window is not None:
        yield f"# only from {recorder.window[0]} to {recorder.window[1]} ms"
    width = max(len(lane.name) for lane in recorder.lanes)
    telling = _Telling(recorder, width)
    yield from telling.lines(recorder.first)
    if recorder.left_out:
        yield f"# {recorder.left_out} events are left out here: see them with --window"
    yield from telling.lines(recorder.last)
    yield f"# {run.verdict.value}: {run.text or f'every honest member decided {run.heights} heights'}"
    if run.verdict is not Verdict.VIOLATION:
        yield f"# trace hash {run.trace}"


class _Telling:
    def __init__(self, recorder: Recorder, width: int) -> None:
        self._wording = Wording(recorder.lanes)
        self._liars = {lane.name for lane in recorder.lanes if lane.lies}
        self._width = width
        self._said: object = None

    def lines(self, entries: Iterable[Entry]) -> Iterator[str]:
        for entry in entries:
            text = self._text(entry)
            if text:
                yield f"{entry.at_ms:>{MS_CHARACTERS}}  {self._actor(entry):<{self._width}}  {text}"

    def _actor(self, entry: Entry) -> str:
        return entry.receiver if entry.what is Occurrence.ARRIVED and entry.receiver else entry.sender

    def _text(self, entry: Entry) -> str:
        """Empty for what says nothing new."""
        said = entry.said.said if isinstance(entry.said, Copy) else entry.said
        if isinstance(said, HeadAnnounced):
            return ""
        words = self._wording.of(said, sender=entry.sender)
        match entry.what:
            case Occurrence.SENT:
                self._said = said
                return f"says     {words}" + ("" if entry.receiver is None else f" to {entry.receiver} only")
            case Occurrence.LEFT:
                assert isinstance(entry.said, Copy)
                late = f", late: arrives at {entry.said.arrives_ms}" if entry.said.is_late else ""
                if said is self._said and not late and entry.sender not in self._liars:
                    return ""
                verb = "tells" if entry.sender in self._liars else "sends"
                return f"{verb}    {words} to {entry.receiver}{late}"
            case Occurrence.ARRIVED:
                return f"hears    {words} from {entry.sender}"
            case Occurrence.LOST:
                return f"loses    {words} to {entry.receiver}"
            case Occurrence.FIRED:
                return f"timer    {words}"
            case Occurrence.DECIDED:
                return f"DECIDES  {words}"
            case Occurrence.APPLIED:
                return f"applied  {words}"
            case Occurrence.ACCUSED:
                return f"ACCUSES  {entry.receiver}: {words}"
        return f"{entry.what.value.upper():<8} {words}".rstrip()


__all__ = ["trace_lines"]

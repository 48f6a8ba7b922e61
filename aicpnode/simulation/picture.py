"""A picture of a short simulated run, as SVG: a lane for each member, time from left to right, messages as arrows.

An arrow goes from the moment when its message left to the moment when it arrives; colours tell the kinds apart, nil
votes are dashed, a lost message is a stub with a cross. Diamonds are decisions, triangles the entry into a later view;
grey is down, amber cut off. Each mark has a tooltip in the words of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from aicpnode.simulation.cluster import Copy, Occurrence
from aicpnode.simulation.record import Entry, Recorder, Wording
from consensus.events import BlockReceived, Decide, DecisionReceived
from consensus.messages import Ballot, Commit, Operation, Prepare, SetMessage
from consensus.types import NIL

ARROWS_SHOWN = 240
"""Of a run whose window nobody chose: the picture ends there."""
ARROWS_MAX = 4_000
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 128, 36, 74, 92
PLOT_PX = 1_180
LANE_PX = 92
BAND_PX = 30
STUB_PX = 16
LABEL_PX = 7.2
"""Width of a character of a label, about."""
TICKS_MAX = 12
KINDS = {
    "OPERATION": "#8a6d3b",
    "BALLOT": "#2f7ed8",
    "SET": "#c026d3",
    "PREPARE": "#0f9d58",
    "COMMIT": "#d9480f",
    "CATCH-UP": "#6b7280",
}
"""Colours, by what an arrow carries."""
STYLE = """
text { font: 12px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; fill: #1f2937 }
.title { font-size: 15px; font-weight: 600 } .note { fill: #6b7280 } .name { font-weight: 600 } .liar { fill: #b91c1c }
.lane { stroke: #9ca3af; stroke-width: 1 } .grid { stroke: #e5e7eb; stroke-width: 1 }
.down { fill: #d1d5db } .cut { fill: #fde68a; opacity: 0.7 }
.arrow { fill: none; stroke-width: 1.1; opacity: 0.8 } .nil { stroke-dasharray: 4 3 }
.decided { fill: #111827 } .view { fill: #7c3aed } .small { font-size: 11px }
.label { paint-order: stroke; stroke: #ffffff; stroke-width: 3px }
""".strip()


def picture(recorder: Recorder, *, title: str) -> str:
    """The SVG text. Without a chosen window it ends after ``ARROWS_SHOWN`` arrows, and says so."""
    entries = [*recorder.first, *recorder.last]
    end_ms, is_cut_short = _end(entries, recorder)
    return "\n".join(_Drawing(recorder, entries, end_ms, title, is_cut_short).elements()) + "\n"


def kind_of(said: object) -> str | None:
    """Which of ``KINDS`` an arrow with this is; None is not drawn."""
    match said:
        case Ballot() | SetMessage() | Prepare() | Commit():
            return said.kind.name
        case Operation():
            return "OPERATION"
        case BlockReceived() | DecisionReceived():
            return "CATCH-UP"
    return None


def _end(entries: Sequence[Entry], recorder: Recorder) -> tuple[int, bool]:
    """(the last ms of the picture, whether something comes after it)."""
    limit = ARROWS_SHOWN if recorder.window is None else ARROWS_MAX
    last = max((entry.at_ms for entry in entries), default=0)
    arrows = 0
    for entry in entries:
        arrows += _arrow(entry) is not None
        if arrows > limit:
            return entry.at_ms - 1, True
    return last, recorder.left_out > 0


def _arrow(entry: Entry) -> str | None:
    if entry.what is Occurrence.LEFT and isinstance(entry.said, Copy):
        return kind_of(entry.said.said)
    return kind_of(entry.said) if entry.what is Occurrence.LOST else None


@dataclass(frozen=True, slots=True)
class _Span:
    lane: str
    begin_ms: int
    end_ms: int


class _Drawing:
    def __init__(self, recorder: Recorder, entries: list[Entry], end_ms: int, title: str, is_cut_short: bool) -> None:
        self._lanes = recorder.lanes
        self._entries = [entry for entry in entries if entry.at_ms <= end_ms]
        self._wording = Wording(recorder.lanes)
        self._begin_ms = self._begin() if recorder.window is None else recorder.window[0]
        self._end_ms = max(end_ms, self._begin_ms + 1)
        self._title = title
        self._is_cut_short = is_cut_short
        self._rows = {lane.name: row for row, lane in enumerate(recorder.lanes)}
        self._bottom = TOP_PX + len(recorder.lanes) * LANE_PX
        self._labelled: dict[tuple[str, int], float] = {}

    def _begin(self) -> int:
        """A little before the first thing that is drawn."""
        bands = (Occurrence.CRASHED, Occurrence.PARTED)
        first = next((entry.at_ms for entry in self._entries if _arrow(entry) or entry.what in bands), 0)
        return max(0, first - (self._entries[-1].at_ms - first) // 50) if self._entries else 0

    def elements(self) -> Iterator[str]:
        width, height = LEFT_PX + PLOT_PX + RIGHT_PX, self._bottom + BOTTOM_PX
        yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" ' + (
            f'viewBox="0 0 {width} {height}" role="img">'
        )
        yield f"<title>{escape(self._title)}</title>"
        yield f"<style>{STYLE}</style>"
        yield from self._definitions()
        yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
        yield f'<text class="title" x="16" y="26">{escape(self._title)}</text>'
        cut = ", the beginning of the run" if self._is_cut_short else ""
        yield f'<text class="note" x="16" y="46">{self._begin_ms} to {self._end_ms} ms of virtual time{cut}</text>'
        yield from self._axis()
        yield '<g clip-path="url(#plot)">'
        yield from self._bands(Occurrence.CRASHED, Occurrence.STARTED, "down")
        yield from self._bands(Occurrence.PARTED, Occurrence.HEALED, "cut")
        yield "</g>"
        yield from self._lane_lines()
        yield '<g clip-path="url(#plot)">'
        yield from self._arrows()
        yield "</g>"
        yield from self._marks()
        yield from self._legend()
        yield "</svg>"

    # ---- where things are

    def _x(self, at_ms: float) -> float:
        return round(LEFT_PX + (at_ms - self._begin_ms) / (self._end_ms - self._begin_ms) * PLOT_PX, 1)

    def _y(self, lane: str) -> float:
        return TOP_PX + (self._rows[lane] + 0.5) * LANE_PX

    def _definitions(self) -> Iterator[str]:
        yield "<defs>"
        yield f'<clipPath id="plot"><rect x="{LEFT_PX}" y="{TOP_PX}" width="{PLOT_PX}" ' + (
            f'height="{self._bottom - TOP_PX}"/></clipPath>'
        )
        for kind, colour in KINDS.items():
            yield f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" ' + (
                f'orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z" fill="{colour}"/></marker>'
            )
        yield "</defs>"

    def _axis(self) -> Iterator[str]:
        span = self._end_ms - self._begin_ms
        step = next(s for s in _steps() if span / s <= TICKS_MAX)
        for tick in range(-(-self._begin_ms // step) * step, self._end_ms + 1, step):
            x = self._x(tick)
            yield f'<line class="grid" x1="{x}" y1="{TOP_PX}" x2="{x}" y2="{self._bottom}"/>'
            yield f'<text class="note" x="{x}" y="{self._bottom + 18}" text-anchor="middle">{tick}</text>'
        yield f'<text class="note" x="{LEFT_PX - 28}" y="{self._bottom + 18}" text-anchor="end">ms</text>'

    def _lane_lines(self) -> Iterator[str]:
        for lane in self._lanes:
            y = self._y(lane.name)
            yield f'<line class="lane" x1="{LEFT_PX}" y1="{y}" x2="{LEFT_PX + PLOT_PX}" y2="{y}"/>'
            yield f'<text class="name" x="16" y="{y - 2}">{escape(_cut(lane.name))}</text>'
            what = f"{lane.behaviour}, joins" if lane.joins else lane.behaviour
            yield f'<text class="{"liar" if lane.lies else "note"} small" x="16" y="{y + 13}">{escape(what)}</text>'

    # ---- what happened

    def _bands(self, begins: Occurrence, ends: Occurrence, style: str) -> Iterator[str]:
        for span in self._spans(begins, ends):
            x, y = self._x(span.begin_ms), self._y(span.lane) - BAND_PX / 2
            width = round(self._x(span.end_ms) - x, 1)
            tip = f"{escape(span.lane)}: {begins.value} from {span.begin_ms} to {span.end_ms} ms"
            yield f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{BAND_PX}">'
            yield f"<title>{tip}</title></rect>"

    def _spans(self, begins: Occurrence, ends: Occurrence) -> Iterator[_Span]:
        """A member may be cut off twice at a time: its span lasts until the last of them heals."""
        open_since: dict[str, list[int]] = {}
        for entry in self._entries:
            if entry.what is begins:
                open_since.setdefault(entry.sender, []).append(entry.at_ms)
            elif entry.what is ends and open_since.get(entry.sender):
                since = open_since[entry.sender]
                if len(since) == 1:
                    yield _Span(entry.sender, since[0], entry.at_ms)
                    since.clear()
                else:
                    since.pop()
        for lane, since in open_since.items():
            if since:
                yield _Span(lane, since[0], self._end_ms)

    def _arrows(self) -> Iterator[str]:
        for entry in self._entries:
            kind = _arrow(entry)
            if kind is None or entry.receiver not in self._rows:
                continue
            x, y, to_y = self._x(entry.at_ms), self._y(entry.sender), self._y(entry.receiver)
            said = entry.said.said if isinstance(entry.said, Copy) else entry.said
            nil = " nil" if isinstance(said, Prepare | Commit) and said.block_id == NIL else ""
            words = escape(self._wording.of(said, sender=entry.sender))
            words = f"{entry.at_ms} ms: {words} from {escape(entry.sender)} to {escape(entry.receiver)}"
            if isinstance(entry.said, Copy):
                path = f"M{x} {y} L{self._x(entry.said.arrives_ms)} {to_y}"
                end = f'marker-end="url(#{kind})"'
            else:
                path, end, words = _stub(x, y, up=to_y < y), "", f"{words}, lost"
            yield f'<path class="arrow{nil}" d="{path}" stroke="{KINDS[kind]}" {end}><title>{words}</title></path>'

    def _marks(self) -> Iterator[str]:
        views: dict[tuple[str, int], int] = {}
        for entry in self._entries:
            if entry.sender not in self._rows or entry.at_ms < self._begin_ms:
                continue
            x, y = self._x(entry.at_ms), self._y(entry.sender)
            said = entry.said
            if entry.what is Occurrence.DECIDED and isinstance(said, Decide):
                tip = f"{entry.at_ms} ms: {escape(entry.sender)} decides {self._wording.of(said)}"
                yield f'<path class="decided" d="M{x} {y - 6} l5 6 l-5 6 l-5 -6 z"><title>{tip}</title></path>'
                yield from self._label(entry.sender, -1, x, y - 18, f"h{said.ledger.height}", "")
            elif entry.what is Occurrence.SENT and isinstance(said, Ballot) and said.view > 0:
                slot = (entry.sender, said.height)
                if said.view > views.get(slot, 0):
                    views[slot] = said.view
                    tip = f"{entry.at_ms} ms: {escape(entry.sender)} enters view {said.view} of height {said.height}"
                    yield f'<path class="view" d="M{x} {y + 4} l5 9 l-10 0 z"><title>{tip}</title></path>'
                    yield from self._label(entry.sender, 1, x, y + 26, f"v{said.view}", " view")

    def _label(self, lane: str, side: int, x: float, y: float, text: str, style: str) -> Iterator[str]:
        """Above (-1) or below (1) a lane, unless it would lie on the one before it."""
        half = len(text) * LABEL_PX / 2
        if x - half >= self._labelled.get((lane, side), 0.0):
            self._labelled[lane, side] = x + half
            yield f'<text class="small label{style}" x="{x}" y="{y}" text-anchor="middle">{text}</text>'

    def _legend(self) -> Iterator[str]:
        x, y = float(LEFT_PX), self._bottom + 44
        for kind, colour in KINDS.items():
            yield f'<path class="arrow" d="M{x} {y - 4} l30 0" stroke="{colour}" marker-end="url(#{kind})"/>'
            yield f'<text x="{x + 36}" y="{y}">{kind}</text>'
            x += 60 + len(kind) * 9
        x, y = float(LEFT_PX), self._bottom + 70
        lost = _stub(0, 0, up=False)
        signs = (
            (f'<path class="arrow nil" d="M{{x}} {y - 4} l30 0" stroke="{KINDS["PREPARE"]}"/>', "vote for nil"),
            (f'<g transform="translate({{x}} {y - 12})"><path class="arrow" d="{lost}" stroke="#111827"/></g>', "lost"),
            (f'<path class="decided" d="M{{x}} {y - 10} l5 6 l-5 6 l-5 -6 z"/>', "decides height h"),
            (f'<path class="view" d="M{{x}} {y - 9} l5 9 l-10 0 z"/>', "enters view v"),
            (f'<rect class="down" x="{{x}}" y="{y - 11}" width="30" height="14"/>', "down"),
            (f'<rect class="cut" x="{{x}}" y="{y - 11}" width="30" height="14"/>', "cut off by a partition"),
        )
        for sign, text in signs:
            yield sign.format(x=x)
            yield f'<text x="{x + 36}" y="{y}">{text}</text>'
            x += 76 + len(text) * 7


def _stub(x: float, y: float, *, up: bool) -> str:
    """A short line that goes nowhere, with a cross at its end."""
    down = -STUB_PX if up else STUB_PX
    return f"M{x} {y} l6 {down} m-3 -3 l6 6 m0 -6 l-6 6"


def _cut(name: str, limit: int = 14) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def _steps() -> Iterable[int]:
    size = 1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


__all__ = ["KINDS", "kind_of", "picture"]

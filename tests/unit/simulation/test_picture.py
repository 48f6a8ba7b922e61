"""The picture of a run: valid XML, everything in its place, nothing that lies on something else."""

from __future__ import annotations

import functools
import itertools
from xml.etree import ElementTree

import pytest

from aicpnode.simulation import picture as drawing
from aicpnode.simulation.cluster import Behaviour, Copy, Faults, Occurrence
from aicpnode.simulation.picture import KINDS, LEFT_PX, PLOT_PX, picture
from aicpnode.simulation.playbook import Playbook
from aicpnode.simulation.record import Entry, Lane, Recorder
from aicpnode.simulation.scenario import Scenario, play

SVG = "{http://www.w3.org/2000/svg}"
LANES = (Lane(name="a<b>&c", behaviour="honest"), Lane(name="bob", behaviour="chaos", joins=True))
FIVE = tuple(Lane(name=f"node-{i}", behaviour="equivocate" if i == 2 else "honest", joins=i == 4) for i in range(5))


def draw(recorder: Recorder) -> ElementTree.Element:
    return ElementTree.fromstring(picture(recorder, title="one & <two>"))


def tips(root: ElementTree.Element) -> list[str]:
    return [title.text or "" for title in root.iter(f"{SVG}title")]


def texts(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def arrows(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Of messages: those of the legend have no tooltip."""
    found = root.iter(f"{SVG}path")
    return [path for path in found if "arrow" in path.get("class", "") and path.find(f"{SVG}title") is not None]


@functools.cache
def happened() -> tuple[Entry, ...]:
    """An eventful run of four founders, one of them a liar, and somebody who joins."""
    faults = Faults(delay_ms=(5, 30), loss=0.05, duplication=0.05, crashes=4, power_cuts=4, partitions=3)
    honest, liar = Behaviour.HONEST, Behaviour.EQUIVOCATE
    scenario = Scenario(seed=3, founders=(honest, honest, liar, honest), joiners=(honest,), faults=faults, wishes=())
    recorder = Recorder(FIVE)
    play(scenario, recorder)
    return tuple(recorder.first)


def seen(*, window: tuple[int, int] | None = None) -> Recorder:
    recorder = Recorder(FIVE, window=window)
    for entry in happened():
        recorder(entry.at_ms, entry.what, entry.sender, entry.receiver, entry.said)
    return recorder


def test_every_message_of_the_window_is_an_arrow_of_its_colour() -> None:
    recorder = seen(window=(1000, 12_000))
    sent = [e for e in recorder.first if e.what is Occurrence.LEFT and drawing.kind_of(getattr(e.said, "said", None))]
    lost = [e for e in recorder.first if e.what is Occurrence.LOST and drawing.kind_of(e.said)]
    root = draw(recorder)
    assert sent and lost
    assert len(arrows(root)) == len(sent) + len(lost)
    assert {arrow.get("stroke") for arrow in arrows(root)} >= {KINDS[kind] for kind in ("BALLOT", "SET", "PREPARE")}
    assert any(tip.endswith(", lost") for tip in tips(root))


def test_all_kinds_of_marks_are_drawn_and_explained() -> None:
    root = draw(seen(window=(0, 20_000)))
    told = "\n".join(tips(root))
    for words in (" decides height 1 in view ", " enters view ", ": crashed from ", ": parted from "):
        assert words in told
    for word in (*KINDS, "vote for nil", "lost", "decides height h", "enters view v", "down", "cut off by a partition"):
        assert word in texts(root)


def test_names_and_titles_are_escaped() -> None:
    root = draw(Recorder(LANES))
    assert tips(root)[0] == "one & <two>"
    assert "a<b>&c" in texts(root)
    assert "chaos, joins" in texts(root)


def test_arrows_begin_at_their_sender_and_end_at_their_receiver() -> None:
    playbook = Playbook()
    recorder = Recorder(LANES, window=(0, 100))
    vote = playbook.prepare(0, 0, b"")
    recorder(25, Occurrence.LEFT, "a<b>&c", "bob", Copy(said=vote, arrives_ms=50, is_late=False))
    recorder(100, Occurrence.STARTED, "bob", None, "")
    (arrow,) = arrows(draw(recorder))
    y = drawing.TOP_PX + drawing.LANE_PX / 2
    begin, end = LEFT_PX + PLOT_PX / 4, LEFT_PX + PLOT_PX / 2
    assert arrow.get("d") == f"M{begin} {y} L{end} {y + drawing.LANE_PX}"
    assert arrow.get("class") == "arrow nil"


def test_bands_last_from_crash_to_start_and_to_the_end_if_there_is_none() -> None:
    recorder = Recorder(LANES, window=(0, 100))
    for at, what, who in (
        (10, Occurrence.CRASHED, "bob"),
        (30, Occurrence.STARTED, "bob"),
        (40, Occurrence.PARTED, "bob"),
        (50, Occurrence.PARTED, "bob"),
        (60, Occurrence.HEALED, "bob"),
        (90, Occurrence.HEALED, "bob"),
        (95, Occurrence.CRASHED, "bob"),
        (100, Occurrence.STARTED, "a<b>&c"),
    ):
        recorder(at, what, who, None, "")
    told = tips(draw(recorder))[1:]
    assert told == [
        "bob: crashed from 10 to 30 ms",
        "bob: crashed from 95 to 100 ms",
        "bob: parted from 40 to 90 ms",
    ]


@pytest.mark.parametrize("window", [None, (0, 3000), (0, 60_000)])
def test_labels_do_not_lie_on_each_other(window: tuple[int, int] | None) -> None:
    root = draw(seen(window=window))
    boxes = []
    for text in root.iter(f"{SVG}text"):
        x, y, width = float(text.get("x", 0)), float(text.get("y", 0)), len(text.text or "") * drawing.LABEL_PX
        x -= {"middle": width / 2, "end": width}.get(text.get("text-anchor", ""), 0)
        boxes.append((x, x + width, y - 10, y + 2, text.text))
    for one, other in itertools.combinations(boxes, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
        assert apart, (one, other)


def test_a_long_run_is_shown_from_its_beginning_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    root = draw(seen())
    assert len(arrows(root)) <= drawing.ARROWS_SHOWN
    assert any("the beginning of the run" in text for text in texts(root))
    monkeypatch.setattr(drawing, "ARROWS_MAX", 50)
    assert len(arrows(draw(seen(window=(0, 5000))))) <= 50

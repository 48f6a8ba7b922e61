"""A line chart for terminals, in braille characters of 2 by 4 dots, each series in a colour of its own.

Drawn here rather than by a library: it is one page, and the terminal plotting packages change their interfaces.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

BRAILLE_BLANK = 0x2800
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of the dot in row 0 to 3 and column 0 or 1 of a cell (Unicode, block Braille Patterns)."""
LABEL_CHARACTERS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart: points (x, y) in order of x; ``style`` is a colour name of rich."""

    name: str
    style: str
    points: tuple[tuple[float, float], ...]


def chart(series: Sequence[Series], *, width: int = 72, height: int = 16) -> Text:
    """The series as ``height`` lines of ``width`` cells with the y range at the left, x range and legend below.

    Empty text if no series has a point.
    """
    points = [point for line in series for point in line.points]
    if not points:
        return Text()
    (x_min, x_max), (y_min, y_max) = _range([x for x, _ in points]), _range([y for _, y in points])
    columns, rows = 2 * width - 1, 4 * height - 1
    dots: dict[tuple[int, int], int] = {}
    styles: dict[tuple[int, int], str] = {}
    for line in series:
        scaled = [
            (round((x - x_min) / (x_max - x_min) * columns), round((y_max - y) / (y_max - y_min) * rows))
            for x, y in line.points
        ]
        for column, row in _joined(scaled):
            cell = (column // 2, row // 4)
            dots[cell] = dots.get(cell, 0) | BRAILLE_DOTS[row % 4][column % 2]
            styles[cell] = line.style
    text = Text()
    for row in range(height):
        label = f"{y_max:.2f}" if row == 0 else f"{y_min:.2f}" if row == height - 1 else ""
        text.append(f"{label:>{LABEL_CHARACTERS}} │")
        for column in range(width):
            cell = (column, row)
            text.append(chr(BRAILLE_BLANK + dots[cell]) if cell in dots else " ", style=styles.get(cell, ""))
        text.append("\n")
    text.append(" " * LABEL_CHARACTERS + " └" + "─" * width + "\n")
    text.append(" " * (LABEL_CHARACTERS + 2) + f"{x_min:<{width // 2}.0f}{x_max:>{width - width // 2}.0f}\n")
    text.append(" " * (LABEL_CHARACTERS + 2))
    for line in series:
        text.append(f"── {line.name}   ", style=line.style)
    return text


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _joined(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dots on the straight lines between neighbouring points."""
    dots = list(points[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [(x0 + round((x1 - x0) * i / steps), y0 + round((y1 - y0) * i / steps)) for i in range(1, steps + 1)]
    return dots

"""Records: limits hold when constructing and when reading, and both say which field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import pytest

from aicpnode.envelop.codec import Value, pack, unpack
from aicpnode.envelop.records import Bytes, Integer, Many, Record, Text
from aicpnode.errors import MalformedError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Record):
    x: Annotated[int, Integer(-5, 5)]
    name: Annotated[str, Text(4)] = "p"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(Record):
    key: Annotated[bytes, Bytes(2)]
    visible: bool = True
    colour: Colour = Colour.RED
    origin: Point
    points: Annotated[tuple[Point, ...], Many(1, 3)]

    def fault(self) -> str | None:
        return "the origin is at 0" if self.origin.x else None


def drawing(**changes: Any) -> Drawing:
    values: dict[str, Any] = {"key": b"ab", "origin": Point(x=0), "points": (Point(x=1), Point(x=-1, name="q"))}
    return Drawing(**{**values, **changes})


VALUE: Value = (b"ab", True, "red", (0, "p"), ((1, "p"), (-1, "q")))


def test_record_is_the_array_of_its_fields() -> None:
    assert drawing().to_value() == VALUE
    assert Drawing.from_value(unpack(pack(VALUE))) == drawing()


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"abc"},
        {"key": "ab"},
        {"visible": 1},
        {"colour": "red"},
        {"origin": (0, "p")},
        {"origin": Point(x=1)},
        {"points": ()},
        {"points": (Point(x=0),) * 4},
        {"points": [Point(x=0)]},
        {"points": (1,)},
    ],
    ids=repr,
)
def test_construction_out_of_limits_is_a_value_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Drawing"):
        drawing(**changes)


@pytest.mark.parametrize("x", [-6, 6, True, None, "1", b"1"], ids=repr)
def test_integers_are_limited(x: Any) -> None:
    with pytest.raises(ValueError, match=r"Point\.x must be an integer from -5 to 5"):
        Point(x=x)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "abcde",
        "äöü",
        "a\n",
        "\x1b",
        "\x7f",
        "\x9b",
        "\u202e",
        "\u200d",
        "\u2028",
        "\u2029",
        "\ue000",
        "\ud800",
        b"a",
        None,
    ],
    ids=repr,
)
def test_texts_are_short_and_plain(name: Any) -> None:
    with pytest.raises(ValueError, match=r"Point\.name"):
        Point(x=0, name=name)


@pytest.mark.parametrize(
    "value",
    [
        None,
        (),
        (b"ab",),
        (b"abc", True, "red", (0, "p"), ((1, "p"),)),
        (b"ab", 1, "red", (0, "p"), ((1, "p"),)),
        (b"ab", True, "green", (0, "p"), ((1, "p"),)),
        (b"ab", True, None, (0, "p"), ((1, "p"),)),
        (b"ab", True, ("red",), (0, "p"), ((1, "p"),)),
        (b"ab", True, "red", None, ((1, "p"),)),
        (b"ab", True, "red", (0,), ((1, "p"),)),
        (b"ab", True, "red", (1, "p"), ((1, "p"),)),
        (b"ab", True, "red", (0, "p"), ()),
        (b"ab", True, "red", (0, "p"), ((1, "p"),) * 4),
        (b"ab", True, "red", (0, "p"), (1,)),
        (b"ab", True, "red", (0, "p"), ((9, "p"),)),
        (b"ab", True, "red", (0, "p"), None),
        (b"ab", True, "red", (0, "p"), ((1, "p"),), 0),
    ],
    ids=repr,
)
def test_peers_value_out_of_limits_is_malformed(value: Value) -> None:
    with pytest.raises(MalformedError):
        Drawing.from_value(value)

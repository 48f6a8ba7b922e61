"""Dataclasses as canonical values: a field is declared together with its limits, and everything follows from that.

A record is the array of its fields in declared order, without names. Constructing one out of limits raises ValueError
(our own or a user's fault); reading one from a peer's value raises MalformedError for the same reasons. Names that
people will see hold nothing but what is seen, so that a peer can neither write to a terminal nor turn a text around.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Shard(Record):
        name: Annotated[str, Text(128)]
        size: Annotated[int, Integer(1, 1 << 26)]
        split: Split

A field is an ``int`` with ``Integer``, ``bytes`` with ``Bytes``, ``str`` with ``Text``, a ``bool``, a ``StrEnum``, a
``Record``, or ``tuple[SomeRecord, ...]`` with ``Many``.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args, get_origin, get_type_hints

from aicpnode.envelop.codec import Packable, Value
from aicpnode.errors import MalformedError

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of what steers a terminal, hides, turns text around, breaks lines, or has no agreed look."""


@dataclass(frozen=True, slots=True)
class Integer:
    """An int from ``low`` to ``high``, both allowed."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of exactly this length."""

    length: int


@dataclass(frozen=True, slots=True)
class Text:
    """A non-empty str of at most ``max_bytes`` in UTF-8, without unseen characters."""

    max_bytes: int


@dataclass(frozen=True, slots=True)
class Many:
    """A tuple of ``least`` to ``most`` records."""

    least: int
    most: int


class Record:
    """Base of frozen, slotted, keyword-only dataclasses that have one canonical value."""

    __slots__ = ()
    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __post_init__(self) -> None:
        for name, rule in _rules(type(self)):
            if not rule.accepts(getattr(self, name)):
                raise ValueError(f"{type(self).__name__}.{name} must be {rule.expected}")
        fault = self.fault()
        if fault is not None:
            raise ValueError(f"{type(self).__name__}: {fault}")

    def fault(self) -> str | None:
        """What is wrong between fields that are right by themselves; None if nothing is."""
        return None

    def to_value(self) -> Packable:
        """The array of the fields in declared order."""
        return tuple(rule.encode(getattr(self, name)) for name, rule in _rules(type(self)))

    @classmethod
    def from_value(cls, value: Value) -> Self:
        """The record that ``to_value`` described. MalformedError if there is none."""
        try:
            return cls._read(value)
        except ValueError as error:
            raise MalformedError(str(error)) from error

    @classmethod
    def _read(cls, value: Value) -> Self:
        rules = _rules(cls)
        if not isinstance(value, tuple) or len(value) != len(rules):
            raise ValueError(f"{cls.__name__} is an array of {len(rules)} fields")
        return cls(**{name: rule.decode(item) for (name, rule), item in zip(rules, value, strict=True)})


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a field may hold, and its two translations. ``decode`` raises ValueError, or leaves it to ``accepts``."""

    expected: str
    accepts: Callable[[Any], bool]
    encode: Callable[[Any], Packable] = lambda value: cast(Packable, value)
    decode: Callable[[Value], Any] = lambda value: value


def _rules(cls: type[Record]) -> tuple[tuple[str, _Rule], ...]:
    return _rules_once(cast(Any, cls))  # mypy does not take a class for hashable


@cache
def _rules_once(cls: type[Record]) -> tuple[tuple[str, _Rule], ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field.name, _rule(hints[field.name])) for field in dataclasses.fields(cls))


def _rule(hint: Any) -> _Rule:
    if get_origin(hint) is Annotated:
        kind, limit = get_args(hint)
        return _limited_rule(kind, limit)
    if hint is bool:
        return _Rule("true or false", lambda v: type(v) is bool)
    if issubclass(hint, StrEnum):
        return _Rule(
            "one of " + ", ".join(hint),
            lambda v: type(v) is hint,
            lambda v: str(v.value),
            lambda v: hint(v) if type(v) is str else v,
        )
    assert issubclass(hint, Record), f"a field of a record cannot be {hint}"
    return _Rule(f"a {hint.__name__}", lambda v: type(v) is hint, lambda v: v.to_value(), hint._read)


def _limited_rule(kind: Any, limit: object) -> _Rule:
    match limit:
        case Integer(low, high):
            return _Rule(f"an integer from {low} to {high}", lambda v: type(v) is int and low <= v <= high)
        case Bytes(length):
            return _Rule(f"{length} bytes", lambda v: type(v) is bytes and len(v) == length)
        case Text(max_bytes):
            expected = f"a text of 1 to {max_bytes} bytes without control or invisible characters"
            return _Rule(expected, lambda v: type(v) is str and _is_plain(v, max_bytes))
        case Many(least, most):
            return _many_rule(get_args(kind)[0], least, most)
    raise AssertionError(f"unknown limit {limit!r}")


def _many_rule(cls: type[Record], least: int, most: int) -> _Rule:
    expected = f"a tuple of {least} to {most} {cls.__name__}"

    def decode(value: Value) -> object:
        if not isinstance(value, tuple) or len(value) > most:
            raise ValueError(f"not {expected}")
        return tuple(cls._read(item) for item in value)

    return _Rule(
        expected,
        lambda v: type(v) is tuple and least <= len(v) <= most and all(type(item) is cls for item in v),
        lambda v: tuple(item.to_value() for item in v),
        decode,
    )


def _is_plain(value: str, max_bytes: int) -> bool:
    # The categories first: they hold surrogates, which have no encoding.
    return all(is_seen(character) for character in value) and 1 <= len(value.encode()) <= max_bytes


def is_seen(character: str) -> bool:
    """Whether one character is safe to show to people (``UNSEEN`` are not)."""
    return unicodedata.category(character) not in UNSEEN

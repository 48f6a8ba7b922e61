"""A scenario that somebody wrote down (TOML): who takes part, what the network does, what happens when.

Strict: an unknown key, action, behaviour or name is refused with its line, and with the nearest one that is known.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from aicpnode.errors import UserError
from aicpnode.replication.intent import Wish
from aicpnode.simulation.choice import NODES_MAX, SEED_MAX
from aicpnode.simulation.member import Behaviour

FILE_BYTES_MAX = 1024 * 1024
STEPS_MAX = 1_000
UNTIL_MS_MAX = 3_600_000
DELAY_MS_MAX = 60_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
ADVICE = "See docs/simulation.md for all keys."

Moment = Annotated[int, Field(ge=0, le=UNTIL_MS_MAX)]
"""In ms of virtual time from the start."""
Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class Action(StrEnum):
    """What can happen at a moment of the schedule."""

    CRASH = "crash"
    RESTART = "restart"
    LOSE_DISK = "lose_disk"
    """Crash, and everything is gone but the key."""
    PART = "part"
    """``members`` and all others hear each other no more."""
    HEAL = "heal"
    """Of the partition of ``members``, or of all."""
    WISH = "wish"
    """The owner of ``member`` changes its mind: ``wish``."""


DISTURBING = (Action.CRASH, Action.LOSE_DISK, Action.PART)


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Network(_Table):
    """How messages travel. ``wide_area`` replaces the delays by those between eight regions of the world."""

    delay_ms: tuple[Annotated[int, Field(ge=0, le=DELAY_MS_MAX)], Annotated[int, Field(ge=0, le=DELAY_MS_MAX)]] = (
        1,
        40,
    )
    """The shortest and the longest."""
    loss: Share = 0.0
    duplication: Share = 0.0
    late: Share = 0.0
    """Share of messages that take up to three seconds more."""
    wide_area: bool = False
    quiet_after_ms: Moment | None = None
    """From then on nothing is lost, doubled or late, and members must decide quickly; None: never."""

    @field_validator("delay_ms", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("delay_ms")
    @classmethod
    def _rising(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError("the shortest delay comes first")
        return value


class ScenarioMember(_Table):
    """One member. Without ``joins_at_ms`` it is a founder."""

    name: str
    behaviour: Behaviour = Behaviour.HONEST
    joins_at_ms: Moment | None = None

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("a name is 1 to 32 letters, digits, dots, dashes or underscores")
        return value

    @field_validator("behaviour", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        return _chosen(value, Behaviour)


class ScenarioStep(_Table):
    """One thing that happens. Which keys it takes follows from its action."""

    at_ms: Moment
    action: Action
    member: str | None = None
    members: tuple[str, ...] | None = None
    wish: Wish | None = None

    @field_validator("action", mode="before")
    @classmethod
    def _action(cls, value: Any) -> Any:
        return _chosen(value, Action)

    @field_validator("wish", mode="before")
    @classmethod
    def _wish(cls, value: Any) -> Any:
        names = [wish.name.lower() for wish in Wish]
        if value not in names:
            raise ValueError(_unknown(value, names))
        return Wish[value.upper()]

    @field_validator("members", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needs = {
            Action.PART: {"members"},
            Action.HEAL: set[str](),
            Action.WISH: {"member", "wish"},
        }.get(self.action, {"member"})
        takes = needs | ({"members"} if self.action is Action.HEAL else set())
        given = {key for key in ("member", "members", "wish") if getattr(self, key) is not None}
        for key in sorted(needs - given):
            raise ValueError(f"{self.action.value} needs {key}")
        for key in sorted(given - takes):
            raise ValueError(f"{self.action.value} takes no {key}")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """The members that it speaks of."""
        return self.members or (() if self.member is None else (self.member,))


class ScenarioFile(_Table):
    """The whole file."""

    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] = 0
    until_ms: Annotated[int, Field(ge=1, le=UNTIL_MS_MAX)]
    """How long it lasts at most, in virtual time."""
    heights: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """It is over when every honest member has decided so many; then not to get so far is a failure."""
    network: Network = Network()
    members: Annotated[tuple[ScenarioMember, ...], Field(min_length=1, max_length=NODES_MAX)]
    schedule: Annotated[tuple[ScenarioStep, ...], Field(max_length=STEPS_MAX)] = ()

    @field_validator("members", "schedule", mode="before")
    @classmethod
    def _tables(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @property
    def founders(self) -> tuple[ScenarioMember, ...]:
        return tuple(member for member in self.members if member.joins_at_ms is None)

    @property
    def joiners(self) -> tuple[ScenarioMember, ...]:
        return tuple(member for member in self.members if member.joins_at_ms is not None)


def load_scenario(path: Path) -> ScenarioFile:
    """Raises ``UserError`` that names the file, the line, and what is wrong there."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"Cannot read the scenario {path}: {error.strerror}.") from error
    if len(raw) > FILE_BYTES_MAX:
        raise UserError(f"The scenario {path} is longer than {FILE_BYTES_MAX} bytes.")
    try:
        text = raw.decode("utf-8")
        values = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f"The scenario {path} is not TOML: {error}.") from error
    return parse_scenario(values, text, source=str(path))


def parse_scenario(values: dict[str, Any], text: str, *, source: str) -> ScenarioFile:
    """``values`` are what ``text`` says. Raises ``UserError``."""
    try:
        scenario = ScenarioFile.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise UserError("\n".join(_explain(fault, text, source) for fault in faults), advice=ADVICE) from error
    faults_of_names = [f"{source}{_line(text, place)}: {fault}" for place, fault in _names(scenario)]
    if faults_of_names:
        raise UserError("\n".join(faults_of_names), advice=ADVICE)
    return scenario


# ---- what is wrong, and where

Place = tuple[int | str, ...]
"""A path into the file, such as ("schedule", 2, "action")."""


def _names(scenario: ScenarioFile) -> Iterator[tuple[Place, str]]:
    known: list[str] = []
    for index, member in enumerate(scenario.members):
        if member.name in known:
            yield ("members", index, "name"), f"the name {member.name!r} is taken already"
        known.append(member.name)
    if not any(member.behaviour is Behaviour.HONEST for member in scenario.founders):
        yield ("members",), "no founder is honest, so there is nothing that could be checked"
    quiet_ms = scenario.network.quiet_after_ms
    for index, step in enumerate(scenario.schedule):
        if quiet_ms is not None and step.at_ms >= quiet_ms and step.action in DISTURBING:
            yield ("schedule", index, "at_ms"), f"{step.action.value} after network quiet_after_ms ({quiet_ms})"
        key = "member" if step.members is None else "members"
        for name in step.named:
            if name not in known:
                yield ("schedule", index, key), _unknown(name, known)


def _explain(fault: ErrorDetails, text: str, source: str) -> str:
    place = fault["loc"]
    where = f"{source}{_line(text, place)}: {_path(place)}"
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key; {_nearest(str(place[-1]), _keys(place[:-1]))}"
    if fault["type"] == "missing":
        return f"{where}: is missing"
    message = fault["msg"].removeprefix("Value error, ")
    is_told = not isinstance(fault["input"], str | int | float) or repr(fault["input"]) in message
    given = "" if is_told else f" (given: {fault['input']!r})"
    return f"{where}: {message[:1].lower()}{message[1:]}{given}"


def _keys(table: Place) -> Collection[str]:
    """That the table at this place may have."""
    models: dict[object, type[_Table]] = {"network": Network, "members": ScenarioMember, "schedule": ScenarioStep}
    return (models[table[0]] if table else ScenarioFile).model_fields


def _path(place: Place) -> str:
    """As people count: the third step is ``schedule 3``."""
    return " ".join(str(part + 1) if isinstance(part, int) else part for part in place) or "the file"


def _line(text: str, place: Place) -> str:
    """ ", line N" of the key, or of its table if the key is not there; empty if it was written in some other way."""
    lines = text.splitlines()
    first, last, key = 0, len(lines), place[-1] if place and isinstance(place[-1], str) else ""
    if place and place[0] in ("network", "members", "schedule"):
        headers = [number for number, line in enumerate(lines) if re.match(rf"\s*\[+\s*{place[0]}\s*\]", line)]
        number = place[1] if len(place) > 1 and isinstance(place[1], int) else 0
        if number < len(headers):
            first = headers[number]
        elif headers:
            return ""
    following = (n for n in range(first + 1, len(lines)) if lines[n].lstrip().startswith("["))
    last = next(following, last) if first or place[:1] == ("network",) else last
    for number in range(first, last):
        if key and re.match(rf"\s*[\"']?{re.escape(str(key))}[\"']?\s*=", lines[number]):
            return f", line {number + 1}"
    return f", line {first + 1}" if first else ""


def _chosen(value: Any, choices: type[Behaviour] | type[Action]) -> Any:
    names = [choice.value for choice in choices]
    if value not in names:
        raise ValueError(_unknown(value, names))
    return choices(value)


def _unknown(value: object, names: Iterable[str]) -> str:
    return f"{value!r} is not known; {_nearest(str(value), names)}"


def _nearest(value: str, names: Iterable[str]) -> str:
    known = sorted(names)
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


__all__ = ["Action", "Network", "ScenarioFile", "ScenarioMember", "ScenarioStep", "load_scenario", "parse_scenario"]

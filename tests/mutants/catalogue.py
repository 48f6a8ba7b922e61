"""Mutants: named source replacements, each of which breaks one rule of the protocol.

They stand in the TOML files beside this one. A mutant says why its rule matters, what text it replaces (which must
occur exactly once in its files: code that moves on takes its mutants along, or the gate fails), and which tests must
fail because of it. ``simulation`` names tests that must notice as well, by themselves.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class StaleMutant(Exception):
    """A mutant that does not fit the source any more, or never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """``old`` becomes ``new`` in ``file``: a path from the root of the repository, or a pattern of such paths, of which
    one file has the text."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken rule. ``tests`` and ``simulation`` are pytest selections; each of the two must fail by itself."""

    name: str
    why: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    simulation: tuple[str, ...] = ()

    @property
    def selections(self) -> tuple[tuple[str, ...], ...]:
        return tuple(selection for selection in (self.tests, self.simulation) if selection)

    def mutated(self, root: Path) -> dict[str, str]:
        """The text of each changed file under ``root``. StaleMutant if an edit does not fit, or breaks the syntax."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            paths = sorted(path.relative_to(root).as_posix() for path in root.glob(edit.file))
            sources = {path: texts.get(path) or (root / path).read_text() for path in paths}
            count = sum(text.count(edit.old) for text in sources.values())
            if count != 1:
                raise StaleMutant(f"{self.name}: its text occurs {count} times in {edit.file}: {edit.old.strip()!r}")
            if edit.new == edit.old:
                raise StaleMutant(f"{self.name}: it changes nothing in {edit.file}")
            (path,) = (path for path, text in sources.items() if edit.old in text)
            texts[path] = sources[path].replace(edit.old, edit.new)
        for file, text in texts.items():
            try:
                ast.parse(text)
            except SyntaxError as error:
                raise StaleMutant(f"{self.name}: {file} would not compile: {error}") from error
        return texts


def load(folder: Path = HERE) -> tuple[Mutant, ...]:
    """All mutants, in the order of files and of their places there. StaleMutant on a damaged or repeated entry."""
    mutants = [_parse(table, path) for path in sorted(folder.glob("*.toml")) for table in _tables(path)]
    names = [mutant.name for mutant in mutants]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise StaleMutant(f"names are used twice: {', '.join(repeated)}")
    return tuple(mutants)


def _tables(path: Path) -> list[dict[str, Any]]:
    try:
        return list(tomllib.loads(path.read_text())["mutant"])
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise StaleMutant(f"{path.name}: {error}") from error


def _parse(table: dict[str, Any], path: Path) -> Mutant:
    try:
        return Mutant(
            name=table.pop("name"),
            why=table.pop("why"),
            edits=tuple(Edit(**edit) for edit in table.pop("edit")),
            tests=tuple(table.pop("tests")),
            simulation=tuple(table.pop("simulation", ())),
            **table,
        )
    except (KeyError, TypeError) as error:
        raise StaleMutant(f"{path.name}: {error} in {table}") from error

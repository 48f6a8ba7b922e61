"""Each case of the collection of faults that real consensus systems had is a named test here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CASES = range(1, 34)


def test_every_case_has_a_test_of_its_name() -> None:
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_case_"):
                found |= {int(number) for number in re.findall(r"_C(\d\d)(?=_)", node.name)}
    assert set(CASES) - found == set()
    assert found <= set(CASES)

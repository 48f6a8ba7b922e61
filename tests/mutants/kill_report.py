"""A pytest plugin that writes down which test failed first and by what: one JSON object into ``KILL_REPORT``.

Hypothesis shrinks nothing here: that a mutant is noticed is all that is asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

REPORT_VARIABLE = "KILL_REPORT"
BROKEN = (NameError, AttributeError, TypeError, ImportError, SyntaxError)
"""A mutant that fails by these is no broken rule but broken code: no test has to be good to notice it."""


def pytest_configure() -> None:
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), derandomize=True, database=None)
    settings.load_profile("mutants")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for child in error.exceptions for leaf in _leaves(child)]
    return [error]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    path = Path(os.environ[REPORT_VARIABLE])
    if report.failed and call.excinfo is not None and not path.exists():
        leaves = _leaves(call.excinfo.value)
        path.write_text(
            json.dumps(
                {
                    "test": item.nodeid,
                    "error": " and ".join(type(leaf).__name__ for leaf in leaves),
                    "broken": any(isinstance(leaf, BROKEN) for leaf in leaves),
                }
            )
        )
    return report

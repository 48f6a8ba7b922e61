"""The mutants of ``scripts/mutants`` fit the source and name tests that exist; running them is the gate's business."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS_MIN = 20
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
from catalogue import Edit, Mutant, StaleMutant, load  # noqa: E402

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_source(mutant: Mutant) -> None:
    assert mutant.mutated(ROOT)
    assert mutant.why and mutant.tests


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    for selection in mutant.selections:
        for test in selection:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            assert not name or re.search(rf"def {name}\b|^{name} = ", text, flags=re.MULTILINE), test


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("no such text anywhere", "x", "occurs 0 times"),
        ("return", "x", "times"),
        ("    return total_power - max_faulty(total_power)", "    return (", "would not compile"),
    ],
)
def test_mutant_that_does_not_fit_is_refused(old: str, new: str, complaint: str) -> None:
    edit = Edit(file="consensus/types.py", old=old, new=new)
    with pytest.raises(StaleMutant, match=complaint):
        Mutant(name="stale", why="a test", edits=(edit,), tests=("none",)).mutated(ROOT)


def test_gate_kills_and_lets_survive_as_it_should(tmp_path: Path) -> None:
    """A mutant whose tests do not look survives, and the gate says so; the tree itself is not touched."""
    before = (ROOT / "consensus" / "types.py").read_text()
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "mutants")!r})
import gate
from catalogue import Edit, Mutant
edit = Edit(file="consensus/types.py", old="return total_power - max_faulty(total_power)", new="return total_power")
def mutant(name, test):
    return Mutant(name=name, why="a test", edits=(edit,), tests=("tests/unit/consensus/" + test,))
gate.load = lambda: (mutant("seen", "test_quorum_arithmetic.py"), mutant("unseen", "test_pacemaker.py"))
sys.argv = ["gate", "--json", "--jobs", "1"]
sys.exit(gate.main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["mutants"], result["killed"], result["survivors"]) == (2, 1, ["unseen"])
    assert (ROOT / "consensus" / "types.py").read_text() == before

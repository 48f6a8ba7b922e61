"""Runs the mutation gate (``scripts/mutants``): each mutant in a copy of the tree, against the tests that must fail.

The copies lie in a temporary folder; the tree itself is never changed. First the tests must pass unmutated. A mutant is
killed if a test of each of its selections fails; it survives if they pass, if they do not end, or if the code only
breaks (NameError and the like: then it is not the rule that was tested).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from catalogue import HERE, ROOT, Mutant, StaleMutant, load
from kill_report import REPORT_VARIABLE

COPIED = ("aicpnode", "consensus", "kernels", "tests", "scripts", "pyproject.toml", "README.md")
CONTROL_SECONDS_MAX = 600
SELECTION_SECONDS_MAX = 180
OUTPUT_LINES_SHOWN = 40
PASSED, FAILED = 0, 1
"""What pytest exits with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``killers`` are the tests that failed, one a selection; ``fault`` says why the mutant counts as surviving."""

    mutant: Mutant
    killers: tuple[str, ...]
    fault: str | None
    seconds: float


class Copy:
    """One copy of the tree, in which one mutant at a time lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._report = folder / "kill-report.json"

    @classmethod
    def make(cls, folder: Path) -> Copy:
        folder.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
                shutil.copytree(source, folder / name, ignore=ignored)
            else:
                shutil.copy2(source, folder / name)
        # Bytecode is checked against the source's hash: a mutant within a second of another is never mistaken for it.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        for package in ("aicpnode", "consensus", "kernels"):
            compileall.compile_dir(folder / package, quiet=1, invalidation_mode=mode)
        return cls(folder)

    def check_imports(self) -> None:
        """An installed package must not take the place of the mutated one."""
        program = "import aicpnode, consensus, kernels; print(aicpnode.__file__, consensus.__file__, kernels.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        foreign = [path for path in done.stdout.split() if not Path(path).is_relative_to(self.folder.resolve())]
        if foreign:
            raise StaleMutant(f"the tests would not run the mutated code but {', '.join(foreign)}")

    def run(self, selection: tuple[str, ...], *options: str, seconds: int) -> tuple[int | None, str]:
        """(pytest's exit code, its output); None if it did not end in time."""
        self._report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "kill_report", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [*command, *options, *selection],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _nothing = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _nothing = process.communicate()
            return None, output
        return process.returncode, output

    def first_failure(self) -> dict[str, str]:
        return dict(json.loads(self._report.read_text())) if self._report.exists() else {}

    def write(self, texts: dict[str, str]) -> None:
        for file, text in texts.items():
            (self.folder / file).write_text(text)

    def restore(self, texts: dict[str, str]) -> None:
        for file in texts:
            shutil.copy2(ROOT / file, self.folder / file)

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(self.folder), str(self.folder / HERE.relative_to(ROOT))))
        return {
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            REPORT_VARIABLE: str(self._report),
        }


def judge(mutant: Mutant, copy: Copy) -> Verdict:
    """Let ``mutant`` live in ``copy`` for as long as its tests take."""
    began = time.monotonic()
    killers: list[str] = []
    fault = None
    texts = mutant.mutated(ROOT)
    copy.write(texts)
    try:
        for selection in mutant.selections:
            code, output = copy.run(selection, "-x", seconds=SELECTION_SECONDS_MAX)
            failure = copy.first_failure()
            if code == PASSED:
                fault = f"survives {' '.join(selection)}"
            elif code is None:
                fault = f"its tests do not end within {SELECTION_SECONDS_MAX} s"
            elif code != FAILED or not failure:
                fault = f"pytest exits with {code}:\n{_tail(output)}"
            elif failure["broken"]:
                fault = f"is broken code: {failure['error']} in {failure['test']}"
            if fault:
                break
            killers.append(f"{failure['test']} ({failure['error']})")
    finally:
        copy.restore(texts)
    return Verdict(mutant=mutant, killers=tuple(killers), fault=fault, seconds=time.monotonic() - began)


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-OUTPUT_LINES_SHOWN:])


def control(mutants: tuple[Mutant, ...], copy: Copy, jobs: int) -> None:
    """All selections pass on the tree as it is. Raises StaleMutant if not: then failures would say nothing."""
    copy.check_imports()
    tests = tuple(dict.fromkeys(test for mutant in mutants for part in mutant.selections for test in part))
    # Worst case first: what a whole file covers is not run twice by its single tests.
    whole = {test for test in tests if "::" not in test}
    tests = tuple(test for test in tests if test in whole or test.partition("::")[0] not in whole)
    code, output = copy.run(tests, "-n", str(jobs), seconds=CONTROL_SECONDS_MAX)
    if code != PASSED:
        raise StaleMutant(f"the unmutated tests must pass first, but pytest exits with {code}:\n{_tail(output)}")


def run(mutants: tuple[Mutant, ...], jobs: int) -> list[Verdict]:
    """Verdicts in the order of ``mutants``."""
    with tempfile.TemporaryDirectory(prefix="aicp-mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        made = [Copy.make(Path(folder) / f"copy-{number}") for number in range(jobs)]
        say(f"control: the tests of {len(mutants)} mutants on the tree as it is")
        control(mutants, made[0], jobs)
        for copy in made:
            copies.put(copy)

        def one(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                verdict = judge(mutant, copy)
            finally:
                copies.put(copy)
            outcome = f"SURVIVES: {verdict.fault}" if verdict.fault else f"killed by {', '.join(verdict.killers)}"
            say(f"{mutant.name}: {outcome} ({verdict.seconds:.1f} s)")
            return verdict

        with ThreadPoolExecutor(max_workers=jobs) as pool:
            return list(pool.map(one, mutants))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is a command


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (default: all cores)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant; may be repeated")
    parser.add_argument("--list", action="store_true", help="print names and reasons, and run nothing")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        mutants = load()
        known = {mutant.name for mutant in mutants}
        if unknown := sorted(set(options.only) - known):
            raise StaleMutant(f"there is no mutant {', '.join(unknown)}: see --list")
        mutants = tuple(mutant for mutant in mutants if not options.only or mutant.name in options.only)
        for mutant in mutants:
            mutant.mutated(ROOT)
        if options.list:
            width = max(len(mutant.name) for mutant in mutants)
            print("\n".join(f"{mutant.name:<{width}}  {mutant.why}" for mutant in mutants))  # noqa: T201
            return 0
        verdicts = run(mutants, max(1, min(options.jobs, len(mutants))))
    except StaleMutant as error:
        say(f"scripts/mutants: {error}")
        return 2
    survivors = [verdict.mutant.name for verdict in verdicts if verdict.fault]
    seconds = round(time.monotonic() - began, 1)
    say(f"{len(verdicts)} mutants, {len(verdicts) - len(survivors)} killed, in {seconds} s")
    if options.json:
        result = {"mutants": len(verdicts), "killed": len(verdicts) - len(survivors), "survivors": survivors}
        print(json.dumps({**result, "seconds": seconds}))  # noqa: T201
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

"""What an observer keeps of a run, how it is put into words, and the log that comes of it."""

from __future__ import annotations

import re

import pytest

from aicpnode.simulation import record as recording
from aicpnode.simulation.choice import parse_choice
from aicpnode.simulation.cluster import Behaviour, Faults, Observer, Occurrence
from aicpnode.simulation.playbook import Playbook
from aicpnode.simulation.record import Lane, Recorder, Wording
from aicpnode.simulation.scenario import Outcome, Scenario, play
from aicpnode.simulation.sweep import Run, Runs, Verdict, run_one
from aicpnode.simulation.trace import trace_lines

LANES = (
    Lane(name="ada", behaviour="honest"),
    Lane(name="bob", behaviour="honest"),
    Lane(name="eve", behaviour="chaos"),
    Lane(name="dan", behaviour="honest", joins=True),
)


class Eventful:
    """One run in which everything happens, whatever chance would bring to other runs."""

    def play(self, seed: int, observer: Observer | None = None) -> Outcome:
        faults = Faults(delay_ms=(5, 30), loss=0.05, duplication=0.05, crashes=4, power_cuts=4, partitions=3)
        honest, liar = Behaviour.HONEST, Behaviour.EQUIVOCATE
        scenario = Scenario(
            seed=seed, founders=(honest, honest, liar, honest), joiners=(honest,), faults=faults, wishes=()
        )
        return play(scenario, observer)

    def lanes(self, seed: int) -> tuple[Lane, ...]:
        behaviours = ("honest", "honest", "equivocate", "honest", "honest")
        return tuple(Lane(name=f"node-{i}", behaviour=b, joins=i == 4) for i, b in enumerate(behaviours))

    def title(self, seed: int) -> str:
        return f"eventful {seed}"

    def command(self, seed: int) -> str:
        return f"again {seed}"


def log(choice: Runs, seed: int, *, window: tuple[int, int] | None = None) -> tuple[list[str], Run]:
    recorder = Recorder(choice.lanes(seed), window=window)
    run = run_one(choice, seed, recorder)
    return list(trace_lines(recorder, run)), run


def test_to_look_on_changes_no_run() -> None:
    choice = parse_choice("4", 1, "all")
    for seed in range(3):
        assert run_one(choice, seed, Recorder(choice.lanes(seed))) == run_one(choice, seed)


def test_the_log_of_a_run_tells_who_said_heard_lost_and_decided_what() -> None:
    lines, run = log(Eventful(), 3)
    text = "\n".join(lines)
    assert lines[0].startswith("# seed 3;")
    assert "# node-2: equivocate" in lines
    assert "# node-4: honest, joins" in lines
    for pattern in (
        r"^ +0  node-0  STARTED  at height 1$",
        r"^ +1  node-0  applied  height 0: state [0-9a-f]{8}$",
        r"^ +\d+  node-\d  says     SET h\d+ v\d+ [0-9a-f]{8}$",
        r"^ +\d+  node-2  tells    PREPARE h\d+ v\d+ .* to node-\d$",
        r"^ +\d+  node-\d  hears    COMMIT h\d+ v\d+ [0-9a-f]{8} from node-\d$",
        r"^ +\d+  node-\d  loses    .* to node-\d$",
        r"^ +\d+  node-\d  sends    .* to node-\d, late: arrives at \d+$",
        r"^ +\d+  node-\d  timer    PROPOSE h\d+ v\d+$",
        r"^ +\d+  node-\d  DECIDES  height 1 in view \d: [0-9a-f]{8}$",
        r"^ +\d+  node-\d  ACCUSES  node-2: ",
        r"^ +\d+  node-\d  CRASHED  at height \d+$",
        r"^ +\d+  node-\d  PARTED$",
        r"^ +\d+  node-\d  HEALED$",
    ):
        assert re.search(pattern, text, flags=re.MULTILINE), pattern
    assert lines[-2:] == [f"# fine: every honest member decided {run.heights} heights", f"# trace hash {run.trace}"]
    times = [int(line.split()[0]) for line in lines if not line.startswith("#")]
    assert times == sorted(times)


def test_a_window_leaves_out_the_rest() -> None:
    lines, _run = log(parse_choice("4", 0, "none"), 1, window=(1000, 1200))
    times = [int(line.split()[0]) for line in lines if not line.startswith("#")]
    assert times
    assert 1000 <= min(times) <= max(times) <= 1200
    assert "# only from 1000 to 1200 ms" in lines


def test_a_violation_is_the_last_line() -> None:
    recorder = Recorder(LANES)
    run = Run(seed=7, verdict=Verdict.VIOLATION, text="invariant 1: two blocks")
    assert list(trace_lines(recorder, run))[-1] == "# violation: invariant 1: two blocks"


def test_a_long_run_keeps_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FIRST_KEPT", 3)
    monkeypatch.setattr(recording, "LAST_KEPT", 2)
    recorder = Recorder(LANES)
    for at in range(10):
        recorder(at, Occurrence.STARTED, "ada", None, f"number {at}")
    assert [entry.at_ms for entry in recorder.first] == [0, 1, 2]
    assert [entry.at_ms for entry in recorder.last] == [8, 9]
    assert recorder.left_out == 5
    lines = list(trace_lines(recorder, Run(seed=0, verdict=Verdict.FINE)))
    assert "# 5 events are left out here: see them with --window" in lines


def test_words_name_members_places_and_the_signer_of_what_is_passed_on() -> None:
    playbook = Playbook()
    wording = Wording(LANES)
    block = playbook.block()
    name = playbook.name(block).hex()[:8]
    assert wording.of(playbook.ballot(0, ready=True)) == "BALLOT h1 v0 round 0, ready, accepts 0 of 0"
    assert wording.of(playbook.fresh(block)) == f"SET h1 v0 {name}"
    assert wording.of(playbook.prepare(1, 0, b"")) == "PREPARE h1 v0 nil"
    commit = playbook.commit(1, 0, playbook.name(block))
    assert wording.of(commit, sender="bob") == f"COMMIT h1 v0 {name}"
    assert wording.of(commit, sender="eve") == f"COMMIT h1 v0 {name} of bob"
    certificate = playbook.prepare_certificate(0, playbook.name(block))
    assert wording.of(playbook.again(certificate, 1)) == f"SET h1 v1 {name} again, prepared in v0"
    assert wording.of(playbook.ballot(0, 1, certificate=certificate)).endswith(f", holds {name} of v0")
    assert wording.name(b"\xab" * 32) == "abababab"

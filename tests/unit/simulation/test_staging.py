"""Scenarios that somebody wrote down happen as written."""

from __future__ import annotations

import tomllib
from pathlib import Path

from aicpnode.simulation.cluster import Copy, Occurrence
from aicpnode.simulation.record import Entry, Recorder
from aicpnode.simulation.scenario_file import load_scenario, parse_scenario
from aicpnode.simulation.staging import Staging
from aicpnode.simulation.sweep import Run, Verdict, run_one, sweep
from consensus.events import Decide

EXAMPLE = Path(__file__).parents[3] / "docs" / "scenario.toml"
FOUR = "".join(f'[[members]]\nname = "{name}"\n' for name in ("ada", "bob", "carol", "dan"))


def staged(text: str) -> Staging:
    return Staging(file=parse_scenario(tomllib.loads(text), text, source="s.toml"), path="s.toml")


def happened(text: str, *, seed: int = 0) -> tuple[list[Entry], Run]:
    staging = staged(text)
    recorder = Recorder(staging.lanes(seed))
    run = run_one(staging, seed, recorder)
    assert run.verdict is not Verdict.VIOLATION, run.text
    return list(recorder.first), run


def step(at_ms: int, action: str, **keys: object) -> str:
    lines = (f"{key} = {value!r}\n" for key, value in keys.items())
    return f'[[schedule]]\nat_ms = {at_ms}\naction = "{action}"\n{"".join(lines)}'


def test_the_example_decides_after_it_heals() -> None:
    staging = Staging(file=load_scenario(EXAMPLE), path="docs/scenario.toml")
    recorder = Recorder(staging.lanes(staging.file.seed))
    run = run_one(staging, staging.file.seed, recorder)
    assert run.verdict is Verdict.FINE, run.text
    assert run.heights >= 5
    moments = {(entry.what, entry.sender): entry.at_ms for entry in recorder.first}
    assert moments[Occurrence.PARTED, "ada"] == moments[Occurrence.PARTED, "mallory"] == 1500
    assert moments[Occurrence.HEALED, "ada"] == 2600
    decided = [entry.at_ms for entry in recorder.first if entry.what is Occurrence.DECIDED]
    assert not [at for at in decided if 1600 < at < 2600], "neither side has a quorum"
    assert max(decided) > 2600
    assert [lane.name for lane in staging.lanes(0) if lane.lies] == ["mallory"]


def test_one_seed_is_one_run_and_another_seed_another() -> None:
    staging = Staging(file=load_scenario(EXAMPLE), path="docs/scenario.toml")
    alone = sweep(staging, range(3), jobs=1)
    together = sweep(staging, range(3), jobs=2)
    assert alone.trace_hash == together.trace_hash
    assert alone.violations == 0
    assert run_one(staging, 0).trace != run_one(staging, 1).trace


def test_members_crash_come_back_and_join_when_they_should() -> None:
    text = (
        f'until_ms = 12000\n{FOUR}[[members]]\nname = "eve"\njoins_at_ms = 3000\n'
        + step(2000, "crash", member="bob")
        + step(2500, "restart", member="bob")
        + step(2600, "restart", member="bob")
    )
    entries, run = happened(text)
    assert run.verdict is Verdict.FINE, "without heights, to the end is far enough"
    ups_and_downs = [
        (entry.at_ms, entry.what, entry.sender)
        for entry in entries
        if entry.what in (Occurrence.STARTED, Occurrence.CRASHED) and entry.at_ms > 0
    ]
    assert ups_and_downs == [
        (2000, Occurrence.CRASHED, "bob"),
        (2500, Occurrence.STARTED, "bob"),
        (3000, Occurrence.STARTED, "eve"),
    ]
    assert max(entry.at_ms for entry in entries) <= 12000
    said_by_eve = [entry.at_ms for entry in entries if entry.what is Occurrence.SENT and entry.sender == "eve"]
    assert said_by_eve and min(said_by_eve) >= 3000


def test_a_lost_disk_leaves_the_key_only_and_is_caught_up() -> None:
    text = f"until_ms = 15000\n{FOUR}" + step(4000, "lose_disk", member="bob") + step(4100, "restart", member="bob")
    entries, _run = happened(text)
    decided = [entry for entry in entries if entry.what is Occurrence.DECIDED and entry.sender == "bob"]
    before = [entry.said.ledger.height for entry in decided if entry.at_ms < 4000 and isinstance(entry.said, Decide)]
    after = [entry.said.ledger.height for entry in decided if entry.at_ms >= 4100 and isinstance(entry.said, Decide)]
    assert before[0] == after[0] == 1
    assert max(after) > max(before)


def test_a_wide_area_takes_its_own_delays() -> None:
    entries, _run = happened(f"until_ms = 6000\n[network]\nwide_area = true\n{FOUR}")
    delays = [entry.said.arrives_ms - entry.at_ms for entry in entries if isinstance(entry.said, Copy)]
    assert max(delays) > 40, "from Sao Paulo to London it takes longer than any message takes by default"


def test_partitions_heal_together_or_by_name() -> None:
    text = (
        f"until_ms = 5000\n{FOUR}"
        + step(1000, "part", members=["ada"])
        + step(1100, "part", members=["bob"])
        + step(1200, "heal", members=["bob"])
        + step(1300, "part", members=["carol", "dan"])
        + step(1400, "heal")
        + step(1500, "heal")
    )
    entries, _run = happened(text)
    healed = [(entry.at_ms, entry.sender) for entry in entries if entry.what is Occurrence.HEALED]
    assert healed == [(1200, "bob"), (1400, "ada"), (1400, "carol"), (1400, "dan")]


def test_a_wish_becomes_an_operation() -> None:
    text = f"until_ms = 9000\n{FOUR}" + step(3000, "wish", member="dan", wish="leave")
    entries, _run = happened(text)
    asked = [entry for entry in entries if entry.what is Occurrence.SENT and "LEAVE" in repr(entry.said)]
    assert asked[0].sender == "dan"
    assert min(entry.at_ms for entry in asked) >= 3000


def test_heights_that_are_not_reached_are_a_failure_with_its_command() -> None:
    text = f"until_ms = 5000\nheights = 3\n{FOUR}" + step(0, "part", members=["ada", "bob"])
    _entries, run = happened(text, seed=4)
    assert run.verdict is Verdict.UNDECIDED
    assert staged(text).command(4) == "aicp-node simulate --scenario s.toml --seeds 4 --trace -"

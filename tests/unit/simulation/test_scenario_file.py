"""Scenario files: what they may say, and what is said about mistakes in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from aicpnode.errors import UserError
from aicpnode.replication.intent import Wish
from aicpnode.simulation.member import Behaviour
from aicpnode.simulation.scenario_file import (
    FILE_BYTES_MAX,
    Action,
    Network,
    ScenarioFile,
    ScenarioMember,
    ScenarioStep,
    load_scenario,
    parse_scenario,
)

GOOD = """\
until_ms = 9000
[network]
delay_ms = [5, 30]
loss = 0
quiet_after_ms = 6000
[[members]]
name = "ada"
[[members]]
name = "eve"
behaviour = "stingy"
[[members]]
name = "dan"
joins_at_ms = 2000
[[schedule]]
at_ms = 100
action = "part"
members = ["ada", "eve"]
[[schedule]]
at_ms = 700
action = "wish"
member = "ada"
wish = "leave"
"""


def parse(text: str) -> ScenarioFile:
    return parse_scenario(tomllib.loads(text), text, source="s.toml")


def test_a_good_file_says_what_happens() -> None:
    scenario = parse(GOOD)
    assert (scenario.seed, scenario.until_ms, scenario.heights) == (0, 9000, None)
    assert (scenario.network.delay_ms, scenario.network.loss) == ((5, 30), 0.0)
    assert [member.name for member in scenario.founders] == ["ada", "eve"]
    assert [member.name for member in scenario.joiners] == ["dan"]
    assert scenario.founders[1].behaviour is Behaviour.STINGY
    part, wish = scenario.schedule
    assert (part.action, part.named) == (Action.PART, ("ada", "eve"))
    assert (wish.action, wish.named, wish.wish) == (Action.WISH, ("ada",), Wish.LEAVE)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("until_ms = 9000", "until_s = 9", "s.toml, line 1: until_s: unknown key; did you mean until_ms?"),
        ("until_ms = 9000", "", "s.toml: until_ms: is missing"),
        ("loss = 0", "los = 0", "s.toml, line 4: network los: unknown key; did you mean loss?"),
        ("loss = 0", "loss = 1.0", "s.toml, line 4: network loss: input should be less than 1 (given: 1.0)"),
        ("loss = 0", 'loss = "0"', "s.toml, line 4: network loss: input should be a valid number (given: '0')"),
        ("[5, 30]", "[30, 5]", "s.toml, line 3: network delay_ms: the shortest delay comes first"),
        ('behaviour = "stingy"', 'behavior = "stingy"', "line 10: members 2 behavior: unknown key; did you mean behav"),
        ('"stingy"', '"stingi"', "line 10: members 2 behaviour: 'stingi' is not known; did you mean stingy?"),
        ('name = "dan"', 'name = "ada"', "line 12: the name 'ada' is taken already"),
        ('name = "dan"', 'name = "d n"', "line 12: members 3 name: a name is 1 to 32 letters"),
        ("2000", "2000.5", "line 13: members 3 joins_at_ms: input should be a valid integer (given: 2000.5)"),
        ('"part"', '"prat"', "line 16: schedule 1 action: 'prat' is not known; did you mean part?"),
        ('["ada", "eve"]', '["ada", "evee"]', "line 17: 'evee' is not known; did you mean eve?"),
        ('members = ["ada", "eve"]', "", "line 14: schedule 1: part needs members"),
        ('"part"', '"heal"\nwish = "on"', "line 14: schedule 1: heal takes no wish"),
        ('"leave"', '"Leave"', "line 22: schedule 2 wish: 'Leave' is not known; did you mean leave?"),
        ("at_ms = 700", "at_ms = -1", "line 19: schedule 2 at_ms: input should be greater than or equal to 0"),
        ("at_ms = 100", "at_ms = 6000", "line 15: part after network quiet_after_ms (6000)"),
        ('name = "ada"', 'name = "ada"\nbehaviour = "chaos"', "line 6: no founder is honest"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line_and_the_nearest_name(old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse(GOOD.replace(old, new, 1))
    assert told in caught.value.message
    assert caught.value.advice == "See docs/simulation.md for all keys."


def test_all_mistakes_are_told_at_once() -> None:
    text = GOOD.replace("loss", "los").replace('"part"', '"prat"')
    with pytest.raises(UserError) as caught:
        parse(text)
    assert len(caught.value.message.splitlines()) == 2


def test_lines_of_tables_written_in_one_line_are_not_invented() -> None:
    text = 'until_ms = 9\nmembers = [{name = "ada"}, {name = "b", nam = 1}]\n'
    with pytest.raises(UserError, match=r"^s.toml: members 2 nam: unknown key; did you mean name\?"):
        parse(text)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    with pytest.raises(UserError, match=r"Cannot read the scenario .*s.toml: No such file"):
        load_scenario(path)
    path.write_text("until_ms = \n")
    with pytest.raises(UserError, match=r"s.toml is not TOML: .*line 1"):
        load_scenario(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not TOML"):
        load_scenario(path)
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(UserError, match="is longer than"):
        load_scenario(path)
    path.write_text(GOOD)
    assert load_scenario(path) == parse(GOOD)


def test_every_key_action_behaviour_and_wish_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()
    models = (ScenarioFile, Network, ScenarioMember, ScenarioStep)
    words = {key for model in models for key in model.model_fields} | {wish.name.lower() for wish in Wish}
    words |= {choice.value for choice in (*Action, *Behaviour)}
    missing = [word for word in sorted(words) if not re.search(rf"`[^`]*\b{word}\b[^`]*`", text)]
    assert not missing

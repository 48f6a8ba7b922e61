"""What is to be simulated, in the words of the command line, and the command that repeats one seed."""

from __future__ import annotations

import shlex

import pytest

from aicpnode.errors import UserError
from aicpnode.simulation.choice import Choice, parse_choice, parse_faults, parse_nodes, parse_seeds
from aicpnode.simulation.cluster import Behaviour
from aicpnode.simulation.scenario import FAULTS, Scenario


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4", (4,)), ("4,5,7", (4, 5, 7)), ("10-13", (10, 11, 12, 13)), ("4, 10-11", (4, 10, 11)), ("any", ())],
)
def test_nodes_are_numbers_lists_and_ranges(text: str, counts: tuple[int, ...]) -> None:
    assert parse_nodes(text) == counts


@pytest.mark.parametrize("text", ["", "x", "4,", "0", "7-4", "4-", "-4", "101", "1-101", "4.5"])
def test_nodes_refuses_what_is_no_number_of_members(text: str) -> None:
    with pytest.raises(UserError, match="--nodes"):
        parse_nodes(text)


def test_seeds_are_one_or_a_range_without_its_end() -> None:
    assert parse_seeds("17") == range(17, 18)
    assert parse_seeds("5:2000") == range(5, 2000)


@pytest.mark.parametrize("text", ["", "x", "5:", ":5", "5:5", "7:5", "-1", "0:1000001", "²", "9" * 30])
def test_seeds_refuses_empty_and_endless_ranges(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


def test_faults_are_all_none_or_names() -> None:
    assert parse_faults("all") is None
    assert parse_faults("none") == ()
    assert parse_faults("loss, crashes,loss") == ("crashes", "loss")
    assert parse_faults(",".join(FAULTS)) == tuple(sorted(FAULTS))


def test_an_unknown_fault_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"'crashs' is no fault. Did you mean crashes\?"):
        parse_faults("crashs")
    with pytest.raises(UserError, match="Known: all, none, or of changes, crashes"):
        parse_faults("zzz")


def test_liars_leave_somebody_honest_and_too_many_are_said_to_be() -> None:
    with pytest.raises(UserError, match="leaves no honest member of 4"):
        parse_choice("4,7", 4, "all")
    with pytest.raises(UserError, match="Give --nodes as well"):
        parse_choice("any", 1, "all")
    assert parse_choice("4", 1, "all").exceeds == ""
    assert parse_choice("7,4", 2, "all").exceeds == "2 of 4 misbehave; the protocol bears 1."


def test_nothing_chosen_is_what_the_seed_draws() -> None:
    for seed in range(20):
        assert Choice().scenario(seed) == Scenario.draw(seed)


def test_the_number_of_founders_depends_on_the_seed_only() -> None:
    choice = parse_choice("4,5,7", None, "none")
    assert [len(choice.scenario(seed).founders) for seed in range(3, 9)] == [4, 5, 7, 4, 5, 7]


@pytest.mark.parametrize("seed", [0, 1, 2, 90])
@pytest.mark.parametrize(
    "words", [("4,5,7", 1, "all"), ("4", None, "none"), ("any", None, "loss,crashes"), ("10-16", 3, "partitions")]
)
def test_the_command_of_a_seed_repeats_its_scenario(words: tuple[str, int | None, str], seed: int) -> None:
    choice = parse_choice(*words)
    typed = shlex.split(choice.command(seed))
    assert typed[:2] == ["aicp-node", "simulate"]
    options = dict(zip(typed[2::2], typed[3::2], strict=True))
    byzantine = options.get("--byzantine")
    again = parse_choice(options["--nodes"], None if byzantine is None else int(byzantine), options["--faults"])
    (again_seed,) = parse_seeds(options["--seeds"])
    assert again.scenario(again_seed) == choice.scenario(seed)


def test_faults_that_were_not_chosen_do_not_happen() -> None:
    for seed in range(30):
        drawn = parse_choice("4", 1, "loss").scenario(seed)
        assert (drawn.faults.crashes, drawn.faults.partitions, drawn.joiners, drawn.wishes) == (0, 0, (), ())
        assert sum(behaviour is not Behaviour.HONEST for behaviour in drawn.founders) == 1

"""The command line as a user meets it: exit codes, refusals, and how quickly it answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from aicpnode.cli import app as command_line
from aicpnode.cli.app import run_app
from aicpnode.cli.later import LATER
from aicpnode.errors import RemoteError, UserError

HELP_S_MAX = 0.4
"""With both cores idle --help takes half of this."""


def aicp_node(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aicpnode", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom aicpnode.cli.app import run_app\ncode = run_app(['--help'])\n"
        "heavy = {'torch', 'numpy', 'trio', 'prompt_toolkit', 'matplotlib', 'nacl'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    seconds = []
    for _ in range(3):
        began = time.process_time_ns(), time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        seconds.append(time.monotonic() - began[1])
        assert done.returncode == 0, done.stderr
        assert "status" in done.stdout
    assert min(seconds) < 3 * HELP_S_MAX, "three times the bar, because other tests may share the machine"


@pytest.mark.parametrize("name", [*LATER, "bench transport", "bench scaling", "bench collectives", "bench round"])
def test_later_commands_say_so_and_exit_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([*name.split(), "anything", "--even=options"]) == 2
    assert f"{name}: not available yet." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--node-type", "annotation"], "not available yet"),
        (["run", "--encryption", "rot13"], "encryption"),
        (["run", "--advertise", "h:1"], "not available yet"),
        (["run", "--bootstrap", "nonsense"], "bootstrap_peers"),
        (["run", "--p2p-port", "70000"], "p2p_port"),
        (["run", "--node-id", "a/b"], "node_id"),
        (["run", "--config", "/nonexistent.json"], "No such file"),
        (["init", "x", "--from", "y"], "not available yet"),
        (["init", "x"], "at least one founder"),
        (["init", "x", "--member", "ab:me"], "is no founder"),
        (["demo", "--byzantine", "1:ipm"], "not available yet"),
        (["demo", "--byzantine", "x:garbage"], "K:KIND"),
        (["demo", "--rounds", "9", "--byzantine", "2:garbage"], "--nodes 7"),
        (["demo", "--rounds", "9", "--byzantine", "1:garbage", "--kill-at", "3"], "--nodes 7"),
        (["demo", "--rounds", "9", "--kill-at", "8"], "--kill-at"),
        (["generate", "--checkpoint", "/nonexistent", "x"], "/nonexistent"),
    ],
)
def test_user_errors_exit_2_with_a_sentence(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEBUG_LEVEL", raising=False)
    assert run_app(arguments) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert "Traceback" not in err


def test_unknown_command_and_no_arguments_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["statuss"]) == 2
    assert "No such command" in capsys.readouterr().err
    assert run_app([]) == 2


def test_errors_out_of_a_nursery_are_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with(error: BaseException) -> int:
        def fails(**_: object) -> None:
            raise error

        monkeypatch.setattr(command_line, "app", fails)
        return run_app(["run"])

    inner = UserError("The port is taken.", advice="Name another.")
    assert fail_with(BaseExceptionGroup("", [BaseExceptionGroup("", [inner])])) == 2
    assert capsys.readouterr().err == "Error: The port is taken.\nName another.\n"
    assert fail_with(RemoteError("odd")) == 1
    assert fail_with(BaseExceptionGroup("", [KeyboardInterrupt()])) == 130
    assert fail_with(KeyboardInterrupt()) == 130
    with pytest.raises(BaseExceptionGroup):
        fail_with(BaseExceptionGroup("", [inner, ValueError("a defect")]))


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aicpnode", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err

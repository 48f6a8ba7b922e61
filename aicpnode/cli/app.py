"""The command line: names, options and exit codes. Each command imports what it needs when it runs.

Exit codes: 0 done; 1 it did not work out (a defect, a failed demo); 2 the user can mend it (with a sentence that says
how), which includes parts that are not available yet; ``status --check`` has its own, see there; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from aicpnode.cli import ask, bench, demo, govern, initialise, inspect_run, keys, later, run, simulate
from aicpnode.cli.options import EXIT_INTERRUPTED
from aicpnode.errors import AicpError, UserError

EXIT_FAILED = 1
EXIT_USER = 2

app = typer.Typer(
    name="aicp-node",
    help="Machines that do not trust each other train one transformer together and end each round with the same model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("demo")(demo.demo)
app.command("simulate")(simulate.simulate)
app.command("init")(initialise.init)
app.command("inspect")(inspect_run.inspect)
app.add_typer(keys.app, name="key")
app.add_typer(bench.app, name="bench")
ask.register(app)
govern.register(app)
later.register(app)


def run_app(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are printed on stderr, without a traceback if expected."""
    try:
        app(args=list(arguments), prog_name="aicp-node", standalone_mode=True)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0 if done.code is None else EXIT_FAILED
    except BrokenPipeError:
        # The reader of our output left (``| head``); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except AicpError as error:
        return _explain([error])
    except BaseExceptionGroup as group:
        leaves = _leaves(group)
        if all(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
            return EXIT_INTERRUPTED
        expected = [leaf for leaf in leaves if isinstance(leaf, AicpError)]
        if len(expected) < len(leaves):
            raise
        return _explain(expected)
    return 0


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _explain(errors: Sequence[AicpError]) -> int:
    for error in errors:
        if isinstance(error, UserError):
            typer.secho(f"Error: {error.message}", fg=typer.colors.RED, err=True)
            if error.advice:
                typer.echo(error.advice, err=True)
        else:
            typer.secho(f"Failed: {error}", fg=typer.colors.RED, err=True)
    return EXIT_USER if all(isinstance(error, UserError) for error in errors) else EXIT_FAILED

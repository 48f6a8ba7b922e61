"""The demo from its first key to its verdict."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aicpnode.cluster import HOST, Cluster, NodePlan, free_ports, plan_nodes
from aicpnode.config import KEY_FILE
from aicpnode.demo.board import Board
from aicpnode.demo.course import Course
from aicpnode.demo.options import DemoOptions
from aicpnode.demo.plot import in_terminal, save_picture
from aicpnode.demo.result import DemoResult, summarise
from aicpnode.errors import UserError
from aicpnode.founding import found_run_folder
from aicpnode.genesis import Founder
from aicpnode.identity import Identity
from aicpnode.interfaces.control import JsonObject
from aicpnode.interfaces.render import duration, printable

RUN_FOLDER = "run"
SAMPLE_PROMPT = "def "
SAMPLE_TOKENS = 240
ANSWER_TIMEOUT_S = 15.0
EVALUATE_TIMEOUT_S = 300.0
CHART_WIDTH_MAX = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is asked of one honest node once all rounds are done."""

    result: DemoResult
    sample: str
    checkpoint: Path


def run_demo(options: DemoOptions, console: Console) -> DemoResult:
    """Run one demo, telling its story on ``console``; no process is left behind, however it ends.

    Raises ``DemoFailed`` or ``UserError``, and ``KeyboardInterrupt`` after Ctrl-C or SIGTERM once all is cleaned up.
    """
    plans = prepare(options, console)
    cluster = Cluster(plans)
    with cluster.running(keep=options.keep):
        ending = trio.run(_play, options, cluster, console)
        tell_ending(ending, plans, console)
    if options.keep:
        pids = ", ".join(f"{plans[index].name} {pid}" for index, pid in cluster.pids().items())
        console.print(f"The nodes go on running (process ids: {pids}).", markup=False)
    return ending.result


def prepare(options: DemoOptions, console: Console) -> tuple[NodePlan, ...]:
    """Make a key for each node and the genesis that names them all as founders."""
    directory = options.directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not an empty folder.", advice="Name another one with --dir.")
    names = [f"node-{index}" for index in range(options.nodes)]
    founders = [Founder(key=Identity.load_or_create(directory / name / KEY_FILE).key, name=name) for name in names]
    path, genesis = found_run_folder(
        directory / RUN_FOLDER, name="demo", founders=founders, data=options.data, decay_rounds=options.rounds
    )
    size = sum(shard.size for shard in genesis.data.shards) / 1e6
    console.print(
        f"{options.nodes} nodes, {options.rounds} rounds, {genesis.parameters} parameters, {size:.1f} MB of text, "
        f"network {genesis.network_id.hex()[:12]}, files in {directory}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    faults = [None if index in options.honest else options.fault for index in range(options.nodes)]
    return plan_nodes(
        directory=directory,
        genesis=path,
        names=names,
        ports=free_ports(options.nodes),
        arguments=("--train-rounds", str(options.rounds)),
        faults=faults,
    )


async def _play(options: DemoOptions, cluster: Cluster, console: Console) -> Ending:
    interrupted = False
    ending: Ending | None = None

    async def watch_signals(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for _ in received:
                interrupted = True
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals)
        with Board(cluster.plans, rounds=options.rounds, console=console) as board:
            course = Course(options=options, cluster=cluster, board=board)
            await course.wait_all_ready()
            began = trio.current_time()
            board.say("All nodes are up and training.")
            await course.wait_all_rounds_done()
            seconds = trio.current_time() - began
            board.say("All rounds are done; measuring the model on the whole validation text.")
        ending = await _ask_for_the_end(course, seconds)
        nursery.cancel_scope.cancel()
    if interrupted:
        console.print("Interrupted; stopping the nodes.", style="yellow")
        raise KeyboardInterrupt
    assert ending is not None
    return ending


async def _ask_for_the_end(course: Course, seconds: float) -> Ending:
    options = course.options
    witness = options.honest[0]
    statuses = dict(course.statuses)
    rounds: list[list[JsonObject]] = []
    for index in options.honest:
        answer = await course.ask(index, "rounds", {"from": 0}, timeout_s=ANSWER_TIMEOUT_S)
        rounds.append(answer["rounds"])
    evaluation = await course.ask(witness, "evaluate", {"tokens": 0}, timeout_s=EVALUATE_TIMEOUT_S)
    wanted = {"prompt": SAMPLE_PROMPT, "tokens": SAMPLE_TOKENS, "temperature": 0.7, "seed": 1}
    generated = await course.ask(witness, "generate", wanted, timeout_s=EVALUATE_TIMEOUT_S)
    checkpoint = await course.ask(witness, "checkpoint", timeout_s=EVALUATE_TIMEOUT_S)
    result = summarise(
        options,
        seconds=seconds,
        statuses=statuses,
        rounds=rounds,
        evaluation=evaluation,
        parameters=int(statuses[witness]["parameters"]),
    )
    return Ending(result=result, sample=SAMPLE_PROMPT + generated["text"], checkpoint=Path(checkpoint["path"]))


def tell_ending(ending: Ending, plans: Sequence[NodePlan], console: Console) -> None:
    """Print losses, sample, hashes and verdict, and the commands to go on with."""
    result, options = ending.result, ending.result.options
    picture = save_picture(result, options.directory)
    console.print(in_terminal(result, width=min(CHART_WIDTH_MAX, console.width - 12)))
    console.print(f"Picture: {picture}", markup=False, soft_wrap=True)
    console.print(
        Panel(
            Text(printable(ending.sample)), title="the model writes", title_align="left", width=min(100, console.width)
        )
    )
    console.print(hashes_table(result, plans))
    console.print(_costs(result), markup=False)
    if result.equal:
        honest = "All" if not options.byzantine else f"All {len(options.honest)} honest"
        console.print(
            f"EQUAL: {honest} nodes hold the same model, bit for bit. Validation loss {result.final_loss:.3f} nats a "
            f"byte, bigram model {result.bigram_loss:.3f}.",
            style="bold green", markup=False,
        )  # fmt: skip
    else:
        console.print("DIFFERENT: the nodes do not hold the same model.", style="bold white on red", markup=False)
    console.print("Go on with:", style="bold")
    for command in go_on_commands(ending.checkpoint, plans[options.honest[0]]):
        console.print(f"  {command}", markup=False, soft_wrap=True)


def go_on_commands(checkpoint: Path, plan: NodePlan) -> tuple[str, str]:
    """The command lines that use the demo's model and that bring one node back with a prompt."""
    generate = ["aicp-node", "generate", "--checkpoint", str(checkpoint), SAMPLE_PROMPT]
    repl = [
        "aicp-node", "run", "--repl", "--node-id", plan.name, "--data-dir", str(plan.directory),
        "--p2p-host", HOST, "--p2p-port", str(plan.port),
    ]  # fmt: skip
    return shlex.join(generate), shlex.join(repl)


def hashes_table(result: DemoResult, plans: Sequence[NodePlan]) -> Table:
    """The model hash of each node, in full."""
    table = Table(header_style="cyan")
    for column in ("node", "model hash after the last round", ""):
        table.add_column(column)
    expected = result.hashes[result.options.honest[0]]
    for plan, hash_ in zip(plans, result.hashes, strict=True):
        if plan.fault is not None:
            mark = Text(f"Byzantine ({plan.fault}), not counted", style="yellow")
        elif hash_ is not None and hash_ == expected:
            mark = Text("equal", style="green")
        else:
            mark = Text("DIFFERENT", style="bold red")
        table.add_row(plan.name, hash_ or "no answer", mark)
    return table


def _costs(result: DemoResult) -> str:
    share = "unknown" if result.training_share is None else f"{100 * result.training_share:.0f} %"
    decision = "unknown" if result.decision_ms_p50 is None else f"{result.decision_ms_p50:.0f} ms"
    saved = result.dense_bytes / max(result.wire_bytes_per_round, 1)
    return (
        f"{duration(result.seconds)}; {result.accepted} proposals accepted, {result.refused} refused; decisions p50 "
        f"{decision}; {result.wire_bytes_per_round / 1e3:.0f} kB sent a round by all nodes together, {saved:.0f} times "
        f"less than a dense all-reduce; training took {share} of the time"
    )


def write_json(result: DemoResult, target: str) -> None:
    """Write the demo's JSON object to a file, or to stdout for ``-``."""
    line = json.dumps(result.to_json(), separators=(",", ":"))
    if target == "-":
        with contextlib.suppress(BrokenPipeError):
            print(line, flush=True)  # noqa: T201 - this is the output that was asked for
        return
    try:
        Path(target).write_text(line + "\n")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.", advice="Name another file.") from error

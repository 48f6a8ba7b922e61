"""What the demo shows while it runs: a live table at a terminal, a line a round anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aicpnode.cluster import NodePlan
from aicpnode.interfaces.control import JsonObject
from aicpnode.interfaces.render import UNKNOWN, duration, short

Statuses = Mapping[int, JsonObject]


class Board:
    """Shows the nodes' latest statuses. A context manager: at a terminal it owns the screen's last lines."""

    def __init__(self, plans: Sequence[NodePlan], *, rounds: int, console: Console) -> None:
        self._plans = plans
        self._rounds = rounds
        self._console = console
        self._began = time.monotonic()
        self._last_round = -1
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the board was made."""
        return time.monotonic() - self._began

    def say(self, text: str, *, style: str = "") -> None:
        """Print a sentence above the table."""
        self._console.print(f"[{duration(self.elapsed_s)}] {text}", style=style, markup=False)

    def show(self, statuses: Statuses, notes: Mapping[int, str]) -> None:
        """Show the present statuses; ``notes`` says what is special about a node (killed, Byzantine)."""
        round_ = max((int(status.get("round") or 0) for status in statuses.values()), default=0)
        if self._live is not None:
            self._live.update(self._screen(statuses, notes, round_), refresh=True)
        elif round_ > self._last_round:
            self._last_round = round_
            self._console.print(self._line(statuses, round_), markup=False)

    def _screen(self, statuses: Statuses, notes: Mapping[int, str], round_: int) -> RenderableType:
        table = Table(header_style="cyan", padding=(0, 1))
        columns = ("node", "round", "loss", "validation", "tokens/s", "accepted", "refused", "peers", "model", "state")
        for column in columns:
            table.add_column(column, justify="left" if column in ("node", "model", "state") else "right")
        for plan in self._plans:
            table.add_row(plan.name, *self._cells(statuses.get(plan.index)), notes.get(plan.index) or self._state(
                statuses.get(plan.index)
            ))  # fmt: skip
        progress = Table.grid(padding=(0, 1))
        progress.add_row(
            f"round {round_} of {self._rounds}",
            ProgressBar(total=self._rounds, completed=min(round_, self._rounds), width=40),
            duration(self.elapsed_s),
        )
        return Group(table, progress)

    def _cells(self, status: JsonObject | None) -> list[str]:
        if status is None:
            return [UNKNOWN] * 8
        training, proposals = status.get("training") or {}, status.get("proposals") or {}
        return [
            _whole(status.get("round")), _three(training.get("loss")), _three(training.get("val_loss")),
            _whole(training.get("tokens_per_s")), _whole(proposals.get("accepted")), _whole(proposals.get("refused")),
            _whole(status.get("peers")), short(status.get("model_hash")),
        ]  # fmt: skip

    def _state(self, status: JsonObject | None) -> Text:
        if status is None:
            return Text("no answer", style="yellow")
        if status.get("diverged"):
            return Text("diverged", style="bold red")
        if status.get("paused"):
            return Text("paused", style="yellow")
        training = status.get("training") or {}
        if not training.get("contributing"):
            return Text("voting", style="green")
        return Text(f"step {_whole(training.get('inner_step'))}/{_whole(training.get('inner_steps'))}", style="green")

    def _line(self, statuses: Statuses, round_: int) -> str:
        trainings = [status.get("training") or {} for status in statuses.values()]
        proposals = next(iter(statuses.values()), {}).get("proposals") or {}
        speed = sum(training.get("tokens_per_s") or 0 for training in trainings)
        peers = ",".join(_whole(status.get("peers")) for status in statuses.values())
        return (
            f"[{duration(self.elapsed_s)}] round {round_}/{self._rounds}  loss {_three(_mean(trainings, 'loss'))}  "
            f"validation {_three(_mean(trainings, 'val_loss'))}  {speed:.0f} tokens/s  "
            f"accepted {_whole(proposals.get('accepted'))}  refused {_whole(proposals.get('refused'))}  peers {peers}"
        )


def _mean(entries: Sequence[JsonObject], key: str) -> float | None:
    values = [entry[key] for entry in entries if isinstance(entry.get(key), int | float)]
    return sum(values) / len(values) if values else None


def _whole(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else UNKNOWN


def _three(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else UNKNOWN

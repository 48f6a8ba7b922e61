"""The course of a demo: all nodes up, rounds going by, the leader killed and back, the same model on all at the end.

Everything is learnt from the nodes' control sockets. Nothing here waits without a deadline: if the sum of the nodes'
rounds stands still for ``STALL_DEADLINE_S``, the demo asks a node why and gives up with its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import trio

from aicpnode.cluster import Cluster
from aicpnode.demo.board import Board
from aicpnode.demo.options import KILL_LEAD_ROUNDS, DemoOptions
from aicpnode.errors import AicpError
from aicpnode.interfaces.client import ControlClient, NodeUnreachable
from aicpnode.interfaces.control import JsonObject

POLL_INTERVAL_S = 0.5
POLL_TIMEOUT_S = 5.0
READY_DEADLINE_S = 120.0
STALL_DEADLINE_S = 240.0


class DemoFailed(AicpError):
    """The demo did not get to its end; the text says why, in the nodes' own words where possible."""


class Stage(Enum):
    """Where the killing of a leader stands."""

    WHOLE = "all nodes run"
    KILLED = "one node is killed"
    RESTARTED = "the killed node runs again"


@dataclass(slots=True, kw_only=True)
class Course:
    """Drives one demo. ``statuses`` are the latest answers by node index; a node that does not answer has none."""

    options: DemoOptions
    cluster: Cluster
    board: Board
    statuses: dict[int, JsonObject] = field(default_factory=dict)
    stage: Stage = Stage.WHOLE
    killed: int | None = None
    _killed_at_round: int = 0
    _progress: tuple[int, float] = (-1, 0.0)

    async def wait_all_ready(self) -> None:
        """Until every node answers ``status``. Raises ``DemoFailed`` if one ends or the deadline passes."""
        with trio.move_on_after(READY_DEADLINE_S):
            while True:
                await self._poll()
                if len(self.statuses) == self.options.nodes:
                    return
                await trio.sleep(POLL_INTERVAL_S)
        missing = [plan.index for plan in self.cluster.plans if plan.index not in self.statuses]
        raise DemoFailed(
            f"{self._names(missing)} did not start within {READY_DEADLINE_S:.0f} s.\n{self._tails(missing)}"
        )

    async def wait_all_rounds_done(self) -> None:
        """Until all honest nodes, a killed one included, have applied all rounds. Raises ``DemoFailed``."""
        self._progress = (-1, trio.current_time())
        while True:
            await self._poll()
            self._kill_or_restart()
            if self.stage is not Stage.KILLED and self._all_done():
                return
            await self._check_progress()
            await trio.sleep(POLL_INTERVAL_S)

    def round_of(self, index: int) -> int:
        """Rounds that a node has applied, as far as known."""
        return int(self.statuses.get(index, {}).get("round") or 0)

    async def ask(self, index: int, command: str, args: JsonObject | None = None, *, timeout_s: float) -> JsonObject:
        """One command to one node. Raises ``DemoFailed`` if it does not answer."""
        plan = self.cluster.plans[index]
        try:
            return await ControlClient(plan.socket, idle_timeout_s=timeout_s).call(command, args)
        except AicpError as error:
            raise DemoFailed(f"{plan.name} did not answer {command}: {error}\n{self._tails([index])}") from error

    def notes(self) -> dict[int, str]:
        """What is special about a node at the moment."""
        notes = {plan.index: f"Byzantine: {plan.fault}" for plan in self.cluster.plans if plan.fault is not None}
        if self.stage is Stage.KILLED and self.killed is not None:
            notes[self.killed] = "killed (SIGKILL)"
        return notes

    async def _poll(self) -> None:
        answers: dict[int, JsonObject] = {}

        async def ask(index: int) -> None:
            client = ControlClient(self.cluster.plans[index].socket, idle_timeout_s=POLL_TIMEOUT_S)
            try:
                answers[index] = await client.call("status")
            except NodeUnreachable:
                # It is starting, or dead; the deadlines and _check_exited decide which.
                return

        async with trio.open_nursery() as nursery:
            for plan in self.cluster.plans:
                if not (self.stage is Stage.KILLED and plan.index == self.killed):
                    nursery.start_soon(ask, plan.index)
        self.statuses = dict(sorted(answers.items()))
        self._check_exited()
        self.board.show(self.statuses, self.notes())

    def _check_exited(self) -> None:
        for index, code in self.cluster.exited().items():
            name = self.cluster.plans[index].name
            raise DemoFailed(f"{name} ended by itself with exit code {code}.\n{self._tails([index])}")

    def _kill_or_restart(self) -> None:
        at = self.options.kill_at
        if at is None:
            return
        if self.stage is Stage.WHOLE and all(self.round_of(index) >= at for index in self.options.honest):
            leader = self._leader()
            if leader is not None:
                self._killed_at_round = max(self.round_of(index) for index in self.options.honest)
                self.board.say(f"Killing the leader, {self.cluster.plans[leader].name}, with SIGKILL.", style="yellow")
                self.cluster.kill(leader)
                self.killed, self.stage = leader, Stage.KILLED
        elif self.stage is Stage.KILLED and self.killed is not None:
            others = [index for index in self.options.honest if index != self.killed]
            if all(self.round_of(index) >= self._killed_at_round + KILL_LEAD_ROUNDS for index in others):
                name = self.cluster.plans[self.killed].name
                self.board.say(
                    f"The others went on for {KILL_LEAD_ROUNDS} rounds; starting {name} again.", style="yellow"
                )
                self.cluster.start(self.killed)
                self.stage = Stage.RESTARTED

    def _leader(self) -> int | None:
        """The honest leader that most nodes name just now, if they do."""
        named = [status.get("leader") for index, status in self.statuses.items() if index in self.options.honest]
        for index in self.options.honest:
            if 2 * named.count(self.cluster.plans[index].name) > len(named):
                return index
        return None

    def _all_done(self) -> bool:
        return all(self.round_of(index) >= self.options.rounds for index in self.options.honest)

    async def _check_progress(self) -> None:
        total = sum(self.round_of(index) for index in self.options.honest)
        if total > self._progress[0]:
            self._progress = (total, trio.current_time())
        elif trio.current_time() - self._progress[1] > STALL_DEADLINE_S:
            witness = next(iter(self.statuses), 0)
            why = await self.ask(witness, "why", timeout_s=POLL_TIMEOUT_S)
            raise DemoFailed(
                f"No round was finished for {STALL_DEADLINE_S:.0f} s. {self.cluster.plans[witness].name} says: "
                f"{why.get('summary')} {why.get('waits')}"
            )

    def _names(self, indexes: list[int]) -> str:
        return ", ".join(self.cluster.plans[index].name for index in indexes)

    def _tails(self, indexes: list[int]) -> str:
        return "\n".join(f"--- {self.cluster.plans[index].name}:\n{self.cluster.tail(index)}" for index in indexes)

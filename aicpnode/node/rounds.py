"""Keeps the figures of every round, logs notices, and triggers what happens every so many rounds."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import trio

from aicpnode.events import Notice, RoundApplied, ValidationMeasured
from aicpnode.replication.explain import Wait

if TYPE_CHECKING:
    from aicpnode.node.node import Node

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LAST_OUTCOMES_SHOWN = 32
ROUNDS_REPLY_MAX = 10_000


log = logging.getLogger(__name__)


class RoundKeeper:
    """Listens to the node's events. ``rounds`` answers from the disk, so that a restart loses no history."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._subscription = node.bus.subscribe()

    async def run(self) -> None:
        """Until cancelled. Figures that come too fast to be kept are lost and said so, never waited for."""
        subscription = self._subscription
        try:
            lost = 0
            async for event in subscription:
                if isinstance(event, Notice):
                    log.log(LEVELS[event.level], "%s", event.text)
                elif isinstance(event, RoundApplied):
                    await self._keep(event)
                elif isinstance(event, ValidationMeasured):
                    await self._update(event.round, {"val_loss": event.loss})
                if subscription.lost > lost:
                    lost = subscription.lost
                    self._node.bus.publish(Notice(level="warning", text=f"{lost} events came too fast to be kept"))
        finally:
            self._node.bus.unsubscribe(subscription)

    async def _keep(self, event: RoundApplied) -> None:
        node = self._node
        figures = node.engine_statistics()
        record = next((r for r in node.participant.statistics().rounds if r.round == event.round), None)
        await self._update(
            event.round,
            {
                "height": event.height,
                "loss": figures.get("loss"),
                "tokens_per_s": figures.get("tokens_per_s"),
                "included": event.included,
                "refused": None if record is None else record.refused,
                "phases_ms": None if record is None else record.phases_ms,
                "model_hash": event.model_hash.hex(),
                "seconds": event.seconds,
            },
        )
        every = node.config.checkpoint_every_rounds
        if node.role is not None and every and (event.round + 1) % every == 0:
            await node.role.checkpoint()

    async def _update(self, round_number: int, changes: dict[str, Any]) -> None:
        def update() -> None:
            stored = [row for row in self._node.database.round_metrics(round_number)[:1] if row[0] == round_number]
            metrics = json.loads(stored[0][1]) if stored else {}
            self._node.database.put_round_metrics(round_number, json.dumps(metrics | changes))

        if round_number >= 0:
            await trio.to_thread.run_sync(update)

    async def stored(self, from_round: int) -> list[dict[str, Any]]:
        """The kept figures from a round on, oldest first."""
        rows = await trio.to_thread.run_sync(self._node.database.round_metrics, from_round)
        return [{"round": number, **json.loads(metrics)} for number, metrics in rows[:ROUNDS_REPLY_MAX]]

    def proposals(self) -> dict[str, Any]:
        """Counts of accepted and refused proposals, and the last ones with their reasons."""
        node = self._node
        figures = node.participant.statistics()
        last = [
            {
                "round": outcome.round,
                "author": outcome.author.hex(),
                "name": node.name_of(outcome.author),
                "verdict": "yes" if outcome.accepted else "no",
                "reason": outcome.reason,
            }
            for outcome in list(figures.last)[-LAST_OUTCOMES_SHOWN:]
        ]
        return {
            "accepted": figures.accepted,
            "refused": figures.refused,
            "mine_accepted": figures.mine_accepted,
            "mine_refused": figures.mine_refused,
            "last": last,
        }

    def waits(self) -> list[Wait]:
        """What the round waits for, in names."""
        return [
            Wait(
                what=wait.what,
                who=tuple(self._node.name_of(key) for key in wait.who),
                since_s=wait.since_s,
                next=wait.next,
            )
            for wait in self._node.participant.why()
        ]

"""A state of this node that is not the certified one: remembered, kept for developers, said (specification, section 8).

Durable until another state has taken its place, so that a restart does not make the node sign on a wrong state again.
"""

from __future__ import annotations

from pathlib import Path

import trio

from aicpnode.envelop.ledger_state import encode_ledger_state
from aicpnode.errors import UserError
from aicpnode.events import EventBus, Notice
from aicpnode.replication.application import Application
from aicpnode.replication.dump import BLOCKS_DUMPED, write_dump
from aicpnode.replication.snapshot_store import SnapshotStore
from aicpnode.storage.database import Database
from consensus.events import Diverged
from consensus.membership import LedgerState

DUMPED_BLOCK_BYTES_MAX = 4 << 20


def is_curable(diverged: Diverged) -> bool:
    """Whether another state helps. If the state is right, but a quorum decided a block that no state takes, then
    nobody's state is better."""
    return diverged.own != b"" and diverged.own != diverged.certified


class Divergence:
    """``found`` is what has been noticed and kept, and waits for a state of others."""

    def __init__(
        self,
        *,
        database: Database,
        store: SnapshotStore,
        application: Application,
        events: EventBus,
        folder: Path | None,
        about: dict[str, str],
    ) -> None:
        """``folder`` is where dumps go, None for nowhere; ``about`` stands in each of them."""
        self._database = database
        self._store = store
        self._application = application
        self._events = events
        self._folder = folder
        self._about = about
        self._last_height = 0
        self.found = store.diverged()
        self.again_at = 0
        """A height whose state was found wrong, again after an earlier state had been taken over; 0 if none was."""

    def settled(self) -> None:
        """Another state has taken the place of the wrong one."""
        self.found = None

    async def keep(self, diverged: Diverged, ledger: LedgerState | None) -> None:
        """Make it durable and dump what this node holds; ``ledger`` belongs to the application's state."""
        if diverged.height == self._last_height:
            self.again_at = diverged.height
        self._last_height = diverged.height
        await trio.to_thread.run_sync(self._store.note_diverged, diverged)
        if self._folder is not None and ledger is not None:
            try:
                path = await self._dump(self._folder, diverged, ledger)
            except UserError as error:
                self._say(f"the state that went astray could not be kept: {error.message}")
            else:
                self._say(f"the state that went astray is kept in {path}")
        self.found = diverged

    def _say(self, text: str) -> None:
        self._events.publish(Notice(level="error", text=text))

    async def _dump(self, folder: Path, diverged: Diverged, ledger: LedgerState) -> Path:
        application = self._application
        digest = await application.snapshot()
        size = application.snapshot_size(digest)
        assert size is not None, "it was stored a moment ago"
        facts: dict[str, object] = {
            **self._about,
            "height": diverged.height,
            "own_state_hash": diverged.own.hex(),
            "certified_state_hash": diverged.certified.hex(),
            "ledger_height": ledger.height,
            "round": ledger.round,
            "model_hash": application.model_hash().hex(),
            "agreed_root": application.agreed_root().hex(),
        }

        def write() -> Path:
            first = max(self._database.base_height() + 1, diverged.height + 2 - BLOCKS_DUMPED)
            return write_dump(
                folder,
                diverged.height,
                facts=facts,
                ledger=encode_ledger_state(ledger),
                snapshot=application.read_snapshot(digest, 0, size),
                blocks=self._database.decisions(first, DUMPED_BLOCK_BYTES_MAX)[:BLOCKS_DUMPED],
            )

        path = await trio.to_thread.run_sync(write)
        if not self._store.has(digest):
            await application.forget_snapshot(digest)
        return path

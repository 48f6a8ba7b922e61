"""Keeps the stored peer table up to date, so that a restarted node finds the network without any bootstrap."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import trio

from aicpnode.errors import MalformedError
from aicpnode.network.peers import Address, PeerStore

SAVE_AGAIN_S = 600.0
"""How often the time at which a connected peer was last seen is brought up to date."""
SAVE_PAUSE_S = 0.25
"""Peers that connect within this time are written together."""

Row = tuple[bytes, str, int]
"""Key, address, score."""


def load_saved_peers(store: PeerStore) -> list[tuple[bytes, Address]]:
    """The stored peers that this version can dial."""
    peers: list[tuple[bytes, Address]] = []
    for saved in store.peers():
        try:
            peers.append((saved.key, Address.from_peer(saved.address)))
        except MalformedError:
            continue  # another version wrote it; it is not worth stopping for
    return peers


class PeerSaver:
    """Writes connected peers, soon after they connect and now and then."""

    def __init__(self, store: PeerStore, connected: Callable[[], Sequence[Row]]) -> None:
        self._store = store
        self._connected = connected
        self._saved: dict[bytes, tuple[str, float]] = {}
        self._wakeup = trio.Event()

    def changed(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        while True:
            with trio.move_on_after(SAVE_AGAIN_S):
                await self._wakeup.wait()
            await trio.sleep(SAVE_PAUSE_S)
            self._wakeup = trio.Event()
            now_s = trio.current_time()
            rows = [row for row in self._connected() if self._due(row, now_s)]
            if rows:
                await trio.to_thread.run_sync(self._write, rows)
            known = {key for key, _, _ in self._connected()}
            self._saved = {key: saved for key, saved in self._saved.items() if key in known}
            self._saved.update((key, (address, now_s)) for key, address, _ in rows)

    def _due(self, row: Row, now_s: float) -> bool:
        saved = self._saved.get(row[0])
        return saved is None or saved[0] != row[1] or now_s - saved[1] >= SAVE_AGAIN_S

    def _write(self, rows: Sequence[Row]) -> None:
        now = int(time.time())
        for key, address, score in rows:
            self._store.put_peer(key, address, now, score)

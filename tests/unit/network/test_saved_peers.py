"""The stored peer table: written soon, not too often, and read tolerantly."""

from __future__ import annotations

import trio

from aicpnode.network.peers import Address
from aicpnode.network.saved_peers import SAVE_AGAIN_S, PeerSaver, load_saved_peers
from aicpnode.storage.database import Database

A, B = b"a" * 32, b"b" * 32


async def test_peers_are_written_once_until_they_change_or_time_passes(autojump_clock, nursery, monkeypatch):
    class Store:
        def __init__(self):
            self.written = []

        def put_peer(self, key, address, last_seen_unix, score):
            self.written.append((key, address, score))

        def peers(self):
            return []

    async def at_once(write, rows):  # the jumping clock does not wait for threads
        write(rows)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    store, rows = Store(), [(A, "10.0.0.1:1", 100)]
    saver = PeerSaver(store, lambda: rows)
    nursery.start_soon(saver.run)
    saver.changed()
    await trio.sleep(1)
    saver.changed()
    await trio.sleep(1)
    assert store.written == [(A, "10.0.0.1:1", 100)]
    rows.append((B, "10.0.0.2:1", 90))
    saver.changed()
    await trio.sleep(1)
    assert store.written[1:] == [(B, "10.0.0.2:1", 90)]
    await trio.sleep(SAVE_AGAIN_S + 1)
    assert len(store.written) == 4


def test_what_the_database_keeps_is_dialled_after_a_restart(tmp_path):
    database = Database.open(tmp_path)
    database.put_peer(A, "10.0.0.1:7777", 1, 100)
    database.put_peer(B, "something of a later version", 2, 100)
    database.close()
    again = Database.open(tmp_path)
    assert load_saved_peers(again) == [(A, Address("10.0.0.1", 7777))]
    again.close()

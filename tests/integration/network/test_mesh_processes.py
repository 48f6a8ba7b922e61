"""A mesh in a process of its own that is killed, stopped and started again, as machines do it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from aicpnode.identity import Identity
from aicpnode.network.peers import Address
from aicpnode.storage.database import Database

CHILD = """
import sys
from pathlib import Path

import trio

from aicpnode.events import EventBus
from aicpnode.identity import Identity
from aicpnode.network.mesh import Mesh
from aicpnode.network.peers import Address
from aicpnode.storage.database import Database

seed, network_id, data_dir, port, *bootstrap = sys.argv[1:]


async def main():
    mesh = Mesh(
        identity=Identity(bytes.fromhex(seed)), network_id=bytes.fromhex(network_id), node_type="full",
        node_name="child", host="127.0.0.1", port=int(port), explicit_port=True,
        bootstrap=[Address.parse(text) for text in bootstrap], head_height=lambda: 0, events=EventBus(),
        peer_store=Database.open(Path(data_dir)),
    )
    async with trio.open_nursery() as nursery:
        address = await nursery.start(mesh.run)
        print(address.port, flush=True)


trio.run(main)
"""
SEED = b"\xcc" * 32


@contextmanager
def child(network_id: bytes, data_dir: Path, *bootstrap: Address, port: int = 0):
    """The process and the port it listens on; killed at the end."""
    arguments = [SEED.hex(), network_id.hex(), str(data_dir), str(port), *map(str, bootstrap)]
    process = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_killed_process_comes_back_without_a_bootstrap(network, tmp_path):
    first, second = network.identities(2)
    one = await network.start(first)
    two = await network.start(second, one.address)
    key = Identity(SEED).key
    with child(network.network_id, tmp_path, one.address) as (process, port):
        await network.until(lambda: key in one.peer_keys() and key in two.peer_keys())
        await network.until(lambda: saved_peers(tmp_path) == 2)
        process.send_signal(signal.SIGKILL)
        await network.until(lambda: key not in one.peer_keys() and key not in two.peer_keys())
    await one.stop()
    with child(network.network_id, tmp_path, port=port):
        await network.until(lambda: key in two.peer_keys())


def saved_peers(data_dir: Path) -> int:
    database = Database.open(data_dir)
    try:
        return len(database.peers())
    finally:
        database.close()


async def test_a_frozen_process_is_left_and_comes_back_when_it_thaws(network, tmp_path):
    (first,) = network.identities(1)
    one = await network.start(first, heartbeat_seconds=0.1, partition_timeout_seconds=0.5)
    key = Identity(SEED).key
    with child(network.network_id, tmp_path, one.address) as (process, _):
        await network.until(lambda: key in one.peer_keys())
        process.send_signal(signal.SIGSTOP)
        await network.until(lambda: key not in one.peer_keys())
        process.send_signal(signal.SIGCONT)
        await network.until(lambda: key in one.peer_keys())

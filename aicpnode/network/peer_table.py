"""The peers that are connected now, one connection for each key, and the views that others have of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aicpnode.network.connection import Connection
from aicpnode.network.peers import Address, PeerInfo
from aicpnode.network.session import Hello


@dataclass(slots=True, eq=False, kw_only=True)
class Peer:
    """One connected peer. ``connected_since`` is Unix time in seconds; ``links`` are the keys it is connected to."""

    connection: Connection
    address: Address | None
    connected_since: float
    links: frozenset[bytes] = frozenset()

    @property
    def hello(self) -> Hello:
        return self.connection.peer

    def info(self) -> PeerInfo:
        connection = self.connection
        return PeerInfo(
            key=self.hello.key,
            name=self.hello.name,
            node_type=self.hello.node_type,
            address=self.address,
            inbound=connection.inbound,
            connected_since=self.connected_since,
            rtt_ms=connection.rtt_ms,
            bytes_sent=connection.bytes_sent,
            bytes_received=connection.bytes_received,
            head_height=connection.head_height,
        )


class PeerTable(dict[bytes, Peer]):
    """Key -> peer."""

    def connection_of(self, key: bytes) -> Connection | None:
        peer = self.get(key)
        return None if peer is None else peer.connection

    def connections(self) -> list[Connection]:
        return [peer.connection for peer in self.values()]

    def links(self) -> dict[bytes, frozenset[bytes]]:
        """Each peer's key -> the keys that it said it is connected to."""
        return {key: peer.links for key, peer in self.items()}

    def linked_to(self, key: bytes) -> list[bytes]:
        """The peers that are connected to ``key``."""
        return [peer for peer, entry in self.items() if key in entry.links]

    def addresses(self) -> Iterable[tuple[bytes, Address | None]]:
        return [(key, peer.address) for key, peer in self.items()]

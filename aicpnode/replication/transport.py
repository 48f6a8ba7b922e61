"""What replication needs of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aicpnode.envelop.codec import Envelop, Kind
from aicpnode.network.bodies import BodyExchange
from aicpnode.network.peers import PeerInfo


class Transport(Protocol):
    """What replication needs of the network; ``Mesh`` is one."""

    @property
    def bodies(self) -> BodyExchange: ...

    def send(self, peer: bytes, envelop: Envelop, attachment: bytes = b"") -> bool: ...

    def broadcast(self, envelop: Envelop, attachment: bytes = b"") -> int: ...

    def subscribe(self, kinds: Iterable[Kind], handler: Callable[[Envelop, bytes, bytes], None]) -> None: ...

    def on_connect(self, callback: Callable[[PeerInfo], None]) -> None: ...

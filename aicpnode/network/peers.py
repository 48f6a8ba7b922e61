"""Where nodes are and what is known of them: addresses, the table that survives restarts, and the view of one peer."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from aicpnode.errors import MalformedError, UserError

HOST_BYTES_MAX = 253
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a node listens: an IP address or, from the user only, a host name; and a port from 1 to 65535."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``HOST:PORT``, ``[IPv6]:PORT``. UserError on anything else."""
        host, colon, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed:
            host = host[1:-1]
        usable = bool(host) and len(host) <= HOST_BYTES_MAX and host.isascii() and host.isprintable()
        usable = usable and " " not in host and (bracketed or ":" not in host)
        if not colon or not usable or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= PORT_MAX:
            raise UserError(
                f"{text!r} is not an address.",
                advice="Write it as HOST:PORT, for example 127.0.0.1:7777 or [::1]:7777.",
            )
        return cls(host.lower(), int(port))

    @classmethod
    def from_peer(cls, text: str) -> Self:
        """An address that a peer tells: only IP addresses, so that nobody makes us ask name servers."""
        try:
            address = cls.parse(text)
            ipaddress.ip_address(address.host)
        except (UserError, ValueError):
            raise MalformedError("an address that is no IP address with a port") from None
        return address

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def as_seen_from(told: Address, teller_host: str) -> Address | None:
    """What ``told`` means here when the peer at ``teller_host`` (an IP address) names it.

    A loopback address told by another machine means that machine. Addresses that mean no single host mean nothing.
    """
    host = ipaddress.ip_address(told.host)
    if host.is_unspecified or host.is_multicast:
        return None
    if host.is_loopback and not ipaddress.ip_address(teller_host).is_loopback:
        return Address(teller_host, told.port)
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """One connected peer. ``address`` is where it can be dialled, None if it does not listen.

    ``connected_since`` is Unix time in seconds; ``rtt_ms`` is None until the first answer to a ping.
    """

    key: bytes
    name: str
    node_type: str
    address: Address | None
    inbound: bool
    connected_since: float
    rtt_ms: float | None
    bytes_sent: int
    bytes_received: int
    head_height: int


class SavedPeer(Protocol):
    """A row of the stored peer table."""

    @property
    def key(self) -> bytes: ...
    @property
    def address(self) -> str: ...


class PeerStore(Protocol):
    """What the mesh needs of the database, so that a restarted node finds its peers without any bootstrap."""

    def put_peer(self, key: bytes, address: str, last_seen_unix: int, score: int) -> None: ...
    def peers(self) -> Sequence[SavedPeer]: ...

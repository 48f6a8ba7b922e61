"""The listening socket: which port it gets, and that accepting goes on whatever the operating system says."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import trio

from aicpnode.errors import UserError
from aicpnode.network.peers import PORT_MAX, Address

PORTS_TRIED_MAX = 100
"""From the default port upwards, until one is free."""
ACCEPT_PAUSE_S = 0.1
"""After an error of accept, such as too many open files."""


async def open_listeners(host: str, port: int, *, explicit_port: bool) -> list[trio.SocketListener]:
    """Listen on ``host``. Port 0 is any free one; a default port that is taken moves up to the next free one.

    UserError if an explicit port is taken or the address cannot be used.
    """
    last = port if explicit_port or port == 0 else min(port + PORTS_TRIED_MAX - 1, PORT_MAX)
    for candidate in range(port, last + 1):
        try:
            listeners = await trio.open_tcp_listeners(candidate, host=host)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_listen(host, candidate, error) from error
            continue
        if port == 0:  # a name with two addresses would get two different ports
            for other in listeners[1:]:
                await other.aclose()
            return listeners[:1]
        return listeners
    if explicit_port:
        raise UserError(
            f"port {port} on {host} is in use.",
            advice="Choose another with --p2p-port, or end the program that uses it (is this node running already?).",
        )
    raise UserError(f"ports {port} to {last} on {host} are all in use.", advice="Choose a free one with --p2p-port.")


def bound_address(listener: trio.SocketListener) -> Address:
    """Where ``listener`` listens."""
    name = listener.socket.getsockname()
    return Address(name[0], name[1])


async def accept_forever(
    listener: trio.SocketListener,
    nursery: trio.Nursery,
    handle: Callable[[trio.SocketStream], Awaitable[None]],
    on_trouble: Callable[[OSError], None],
) -> None:
    """Start ``handle`` for every connection. An error of accept is reported and waited out, never fatal."""
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                on_trouble(error)
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            nursery.start_soon(handle, stream)


def describe_dial_error(error: OSError) -> str:
    """The operating system's words for a failed dial; trio keeps them in the causes."""
    causes: Sequence[BaseException] = [error]
    if isinstance(error.__cause__, BaseExceptionGroup):
        causes = error.__cause__.exceptions
    elif error.__cause__ is not None:
        causes = [error.__cause__]
    if isinstance(error, socket.gaierror):
        return f"the host name is unknown ({error.strerror})"
    texts = [os.strerror(cause.errno).lower() for cause in causes if isinstance(cause, OSError) and cause.errno]
    return "; ".join(dict.fromkeys(texts)) or str(error)


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return UserError(f"port {port} on {host} may not be used: {error.strerror}.", advice="Choose one above 1023.")
    return UserError(
        f"cannot listen on {host}: {error.strerror or error}.",
        advice="Give an address of this machine with --p2p-host (127.0.0.1, or 0.0.0.0 for all).",
    )

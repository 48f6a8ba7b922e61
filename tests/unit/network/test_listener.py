"""Which port a node gets, and how failures are worded."""

from __future__ import annotations

import errno
import socket

import pytest
import trio

from aicpnode.errors import UserError
from aicpnode.network.listener import PORTS_TRIED_MAX, bound_address, describe_dial_error, open_listeners


async def close(listeners):
    for listener in listeners:
        await listener.aclose()


async def test_port_zero_is_any_free_port():
    listeners = await open_listeners("localhost", 0, explicit_port=True)
    assert len(listeners) == 1 and bound_address(listeners[0]).port > 0
    await close(listeners)


async def test_a_taken_default_port_moves_up_to_the_next_free_one():
    first = await open_listeners("127.0.0.1", 0, explicit_port=True)
    taken = bound_address(first[0]).port
    second = await open_listeners("127.0.0.1", taken, explicit_port=False)
    assert taken < bound_address(second[0]).port < taken + PORTS_TRIED_MAX
    await close(first + second)


async def test_a_taken_explicit_port_is_the_users_error():
    first = await open_listeners("127.0.0.1", 0, explicit_port=True)
    taken = bound_address(first[0]).port
    with pytest.raises(UserError, match=f"port {taken} on 127.0.0.1 is in use") as caught:
        await open_listeners("127.0.0.1", taken, explicit_port=True)
    assert "--p2p-port" in caught.value.advice
    await close(first)


async def test_when_all_default_ports_are_taken_the_user_is_told_which(monkeypatch):
    async def taken(_port, *, host):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(trio, "open_tcp_listeners", taken)
    with pytest.raises(UserError, match="ports 65500 to 65535 on"):
        await open_listeners("127.0.0.1", 65500, explicit_port=False)


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EACCES, "may not be used"), (errno.EADDRNOTAVAIL, "cannot listen on")]
)
async def test_other_failures_are_the_users_error_too(monkeypatch, code, said):
    async def fail(_port, *, host):
        raise OSError(code, "no")

    monkeypatch.setattr(trio, "open_tcp_listeners", fail)
    with pytest.raises(UserError, match=said):
        await open_listeners("203.0.113.1", 7777, explicit_port=False)


async def test_an_unknown_host_name_is_the_users_error():
    with pytest.raises(UserError, match="cannot listen on"):
        await open_listeners("no-such-host.invalid", 7777, explicit_port=True)


async def test_dial_errors_are_told_in_the_systems_words():
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        with pytest.raises(OSError, match="all attempts to connect") as caught:
            await trio.open_tcp_stream("127.0.0.1", port)
    assert describe_dial_error(caught.value) == "connection refused"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert describe_dial_error(unknown) == "the host name is unknown (Name or service not known)"
    assert describe_dial_error(OSError("odd")) == "odd"

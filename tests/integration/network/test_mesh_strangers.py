"""What comes to an open port: garbage, silence, crowds, and a process that has no file descriptors left."""

from __future__ import annotations

import errno

import trio

from aicpnode.network import handshakes, listener
from aicpnode.network.framing import FrameType, Lane, encode_frame
from aicpnode.network.handshakes import HANDSHAKES_MAX


async def test_garbage_is_answered_with_a_reason_and_closed(network):
    first, second = network.identities(2)
    node = await network.start(first)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x01\x00\xff\xff", b"\xff" * 5000):
        async with await trio.open_tcp_stream("127.0.0.1", node.address.port) as stream:
            await stream.send_all(garbage)
            answer = b""
            with trio.fail_after(10):
                while data := await stream.receive_some():
                    answer += data
            assert answer[0] == FrameType.REFUSE
    other = await network.start(second, node.address)
    await network.until(lambda: node.sees(other))


async def test_a_well_framed_hello_of_nonsense_is_refused(network):
    (identity,) = network.identities(1)
    node = await network.start(identity, encrypted=False)
    async with await trio.open_tcp_stream("127.0.0.1", node.address.port) as stream:
        await stream.send_all(encode_frame(FrameType.HELLO, Lane.CONTROL, b"aicp\x01\x00\x93\x01\x02\x03"))
        with trio.fail_after(10):
            answer = await stream.receive_some()
        assert answer[0] == FrameType.REFUSE and b"eight fields" in answer


async def test_a_half_open_handshake_ends_after_its_timeout(network, monkeypatch):
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.2)
    (identity,) = network.identities(1)
    node = await network.start(identity)
    async with await trio.open_tcp_stream("127.0.0.1", node.address.port) as stream:
        await network.until(lambda: node.mesh.statistics()["handshakes"] == 1)
        with trio.fail_after(10):
            assert await stream.receive_some() == b""
        await network.until(lambda: node.mesh.statistics()["handshakes"] == 0)


async def test_many_silent_connections_delay_no_honest_peer(network):
    first, second = network.identities(2)
    node = await network.start(first)
    silent = [await trio.open_tcp_stream("127.0.0.1", node.address.port) for _ in range(500)]
    await network.until(lambda: node.mesh.statistics()["handshakes_evicted"] == 500 - HANDSHAKES_MAX)
    started_s = trio.current_time()
    other = await network.start(second, node.address)
    await network.until(lambda: node.sees(other))

    assert trio.current_time() - started_s < 1.0  # a handshake takes 3 ms; 5 s would be waiting for the silent ones
    assert node.mesh.statistics()["handshakes"] <= HANDSHAKES_MAX
    for stream in silent:
        await stream.aclose()


async def test_accepting_goes_on_after_too_many_open_files(network, monkeypatch):
    monkeypatch.setattr(listener, "ACCEPT_PAUSE_S", 0.01)
    first, second = network.identities(2)
    failures = iter([OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENETDOWN, "Network is down")])
    accept = trio.SocketListener.accept

    async def failing_accept(self):
        for failure in failures:
            raise failure
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", failing_accept)
    node = await network.start(first)
    other = await network.start(second, node.address)
    await network.until(lambda: node.sees(other))
    assert node.mesh.statistics()["accept_errors"] + other.mesh.statistics()["accept_errors"] == 2

"""What work costs on this machine: it is done for real, and timed while it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from aicpnode.network.framing import FrameReader, FrameType, Lane, encode_frame

T = TypeVar("T")

SMALL_BYTES = 256
LARGE_BYTES = 16 << 10
MESSAGES_TIMED = 300


class Meter(Protocol):
    """Runs a piece of work and says what it cost."""

    def time(self, what: str, work: Callable[[], T]) -> tuple[T, float, float]:
        """(the result, milliseconds of processor time, milliseconds until it was done)."""
        ...


@dataclass(slots=True)
class Figure:
    count: int = 0
    processor_ms: float = 0.0
    elapsed_ms: float = 0.0


class MeasuringMeter:
    """Charges what this thread spent, and keeps the sums by kind of work. Waiting for the disk is elapsed time only."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}

    def time(self, what: str, work: Callable[[], T]) -> tuple[T, float, float]:
        began, spent = time.perf_counter(), time.thread_time()
        result = work()
        processor_ms = (time.thread_time() - spent) * 1000
        elapsed_ms = max(processor_ms, (time.perf_counter() - began) * 1000)
        figure = self.figures.setdefault(what, Figure())
        figure.count += 1
        figure.processor_ms += processor_ms
        figure.elapsed_ms += elapsed_ms
        return result, processor_ms, elapsed_ms

    def table(self) -> dict[str, dict[str, float]]:
        """Of each kind of work: how often, and the mean in milliseconds."""
        return {
            what: {
                "count": figure.count,
                "processor_ms": round(figure.processor_ms / figure.count, 4),
                "elapsed_ms": round(figure.elapsed_ms / figure.count, 4),
            }
            for what, figure in sorted(self.figures.items())
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCost:
    """Processor time of one framed message through one socket, half of it for each side."""

    message_ms: float
    byte_ms: float

    def of(self, size_bytes: int) -> float:
        return self.message_ms + self.byte_ms * size_bytes


def measure_transport() -> TransportCost:
    """Framed messages through a TCP connection on loopback, one at a time: each wakes up its reader, as on a WAN."""
    small, large = (trio.run(_transport_ms, size) for size in (SMALL_BYTES, LARGE_BYTES))
    byte_ms = max(0.0, large - small) / (LARGE_BYTES - SMALL_BYTES)
    return TransportCost(message_ms=max(0.0, small - byte_ms * SMALL_BYTES) / 2, byte_ms=byte_ms / 2)


async def _transport_ms(size_bytes: int) -> float:
    """Processor time of one message for both sides together."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    far_end: list[trio.SocketStream] = []

    async def accept() -> None:
        far_end.append(await listeners[0].accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        near = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    reader, payload = FrameReader(), bytes(size_bytes)
    async with near, far_end[0] as far, listeners[0]:
        spent = time.thread_time()
        for _ in range(MESSAGES_TIMED):
            await near.send_all(encode_frame(FrameType.ENVELOP, Lane.VOTES, payload))
            message = None
            while message is None:
                reader.receive_data(bytes(await far.receive_some(1 << 16)))
                message = reader.next_message()
        return (time.thread_time() - spent) * 1000 / MESSAGES_TIMED

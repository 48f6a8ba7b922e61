"""How long a message takes between two members that live in eight regions of the world.

Round trips are those that a public cloud publishes of itself: documentation of IBM Cloud VPC, "network latency",
averages of 17 August to 15 September 2024, in whole milliseconds, the larger of the two directions where they differ;
within a region about 2 ms between its zones. One way is taken as half. Members are spread over the regions in join
order. On top of that come jitter, and the time that the bytes need on the sender's own line, where they wait for each
other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

REGIONS = ("dallas", "washington", "sao-paulo", "london", "frankfurt", "osaka", "tokyo", "sydney")
ROUND_TRIPS_MS = (
    (2, 32, 146, 113, 123, 151, 143, 186),
    (32, 2, 119, 76, 91, 175, 166, 216),
    (146, 119, 2, 187, 198, 292, 285, 328),
    (113, 76, 187, 2, 13, 244, 242, 261),
    (123, 91, 198, 13, 2, 232, 231, 250),
    (151, 175, 292, 244, 232, 2, 9, 122),
    (143, 166, 285, 242, 231, 9, 2, 115),
    (186, 216, 328, 261, 250, 122, 115, 2),
)
"""Between ``REGIONS``, in their order."""
JITTER_SHARE_MAX = 0.3
"""The slowest packets take so much longer than the published average; half of them at most 2 %."""
LINE_MBIT_S = 100.0
PACKET_BYTES = 1460
PACKET_OVERHEAD_BYTES = 66
"""Ethernet, IP and TCP headers with time stamps, of each packet."""


def region(index: int) -> str:
    """Where the member with this index lives."""
    return REGIONS[index % len(REGIONS)]


def one_way_ms(sender_index: int, receiver_index: int) -> float:
    """The published average for two members, in milliseconds, without jitter; the same in both directions."""
    return ROUND_TRIPS_MS[sender_index % len(REGIONS)][receiver_index % len(REGIONS)] / 2


def delay_ms(sender_index: int, receiver_index: int, rng: random.Random) -> float:
    """One packet's way from member to member, in milliseconds. Draws one number from ``rng``."""
    return one_way_ms(sender_index, receiver_index) * (1 + JITTER_SHARE_MAX * float(rng.random()) ** 4)


def on_the_wire_bytes(size_bytes: int) -> int:
    """Of one message of ``size_bytes``, with the headers of its packets."""
    packets = max(1, -(-size_bytes // PACKET_BYTES))
    return size_bytes + packets * PACKET_OVERHEAD_BYTES


@dataclass(slots=True, kw_only=True)
class Line:
    """One direction of a member's line: messages pass one after the other."""

    mbit_s: float = LINE_MBIT_S
    free_at_ms: float = 0.0
    passed_bytes: int = 0

    def pass_ms(self, now_ms: float, size_bytes: int) -> float:
        """The moment at which the last byte of a message that is handed over at ``now_ms`` has passed."""
        total = on_the_wire_bytes(size_bytes)
        self.passed_bytes += total
        self.free_at_ms = max(now_ms, self.free_at_ms) + total * 8 / (self.mbit_s * 1000)
        return self.free_at_ms


__all__ = ["LINE_MBIT_S", "REGIONS", "Line", "delay_ms", "on_the_wire_bytes", "one_way_ms", "region"]

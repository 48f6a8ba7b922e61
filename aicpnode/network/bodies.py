"""Large bodies: announced in a few bytes, pulled by those who want them, in chunks, from whoever has them.

HAVE says that a node holds a body; WANT asks for one chunk; CHUNK or NOT_FOUND answers. Nothing is sent that was not
asked for. ``transfer`` decides whom to ask for what; this file carries it out and bounds it; ``body_server`` serves.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from aicpnode.errors import PENALTY_MALFORMED, MalformedError, RemoteError
from aicpnode.network.body_messages import (
    decode_chunk,
    decode_have,
    decode_not_found,
    encode_want,
)
from aicpnode.network.body_server import BodyServer, BodySource, Namespace, Provider, SendFrame
from aicpnode.network.framing import FrameType, Lane, Message
from aicpnode.network.transfer import Transfer

REQUESTS_PER_PEER_MAX = 8
"""Chunks asked of one peer and not answered yet."""
REQUEST_S_MAX = 30.0
"""After so long an answer is not expected any more."""
REQUESTS_MAX = 128
"""Chunks waited for by all transfers: 7.5 MiB in flight."""
TRANSFERS_MAX = 32
"""Bodies that are being received at the same time; more wait for their turn."""
BUFFERED_BYTES_MAX = 256 << 20
"""Partly received bodies without a donor are forgotten above this, the largest first."""
ANNOUNCEMENTS_PER_PEER_MAX = 1024
VERIFY_IN_THREAD_BYTES = 65_536

__all__ = ["Bodies", "BodyExchange", "BodySource", "BodyWait", "Namespace", "Provider", "Verify"]

Verify = Callable[[bytes], bool]


class BodyExchange(Protocol):
    """What other rooms need of ``Bodies``."""

    def register(self, namespace: int, provider: Provider) -> None: ...

    def announce(self, namespace: int, digest: bytes, size: int) -> None: ...

    async def fetch(
        self, namespace: int, digest: bytes, *, max_size: int, verify: Verify, prefer: Sequence[bytes] = ()
    ) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWait:
    """A body that is being waited for, for ``why``. ``total`` in bytes is None until a donor told it."""

    namespace: int
    digest: bytes
    since_s: float
    received: int
    total: int | None
    donor: bytes | None
    donors_failed: int


@dataclass(slots=True)
class _Fetch:
    namespace: int
    digest: bytes
    transfer: Transfer
    prefer: Sequence[bytes]
    salt: float
    wakeup: trio.Event = field(default_factory=trio.Event)
    finished: trio.Event = field(default_factory=trio.Event)
    ranked: list[bytes] | None = None
    result: bytes | None = None

    def look_again(self) -> None:
        """Donors changed."""
        self.ranked = None
        self.wakeup.set()


@dataclass(slots=True)
class _Request:
    fetch: _Fetch | None
    """None: the body is not wanted any more, but the answer still comes and occupies the donor."""
    donor: bytes
    offset: int
    asked_s: float


class Bodies:
    """Announce, serve and fetch bodies among the connected peers."""

    def __init__(
        self,
        *,
        send: SendFrame,
        connected: Callable[[], Collection[bytes]],
        penalise: Callable[[bytes, RemoteError], None],
        rng: random.Random,
    ) -> None:
        self._send = send
        self._connected = connected
        self._penalise = penalise
        self._rng = rng
        self._server = BodyServer(send=send, connected=connected)
        self._announced: dict[bytes, OrderedDict[tuple[int, bytes], int]] = {}
        self._fetches: dict[tuple[int, bytes, int], _Fetch] = {}
        """By namespace, digest and largest size allowed."""
        self._requests: dict[int, _Request] = {}
        self._asked: Counter[bytes] = Counter()
        self._progress_s: dict[bytes, float] = {}
        self._next_request = 0
        self._counts: Counter[str] = Counter()

    def register(self, namespace: int, provider: Provider) -> None:
        """Serve the bodies of ``namespace``; the provider returns None for what this node does not hold."""
        self._server.register(namespace, provider)

    def announce(self, namespace: int, digest: bytes, size: int) -> None:
        """Tell all peers, and those who come soon, that this node holds a body of ``size`` bytes."""
        self._server.announce(namespace, digest, size)

    # What this node wants

    async def fetch(
        self, namespace: int, digest: bytes, *, max_size: int, verify: Verify, prefer: Sequence[bytes] = ()
    ) -> bytes:
        """The body named ``digest``, at most ``max_size`` bytes, for which ``verify`` is true. Tries until cancelled.

        ``prefer`` are keys of peers to ask first. Equal fetches at the same time share one transfer. ``verify`` must
        depend on the digest alone, because a donor pays for what it refuses; it runs in a worker thread for bodies
        above ``VERIFY_IN_THREAD_BYTES``.
        """
        name = (namespace, digest, max_size)
        while (running := self._fetches.get(name)) is not None:
            running.prefer = (*prefer, *running.prefer)
            running.look_again()
            await running.finished.wait()
            if running.result is not None and await _verified(verify, running.result):
                return running.result
        transfer = Transfer(size_max=max_size, started_s=trio.current_time())
        fetch = _Fetch(namespace, digest, transfer, tuple(prefer), self._rng.random())
        self._fetches[name] = fetch
        try:
            fetch.result = await self._pull(fetch, verify)
            return fetch.result
        finally:
            del self._fetches[name]
            for request in self._requests.values():
                if request.fetch is fetch:
                    request.fetch = None
            fetch.finished.set()
            self._pump_all()

    async def _pull(self, fetch: _Fetch, verify: Verify) -> bytes:
        transfer = fetch.transfer
        while True:
            fetch.wakeup = trio.Event()
            self._pump(fetch)
            if transfer.complete:
                body = transfer.body()
                if await _verified(verify, body):
                    self._counts["fetched"] += 1
                    self._counts["fetched_bytes"] += len(body)
                    return body
                self._counts["refuted"] += 1
                liar = transfer.refuted(trio.current_time())
                if liar is not None:
                    self._penalise(
                        liar, RemoteError("sent a body that is not what its hash says", penalty=PENALTY_MALFORMED)
                    )
                continue
            with trio.move_on_at(transfer.next_wakeup_s(self._last_progress_s, self._rank(fetch))):
                await fetch.wakeup.wait()

    def _pump(self, fetch: _Fetch) -> None:
        """Carry out what the transfer wants to ask for now."""
        now_s = trio.current_time()
        before = fetch.transfer.tried
        transfers = [other.transfer for other in self._fetches.values()]

        def budget(peer: bytes) -> int:
            if not fetch.transfer.active and sum(other.active for other in transfers) >= TRANSFERS_MAX:
                return 0
            self._forget_requests(lambda request: request.donor == peer and now_s - request.asked_s > REQUEST_S_MAX)
            in_flight = sum(other.outstanding for other in transfers)
            return min(REQUESTS_PER_PEER_MAX - self._asked[peer], REQUESTS_MAX - in_flight)

        asks = fetch.transfer.step(now_s, self._rank(fetch), budget=budget, progress_s=self._last_progress_s)
        for ask in asks:
            request = self._next_request
            self._next_request = (request + 1) & 0xFFFFFFFF
            self._requests[request] = _Request(fetch, ask.donor, ask.offset, now_s)
            self._asked[ask.donor] += 1
            want = encode_want(request, fetch.namespace, fetch.digest, ask.offset, ask.length)
            self._send(ask.donor, FrameType.WANT, Lane.CONTROL, want)
        self._counts["donor_failures"] += fetch.transfer.tried - before

    def _pump_all(self) -> None:
        for fetch in self._fetches.values():
            fetch.wakeup.set()

    def _last_progress_s(self, peer: bytes) -> float:
        return self._progress_s.get(peer, 0.0)

    def _rank(self, fetch: _Fetch) -> list[bytes]:
        """The connected peers, best donor first: preferred, then announcers, then the rest, each in random order."""
        if fetch.ranked is None:
            shuffled = sorted(self._connected())
            random.Random(fetch.salt).shuffle(shuffled)
            order = {peer: index for index, peer in enumerate(fetch.prefer)}
            body = (fetch.namespace, fetch.digest)

            def rank(peer: bytes) -> tuple[int, int]:
                if peer in order:
                    return 0, order[peer]
                return (1 if body in self._announced.get(peer, ()) else 2), 0

            fetch.ranked = sorted(shuffled, key=rank)
        return fetch.ranked

    def _forget_requests(self, which: Callable[[_Request], bool]) -> None:
        for request, entry in [item for item in self._requests.items() if which(item[1])]:
            del self._requests[request]
            self._asked[entry.donor] -= 1

    # What peers say

    def peer_connected(self, peer: bytes) -> None:
        self._announced[peer] = OrderedDict()
        self._server.peer_connected(peer)
        self._donors_changed()

    def peer_disconnected(self, peer: bytes) -> None:
        self._announced.pop(peer, None)
        self._progress_s.pop(peer, None)
        self._forget_requests(lambda request: request.donor == peer)
        self._asked.pop(peer, None)
        self._server.peer_left(peer)
        for fetch in self._fetches.values():
            fetch.transfer.gone(peer, trio.current_time())
        self._donors_changed()

    def guest_left(self, guest: bytes) -> None:
        self._server.peer_left(guest)

    def handle(self, peer: bytes, message: Message, *, guest: bool) -> None:
        """One HAVE, WANT, CHUNK or NOT_FOUND. A guest came for the genesis and may ask for nothing else."""
        if message.type is FrameType.WANT:
            self._server.handle_want(peer, message.payload, guest=guest)
        elif guest:
            raise MalformedError("only the genesis may be asked for without a network id")
        elif message.type is FrameType.HAVE:
            self._handle_have(peer, message.payload)
        elif message.type is FrameType.CHUNK:
            self._handle_chunk(peer, message.payload)
        else:
            self._handle_not_found(peer, message.payload)

    def _handle_have(self, peer: bytes, payload: bytes) -> None:
        namespace, digest, size = decode_have(payload)
        announced = self._announced[peer]
        announced[namespace, digest] = size
        announced.move_to_end((namespace, digest))
        while len(announced) > ANNOUNCEMENTS_PER_PEER_MAX:
            announced.popitem(last=False)
        for fetch in self._fetches.values():
            if fetch.digest == digest and fetch.namespace == namespace:
                fetch.transfer.announced(peer)
                fetch.look_again()

    def _handle_chunk(self, peer: bytes, payload: bytes) -> None:
        request, total, data = decode_chunk(payload)
        entry = self._answered(peer, request)
        if entry is None:
            return
        now_s = trio.current_time()
        self._progress_s[peer] = now_s
        if entry.fetch is None:
            self._pump_all()
            return
        fault = entry.fetch.transfer.chunk(peer, entry.offset, total, data, now_s)
        self._trim()
        self._pump_all()
        if fault is not None:
            raise MalformedError(fault)

    def _handle_not_found(self, peer: bytes, payload: bytes) -> None:
        entry = self._answered(peer, decode_not_found(payload))
        if entry is not None and entry.fetch is not None:
            self._announced[peer].pop((entry.fetch.namespace, entry.fetch.digest), None)
            entry.fetch.transfer.fail(peer, trio.current_time())
            entry.fetch.look_again()
        self._pump_all()

    def _answered(self, peer: bytes, request: int) -> _Request | None:
        """The request that ``peer`` answers; None if its answer was not expected any more."""
        entry = self._requests.get(request)
        if entry is None or entry.donor != peer:
            self._counts["unexpected_answers"] += 1
            return None
        del self._requests[request]
        self._asked[peer] -= 1
        return entry

    def _donors_changed(self) -> None:
        for fetch in self._fetches.values():
            fetch.look_again()

    def _trim(self) -> None:
        transfers = [fetch.transfer for fetch in self._fetches.values()]
        if sum(transfer.received for transfer in transfers) > BUFFERED_BYTES_MAX:
            idle = [transfer for transfer in transfers if transfer.donor is None and not transfer.complete]
            if idle:
                max(idle, key=lambda transfer: transfer.received).discard()

    # What it all comes to

    def waits(self) -> list[BodyWait]:
        """The bodies being waited for, longest first."""
        return sorted(
            (
                BodyWait(
                    namespace=fetch.namespace,
                    digest=fetch.digest,
                    since_s=trio.current_time() - fetch.transfer.started_s,
                    received=fetch.transfer.received,
                    total=fetch.transfer.total,
                    donor=fetch.transfer.donor,
                    donors_failed=fetch.transfer.tried,
                )
                for fetch in self._fetches.values()
            ),
            key=lambda wait: -wait.since_s,
        )

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is under way now."""
        return {
            "fetching": len(self._fetches),
            "requests_in_flight": sum(fetch.transfer.outstanding for fetch in self._fetches.values()),
            "buffered_bytes": sum(fetch.transfer.received for fetch in self._fetches.values()),
            "fetched": self._counts["fetched"],
            "fetched_bytes": self._counts["fetched_bytes"],
            "served_bytes": self._server.served_bytes,
            "refuted": self._counts["refuted"],
            "donor_failures": self._counts["donor_failures"],
            "unexpected_answers": self._counts["unexpected_answers"],
        }


async def _verified(verify: Verify, body: bytes) -> bool:
    if len(body) <= VERIFY_IN_THREAD_BYTES:
        return verify(body)
    return await trio.to_thread.run_sync(verify, body)

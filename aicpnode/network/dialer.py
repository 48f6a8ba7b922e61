"""Carries out the dial schedule: attempts in parallel, bounded, and says what fails.

How a session is opened is injected; this file decides when, keeps the schedule told of every outcome, and reports
bootstraps that cannot be reached, as events and in the log, for as long as they cannot.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

import trio

from aicpnode.events import BootstrapUnreachable, EventBus, Notice
from aicpnode.network.discovery import DialSchedule, DialState, Origin
from aicpnode.network.handshakes import HANDSHAKE_S, SessionLost
from aicpnode.network.listener import describe_dial_error
from aicpnode.network.peers import Address, as_seen_from
from aicpnode.network.session import RefusalCode

DIALS_MAX = 16
DIAL_UP_TO_PEERS = 128
"""A full mesh up to here; beyond, a node only accepts."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """A session that was opened. ``serve`` runs it to its end and must be called without awaiting anything before."""

    key: bytes
    serve: Callable[[], Awaitable[None]]


class Dialer:
    """Keeps this node connected to everybody it knows of."""

    def __init__(
        self,
        *,
        me: bytes,
        rng: random.Random,
        connected: Callable[[], Collection[bytes]],
        open_session: Callable[[Address], Awaitable[Dialled]],
        events: EventBus,
    ) -> None:
        """``open_session`` raises OSError or SessionLost when there is no session."""
        self._schedule = DialSchedule(me=me, rng=rng)
        self._connected = connected
        self._open_session = open_session
        self._events = events
        self._dials = 0
        self._wakeup = trio.Event()

    def add(self, address: Address, *, origin: Origin, key: bytes | None) -> None:
        self._schedule.add(address, origin=origin, key=key, now_s=trio.current_time())
        self._wakeup.set()

    def told(self, entries: Iterable[tuple[bytes, str]], teller_host: str) -> None:
        """The peer at ``teller_host`` says whom it is connected to. MalformedError if an address is none."""
        connected = self._connected()
        for key, text in entries:
            if text and key not in connected:
                meant = as_seen_from(Address.from_peer(text), teller_host)
                if meant is not None:
                    self.add(meant, origin=Origin.HEARSAY, key=key)

    def disconnected(self, key: bytes) -> None:
        self._schedule.disconnected(key, trio.current_time())
        self._wakeup.set()

    def waiting(self) -> list[DialState]:
        """The addresses that are not connected."""
        return self._schedule.waiting(trio.current_time(), connected=self._connected())

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                self._wakeup = trio.Event()
                next_s = self._start_due(nursery)
                with trio.move_on_at(next_s):
                    await self._wakeup.wait()

    def _start_due(self, nursery: trio.Nursery) -> float:
        """Start the attempts that are due; returns when the next will be."""
        connected = self._connected()
        room = min(DIALS_MAX, DIAL_UP_TO_PEERS - len(connected)) - self._dials
        if room <= 0:
            return float("inf")
        for address in self._schedule.due(trio.current_time(), connected=connected, limit=room):
            self._dials += 1
            nursery.start_soon(self._dial, address)
        next_s = self._schedule.next_due_s(connected=connected)
        return float("inf") if next_s is None or self._dials >= DIALS_MAX else next_s

    async def _dial(self, address: Address) -> None:
        """One attempt; if it succeeds, the connection until its end."""
        dialled: Dialled | None = None
        try:
            with trio.move_on_after(HANDSHAKE_S):
                dialled = await self._open_session(address)
            if dialled is None:
                self._failed(address, f"no session within {HANDSHAKE_S:g} s")
        except OSError as error:
            self._failed(address, describe_dial_error(error))
        except SessionLost as lost:
            self._refused(address, lost)
        finally:
            self._dials -= 1
            self._wakeup.set()
        if dialled is not None:
            self._schedule.succeeded(address, dialled.key)
            await dialled.serve()

    def _refused(self, address: Address, lost: SessionLost) -> None:
        if lost.code is RefusalCode.SELF:
            self._schedule.is_self(address)
            log.info("%s is this node itself", address)
        elif lost.code is RefusalCode.DUPLICATE and lost.peer_key in self._connected():
            assert lost.peer_key is not None
            self._schedule.succeeded(address, lost.peer_key)
        elif lost.code is RefusalCode.DUPLICATE:  # the peer's own dial is about to succeed, or not
            self._schedule.failed(address, lost.reason, trio.current_time())
        else:
            self._failed(address, lost.reason)

    def _failed(self, address: Address, error: str) -> None:
        attempts, next_try_s, is_bootstrap = self._schedule.failed(address, error, trio.current_time())
        if not is_bootstrap:
            log.debug("cannot reach %s: %s", address, error)
            return
        self._events.publish(
            BootstrapUnreachable(address=str(address), error=error, attempts=attempts, next_try_s=next_try_s)
        )
        if attempts & (attempts - 1) == 0:  # 1, 2, 4, 8, ...: it goes on for ever
            text = f"bootstrap {address} cannot be reached ({error}); attempt {attempts}, trying again for ever"
            log.warning(text)
            self._events.publish(Notice(level="warning", text=text))

"""Takes over a state that others hold, where replaying every block is too slow, impossible, or led astray (section 8).

One donor at a time is asked what it offers, then for the headers that prove it, then for the ledger's state and the
application's. Each step is checked before the next and more expensive one: headers by ``HeaderChain``, the ledger's
state together with the application's root against the state hash that the next header certifies, the application's
state against that root. A donor that lies, or is slow, costs one attempt, and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Protocol

import trio

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, Value, unpack
from aicpnode.envelop.codec import digest as sha256
from aicpnode.envelop.ledger_state import HEADERS_PER_REPLY_MAX, decode_ledger_state, read_link
from aicpnode.errors import MalformedError
from aicpnode.events import EventBus, Notice
from aicpnode.identity import Identity, short
from aicpnode.network.bodies import Namespace
from aicpnode.replication.agreement import Agreement
from aicpnode.replication.application import Application
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.replication.ledger import state_hash
from aicpnode.replication.snapshot_store import OFFERS_MAX, SnapshotOffer, SnapshotStore, VerifiedSnapshot
from aicpnode.replication.transport import Transport
from consensus.catchup import CatchUp
from consensus.headers import HeaderChain
from consensus.membership import LedgerState

SNAPSHOT_GAP = 100
"""Heights: a smaller gap is replayed block by block."""
BODIES_PATIENCE_S = 30.0
"""After so long without the body of a decided round nobody is expected to have it any more."""
BLOCKS_PATIENCE_S = 30.0
"""After so long without the next block, while others claim to have decided it, nobody is expected to have it: all that
are left may have begun at a snapshot themselves."""
ANSWER_S = 10.0
TRANSFER_S = 30.0
"""Of every body, besides what its size takes at TRANSFER_BYTES_PER_S."""
TRANSFER_BYTES_PER_S = 64 << 10
CHECK_S = 1.0
PASS_S = 10.0
"""Between two rounds of asking everybody in vain."""


class Reason(Enum):
    """Why a state is taken over, in words."""

    STATE_LOST = "the state at this node's base is lost"
    DIVERGED = "the state of this node is not the certified one"
    BODIES_MISSING = "nobody has the bodies that replaying needs"
    BLOCKS_MISSING = "nobody has the next block"
    FAR_BEHIND = "this node is far behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """``least``: a snapshot of an earlier height is of no use."""

    reason: Reason
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where this node stands. ``diverged_before``: the height whose state was found wrong once more after taking over
    an earlier one; 0 if that did not happen."""

    head: int
    applied: int
    base: int
    furthest: int
    diverged: bool = False
    diverged_before: int = 0
    waits_for_bodies_s: float | None = None
    stands_still_s: float = 0.0
    """How long the head has not moved while somebody claimed a later one."""


def need(at: Position, *, gap: int) -> Need | None:
    """What a node in this position has to take over, or None. Pure."""
    if at.diverged:
        return Need(reason=Reason.DIVERGED, least=max(at.base, at.diverged_before, 1))
    if at.applied < at.base:
        return Need(reason=Reason.STATE_LOST, least=at.base)
    if at.waits_for_bodies_s is not None and at.waits_for_bodies_s > BODIES_PATIENCE_S:
        return Need(reason=Reason.BODIES_MISSING, least=at.applied + 1)
    if at.furthest - at.applied > gap:
        # Of the state, not of blocks: those come quickly, while the bodies behind them may be gone.
        return Need(reason=Reason.FAR_BEHIND, least=at.applied + 1 + gap // 2)
    if at.stands_still_s > BLOCKS_PATIENCE_S:
        return Need(reason=Reason.BLOCKS_MISSING, least=at.head + 1)
    return None


class Refused(Exception):
    """What a donor gave is not what it must be, or did not come; the text says which."""


class Host(Protocol):
    """The driver, as far as this needs it."""

    @property
    def ledger(self) -> LedgerState: ...

    def position(self, furthest: int) -> Position: ...


class Takeover:
    """``run`` watches and acts; ``install`` is awaited with every snapshot that was verified."""

    def __init__(
        self,
        *,
        host: Host,
        identity: Identity,
        agreement: Agreement,
        transport: Transport,
        application: Application,
        store: SnapshotStore,
        events: EventBus,
        install: Callable[[VerifiedSnapshot], Awaitable[None]],
        gap: int = SNAPSHOT_GAP,
    ) -> None:
        self._host = host
        self._identity = identity
        self._agreement = agreement
        self._transport = transport
        self._application = application
        self._store = store
        self._events = events
        self._install = install
        self._gap = gap
        self._crypto = MemberCrypto(identity, agreement.network_id)
        self._claims = CatchUp(identity.key)
        self._failed: set[bytes] = set()
        self._head, self._since_s = -1, 0.0
        self._wakeup = trio.Event()
        self._awaited: tuple[Kind, bytes, int] | None = None
        self._answer: tuple[Value, bytes] | None = None
        self._answered = trio.Event()
        self.progress = ""
        """What is being done now, for people; empty while there is nothing to do."""
        self.is_certain = False
        """Whether a true snapshot is on its way: replaying blocks meanwhile would be in vain."""

    def subscribe(self) -> None:
        self._transport.subscribe([Kind.HEADERS, Kind.SNAPSHOT], self._on_answer)

    def heard(self, peer: bytes, head: int) -> None:
        """A peer claims to have decided ``head``."""
        roster = self._host.ledger.roster
        self._claims.heard(peer, head, 0, is_member=roster.by_key(peer) is not None)
        self._wakeup.set()

    def claims(self) -> list[tuple[bytes, int]]:
        """(peer, the height it claims to have decided), the furthest of members first."""
        return [(key, self._claims.head(key)) for key in self._claims.donors(1)]

    def look(self) -> None:
        """Something changed that may be a reason to act."""
        self._wakeup.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            wanted = need(self._position(), gap=self._gap)
            if wanted is None:
                self.progress = ""
                self._failed.clear()
                await self._wait(CHECK_S)
                continue
            donors = [key for key in self._claims.donors(wanted.least) if key not in self._failed]
            if donors:
                await self._try(donors[0], wanted)
            else:
                # Everybody was asked in vain: what they claimed counts again when they repeat it.
                for key in self._failed:
                    self._claims.forget(key)
                self._failed.clear()
                self.progress = f"{wanted.reason.value}; nobody offers a snapshot of height {wanted.least} or later"
                await trio.sleep(PASS_S if self._claims.furthest() else CHECK_S)

    def _position(self) -> Position:
        at = self._host.position(self._claims.furthest())
        if at.head != self._head or at.furthest <= at.head:
            self._head, self._since_s = at.head, trio.current_time()
        return replace(at, stands_still_s=trio.current_time() - self._since_s)

    async def _wait(self, seconds: float) -> None:
        self._wakeup = trio.Event()
        with trio.move_on_after(seconds):
            await self._wakeup.wait()

    async def _try(self, donor: bytes, wanted: Need) -> None:
        try:
            snapshot = await self._obtain(donor, wanted)
        except Refused as refused:
            self._failed.add(donor)
            self._say("info", f"no snapshot from {short(donor)}: {refused}")
        else:
            self._failed.clear()
            await self._install(snapshot)
            height = snapshot.ledger.height
            self._say("warning", f"took over the certified state after height {height}: {wanted.reason.value}")
        finally:
            self.is_certain = False

    def _say(self, level: str, text: str) -> None:
        self._events.publish(Notice(level=level, text=text))

    # ---- one attempt

    async def _obtain(self, donor: bytes, wanted: Need) -> VerifiedSnapshot:
        """A snapshot of ``donor`` that is the certified state, stored as a blob. Raises Refused."""
        self.progress = f"{wanted.reason.value}; asking {short(donor)} for a snapshot"
        offer = await self._offer(donor, wanted.least)
        certified = await self._certified_state(donor, offer.height, doubtful=wanted.reason is Reason.DIVERGED)
        raw = await self._body(donor, offer.ledger_digest, offer.ledger_size)
        agreement = self._agreement
        try:
            ledger = decode_ledger_state(raw, genesis=agreement.genesis)
        except MalformedError as error:
            raise Refused(f"its ledger state is malformed: {error.reason}") from error
        hashed = state_hash(ledger, k=agreement.k, bits=agreement.bits, agreed_root=offer.agreed_root)
        if ledger.height != offer.height or hashed != certified:
            raise Refused("its ledger state is not the certified one")
        self.is_certain = True
        if offer.application_size > self._application.snapshot_bytes_max:
            raise Refused(f"a snapshot of {offer.application_size} bytes is larger than any of this run")
        self.progress = f"{wanted.reason.value}; fetching the state after height {offer.height}"
        data = await self._body(donor, offer.application_digest, offer.application_size)
        try:
            facts = await trio.to_thread.run_sync(self._application.inspect_snapshot, data)
        except MalformedError as error:
            raise Refused(f"its snapshot is malformed: {error.reason}") from error
        if (facts.agreed_root, facts.round) != (offer.agreed_root, ledger.round):
            raise Refused("its snapshot is not the certified state")
        return VerifiedSnapshot(
            ledger=ledger,
            state_hash=certified,
            model_hash=facts.model_hash,
            agreed_root=facts.agreed_root,
            blob=await self._application.store_snapshot(data),
        )

    async def _offer(self, donor: bytes, least: int) -> SnapshotOffer:
        body, _attachment = await self._ask(Kind.GET_SNAPSHOT, Kind.SNAPSHOT, donor, least)
        if not isinstance(body, tuple) or len(body) > OFFERS_MAX:
            raise Refused("its offers are malformed")
        try:
            offers = [SnapshotOffer.from_value(value) for value in body]
        except MalformedError as error:
            raise Refused(f"its offers are malformed: {error.reason}") from error
        fitting = [offer for offer in offers if offer.height >= least]
        if not fitting:
            raise Refused(f"it offers none of height {least} or later")
        return max(fitting, key=lambda offer: offer.height)

    async def _certified_state(self, donor: bytes, height: int, *, doubtful: bool) -> bytes:
        """The certified hash of the state after ``height``: from this disk, or by headers of ``donor``."""
        if not doubtful:
            known = await trio.to_thread.run_sync(self._store.certified_state, height)
            if known is not None:
                return known
            chain = self._store.chain(self._crypto, self._host.ledger)
        else:
            chain = self._store.chain_from_genesis(self._crypto)
            await trio.to_thread.run_sync(self._follow_own, chain, height + 1)
        while (certified := chain.certified_state(height)) is None:
            if chain.height > height:
                raise Refused(f"height {height} is too long ago")
            self.progress = f"checking certified headers: {chain.height} of {height}"
            _body, raw = await self._ask(Kind.GET_HEADERS, Kind.HEADERS, donor, chain.height + 1)
            await trio.to_thread.run_sync(self._follow, chain, raw)
        return certified

    def _follow_own(self, chain: HeaderChain, until: int) -> None:
        """As far as what is on this disk proves itself."""
        for link in self._store.links(chain.height + 1, most=until - chain.height, max_bytes=1 << 62):
            if chain.extend(link) is not None:
                return

    def _follow(self, chain: HeaderChain, raw: bytes) -> None:
        try:
            values = unpack(raw)
            if not isinstance(values, tuple) or not 0 < len(values) <= HEADERS_PER_REPLY_MAX:
                raise Refused("it has no further headers")
            links = [read_link(value) for value in values]
        except MalformedError as error:
            raise Refused(f"its headers are malformed: {error.reason}") from error
        taken = []
        for link in links:
            refusal = chain.extend(link)
            if refusal is not None:
                break
            taken.append(link)
        self._store.keep(taken)
        if refusal is not None:
            raise Refused(f"the header of height {chain.height + 1} does not hold: {refusal}")

    async def _body(self, donor: bytes, name: bytes, size: int) -> bytes:
        with trio.move_on_after(TRANSFER_S + size / TRANSFER_BYTES_PER_S):
            return await self._transport.bodies.fetch(
                Namespace.SNAPSHOT, name, max_size=size, verify=partial(_is_named, name), prefer=(donor,)
            )
        raise Refused("a body did not come in time")

    async def _ask(self, kind: Kind, answer: Kind, donor: bytes, height: int) -> tuple[Value, bytes]:
        """(body, attachment) of the answer."""
        envelop = Envelop(
            network_id=self._agreement.network_id,
            kind=kind,
            sender=self._identity.key,
            height=height,
            route=donor,
            body=(),
        )
        self._awaited, self._answer, self._answered = (answer, donor, height), None, trio.Event()
        try:
            if not self._transport.send(donor, signing.seal(self._identity, envelop)):
                raise Refused("it is not connected")
            with trio.move_on_after(ANSWER_S):
                await self._answered.wait()
            if self._answer is None:
                raise Refused(f"no answer within {ANSWER_S:g} s")
            return self._answer
        finally:
            self._awaited = self._answer = None

    def _on_answer(self, envelop: Envelop, attachment: bytes, _peer: bytes) -> None:
        """Only what was asked for, of whom it was asked; it is checked where it is used."""
        if (envelop.kind, envelop.sender, envelop.height) == self._awaited and self._answer is None:
            self._answer = envelop.body, attachment
            self._answered.set()


def _is_named(name: bytes, body: bytes) -> bool:
    return sha256(body) == name

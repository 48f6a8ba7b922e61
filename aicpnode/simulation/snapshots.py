"""Snapshots among simulated members: what donors give, honest or not, and how a member takes one over.

The production's rule says when (``need``), its chain of headers and its encoding of the ledger's state say whether.
Blocks of more than BLOCKS_KEPT heights ago are given to nobody here, as the bodies of old rounds are in production, so
whoever is far behind has to take a snapshot. The state of a simulated member follows from its ledger, and so does its
hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aicpnode.envelop.ledger_state import decode_ledger_state, encode_ledger_state
from aicpnode.errors import MalformedError
from aicpnode.replication.takeover import Position, need
from consensus.catchup import CatchUp
from consensus.events import Decide
from consensus.headers import CertifiedHeader, HeaderChain
from consensus.membership import LedgerState
from consensus.messages import CommitCert
from consensus.types import HASH_BYTES

if TYPE_CHECKING:
    import random

    from aicpnode.simulation.member import SimulatedMember

SNAPSHOT_HEIGHTS = 2
SNAPSHOTS_KEPT = 2
GAP = 2
BLOCKS_KEPT = 2 * GAP


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotGiven:
    """An answer: headers from the height that was asked for on, and the encoded ledger state of ``height``."""

    height: int
    links: tuple[CertifiedHeader, ...]
    ledger: bytes


@dataclass(slots=True)
class Shelf:
    """The part of a disk that speaks of heights without blocks, and of states to give away."""

    base: LedgerState | None = None
    """Where the ledger begins; None: the genesis."""
    links: dict[int, CertifiedHeader] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)
    """Height -> encoded ledger state of own snapshots, the last ones."""

    @property
    def base_height(self) -> int:
        return 0 if self.base is None else self.base.height

    def decided(self, decision: Decide) -> None:
        """Keep the header, and the state if a snapshot is due."""
        header = decision.block.header
        changed = header.next_roster_hash != header.roster_hash
        self.links[header.height] = CertifiedHeader(
            header=header,
            certificate=decision.certificate,
            next_roster=decision.ledger.roster if changed else None,
        )
        if header.height % SNAPSHOT_HEIGHTS == 0:
            self._keep(decision.ledger)

    def _keep(self, ledger: LedgerState) -> None:
        self.states[ledger.height] = encode_ledger_state(ledger)
        for height in sorted(self.states)[:-SNAPSHOTS_KEPT]:
            del self.states[height]

    def install(self, ledger: LedgerState, links: Sequence[CertifiedHeader]) -> None:
        self.base = ledger
        self.links.update({link.header.height: link for link in links})
        self.states.clear()
        self._keep(ledger)

    def give(self, first: int, least: int, head: int) -> SnapshotGiven | None:
        """The latest state of at least ``least`` that the next height certifies, and what proves it."""
        heights = [height for height in self.states if least <= height < head]
        if not heights:
            return None
        height = max(heights)
        wanted = range(first, height + 2)
        if any(number not in self.links for number in wanted):
            return None
        return SnapshotGiven(
            height=height, links=tuple(self.links[number] for number in wanted), ledger=self.states[height]
        )


class Taker:
    """Asks donors in turn while its member is far behind."""

    def __init__(self, member: SimulatedMember) -> None:
        self._member = member
        self._claims = CatchUp(member.key)
        self._failed: set[bytes] = set()
        self._head, self._since_ms = -1, 0
        self._asked: tuple[bytes, int, int] | None = None
        """(donor, first header, least height)."""
        self.refused = 0

    def heard(self, peer: bytes, head: int) -> None:
        roster = self._member.ledger.roster
        self._claims.heard(peer, head, 0, is_member=roster.by_key(peer) is not None)

    def look(self) -> None:
        """Now and then: whether there is anybody to ask for anything."""
        member = self._member
        at, now_ms = self._position(), member.cluster.now_ms
        if at.head != self._head or at.furthest <= at.head:
            self._head, self._since_ms = at.head, now_ms
        wanted = need(replace(at, stands_still_s=(now_ms - self._since_ms) / 1000), gap=GAP)
        if wanted is None:
            self._failed.clear()
            return
        if self._asked is not None:
            self._failed.add(self._asked[0])  # it did not answer
        donors = [key for key in self._claims.donors(wanted.least) if key not in self._failed]
        if not donors:
            for key in self._failed:
                self._claims.forget(key)
            self._failed.clear()
            self._asked = None
            return
        self._asked = donors[0], at.head + 1, wanted.least
        member.cluster.request_snapshot(member, *self._asked)

    def _position(self) -> Position:
        head, base = self._member.ledger.height, self._member.disk.shelf.base_height
        return Position(head=head, applied=head, base=base, furthest=self._claims.furthest())

    def receive(self, donor: bytes, given: SnapshotGiven) -> LedgerState | None:
        """The certified ledger state that ``donor`` gave, or None: then the next one is asked."""
        if self._asked is None or self._asked[0] != donor:
            return None
        _donor, first, least = self._asked
        self._asked = None
        ledger = self._check(given)
        if ledger is None:
            self.refused += 1
            self._failed.add(donor)
            return None
        fits = first == self._member.ledger.height + 1 and ledger.height >= least
        return ledger if fits else None

    def _check(self, given: SnapshotGiven) -> LedgerState | None:
        member = self._member
        head = member.ledger
        chain = HeaderChain(crypto=member.crypto, height=head.height, block_id=head.block_id, roster=head.roster)
        for link in given.links:
            if chain.extend(link) is not None:
                return None
        certified = chain.certified_state(given.height)
        try:
            ledger = decode_ledger_state(given.ledger, genesis=member.cluster.genesis)
        except MalformedError:
            return None
        if certified is None or ledger.height != given.height or member.state_hash(ledger) != certified:
            return None
        return ledger


def lie(given: SnapshotGiven, rng: random.Random, genesis: LedgerState) -> SnapshotGiven | None:
    """What a donor gives that is not honest: something that does not hold, nothing, or now and then the truth."""
    lies: list[Callable[[], SnapshotGiven | None]] = [
        lambda: None,
        lambda: given,
        lambda: replace(given, height=given.height + 1),
        lambda: replace(given, links=given.links[:-1]),
        lambda: replace(given, links=given.links[1:]),
        lambda: replace(given, links=tuple(replace(link, next_roster=None) for link in given.links)),
        lambda: _with_last(given, lambda link: replace(link, header=replace(link.header, state_hash=_noise(rng)))),
        lambda: _with_last(given, lambda link: replace(link, certificate=_cut(link.certificate))),
        lambda: _with_last(given, lambda link: replace(link, next_roster=genesis.roster)),
        lambda: replace(given, ledger=given.ledger[:-1]),
        lambda: replace(given, ledger=_flipped(given.ledger, rng)),
        lambda: replace(given, ledger=_with_power(given.ledger, genesis)),
    ]
    return rng.choice(lies)()


def _with_last(given: SnapshotGiven, change: Callable[[CertifiedHeader], CertifiedHeader]) -> SnapshotGiven:
    return replace(given, links=(*given.links[:-1], change(given.links[-1])))


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(HASH_BYTES)


def _cut(certificate: CommitCert) -> CommitCert:
    return replace(certificate, votes=certificate.votes[1:])


def _flipped(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _with_power(data: bytes, genesis: LedgerState) -> bytes:
    """One member more powerful than it is."""
    ledger = decode_ledger_state(data, genesis=genesis)
    first = ledger.roster.members[0]
    return encode_ledger_state(ledger.with_member(replace(first, power=first.power + 1)))

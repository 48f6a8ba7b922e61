"""Drivers that are too far behind to replay take over a state of others, and only the certified one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from aicpnode.envelop.codec import Envelop, Kind, digest, pack, unpack
from aicpnode.envelop.kinds import decode_commit_certificate, decode_header, encode_commit_certificate, encode_header
from aicpnode.envelop.ledger_state import decode_ledger_state, encode_ledger_state
from aicpnode.envelop.signing import seal
from aicpnode.network.bodies import BodySource, Namespace
from aicpnode.replication.snapshot_store import SnapshotOffer, SnapshotStore
from aicpnode.replication.takeover import Reason
from aicpnode.storage.database import Database
from consensus.messages import CommitCert

ROUNDS = 13
SNAPSHOT_ROUNDS = 3
GAP = 4
BODIES_FROM = 7
"""Of earlier rounds nobody has the bodies any more: replaying leads nowhere."""
CLAIMED_HEAD = 1_000_000


async def run_rounds(network, count: int = 4, rounds: int = ROUNDS):
    """A run that is long over: ``rounds`` rounds, and blocks behind the last snapshot that certify it."""
    members = [
        network.member(index, rounds=rounds, settings={"snapshot_rounds": SNAPSHOT_ROUNDS}) for index in range(count)
    ]
    await network.start_all(members)
    await network.until(
        lambda: all(m.driver.ledger.round >= rounds and m.driver.is_applied for m in members), "rounds", members
    )
    return members


def newcomer_of(network, index: int, **settings):
    return network.member(index, bodies_from=BODIES_FROM, settings={"snapshot_gap": GAP}, **settings)


def said(member, text: str) -> bool:
    return any(text in notice.text for notice in member.notices)


async def test_newcomer_takes_a_snapshot_where_the_bodies_of_old_rounds_are_gone(make_network) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    newcomer = newcomer_of(network, 4)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= members[0].driver.head, "caught up", [newcomer])
    assert newcomer.application.state == members[0].application.state
    assert said(newcomer, Reason.FAR_BEHIND.value)
    base = newcomer.database.base_height()
    assert base > 0 and newcomer.database.decision(base) is None and newcomer.database.header(base) is not None
    await network.until(lambda: newcomer.driver.ledger.roster.by_key(newcomer.key) is not None, "it joins", [newcomer])
    assert network.assert_equal([*members, newcomer]) >= 2
    # What it took over survives a restart, and it serves others from there.
    await newcomer.stop()
    await newcomer.start()
    await network.until(lambda: newcomer.driver.is_applied, "replayed from its base", [newcomer])
    assert newcomer.database.base_height() == base and newcomer.application.state == members[0].application.state


async def test_newcomer_learns_everything_from_one_that_has_a_base_itself(make_network) -> None:
    network = make_network(1)
    (founder,) = await run_rounds(network, 1)
    first, second = (newcomer_of(network, index) for index in (1, 2))
    await first.start()
    await network.until(lambda: first.driver.applied_height >= founder.driver.head, "the first", [first])
    await first.application.snapshot()
    await network.until(lambda: first.driver.ledger.roster.by_key(first.key) is not None, "it joins", [first])
    network.hub.parts = (frozenset({first.key, second.key}),)
    await second.start()
    await network.until(lambda: second.driver.applied_height >= first.driver.head, "the second", [second])
    assert second.application.state == founder.application.state
    assert second.database.header(1) is not None


async def test_member_without_its_disk_returns_by_a_snapshot_and_votes_only_above(make_network) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    forgetful = members[3]
    signed_until = max(network.hub.heights_voted(forgetful.key))
    await forgetful.stop()
    votes_before = len(network.hub.votes)
    forgetful.directory = forgetful.directory.with_name("new")
    forgetful.directory.mkdir()
    forgetful.has_lost_database, forgetful.rounds = True, 0
    forgetful.bodies_from, forgetful.settings = BODIES_FROM, {"snapshot_gap": GAP}
    await forgetful.start()
    await network.until(lambda: forgetful.driver.applied_height >= members[0].driver.head, "caught up", [forgetful])
    assert forgetful.database.base_height() > 0
    voted = functools.partial(network.hub.heights_voted, forgetful.key, since=votes_before)
    while not voted():
        await members[0].driver.probe()
    assert min(voted()) > signed_until
    network.assert_equal(members)


async def test_small_gap_is_replayed_block_by_block(make_network) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    newcomer = network.member(4)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= members[0].driver.head, "caught up", [newcomer])
    assert newcomer.database.base_height() == 0
    assert len(newcomer.application.applied) == ROUNDS


async def test_member_that_waits_in_vain_for_old_bodies_takes_a_snapshot_beyond_them(make_network) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    newcomer = network.member(4, bodies_from=BODIES_FROM)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= members[0].driver.head, "caught up", [newcomer])
    assert said(newcomer, Reason.BODIES_MISSING.value)
    network.assert_equal([*members, newcomer])
    # All blocks came in sequence, only the state did not: the member has, and serves, every one of them.
    assert len(newcomer.database.decisions(1, 1 << 30)) == newcomer.database.head()


async def test_lost_snapshot_at_the_base_is_taken_again(make_network) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    newcomer = newcomer_of(network, 4)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= members[0].driver.head, "caught up", [newcomer])
    await newcomer.stop()
    for file in (newcomer.directory / "snapshots").iterdir():
        file.unlink()
    newcomer.notices.clear()
    await newcomer.start()
    await network.until(lambda: newcomer.application.state == members[0].application.state, "again", [newcomer])
    assert said(newcomer, Reason.STATE_LOST.value)
    await network.until(lambda: newcomer.driver.is_applied, "applied", [newcomer])
    network.assert_equal([*members, newcomer])


# ---- lying donors


class Liar:
    """A founder that claims the highest head of all, and hands on what an honest member has, but for one lie."""

    def __init__(self, network, index: int, honest, **lies: Callable) -> None:
        self._network = network
        self._honest = honest
        self._lies = lies
        self._identity = network.identities[index]
        self._port = network.hub.plug(self._identity.key)
        self._port.subscribe([Kind.GET_HEADERS, Kind.GET_SNAPSHOT], self._on_request)
        self._port.bodies.register(Namespace.SNAPSHOT, self._provide)
        self._port.head = lambda: CLAIMED_HEAD
        self._bodies: dict[bytes, bytes] = {}
        self.asked = 0

    @property
    def key(self) -> bytes:
        return self._identity.key

    def _on_request(self, envelop: Envelop, _attachment: bytes, peer: bytes) -> None:
        store, application = self._honest.driver._snapshots, self._honest.application
        self.asked += 1
        if envelop.kind is Kind.GET_HEADERS:
            attachment = self._honest.driver._donor._links(envelop.height)
            attachment = self._lies.get("headers", lambda raw: raw)(attachment)
            self._send(Kind.HEADERS, peer, envelop.height, (), attachment)
            return
        offer = store.offers(application.snapshot_size)[0]
        ledger = store.ledger_body(offer.ledger_digest)
        data = application.read_snapshot(offer.application_digest, 0, 1 << 20)
        ledger = self._lies.get("ledger", lambda raw: raw)(ledger)
        data = self._lies.get("snapshot", lambda raw: raw)(data)
        self._bodies = {digest(ledger): ledger, digest(data): data}
        offer = replace(
            offer,
            ledger_digest=digest(ledger),
            ledger_size=len(ledger),
            application_digest=digest(data),
            application_size=len(data),
        )
        offer = self._lies.get("offer", lambda told: told)(offer)
        body = self._lies.get("body", lambda value: value)((offer.to_value(),))
        self._send(Kind.SNAPSHOT, peer, envelop.height, body, b"")

    def _provide(self, name: bytes) -> BodySource | None:
        return BodySource.of(self._bodies[name]) if name in self._bodies else None

    def _send(self, kind: Kind, to: bytes, height: int, body, attachment: bytes) -> None:
        envelop = Envelop(
            network_id=self._network.agreement.network_id,
            kind=kind,
            sender=self.key,
            height=height,
            route=to,
            body=body,
        )
        self._port.send(to, seal(self._identity, envelop), attachment)


def with_link(raw: bytes, index: int, change: Callable) -> bytes:
    links = list(unpack(raw))
    links[index] = change(*links[index])
    return pack(links)


def forged_header(raw: bytes) -> bytes:
    """Another state hash in a header with a certificate of the true one."""

    def change(header, certificate, roster):
        forged = replace(decode_header(header), state_hash=bytes(32))
        return encode_header(forged), certificate, roster

    return with_link(raw, 3, change)


def forged_signatures(raw: bytes) -> bytes:
    def change(header, certificate, roster):
        true = decode_commit_certificate(certificate)
        forged = CommitCert(
            height=true.height,
            view=true.view,
            block_id=true.block_id,
            votes=tuple((index, bytes(64)) for index, _signature in true.votes),
        )
        return header, encode_commit_certificate(forged), roster

    return with_link(raw, 2, change)


def no_headers(_raw: bytes) -> bytes:
    return pack(())


def skipped_header(raw: bytes) -> bytes:
    links = unpack(raw)
    return pack((*links[:2], *links[3:]))


def roster_withheld(raw: bytes) -> bytes:
    """The first change of roster comes without the new roster."""
    links = unpack(raw)
    return pack(tuple((header, certificate, None) for header, certificate, _roster in links))


def one_changed_weight(data: bytes) -> bytes:
    round_, state = unpack(data)
    return pack((round_, bytes([state[0] ^ 1]) + state[1:]))


def another_round(data: bytes) -> bytes:
    """Of the true model: what is proposed on it would be of another round than everybody else's."""
    round_, state = unpack(data)
    return pack((round_ + 1, state))


def truncated(data: bytes) -> bytes:
    return data[:-1]


def root_of_another_model(offer: SnapshotOffer) -> SnapshotOffer:
    return replace(offer, agreed_root=bytes(32))


def too_large(offer: SnapshotOffer) -> SnapshotOffer:
    return replace(offer, application_size=1 << 30)


def garbage(_value) -> tuple:
    return (b"\xc1",)


def too_many_offers(value) -> tuple:
    return value * 5


LIES = [
    ("headers", forged_header, "its certificate is of another block"),
    ("headers", forged_signatures, "no quorum of the roster derived so far stands behind it"),
    ("headers", no_headers, "it has no further headers"),
    ("headers", skipped_header, "a header of height 4 after height 2"),
    ("headers", truncated, "its headers are malformed"),
    ("headers", roster_withheld, "it changes the roster, and the new one is missing"),
    ("snapshot", one_changed_weight, "its snapshot is not the certified state"),
    ("snapshot", another_round, "its snapshot is not the certified state"),
    ("snapshot", truncated, "its snapshot is malformed"),
    ("ledger", truncated, "its ledger state is malformed"),
    ("offer", root_of_another_model, "its ledger state is not the certified one"),
    ("offer", too_large, "is larger than any of this run"),
    ("body", garbage, "its offers are malformed"),
    ("body", too_many_offers, "its offers are malformed"),
]


@pytest.mark.parametrize(("where", "lie", "reason"), LIES, ids=[f"{where}-{lie.__name__}" for where, lie, _ in LIES])
async def test_case_C19_lying_donor_costs_one_attempt_and_the_truth_comes_from_the_next(
    make_network, where: str, lie: Callable, reason: str
) -> None:
    network = make_network(4)
    members = await run_rounds(network, 3)
    guest = network.member(4)
    await guest.start()
    await network.until(lambda: members[0].driver.ledger.roster.by_key(guest.key) is not None, "a roster change")
    await members[0].driver.probe()
    liar = Liar(network, 3, members[0], **{where: lie})
    newcomer = newcomer_of(network, 5)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= ROUNDS, "the truth", [newcomer])
    assert liar.asked > 0 and said(newcomer, reason), [notice.text for notice in newcomer.notices]
    assert newcomer.database.base_height() > 0
    await network.until(lambda: newcomer.application.state == members[0].application.state, "caught up", [newcomer])
    network.assert_equal([*members, newcomer])


async def test_ledger_state_with_more_power_for_a_friend_is_refused(make_network) -> None:
    network = make_network(4)
    members = await run_rounds(network, 3)
    genesis = network.agreement.genesis

    def more_power(raw: bytes) -> bytes:
        state = decode_ledger_state(raw, genesis=genesis)
        friend = replace(state.roster.members[0], power=1000)
        return encode_ledger_state(state.with_member(friend))

    liar = Liar(network, 3, members[0], ledger=more_power)
    newcomer = newcomer_of(network, 4)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= ROUNDS, "the truth", [newcomer])
    assert liar.asked > 0 and said(newcomer, "its ledger state is not the certified one")
    network.assert_equal([*members, newcomer])


# ---- crashes


async def fail(network, member) -> None:
    """Start a member, and see it fail alone."""
    with pytest.raises(BaseExceptionGroup):
        async with network.nested() as nursery:
            member.nursery = nursery
            await member.start()
            await member.stopped.wait()
    member.nursery = None
    network.hub.unplug(member.key)


async def test_crash_before_a_snapshot_is_taken_over_leaves_the_old_state(make_network, monkeypatch) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    newcomer = newcomer_of(network, 4)
    steps: list[str] = []

    def crash_inside(self, snapshot):
        with self._database.transaction():
            original(self, snapshot)
            steps.append("inside")
            raise OSError("the machine is gone")

    original = SnapshotStore.install
    monkeypatch.setattr(SnapshotStore, "install", crash_inside)
    await fail(network, newcomer)
    assert steps == ["inside"]
    monkeypatch.setattr(SnapshotStore, "install", original)
    with Database.open(newcomer.directory) as database:
        assert (database.base(), database.snapshots()) == (None, [])
    await newcomer.start()
    await network.until(lambda: newcomer.driver.applied_height >= members[0].driver.head, "caught up", [newcomer])
    network.assert_equal([*members, newcomer])


async def test_crash_after_a_snapshot_is_taken_over_leaves_the_new_state(make_network, monkeypatch) -> None:
    network = make_network(4)
    members = await run_rounds(network)
    newcomer = newcomer_of(network, 4)
    restore = type(members[0].application).restore

    async def crash(self, digest: bytes, model_hash: bytes) -> None:
        raise OSError("the machine is gone")

    monkeypatch.setattr(type(members[0].application), "restore", crash)
    await fail(network, newcomer)
    monkeypatch.setattr(type(members[0].application), "restore", restore)
    with Database.open(newcomer.directory) as database:
        base = database.base_height()
    assert base > 0
    newcomer.notices.clear()
    await newcomer.start()
    assert newcomer.driver.applied_height >= base
    await network.until(lambda: newcomer.driver.applied_height >= members[0].driver.head, "caught up", [newcomer])
    assert not said(newcomer, "took over"), "once is enough"
    network.assert_equal([*members, newcomer])

"""Drivers that were away take over decided blocks from others, and believe certificates rather than people."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aicpnode.envelop.codec import Envelop, Kind, pack, unpack
from aicpnode.envelop.kinds import DECISIONS_PER_REPLY_MAX, decode_commit_certificate, encode_commit_certificate
from aicpnode.envelop.signing import seal
from consensus.messages import CommitCert

Decision = tuple[bytes, bytes]
"""(block, certificate), encoded."""
CLAIMED_HEAD = 1_000_000


class Liar:
    """A founder that claims the highest head of all and answers requests with what a test makes up."""

    def __init__(self, network, index: int, answer: Callable[[int], bytes]) -> None:
        self._network = network
        self._identity = network.identities[index]
        self._answer = answer
        self._port = network.hub.plug(self._identity.key)
        self._port.subscribe([Kind.GET_DECISIONS], self._on_request)
        self._port.head = lambda: CLAIMED_HEAD
        self.asked: list[int] = []

    @property
    def key(self) -> bytes:
        return self._identity.key

    def claim(self) -> None:
        """Announce a head, as everybody does from time to time."""
        self._port.broadcast(self._sealed(Kind.HEAD, CLAIMED_HEAD, None, ()))

    def _on_request(self, envelop: Envelop, _attachment: bytes, peer: bytes) -> None:
        self.asked.append(envelop.height)
        self._port.send(peer, self._sealed(Kind.DECISIONS, envelop.height, peer, (1,)), self._answer(envelop.height))

    def _sealed(self, kind: Kind, height: int, route: bytes | None, body: tuple) -> Envelop:
        fields = Envelop(
            network_id=self._network.agreement.network_id,
            kind=kind,
            sender=self._identity.key,
            height=height,
            route=route,
            body=body,
        )
        return seal(self._identity, fields)


def foreign_certificate(decisions: list[Decision], height: int) -> bytes:
    """The block of this height with the certificate of another block."""
    return pack(((decisions[height - 1][0], decisions[height][1]),))


def other_block(decisions: list[Decision], height: int) -> bytes:
    """Another block with the certificate of this height."""
    return pack(((decisions[height][0], decisions[height - 1][1]),))


def forged_signatures(decisions: list[Decision], height: int) -> bytes:
    block, raw = decisions[height - 1]
    real = decode_commit_certificate(raw)
    votes = tuple((index, bytes(64)) for index, _signature in real.votes)
    forged = CommitCert(height=real.height, view=real.view, block_id=real.block_id, votes=votes)
    return pack(((block, encode_commit_certificate(forged)),))


def too_few_signatures(decisions: list[Decision], height: int) -> bytes:
    block, raw = decisions[height - 1]
    real = decode_commit_certificate(raw)
    short = CommitCert(height=real.height, view=real.view, block_id=real.block_id, votes=real.votes[:1])
    return pack(((block, encode_commit_certificate(short)),))


def one_signature_many_times(decisions: list[Decision], height: int) -> bytes:
    block, raw = decisions[height - 1]
    value = unpack(raw)
    assert isinstance(value, tuple) and isinstance(value[-1], tuple)
    repeated = (*value[:-1], value[-1][:1] * len(value[-1]))
    return pack(((block, pack(repeated)),))


def nothing(_decisions: list[Decision], _height: int) -> bytes:
    return pack(())


def garbage(_decisions: list[Decision], _height: int) -> bytes:
    return b"\xc1 no canonical value"


def too_many(decisions: list[Decision], height: int) -> bytes:
    return pack((decisions[height - 1],) * (DECISIONS_PER_REPLY_MAX + 1))


LIES = [
    foreign_certificate, other_block, forged_signatures, too_few_signatures, one_signature_many_times, nothing,
    garbage, too_many,
]  # fmt: skip
REFUSED_AS_MALFORMED = (garbage, too_many)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__.replace("_", "-"))
async def test_case_C20_lying_decisions_are_refused_and_the_truth_is_fetched_from_others(make_network, lie) -> None:
    network = make_network(4)
    members = [network.member(index, rounds=6) for index in range(3)]
    await network.start_all(members)
    await network.until(
        lambda: all(m.driver.ledger.round >= 6 and m.driver.is_applied for m in members), "rounds", members
    )
    decisions = [(block, certificate) for _h, block, certificate in members[0].database.decisions(1, 1 << 30)]
    liar = Liar(network, 3, lambda height: lie(decisions, min(height, len(decisions) - 1)))
    newcomer = network.member(4)
    await newcomer.start()
    liar.claim()
    await network.until(lambda: bool(liar.asked), "the liar is asked", [newcomer])
    await network.until(lambda: newcomer.driver.applied_height >= len(decisions), "the truth", [newcomer])
    assert network.assert_equal([*members, newcomer]) >= len(decisions)
    # A true block would look the same whoever vouched for it: what it was believed for is on the disk.
    true = {certificate for member in members for _h, _block, certificate in member.database.decisions(1, 1 << 30)}
    taken = newcomer.database.decisions(1, 1 << 30)[: len(decisions)]
    assert {certificate for _h, _block, certificate in taken} <= true
    refused = [
        reason for receiver, sender, reason in network.hub.faults if (receiver, sender) == (newcomer.key, liar.key)
    ]
    assert bool(refused) == (lie in REFUSED_AS_MALFORMED), refused


async def test_newcomer_takes_over_more_blocks_than_one_reply_holds(make_network) -> None:
    network = make_network(1)
    founder = network.member(0)
    await founder.start()
    while founder.driver.head <= 2 * DECISIONS_PER_REPLY_MAX:
        await founder.driver.probe()
    newcomer = network.member(1)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.ledger.roster.by_key(newcomer.key) is not None, "it joins", [newcomer])
    await network.until(lambda: newcomer.driver.applied_height >= founder.driver.head, "caught up", [founder, newcomer])
    assert network.assert_equal([founder, newcomer]) > 2 * DECISIONS_PER_REPLY_MAX


async def test_newcomer_joins_a_run_whose_rounds_never_pause(make_network) -> None:
    network = make_network(3)
    members = [network.member(index, rounds=250) for index in range(3)]
    await network.start_all(members)
    await network.until(lambda: members[0].driver.ledger.round > 3, "rounds", members)
    newcomer = network.member(3)
    await newcomer.start()
    await network.until(lambda: newcomer.driver.ledger.roster.by_key(newcomer.key) is not None, "it joins", [newcomer])
    assert newcomer.driver.ledger.round < 250, "before the rounds ended"
    network.assert_equal([*members, newcomer])

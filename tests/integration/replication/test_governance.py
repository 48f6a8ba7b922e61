"""Members ban, invite, leave and change the run together, on real drivers, keys and disks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicpnode.envelop import signing
from aicpnode.envelop.codec import Envelop, Kind, encode
from aicpnode.errors import UserError
from aicpnode.replication.crypto import MemberCrypto
from aicpnode.replication.driver import Driver
from aicpnode.replication.governance import Governance
from aicpnode.replication.intent import Intent, Wish
from aicpnode.replication.invitation import read_invitation, write_invitation
from consensus.membership import Admission
from consensus.messages import OperationKind
from consensus.types import MemberStatus


def governance(member) -> Governance:
    network_id = member.network.agreement.network_id
    return Governance(member.driver, key=member.key, network_id=network_id, name_of=lambda key: key.hex()[:8])


async def founders(make_network, count: int = 4, **rules):
    network = make_network(count)
    genesis = network.agreement.genesis
    changed = replace(genesis, rules=replace(genesis.rules, **rules))
    network.agreement = replace(network.agreement, genesis=changed)
    members = [network.member(index) for index in range(count)]
    await network.start_all(members)
    return network, members


def two_grads(member) -> list[Envelop]:
    network_id = member.network.agreement.network_id
    return [
        signing.seal(
            member.identity,
            Envelop(network_id=network_id, kind=Kind.GRAD, sender=member.key, height=0, body=(bytes([n]) * 32, 9)),
        )
        for n in (1, 2)
    ]


async def test_evidence_of_one_member_bans_the_culprit_on_all(make_network) -> None:
    network, members = await founders(make_network)
    culprit = members[3]
    members[1].driver.note_equivocation(*two_grads(culprit))
    await network.until(lambda: all(m.driver.is_banned(culprit.key) for m in members), "banned", members)
    (banned,) = governance(members[0]).blacklist()["banned"]
    assert banned["reason"] == "two different GRAD messages at round 0"
    assert governance(members[1]).blacklist()["accused"] == []
    await network.until(lambda: len({m.driver.applied_height for m in members}) == 1, "all applied", members)
    network.assert_equal(members)


async def test_evidence_survives_a_restart_and_is_brought_forward_then(make_network) -> None:
    network, members = await founders(make_network)
    for member in members[:2]:
        await member.stop()
    members[2].driver.note_equivocation(*two_grads(members[3]))
    await network.until(lambda: len(members[2].database.evidence()) == 1, "kept", members[2:3])
    await members[2].stop()
    for member in members[:3]:
        await member.start()
    await network.until(lambda: members[0].driver.is_banned(members[3].key), "banned", members[:3])


def ballots(member, *sizes: int) -> list[Envelop]:
    """Two ballots of one slot, with so many entries."""
    found = []
    for size in sizes:
        entries = tuple((0, size.to_bytes(2) + n.to_bytes(2) + bytes(28), True) for n in range(size))
        body = (0, bytes(32), -1, b"", 0, False, entries)
        network_id = member.network.agreement.network_id
        envelop = Envelop(network_id=network_id, kind=Kind.BALLOT, sender=member.key, height=1, body=body)
        found.append(signing.seal(member.identity, envelop))
    return found


async def test_proof_that_is_too_large_to_be_sent_stops_nobody(make_network) -> None:
    """Any member could sign one; a node that tried to bring it forward could sign nothing, now and after a restart."""
    network, members = await founders(make_network)
    culprit, rest = members[3], members[:3]
    await culprit.stop()
    network.hub.plug(culprit.key)
    for envelop in ballots(culprit, 1, 840):
        for member in rest:
            assert network.hub.carry(culprit.key, member.key, encode(envelop))
    for member in rest:
        await member.driver.probe()
    assert all(member.driver.accused == frozenset() for member in rest)


async def test_endorsement_that_a_later_operation_overtook_is_given_again(make_network, monkeypatch) -> None:
    _network, members = await founders(make_network)
    driver, overtaken = members[0].driver, []

    def submit(kind, *arguments, **enclosed):
        operation = Driver.submit(driver, kind, *arguments, **enclosed)
        if not overtaken:
            overtaken.append(operation)
            assert driver._inbox._own.pop().operation == operation, "as if it was lost on its way"
            Driver.submit(driver, OperationKind.CONTRIBUTE, 0)
        return operation

    monkeypatch.setattr(driver, "submit", submit)
    row = await governance(members[0]).propose("stop", "", "")
    assert (row["power"], row["in_effect"]) == (1, False)


async def test_change_takes_effect_when_three_of_four_agree(make_network) -> None:
    network, members = await founders(make_network)
    proposed = await governance(members[0]).propose("round-seconds", "90", "")
    assert (proposed["in_effect"], proposed["power"], proposed["needed"]) == (False, 1, 3)
    name = str(proposed["id"])
    await network.until(lambda: all(governance(m).changes()["changes"] for m in members), "known to all", members)
    assert (await governance(members[1]).endorse(name[:4]))["in_effect"] is False
    with pytest.raises(UserError, match="endorsed already"):
        await governance(members[1]).endorse(name)
    assert (await governance(members[2]).endorse(name))["in_effect"] is True
    await network.until(lambda: all(m.driver.ledger.rules.round_ms == 90_000 for m in members), "in effect", members)
    with pytest.raises(UserError, match="No single change"):
        await governance(members[3]).endorse(name)


async def test_member_is_removed_with_a_reason(make_network) -> None:
    network, members = await founders(make_network)
    with pytest.raises(UserError, match="needs a reason"):
        await governance(members[0]).propose("remove", "m3", "")
    row = await governance(members[0]).propose("remove", "m3", "sells its votes")
    await network.until(lambda: all(governance(m).changes()["changes"] for m in members), "known to all", members)
    for endorser in members[1:3]:
        await governance(endorser).endorse(str(row["id"]))
    await network.until(lambda: all(m.driver.is_banned(members[3].key) for m in members[:3]), "removed", members)
    assert governance(members[0]).blacklist()["banned"][0]["reason"] == "removed by the members: sells its votes"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("nonsense", "", "cannot be changed"),
        ("round-seconds", "soon", "needs a number"),
        ("round-seconds", "-3", "no possible"),
        ("round-seconds", "0.05", "would refuse"),
        ("max-members", "3", "more members already"),
        ("admission", "closed", "no admission"),
        ("resume", "", "would change nothing"),
        ("remove", "nobody", "No single member"),
    ],
)
async def test_impossible_proposal_says_why(make_network, kind: str, value: str, expected: str) -> None:
    _network, members = await founders(make_network)
    with pytest.raises(UserError, match=expected):
        await governance(members[0]).propose(kind, value, "because")


async def test_member_leaves_stays_away_and_comes_back_when_it_wants(make_network) -> None:
    network, members = await founders(make_network)
    assert (await governance(members[3]).leave())["left"] is True
    await network.until(lambda: all(len(m.driver.ledger.roster.active) == 3 for m in members), "left", members)
    await members[0].driver.probe()
    assert members[3].driver.ledger.roster.members[3].status is MemberStatus.SUSPENDED
    with pytest.raises(UserError, match="no member"):
        await governance(members[3]).leave()
    await members[3].driver.set_intent(Intent(wish=Wish.OFF))
    await network.until(lambda: all(len(m.driver.ledger.roster.active) == 4 for m in members), "back", members)


async def test_only_the_invited_join(make_network) -> None:
    network, members = await founders(make_network, count=1, admission=Admission.INVITE)
    network_id = network.agreement.network_id
    guest = network.member(1)
    text = str(governance(members[0]).invite(guest.key.hex())["invitation"])
    await guest.start()
    for _ in range(3):
        await members[0].driver.probe()
    assert members[0].driver.ledger.roster.by_key(guest.key) is None
    await guest.stop()
    guest.invitation = read_invitation(text, network_id=network_id, guest=guest.key)
    await guest.start()
    await network.until(lambda: members[0].driver.ledger.roster.is_active(guest.key), "admitted", [*members, guest])


async def test_invitations_that_are_none_say_so(make_network) -> None:
    network = make_network(2)
    network_id = network.agreement.network_id
    one, two = network.member(0), network.member(1)
    text = write_invitation(MemberCrypto(one.identity, network_id).invite(two.key), network_id)
    assert read_invitation(f" {text}\n", network_id=network_id, guest=two.key).signer == one.key
    with pytest.raises(UserError, match="for the key"):
        read_invitation(text, network_id=network_id, guest=one.key)
    with pytest.raises(UserError, match="for the network"):
        read_invitation(text, network_id=b"o" * 32, guest=two.key)
    for damaged in ("", "hello", text[:-9], text[:40] + "AAAA" + text[44:], "é" * 40, "a" * 5000):
        with pytest.raises(UserError):
            read_invitation(damaged, network_id=network_id, guest=two.key)

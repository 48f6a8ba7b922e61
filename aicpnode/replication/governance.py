"""Who is a member and what the members change together, in the words of people: what commands ask of replication."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import trio

from aicpnode.envelop.codec import pack
from aicpnode.errors import UserError
from aicpnode.replication.driver import Driver
from aicpnode.replication.intent import Intent, Wish
from aicpnode.replication.invitation import write_invitation
from consensus.membership import Admission, LedgerState, may_join_again, refuse_operation
from consensus.messages import Change, ChangeKind, Operation, OperationKind
from consensus.types import KEY_BYTES, Member, MemberStatus

DECISION_LIMIT_S = 30.0
ID_DIGITS = 8
NUMBERS = {
    "round-seconds": ChangeKind.ROUND_MS,
    "probation-rounds": ChangeKind.PROBATION_ROUNDS,
    "max-members": ChangeKind.MEMBERS_MAX,
}
"""What can be set to a number, as people write it."""
WORDS = ("stop", "resume", "remove", "admission", *NUMBERS)
JsonObject = dict[str, object]


class Governance:
    """One member's part in governing the run. ``name_of`` gives members' names for people."""

    def __init__(self, driver: Driver, *, key: bytes, network_id: bytes, name_of: Callable[[bytes], str]) -> None:
        self._driver = driver
        self._key = key
        self._network_id = network_id
        self._name_of = name_of

    def blacklist(self) -> JsonObject:
        """Banned members with the reason, and members that evidence here waits for."""
        driver, ledger = self._driver, self._driver.ledger
        banned = [member for member in ledger.roster.members if member.status is MemberStatus.BANNED]
        return {
            "banned": [
                {"name": m.name, "key": m.key.hex(), "reason": ledger.standings[m.index].reason} for m in banned
            ],
            "accused": [
                {"name": self._name_of(key), "key": key.hex()}
                for key in sorted(driver.accused)
                if not driver.is_banned(key)
            ],
        }

    def changes(self) -> JsonObject:
        """Run-wide changes that wait for endorsements."""
        return {"changes": [self._row(change) for change in pending(self._driver.ledger)]}

    async def propose(self, kind: str, value: str, reason: str) -> JsonObject:
        """Propose a change and wait until that is in the ledger. UserError if it makes no sense."""
        return await self._support(self._change(kind, value, reason))

    async def endorse(self, name: str) -> JsonObject:
        """Endorse the change that waits under ``name``, the first digits of its id. UserError if there is no one."""
        wanted = name.lower()
        found = [change for change in pending(self._driver.ledger) if change_id(change).startswith(wanted)]
        if not wanted or len(found) != 1:
            known = ", ".join(change_id(change) for change in pending(self._driver.ledger)) or "none"
            raise UserError(f"No single change that waits is named {wanted!r}.", advice=f"Waiting: {known}.")
        return await self._support(found[0])

    async def _support(self, change: Change) -> JsonObject:
        """Endorse ``change`` as this member, and wait until that is decided."""
        ledger = self._driver.ledger
        await self._decide(OperationKind.ENDORSE, change.content())
        row = self._row(change, before=ledger)
        return {**row, "in_effect": change not in pending(self._driver.ledger)}

    async def _decide(self, kind: OperationKind, arguments: tuple[int | bytes | str, ...]) -> None:
        """Submit an operation of this node and wait for its block. UserError if the ledger would refuse it."""
        driver = self._driver
        probe = Operation(kind=kind, signer=self._key, sequence=1 << 62, arguments=arguments)
        refusal = refuse_operation(driver.ledger, probe)
        if refusal is not None:
            raise UserError(f"The members would refuse that: {refusal}.", advice="See members and changes.")
        with trio.move_on_after(DECISION_LIMIT_S):
            # Another operation of this node may get into the ledger first, and then this one never does.
            while refuse_operation(driver.ledger, probe) is None:
                operation = driver.submit(kind, *arguments)
                while not _has_used(driver.ledger, operation):
                    await driver.wait_change()
            return
        raise UserError(f"Nothing was decided within {DECISION_LIMIT_S:g} s.", advice="See why; it stays submitted.")

    def invite(self, key: str) -> JsonObject:
        """An invitation for the holder of ``key`` (hex). UserError unless this node votes."""
        guest, driver = _key(key), self._driver
        if not driver.ledger.roster.is_active(self._key):
            raise UserError("Only a voting member invites.", advice="See members.")
        text = write_invitation(driver.invite(guest), self._network_id)
        return {"key": guest.hex(), "invitation": text}

    async def leave(self) -> JsonObject:
        """Give up the membership, and wait a while for that to be decided."""
        driver = self._driver
        ledger = driver.ledger
        member = ledger.roster.by_key(self._key)
        if member is None or may_join_again(member) or member.status is MemberStatus.BANNED:
            raise UserError("This node is no member.", advice="See members.")
        if ledger.roster.power(member.key) == ledger.roster.total_power:
            raise UserError("The last voting member cannot leave.", advice="Stop the node instead.")
        await driver.set_intent(Intent(wish=Wish.LEAVE))
        with trio.move_on_after(DECISION_LIMIT_S):
            while not may_join_again(driver.ledger.roster.members[member.index]):
                await driver.wait_change()
            return {"left": True, "height": driver.head}
        return {"left": False, "height": driver.head}

    def _row(self, change: Change, before: LedgerState | None = None) -> JsonObject:
        ledger = self._driver.ledger
        endorsers = ledger.endorsers(change)
        if not endorsers and before is not None:
            # It is in effect: whoever had endorsed it before, and this member.
            endorsers = before.endorsers(change)
            own = before.roster.by_key(self._key)
            endorsers = (*endorsers, own) if own is not None else endorsers
        power = sum(ledger.roster.power(member.key) for member in endorsers)
        return {
            "id": change_id(change),
            "change": self._text(change),
            "endorsers": [member.name for member in endorsers],
            "power": power,
            "needed": ledger.roster.quorum,
        }

    def _text(self, change: Change) -> str:
        match change.kind:
            case ChangeKind.REMOVE:
                return f"remove {self._name_of(change.key)}: {change.text}"
            case ChangeKind.ROUND_MS:
                return f"round-seconds {change.number / 1000:g}"
            case ChangeKind.ADMISSION:
                return f"admission {Admission(change.number).name.lower()}"
            case ChangeKind.PROBATION_ROUNDS | ChangeKind.MEMBERS_MAX:
                return f"{next(word for word, kind in NUMBERS.items() if kind is change.kind)} {change.number}"
        return f"{change.kind.name.lower()} training"

    def _change(self, kind: str, value: str, reason: str) -> Change:
        if kind in ("stop", "resume"):
            return Change(kind=ChangeKind[kind.upper()])
        if kind == "remove":
            if not reason.strip():
                raise UserError("Removing a member needs a reason.", advice="It stands in the ledger: --reason TEXT.")
            return Change(kind=ChangeKind.REMOVE, key=self._member(value).key, text=reason.strip())
        if kind == "admission":
            if value.upper() not in Admission.__members__:
                raise UserError(f"{value!r} is no admission.", advice="It is open, invite or allowlist.")
            return Change(kind=ChangeKind.ADMISSION, number=Admission[value.upper()])
        if kind not in NUMBERS:
            raise UserError(f"{kind!r} cannot be changed.", advice=f"What can be: {', '.join(WORDS)}.")
        try:
            number = float(value) * (1000 if kind == "round-seconds" else 1)
        except ValueError:
            raise UserError(f"{kind} needs a number, not {value!r}.", advice="Write it as digits.") from None
        if not 0 < number < 1 << 40 or number != int(number):
            raise UserError(f"{value} is no possible {kind}.", advice="A positive whole number is expected.")
        return Change(kind=NUMBERS[kind], number=int(number))

    def _member(self, text: str) -> Member:
        members = self._driver.ledger.roster.members
        found = [m for m in members if text and (m.name == text or m.key.hex().startswith(text.lower()))]
        if len(found) != 1:
            raise UserError(f"No single member is called {text!r}.", advice="Name it, or the first digits of its key.")
        return found[0]


def pending(ledger: LedgerState) -> tuple[Change, ...]:
    """Changes that wait for endorsements, oldest first."""
    return tuple(dict.fromkeys(change for change, _index in ledger.endorsements))


def change_id(change: Change) -> str:
    """Short enough to type: the first digits of a hash over the change."""
    return hashlib.sha256(pack(change.content())).hexdigest()[:ID_DIGITS]


def _has_used(ledger: LedgerState, operation: Operation) -> bool:
    standing = ledger.standing(operation.signer)
    return standing is not None and standing.sequence >= operation.sequence


def _key(value: str) -> bytes:
    try:
        key = bytes.fromhex(value)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UserError(f"{value!r} is no key.", advice="Give the 64 digits that aicp-node key show prints.")
    return key

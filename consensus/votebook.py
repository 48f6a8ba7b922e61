"""The messages of one height that a replica keeps, and their counts. Bounded per sender (section 4, buffers).

Only an ACTIVE member's first message per slot counts; a second one with other content is handed back as evidence
and never overwrites. Per sender: the current view, the last 8 views and the highest future view.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consensus.messages import Ballot, Commit, MessageKind, Prepare, SetMessage, Vote
from consensus.types import Roster

PAST_VIEWS_KEPT = 8


Slot = tuple[MessageKind, int]
"""(kind, view)."""


@dataclass(slots=True)
class _Sender:
    views: dict[int, dict[MessageKind, Vote]] = field(default_factory=dict)
    highest_view: int = -1


class VoteBook:
    """Messages of one height from the members of ``roster`` (observers included: they have no power)."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._senders: dict[bytes, _Sender] = {}
        self._slots: dict[Slot, dict[int, Vote]] = {}
        self._in_order: dict[Slot, list[Vote]] = {}
        self._power: dict[Slot, int] = {}
        self._quorate: set[Slot] = set()
        self._power_heard = 0
        self._highest_view = -1

    def __len__(self) -> int:
        return sum(len(votes) for votes in self._slots.values())

    def add(self, message: Vote, *, current_view: int) -> tuple[bool, Vote | None]:
        """Record ``message``. Returns (recorded now, the conflicting earlier message if there is one)."""
        member = self.roster.by_key(message.signer)
        if member is None or message.view < current_view - PAST_VIEWS_KEPT:
            return False, None
        sender = self._senders.get(message.signer)
        if sender is None:
            sender = self._senders[message.signer] = _Sender()
            self._power_heard += self.roster.power(message.signer)
        stored = sender.views.get(message.view, {}).get(message.kind)
        if stored is not None:
            return False, None if stored == message else stored
        if message.view > current_view:
            if message.view < sender.highest_view:
                return False, None
            for view in [v for v in sender.views if current_view < v < message.view]:
                self._forget(sender, view, member.index)
        sender.highest_view = max(sender.highest_view, message.view)
        self._highest_view = max(self._highest_view, message.view)
        sender.views.setdefault(message.view, {})[message.kind] = message
        slot = (message.kind, message.view)
        self._slots.setdefault(slot, {})[member.index] = message
        self._add_power(slot, self.roster.power(message.signer))
        self._in_order.pop(slot, None)
        return True, None

    def _forget(self, sender: _Sender, view: int, index: int) -> None:
        for kind in sender.views.pop(view):
            slot = (kind, view)
            self._in_order.pop(slot, None)
            self._add_power(slot, -self.roster.power(self._slots[slot].pop(index).signer))
            if not self._slots[slot]:
                del self._slots[slot], self._power[slot]

    def _add_power(self, slot: Slot, power: int) -> None:
        total = self._power[slot] = self._power.get(slot, 0) + power
        if total >= self.roster.quorum:
            self._quorate.add(slot)
        else:
            self._quorate.discard(slot)

    def forget_before(self, current_view: int) -> None:
        for key, sender in self._senders.items():
            for view in [v for v in sender.views if v < current_view - PAST_VIEWS_KEPT]:
                self._forget(sender, view, self._index(key))

    def highest_view(self, signer: bytes) -> int:
        """In which ``signer`` said anything; -1 if it said nothing."""
        sender = self._senders.get(signer)
        return -1 if sender is None else sender.highest_view

    def of(self, signer: bytes, kind: MessageKind, view: int) -> Vote | None:
        sender = self._senders.get(signer)
        return None if sender is None else sender.views.get(view, {}).get(kind)

    def _all(self, kind: MessageKind, view: int) -> list[Vote]:
        """In join order."""
        slot = (kind, view)
        if slot not in self._in_order:
            if slot not in self._slots:
                return []
            self._in_order[slot] = [message for _index, message in sorted(self._slots[slot].items())]
        return self._in_order[slot]

    def ballots(self, view: int) -> list[Ballot]:
        """Of ACTIVE members and observers alike, in join order."""
        return [message for message in self._all(MessageKind.BALLOT, view) if isinstance(message, Ballot)]

    def set_message(self, leader: bytes, view: int) -> SetMessage | None:
        message = self.of(leader, MessageKind.SET, view)
        return message if isinstance(message, SetMessage) else None

    def prepares(self, view: int) -> list[Prepare]:
        """Of ACTIVE members, in join order."""
        active = self.roster.is_active
        return [m for m in self._all(MessageKind.PREPARE, view) if isinstance(m, Prepare) and active(m.signer)]

    def commits(self, view: int) -> list[Commit]:
        """Of ACTIVE members, in join order."""
        active = self.roster.is_active
        return [m for m in self._all(MessageKind.COMMIT, view) if isinstance(m, Commit) and active(m.signer)]

    def _index(self, key: bytes) -> int:
        member = self.roster.by_key(key)
        assert member is not None
        return member.index

    def power(self, messages: list[Prepare] | list[Commit] | list[Ballot]) -> int:
        return sum(self.roster.power(message.signer) for message in messages)

    def power_in(self, kind: MessageKind, view: int) -> int:
        """Power of all members with a message of ``kind`` in ``view``: kept up to date, so that nobody need look
        through the messages while there are too few of them for anything to follow."""
        return self._power.get((kind, view), 0)

    def power_heard(self) -> int:
        """Power of all members that said anything of this height."""
        return self._power_heard

    def quorate(self, kind: MessageKind) -> list[int]:
        """Views with messages of ``kind`` from Q power, whatever these say, rising: in no other can anything follow."""
        return sorted([view for slot_kind, view in self._quorate if slot_kind is kind]) if self._quorate else []

    def jump_target(self, current_view: int) -> tuple[int, tuple[Vote, ...]] | None:
        """The largest view v* > current whose reach (members seen at v* or above) holds F+1, and the messages.

        Of each member the message with the smallest attachment: COMMIT before PREPARE before SET before BALLOT.
        """
        if self._highest_view <= current_view:
            return None
        reached = sorted(
            ((s.highest_view, key) for key, s in self._senders.items() if s.highest_view > current_view),
            reverse=True,
        )
        power = 0
        proof: list[Vote] = []
        for view, key in reached:
            power += self.roster.power(key)
            kept = self._senders[key].views.get(view)
            if self.roster.power(key) and kept:
                proof.append(kept[max(kept)])
            if power >= self.roster.weak_quorum:
                return view, tuple(proof)
        return None

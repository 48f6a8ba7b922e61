"""The messages of one height that a replica keeps, and their counts. Bounded per sender (section 4, buffers).

Only an ACTIVE member's first message per slot counts; a second one with other content is handed back as evidence
and never overwrites. Per sender: the current view, the last 8 views and the highest future view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from consensus.messages import Ballot, Commit, MessageKind, Prepare, SetMessage, Vote
from consensus.types import Roster

PAST_VIEWS_KEPT = 8


@dataclass(slots=True)
class _Sender:
    views: dict[int, dict[MessageKind, Vote]] = field(default_factory=dict)
    highest_view: int = -1


class VoteBook:
    """Messages of one height from the members of ``roster`` (observers included: they have no power)."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._senders: dict[bytes, _Sender] = {}

    def add(self, message: Vote, *, current_view: int) -> tuple[bool, Vote | None]:
        """Record ``message``. Returns (recorded now, the conflicting earlier message if there is one)."""
        if self.roster.by_key(message.signer) is None or message.view < current_view - PAST_VIEWS_KEPT:
            return False, None
        sender = self._senders.setdefault(message.signer, _Sender())
        stored = sender.views.get(message.view, {}).get(message.kind)
        if stored is not None:
            return False, None if stored == message else stored
        if message.view > current_view:
            if message.view < sender.highest_view:
                return False, None
            for view in [v for v in sender.views if current_view < v < message.view]:
                del sender.views[view]
        sender.highest_view = max(sender.highest_view, message.view)
        sender.views.setdefault(message.view, {})[message.kind] = message
        return True, None

    def forget_before(self, current_view: int) -> None:
        for sender in self._senders.values():
            for view in [v for v in sender.views if v < current_view - PAST_VIEWS_KEPT]:
                del sender.views[view]

    def knows(self, message: Vote) -> bool:
        sender = self._senders.get(message.signer)
        return sender is not None and message.kind in sender.views.get(message.view, {})

    def of(self, signer: bytes, kind: MessageKind, view: int) -> Vote | None:
        sender = self._senders.get(signer)
        return None if sender is None else sender.views.get(view, {}).get(kind)

    def _all(self, kind: MessageKind, view: int) -> Iterator[Vote]:
        for sender in self._senders.values():
            message = sender.views.get(view, {}).get(kind)
            if message is not None:
                yield message

    def ballots(self, view: int) -> list[Ballot]:
        """Of ACTIVE members and observers alike, in join order."""
        found = [message for message in self._all(MessageKind.BALLOT, view) if isinstance(message, Ballot)]
        return sorted(found, key=lambda ballot: self._index(ballot.signer))

    def set_message(self, leader: bytes, view: int) -> SetMessage | None:
        message = self.of(leader, MessageKind.SET, view)
        return message if isinstance(message, SetMessage) else None

    def prepares(self, view: int) -> list[Prepare]:
        found = [m for m in self._all(MessageKind.PREPARE, view) if isinstance(m, Prepare)]
        return sorted((m for m in found if self.roster.is_active(m.signer)), key=lambda m: self._index(m.signer))

    def commits(self, view: int) -> list[Commit]:
        found = [m for m in self._all(MessageKind.COMMIT, view) if isinstance(m, Commit)]
        return sorted((m for m in found if self.roster.is_active(m.signer)), key=lambda m: self._index(m.signer))

    def _index(self, key: bytes) -> int:
        member = self.roster.by_key(key)
        assert member is not None
        return member.index

    def power(self, messages: list[Prepare] | list[Commit] | list[Ballot]) -> int:
        return sum(self.roster.power(message.signer) for message in messages)

    def power_heard(self) -> int:
        """Power of all members that said anything of this height."""
        return sum(self.roster.power(key) for key in self._senders)

    def views(self) -> list[int]:
        return sorted({view for sender in self._senders.values() for view in sender.views})

    def jump_target(self, current_view: int) -> tuple[int, tuple[Vote, ...]] | None:
        """The largest view v* > current whose reach (members seen at v* or above) holds F+1, and the messages.

        Of each member the message with the smallest attachment: COMMIT before PREPARE before SET before BALLOT.
        """
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

    def highest_view(self, key: bytes) -> int:
        sender = self._senders.get(key)
        return -1 if sender is None else sender.highest_view

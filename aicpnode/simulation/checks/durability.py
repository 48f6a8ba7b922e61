"""What a member signs and remembers, across crashes: invariants 3 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicpnode.simulation.member import Violation
from consensus.events import Decide, Safety
from consensus.evidence import contradiction
from consensus.messages import Commit, Operation, Prepare, Vote
from consensus.replica import Replica
from consensus.types import NO_VIEW

if TYPE_CHECKING:
    from aicpnode.simulation.member import SimulatedMember

Slot = tuple[int, int, int]
"""(kind, height, view)."""
Mark = tuple[int, int, int, int, int]
"""(height, view, step, lockedView, validView)."""


def slot(vote: Vote) -> Slot:
    return int(vote.kind), vote.height, vote.view


class Durability:
    """The votes of each honest member: on its disk now, and sent by it ever."""

    def __init__(self) -> None:
        self._on_disk: dict[bytes, dict[Slot, Vote]] = {}
        self._sent: dict[bytes, dict[Slot, Vote]] = {}
        self._operations: dict[tuple[bytes, int], Operation] = {}
        self._marks: dict[bytes, Mark] = {}

    def votes(self) -> list[Vote]:
        return [vote for votes in self._sent.values() for vote in votes.values()]

    def signed(self, member: SimulatedMember, vote: Vote) -> None:
        """Invariant 3: one content a slot, from the disk on. Invariant 4: a lock holds against each later PREPARE."""
        if vote.signer != member.key:
            raise Violation(f"invariant 3: {member.name} keeps a vote of somebody else as its own")
        known = self._on_disk.setdefault(member.key, {}).setdefault(slot(vote), vote)
        if known is not vote and known != vote:
            raise Violation(f"invariant 3: {member.name} signs two contents in slot {slot(vote)}")
        if isinstance(vote, Prepare | Commit):
            for earlier in (*self._on_disk[member.key].values(), *self._sent.get(member.key, {}).values()):
                if earlier.height == vote.height and (fault := contradiction(earlier, vote)):
                    raise Violation(f"invariant 4: {member.name} signs {fault}")

    def sent(self, member: SimulatedMember, message: Vote | Operation) -> None:
        """Invariant 3: what leaves is durable, and never contradicts what left before, across crashes."""
        if message.signer != member.key:
            return
        if isinstance(message, Operation):
            known_operation = self._operations.setdefault((member.key, message.sequence), message)
            if known_operation is not message and known_operation != message:
                raise Violation(f"invariant 3: {member.name} signs two operations with sequence {message.sequence}")
            return
        at = slot(message)
        sent = self._sent.setdefault(member.key, {})
        known = sent.get(at)
        if known is not None and known != message:
            raise Violation(f"invariant 3: {member.name} sent two contents in slot {at}")
        if known is not None:
            return  # durable when it left first; a member that lost its disk passes it on as part of somebody's proof
        is_past = message.height <= member.disk.head
        if not is_past and self._on_disk.get(member.key, {}).get(at) != message:
            raise Violation(f"invariant 3: {message.kind.name} of {member.name} left before it was durable")
        sent[at] = message

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """Votes up to this height may go from the disk; what was sent stays here."""
        self.passed(member, decision.ledger.height)

    def passed(self, member: SimulatedMember, height: int) -> None:
        """Also by taking over a state of others."""
        kept = self._on_disk.get(member.key)
        if kept:
            self._on_disk[member.key] = {at: vote for at, vote in kept.items() if at[1] > height}

    def lost(self, member: SimulatedMember) -> None:
        """The disk of ``member`` is gone. What it sent is not."""
        self._on_disk.pop(member.key, None)

    # ---- locks

    def safety(self, member: SimulatedMember, safety: Safety) -> None:
        """Invariant 4 for what reaches the disk: across crashes, it never falls either."""
        before = member.disk.safety
        if before is not None and before.height == safety.height:
            was = (before.view, before.locked_view, before.valid_view)
            now = (safety.view, safety.locked_view, safety.valid_view)
            if any(one < other for one, other in zip(now, was, strict=True)):
                raise Violation(f"invariant 4: {safety} on disk of {member.name} after {before}")
        if not NO_VIEW <= safety.locked_view <= safety.valid_view <= safety.view:
            raise Violation(f"invariant 4: {safety.locked_view}, {safety.valid_view}, {safety.view} on disk")

    def forget_memory(self, member: SimulatedMember) -> None:
        """It crashed: only its disk counts."""
        self._marks.pop(member.key, None)

    def step(self, member: SimulatedMember, replica: Replica) -> bool:
        """Invariant 4 in memory; whether anything of it changed with this event."""
        mark = (replica.height, replica.view, int(replica.step), replica.locked_view, replica.valid_view)
        before = self._marks.get(member.key)
        if mark == before:
            return False
        self._marks[member.key] = mark
        height, view, _step, locked, valid = mark
        if not NO_VIEW <= locked <= valid <= view:
            raise Violation(f"invariant 4: {member.name} locked {locked} valid {valid} at {view}")
        if before is not None and before[0] > height:
            raise Violation(f"invariant 7: {member.name} falls from height {before[0]} to {height}")
        if before is not None and before[0] == height and (before[1] > view or before[3] > locked or before[4] > valid):
            raise Violation(f"invariant 4: {member.name} falls from {before} to {mark}")
        safety = member.disk.safety
        if safety is not None and safety.height == height:
            # A step changes no more than the record that was written before its messages left.
            if (safety.view, safety.locked_view, safety.valid_view) != (view, locked, valid):
                raise Violation(f"invariant 4: {member.name} is at {mark}, its disk at {safety}")
        elif (view, locked, valid) != (0, NO_VIEW, NO_VIEW):
            raise Violation(f"invariant 4: {member.name} is at {mark} and no record of it is on its disk")
        return True


__all__ = ["Durability", "slot"]

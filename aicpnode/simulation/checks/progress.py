"""After healing: decisions come soon (invariant 14), training and operations are not starved (15).

All of it is promised only while the network is calm, honest members of power Q are up and vote, and timeouts have grown
beyond what the network needs. So counting begins when the last message of the noisy time has arrived, and a height
counts for 14 from the first view in which such members stand together and whose timeout is long enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicpnode.simulation.checks.agreement import bearable, quorum_of
from aicpnode.simulation.member import Violation
from consensus.events import Decide
from consensus.membership import LedgerState, refuse_operation
from consensus.messages import OPERATIONS_PER_SIGNER_MAX, Operation
from consensus.pool import operation_subject
from consensus.replica import Replica

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster
    from aicpnode.simulation.member import SimulatedMember

DELAYS_PER_TIMEOUT = 12
"""A timeout of so many of the longest delays is long enough: ballots, SET, and members that enter late."""
VIEWS_PER_FAULT = 3


class Progress:
    """What the honest members of a cluster could have done by now, and did."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._height = 0
        """The highest that anybody decided."""
        self._synchronised: int | None = None
        """In the running height: the view in which a quorum of honest members stood together."""
        self._is_trainable = False
        """Whether a quorum of honest members was ready when the running height began."""
        self._untrained = 0
        """Trainable heights in a row without training."""
        self._known: dict[bytes, tuple[Operation, int]] = {}
        """Operations that every honest member holds: with the height at which that was first so."""
        self._empty = 0
        self.empty_in_a_row_max = 0

    @property
    def _is_settled(self) -> bool:
        return self._cluster.now_ms >= self._cluster.settled_ms

    def _voters(self, ledger: LedgerState) -> list[Replica]:
        """Honest members that vote on the block after ``ledger``."""
        replicas = [member.replica for member in self._cluster.honest]
        return [r for r in replicas if r is not None and r.ledger.height == ledger.height and r.is_voter]

    # ---- invariant 14

    def moved(self, member: SimulatedMember, replica: Replica) -> None:
        """An honest member came to another height, view or step."""
        if not self._is_settled or replica.height != self._height + 1:
            return
        roster, view = replica.roster, replica.view
        if self._synchronised is None:
            together = [r for r in self._voters(replica.ledger) if r.view == view and r.state_hash is not None]
            needed_ms = DELAYS_PER_TIMEOUT * self._cluster.longest_delay_ms
            power = sum(roster.power(r.key) for r in together)
            if power >= quorum_of(roster) and replica.pacemaker.timeout_ms(view) >= needed_ms:
                self._synchronised = view
        elif view > self._synchronised + VIEWS_PER_FAULT * (bearable(roster) + 1):
            raise Violation(
                f"invariant 14: {member.name} is in view {view} of height {replica.height}, undecided since a quorum "
                f"stood together in view {self._synchronised}"
            )

    # ---- invariant 15

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """The first decision of its height."""
        was_trainable = self._is_trainable
        self._height = decision.ledger.height
        self._synchronised = None
        self._count_empty(decision)
        settled = self._is_settled
        self._count_training(decision, was_trainable=was_trainable and settled)
        self._is_trainable = settled and self._ready_power(decision.ledger) >= quorum_of(decision.ledger.roster)
        if settled:
            self._count_operations(decision)

    def _count_empty(self, decision: Decide) -> None:
        body = decision.block.body
        changed = body.training is not None or body.operations or decision.before.roster != decision.ledger.roster
        self._empty = 0 if changed else self._empty + 1
        self.empty_in_a_row_max = max(self.empty_in_a_row_max, self._empty)
        liars = self._liars(decision.before)
        # A leader that lies may leave out what there is: at most F of those follow each other.
        if self._is_settled and self._empty > 1 + liars:
            raise Violation(f"invariant 15: {self._empty} empty blocks in a row at height {self._height}")

    def _liars(self, ledger: LedgerState) -> int:
        """Members that vote and are not honest."""
        return sum(ledger.roster.is_active(key) for key, m in self._cluster.members.items() if not m.honest)

    def _ready_power(self, ledger: LedgerState) -> int:
        if not ledger.contributors():
            return 0
        ready = 0
        for member in self._cluster.honest:
            replica = member.replica
            opinion = None if replica is None else replica.opinion
            if opinion is not None and opinion.ready and opinion.round == ledger.round:
                ready += ledger.roster.power(member.key)
        return ready

    def _count_training(self, decision: Decide, *, was_trainable: bool) -> None:
        if decision.block.body.training is not None or not was_trainable:
            self._untrained = 0
            return
        self._untrained += 1
        if self._untrained > bearable(decision.before.roster) + 1:
            raise Violation(
                f"invariant 15: {self._untrained} heights in a row up to {self._height} without training, though a "
                "quorum was ready"
            )

    def _count_operations(self, decision: Decide) -> None:
        """An operation that all know is in the ledger within F+2 heights, unless it cannot be."""
        ledger, operations = decision.ledger, decision.block.body.operations
        for subject in [
            subject
            for subject, (operation, _since) in self._known.items()
            if operation in operations or refuse_operation(ledger, operation) is not None
        ]:
            del self._known[subject]
        patience = bearable(decision.before.roster) + 2
        is_full = len(operations) >= OPERATIONS_PER_SIGNER_MAX
        for operation, since in self._known.values():
            if self._height - since > patience and not is_full:
                raise Violation(
                    f"invariant 15: {operation.kind.name} {operation.sequence} is known to all since height {since} "
                    f"and not in block {self._height}"
                )
        voters = self._voters(ledger)
        if sum(ledger.roster.power(replica.key) for replica in voters) < quorum_of(ledger.roster):
            return
        held = [{operation_subject(o): o for o in replica.pool} for replica in voters]
        for subject, operation in held[0].items():
            if all(subject in pool for pool in held) and refuse_operation(ledger, operation) is None:
                self._known.setdefault(subject, (operation, self._height))


__all__ = ["Progress"]

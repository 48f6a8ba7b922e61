"""The invariants of the consensus specification, section 9, checked while a simulation runs.

Numbers are those of the specification; ``Violation`` names the broken one. One file a group: ``agreement`` (1, 2, 5, 6,
7, 9, 10: what was decided and what could have been), ``durability`` (3, 4: what a member signs and remembers),
``bounds`` (11), ``reach`` (8: nothing is decided beyond a quorum's reach) and ``progress`` (14, 15: after healing, soon
and with training). That nothing raises (12) is seen where events are handled, in ``member``; that one seed gives one
trace (13) by running it again.

The checks see everything: what honest members sign is added up as if all of it had arrived somewhere, and liars are
taken to have signed whatever completes it. So two votes that could make two certificates are a violation whether or not
anybody added them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicpnode.simulation.checks.agreement import Agreement
from aicpnode.simulation.checks.bounds import Bounds
from aicpnode.simulation.checks.durability import Durability
from aicpnode.simulation.checks.progress import Progress
from aicpnode.simulation.checks.reach import Reach
from aicpnode.simulation.crypto import SimulatedCrypto
from consensus.events import Decide, Safety
from consensus.evidence import Evidence
from consensus.membership import LedgerState
from consensus.messages import Operation, Vote

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster
    from aicpnode.simulation.member import SimulatedMember


class Checks:
    """Is told what the honest members of a cluster do; raises ``Violation``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        crypto = SimulatedCrypto(cluster.keys[0], cluster.network_id, honest=False)
        self.agreement = Agreement(cluster, crypto)
        self.durability = Durability()
        self.bounds = Bounds()
        self.reach = Reach(cluster)
        self.progress = Progress(cluster)
        self.decisions = 0
        """Of all honest members together."""

    @property
    def empty_in_a_row_max(self) -> int:
        """Blocks in a row that carried nothing."""
        return self.progress.empty_in_a_row_max

    def votes(self) -> list[Vote]:
        """All that honest members ever sent of their own."""
        return self.durability.votes()

    # ---- what a member does

    def signed(self, member: SimulatedMember, vote: Vote) -> None:
        """Its own vote is durable from now on."""
        self.durability.signed(member, vote)
        self.agreement.signed(member, vote)

    def safety(self, member: SimulatedMember, safety: Safety) -> None:
        """It is about to replace its safety record."""
        self.durability.safety(member, safety)
        self.agreement.learnt(member, safety)

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """It is about to write a decision."""
        self.decisions += 1
        is_first = self.agreement.decided(member, decision)
        if is_first:
            self.reach.decided(member, decision)
            self.progress.decided(member, decision)
        self.durability.decided(member, decision)

    def taken_over(self, member: SimulatedMember, ledger: LedgerState) -> None:
        """It is about to begin at a state that it was given."""
        self.agreement.taken_over(member, ledger)
        self.durability.passed(member, ledger.height)

    def sent(self, member: SimulatedMember, message: Vote | Operation) -> None:
        self.durability.sent(member, message)

    def accused(self, member: SimulatedMember, proof: Evidence) -> None:
        self.agreement.accused(member, proof)

    def started(self, member: SimulatedMember, ledger: LedgerState) -> None:
        """It comes up with what its disk says."""
        self.agreement.restarted(member, ledger)
        self.durability.forget_memory(member)

    def lost(self, member: SimulatedMember) -> None:
        """Its disk is gone."""
        self.durability.lost(member)

    def step(self, member: SimulatedMember) -> None:
        """After every event that it handled."""
        assert member.replica is not None
        if self.durability.step(member, member.replica):
            self.progress.moved(member, member.replica)
        self.bounds.step(member.replica)


__all__ = ["Checks"]

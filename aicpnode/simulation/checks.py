"""The invariants of the consensus specification, section 9, checked while a simulation runs.

``Violation`` names the broken one. Numbers are those of the specification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicpnode.simulation.crypto import SimulatedCrypto
from aicpnode.simulation.member import SimulatedMember, Violation
from consensus.blocks import ballots_of
from consensus.events import Decide, Safety
from consensus.evidence import Evidence
from consensus.messages import Operation, PrepareCert, Vote, certificate_holds
from consensus.replica import BLOCKS_KEPT, CERTIFICATES_KEPT, Replica
from consensus.types import NO_VIEW
from consensus.votebook import PAST_VIEWS_KEPT
from consensus.watch import STATEMENTS_PER_MEMBER_MAX

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster

SIZES_CHECKED_EVERY = 16
VIEWS_KEPT = PAST_VIEWS_KEPT + 2
"""Per sender: the last ones, the current one and one of the future."""


class Checks:
    """What all honest members of a cluster did so far, as far as invariants need it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._crypto = SimulatedCrypto(cluster.keys[0], cluster.network_id, honest=False)
        self._decided: dict[int, tuple[bytes, bytes, bytes]] = {}
        self._decided_views: dict[int, int] = {}
        self._prepared: dict[tuple[int, int], bytes] = {}
        self._sent: dict[tuple[bytes, int, int, int], Vote] = {}
        self.decisions = 0
        """Of all honest members together."""
        self._steps = 0
        self.empty_in_a_row_max = 0
        self._empty_in_a_row = 0

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        """Invariants 1, 2, 5, 6, 7 and 10 at the moment of a decision."""
        self.decisions += 1
        height, certificate = decision.ledger.height, decision.certificate
        if height != len(member.disk.decisions) + 1:
            raise Violation(f"invariant 7: height {height} after {len(member.disk.decisions)}")
        if not certificate_holds(self._crypto, certificate, decision.before.roster):
            raise Violation(f"invariant 5: certificate of height {height} does not hold")
        roster = self._crypto.content_id("roster", decision.ledger.roster.content())
        fact = (certificate.block_id, roster, member.state_hash(decision.ledger))
        if height not in self._decided:
            self._decided[height] = fact
            self._decided_views[height] = certificate.view
            self._count_empty(decision)
        if self._decided[height] != fact:
            raise Violation(f"invariant 1 or 10: two blocks, rosters or states at height {height}")
        self._decided_views[height] = min(self._decided_views[height], certificate.view)
        for (at, view), name in self._prepared.items():
            if at == height and view > certificate.view and name != certificate.block_id:
                raise Violation(f"invariant 2: another PrepareCert at ({at}, {view}) after a decision")
        self._included(decision)

    def _included(self, decision: Decide) -> None:
        training, roster = decision.block.body.training, decision.before.roster
        if training is None:
            return
        ballots = ballots_of(decision.block, decision.before)
        assert ballots is not None
        for author, digest in training.included:
            yes = sum(
                roster.power(ballot.signer)
                for ballot in ballots
                if any((e.author_index, e.digest, e.accepted) == (author, digest, True) for e in ballot.entries)
            )
            if yes < roster.quorum:
                raise Violation(f"invariant 6: proposal of {author} included with power {yes}")

    def _count_empty(self, decision: Decide) -> None:
        body = decision.block.body
        changed = body.training is not None or body.operations or decision.before.roster != decision.ledger.roster
        self._empty_in_a_row = 0 if changed else self._empty_in_a_row + 1
        self.empty_in_a_row_max = max(self.empty_in_a_row_max, self._empty_in_a_row)

    def accused(self, member: SimulatedMember, proof: Evidence) -> None:
        """Invariant 9: nobody that keeps the rules is ever accused."""
        if self._cluster.members[proof.accused].honest:
            raise Violation(f"invariant 9: {member.name} accuses an honest member: {proof}")

    def safety(self, member: SimulatedMember, safety: Safety) -> None:
        """Invariants 2 and 5 for PrepareCerts, 4 for what reaches the disk: across crashes, it never falls either."""
        before = member.disk.safety
        if before is not None and before.height == safety.height:
            views = (before.view, before.locked_view, before.valid_view)
            if any(
                now < was for now, was in zip((safety.view, safety.locked_view, safety.valid_view), views, strict=True)
            ):
                raise Violation(f"invariant 4: {safety} on disk after {before}")
        if not NO_VIEW <= safety.locked_view <= safety.valid_view <= safety.view:
            raise Violation(f"invariant 4: {safety.locked_view}, {safety.valid_view}, {safety.view} on disk")
        certificate = safety.valid_certificate
        if (certificate is None) != (safety.valid_view == NO_VIEW):
            raise Violation("invariant 4: a valid value without its certificate")
        if certificate is not None:
            self._prepare_certificate(member, certificate)

    def _prepare_certificate(self, member: SimulatedMember, certificate: PrepareCert) -> None:
        height, view, name = certificate.height, certificate.view, certificate.block_id
        if height == member.ledger.height + 1 and not certificate_holds(
            self._crypto, certificate, member.ledger.roster
        ):
            raise Violation(f"invariant 5: PrepareCert of ({height}, {view}) does not hold")
        if self._prepared.setdefault((height, view), name) != name:
            raise Violation(f"invariant 2: two PrepareCerts at ({height}, {view})")
        decided = self._decided.get(height)
        if decided is not None and view > self._decided_views[height] and name != decided[0]:
            raise Violation(f"invariant 2: PrepareCert at ({height}, {view}) for another block than was decided")

    def sent(self, member: SimulatedMember, message: Vote | Operation) -> None:
        """Invariant 3: what leaves is durable, and never contradicts what left before, across crashes."""
        if isinstance(message, Operation) or message.signer != member.key:
            return
        is_past = message.height <= len(member.disk.decisions)
        if not is_past and message not in member.disk.votes:
            raise Violation(f"invariant 3: {message.kind.name} left before it was durable")
        slot = (member.key, int(message.kind), message.height, message.view)
        if self._sent.setdefault(slot, message) != message:
            raise Violation(f"invariant 3: two contents in slot {slot}")

    def step(self, member: SimulatedMember) -> None:
        """Invariant 4 after every event, 11 after many."""
        replica, safety = member.replica, member.disk.safety
        assert replica is not None
        if not replica.locked_view <= replica.valid_view <= replica.view:
            raise Violation(f"invariant 4: locked {replica.locked_view} valid {replica.valid_view} at {replica.view}")
        if safety is not None and safety.height == replica.height:
            fell = replica.locked_view < safety.locked_view or replica.valid_view < safety.valid_view
            if fell or replica.view < safety.view:
                raise Violation("invariant 4: a lock fell within a height")
        self._steps += 1
        if self._steps % SIZES_CHECKED_EVERY == 0:
            self._sizes(replica)

    def _sizes(self, replica: Replica) -> None:
        sizes = replica.statistics()
        roster = len(replica.roster.members)
        limits = {
            "blocks": BLOCKS_KEPT,
            "certificates": 2 * CERTIFICATES_KEPT,
            "statements": 2 * roster * STATEMENTS_PER_MEMBER_MAX,
            "votes": roster * VIEWS_KEPT * 4,
            "previous_votes": roster * VIEWS_KEPT * 4,
            "early_votes": roster * 4,
        }
        for name, limit in limits.items():
            if sizes[name] > limit:
                raise Violation(f"invariant 11: {sizes[name]} {name}, at most {limit}")

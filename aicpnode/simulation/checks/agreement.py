"""What was decided, and what could have been: invariants 1, 2, 5, 6, 7, 9 and 10.

``_Possible`` is the memory of one height: for each block and view the honest members that signed a PREPARE or COMMIT
for it. With all liars on top, either a quorum is possible or it is not. No two PREPARE quorums may be possible in one
view, and once a COMMIT quorum is possible in a view, no PREPARE quorum for another block may be possible in a later
one, in whatever order the votes were cast. Where members misbehave with more than F, nothing of the kind is promised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aicpnode.simulation.crypto import SimulatedCrypto
from aicpnode.simulation.member import Violation
from consensus.blocks import ballots_of
from consensus.events import Decide, Safety
from consensus.evidence import Evidence, refuse_evidence
from consensus.membership import LedgerState, Suspension, apply_block
from consensus.messages import Ballot, Commit, CommitCert, Prepare, PrepareCert, SetMessage, Vote, certificate_holds
from consensus.types import NIL, NO_VIEW, MemberStatus, Roster

if TYPE_CHECKING:
    from aicpnode.simulation.cluster import Cluster
    from aicpnode.simulation.member import SimulatedMember

CERTIFICATES_REMEMBERED = 512


def power_of(keys: Iterable[bytes], roster: Roster) -> int:
    return sum(roster.power(key) for key in set(keys))


def quorum_of(roster: Roster) -> int:
    """Q, added up here and not by the roster: the checks shall not share its faults."""
    total = power_of((member.key for member in roster.members), roster)
    return total - (total - 1) // 3


def bearable(roster: Roster) -> int:
    """F, likewise."""
    return (power_of((member.key for member in roster.members), roster) - 1) // 3


@dataclass(slots=True)
class _Possible:
    """Of one height."""

    liars: int
    """Power of those that sign anything."""
    prepares: dict[tuple[int, bytes, int], set[bytes]] = field(default_factory=dict)
    """(view, block id, vr) -> honest signers."""
    commits: dict[tuple[int, bytes], set[bytes]] = field(default_factory=dict)
    prepared: dict[int, bytes] = field(default_factory=dict)
    """View -> the block that can have a PrepareCert in it."""
    committed: tuple[int, bytes] | None = None
    """(the lowest view, the block) that can have a CommitCert."""


class Agreement:
    """What all honest members of a cluster decided, signed and learnt."""

    def __init__(self, cluster: Cluster, crypto: SimulatedCrypto) -> None:
        self._cluster = cluster
        self._crypto = crypto
        self._facts: dict[int, tuple[bytes, bytes, bytes]] = {}
        """Height -> (block id, roster, state hash)."""
        self._ledgers = [cluster.genesis]
        """By height, derived here from the decided blocks alone."""
        self._possible: dict[int, _Possible] = {}
        self._seen: OrderedDict[tuple[object, ...], None] = OrderedDict()
        """Certificates that hold."""

    # ---- votes

    def _height(self, height: int, roster: Roster) -> _Possible:
        if height not in self._possible:
            liars = [key for key, member in self._cluster.members.items() if not member.honest]
            self._possible[height] = _Possible(liars=power_of(liars, roster))
        return self._possible[height]

    def signed(self, member: SimulatedMember, vote: Vote) -> None:
        """Invariants 2 and 5 for what a member signs, and shows with it."""
        ledger = member.ledger
        if vote.height != ledger.height + 1:
            raise Violation(f"invariant 7: {member.name} at height {ledger.height + 1} signs a vote of {vote.height}")
        match vote:
            case Prepare():
                self._prepared(vote, ledger.roster)
            case Commit():
                self._committed(vote, ledger.roster)
            case Ballot() | SetMessage():
                if vote.certificate is not None:
                    self._holds(vote.certificate, ledger.roster)

    def _prepared(self, vote: Prepare, roster: Roster) -> None:
        possible = self._height(vote.height, roster)
        if vote.block_id == NIL or possible.liars > bearable(roster):
            return
        signers = possible.prepares.setdefault((vote.view, vote.block_id, vote.valid_view), set())
        signers.add(vote.signer)
        if possible.liars + power_of(signers, roster) < quorum_of(roster):
            return
        if possible.prepared.setdefault(vote.view, vote.block_id) != vote.block_id:
            raise Violation(f"invariant 2: two PrepareCerts are possible at ({vote.height}, {vote.view})")
        self._compare(vote.height, possible)

    def _committed(self, vote: Commit, roster: Roster) -> None:
        possible = self._height(vote.height, roster)
        if vote.block_id == NIL or possible.liars > bearable(roster):
            return
        signers = possible.commits.setdefault((vote.view, vote.block_id), set())
        signers.add(vote.signer)
        if possible.liars + power_of(signers, roster) < quorum_of(roster):
            return
        if possible.committed is None or vote.view < possible.committed[0]:
            before, possible.committed = possible.committed, (vote.view, vote.block_id)
            if before is not None and before[1] != vote.block_id:
                raise Violation(f"invariant 1: two decisions are possible at height {vote.height}")
            self._compare(vote.height, possible)
        elif possible.committed[1] != vote.block_id:
            raise Violation(f"invariant 1: two decisions are possible at height {vote.height}")

    @staticmethod
    def _compare(height: int, possible: _Possible) -> None:
        if possible.committed is None:
            return
        decided_in, name = possible.committed
        for view, other in possible.prepared.items():
            if view > decided_in and other != name:
                raise Violation(
                    f"invariant 2: at height {height} a PrepareCert of view {view} is possible for another block than "
                    f"can be decided in view {decided_in}"
                )

    # ---- certificates

    def _holds(self, certificate: PrepareCert | CommitCert, roster: Roster) -> None:
        known = (type(certificate).__name__, certificate.height, certificate.view, certificate.votes, roster.epoch)
        if known in self._seen:
            return
        signers = {roster.members[index].key for index, _signature in certificate.votes if index < len(roster.members)}
        is_enough = len(signers) == len(certificate.votes) and power_of(signers, roster) >= quorum_of(roster)
        if not is_enough or not certificate_holds(self._crypto, certificate, roster):
            raise Violation(f"invariant 5: {known[0]} of ({certificate.height}, {certificate.view}) does not hold")
        self._seen[known] = None
        if len(self._seen) > CERTIFICATES_REMEMBERED:
            self._seen.popitem(last=False)
        if isinstance(certificate, PrepareCert) and certificate.height in self._possible:
            possible = self._possible[certificate.height]
            tolerable = possible.liars <= bearable(roster)
            at, name = certificate.view, certificate.block_id
            if tolerable and possible.prepared.setdefault(at, name) != name:
                raise Violation(f"invariant 2: two PrepareCerts at ({certificate.height}, {at})")
            if tolerable:
                self._compare(certificate.height, possible)

    def learnt(self, member: SimulatedMember, safety: Safety) -> None:
        """Invariants 2 and 5 for the PrepareCert that a member keeps."""
        certificate = safety.valid_certificate
        if (certificate is None) != (safety.valid_view == NO_VIEW):
            raise Violation("invariant 4: a valid value without its certificate")
        if certificate is None:
            return
        if (certificate.view, certificate.block_id) != (safety.valid_view, safety.valid_id):
            raise Violation("invariant 4: a valid value with the certificate of another one")
        if certificate.height == member.ledger.height + 1:
            self._height(certificate.height, member.ledger.roster)
            self._holds(certificate, member.ledger.roster)

    # ---- decisions

    def decided(self, member: SimulatedMember, decision: Decide) -> bool:
        """Invariants 1, 5, 6, 7, 9 and 10 at the moment of a decision; whether it is the first of its height."""
        height, certificate = decision.ledger.height, decision.certificate
        if height != member.disk.head + 1:
            raise Violation(f"invariant 7: {member.name} decides {height} after {member.disk.head}")
        self._holds(certificate, decision.before.roster)
        for proof in decision.prepares:
            self._holds(proof, decision.before.roster)
        roster = self._crypto.content_id("roster", decision.ledger.roster.content())
        fact = (certificate.block_id, roster, member.state_hash(decision.ledger))
        is_first = height not in self._facts
        if self._facts.setdefault(height, fact) != fact:
            raise Violation(f"invariant 1 or 10: two blocks, rosters or states at height {height}")
        possible = self._height(height, decision.before.roster)
        if possible.liars <= bearable(decision.before.roster):
            if possible.committed is not None and possible.committed[1] != certificate.block_id:
                raise Violation(f"invariant 2: another block than could be decided at height {height} was")
            if possible.committed is None or certificate.view < possible.committed[0]:
                possible.committed = (certificate.view, certificate.block_id)
                self._compare(height, possible)
        if is_first:
            self._first(decision)
        return is_first

    def _first(self, decision: Decide) -> None:
        """The ledger follows from the blocks; what entered the model had its quorum; nobody honest was punished."""
        height = decision.ledger.height
        derived = apply_block(self._ledgers[height - 1], decision.block, block_id=decision.certificate.block_id)
        if derived is None or derived.content() != decision.ledger.content():
            raise Violation(f"invariant 10: the ledger of height {height} does not follow from its blocks")
        self._ledgers.append(derived)
        self._included(decision)
        for member in self._cluster.honest:
            known, standing = derived.roster.by_key(member.key), derived.standing(member.key)
            if known is None or standing is None:
                continue
            if known.status is MemberStatus.BANNED or standing.suspension is Suspension.STRIKES:
                raise Violation(f"invariant 9: honest {member.name} is {known.status.name} at height {height}")

    def _included(self, decision: Decide) -> None:
        training, roster = decision.block.body.training, decision.before.roster
        if training is None:
            return
        ballots = ballots_of(decision.block, decision.before)
        if ballots is None:
            raise Violation(f"invariant 6: ballots of nobody in the block of height {decision.ledger.height}")
        for author, digest in training.included:
            yes = sum(
                roster.power(ballot.signer)
                for ballot in ballots
                if any((e.author_index, e.digest, e.accepted) == (author, digest, True) for e in ballot.entries)
            )
            if yes < quorum_of(roster):
                raise Violation(f"invariant 6: proposal of {author} included with power {yes}")

    def taken_over(self, member: SimulatedMember, ledger: LedgerState) -> None:
        """Invariant 7: whatever anybody gave it, it is the state that the decided blocks lead to."""
        known = self._ledgers[ledger.height] if ledger.height < len(self._ledgers) else None
        if known is None or known.content() != ledger.content():
            raise Violation(f"invariant 7: {member.name} takes over another state of height {ledger.height}")
        if ledger.height <= member.ledger.height:
            raise Violation(f"invariant 7: {member.name} falls back to height {ledger.height}")

    def restarted(self, member: SimulatedMember, ledger: LedgerState) -> None:
        """Invariant 7: a restart reproduces the same ledger and state hash."""
        if ledger.height == 0:
            return
        if ledger.content() != self._ledgers[ledger.height].content():
            raise Violation(f"invariant 7: {member.name} comes up with another ledger of height {ledger.height}")
        if self._facts[ledger.height][2] != member.state_hash(ledger):
            raise Violation(f"invariant 7: {member.name} comes up with another state of height {ledger.height}")

    # ---- conduct

    def accused(self, member: SimulatedMember, proof: Evidence) -> None:
        """Invariant 9: nobody that keeps the rules is ever accused."""
        if refusal := refuse_evidence(proof):
            raise Violation(f"invariant 9: {member.name} accuses with evidence that proves nothing: {refusal}")
        accused = self._cluster.members.get(proof.accused)
        if accused is not None and accused.honest:
            raise Violation(f"invariant 9: {member.name} accuses an honest member: {proof}")


__all__ = ["Agreement", "bearable", "power_of", "quorum_of"]

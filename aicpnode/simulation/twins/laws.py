"""What must be true in every twins run, whoever hears whom (consensus specification, section 9).

Besides what members do, the votes themselves are counted as they are signed, with the twins' power for every side: if
the members that keep the rules PREPAREd one block and another in one view, or PREPAREd another block after so many
COMMITted one that it may be decided, the rules are broken even if nobody has collected the proof yet.
"""

from __future__ import annotations

from collections.abc import Callable

from aicpnode.simulation.crypto import SimulatedCrypto
from aicpnode.simulation.member import Violation
from consensus.events import Decide, Diverged, Safety
from consensus.evidence import Evidence
from consensus.membership import LedgerState
from consensus.messages import Commit, CommitCert, MessageKind, Prepare, PrepareCert, Vote, certificate_holds
from consensus.types import NIL, NO_VIEW, Roster

Slot = tuple[int, MessageKind, int, int]
"""(instance, kind, height, view)."""


def needed_power(roster: Roster) -> int:
    """``Q`` by its definition, whatever the core takes it for."""
    total = roster.total_power
    return total - (total - 1) // 3


class Laws:
    """What all instances of a run did so far. ``twinned`` are the keys that two instances share."""

    def __init__(self, *, crypto: SimulatedCrypto, twinned: frozenset[bytes]) -> None:
        self._crypto = crypto
        self._twinned = twinned
        self.decided: dict[int, tuple[int, Decide]] = {}
        """(lowest view of a decision, the first decision) by height."""
        self._prepares: dict[tuple[int, int, bytes, int], set[bytes]] = {}
        self._commits: dict[tuple[int, int, bytes], set[bytes]] = {}
        self._preparable: dict[int, dict[int, bytes]] = {}
        self._decidable: dict[int, dict[int, bytes]] = {}
        self._signed: dict[Slot, Vote] = {}
        self._sound: set[PrepareCert | CommitCert] = set()

    # ---- votes

    def signed(self, instance: int, vote: Vote, roster: Roster) -> None:
        """Invariants 2 and 3 when an instance sends a vote of its own, for the first time or again."""
        slot = (instance, vote.kind, vote.height, vote.view)
        known = self._signed.setdefault(slot, vote)
        if known is not vote:
            if known != vote:
                raise Violation(f"invariant 3: instance {instance} signed two contents in {slot[1:]}")
            return
        if vote.signer in self._twinned or not isinstance(vote, (Prepare, Commit)) or vote.block_id == NIL:
            return
        if isinstance(vote, Prepare):
            group = self._prepares.setdefault((vote.height, vote.view, vote.block_id, vote.valid_view), set())
        else:
            group = self._commits.setdefault((vote.height, vote.view, vote.block_id), set())
        group.add(vote.signer)
        power = sum(map(roster.power, group)) + sum(map(roster.power, self._twinned))
        if power >= needed_power(roster):
            table = self._preparable if isinstance(vote, Prepare) else self._decidable
            self._add(table, vote.height, vote.view, vote.block_id)

    def _add(self, table: dict[int, dict[int, bytes]], height: int, view: int, name: bytes) -> None:
        of_height = table.setdefault(height, {})
        if of_height.setdefault(view, name) != name:
            raise Violation(f"invariant 2: two blocks could be certified at ({height}, {view})")
        prepared, decided = self._preparable.get(height, {}), self._decidable.get(height, {})
        if len(set(decided.values())) > 1:
            raise Violation(f"invariant 1: two blocks could be decided at height {height}")
        for at, winner in decided.items():
            if any(later > at and other != winner for later, other in prepared.items()):
                raise Violation(f"invariant 2: another block was prepared at height {height} after one may be decided")

    # ---- members

    def kept(self, instance: int, before: Safety | None, safety: Safety, roster: Roster) -> None:
        """Invariants 2, 4 and 5 for what reaches the disk."""
        if before is not None and before.height == safety.height:
            was = (before.view, before.locked_view, before.valid_view)
            now = (safety.view, safety.locked_view, safety.valid_view)
            if any(new < old for new, old in zip(now, was, strict=True)):
                raise Violation(f"invariant 4: instance {instance} fell from {was} to {now}")
        if not NO_VIEW <= safety.locked_view <= safety.valid_view <= safety.view:
            raise Violation(f"invariant 4: {safety.locked_view}, {safety.valid_view}, {safety.view}")
        certificate = safety.valid_certificate
        if (certificate is None) != (safety.valid_view == NO_VIEW):
            raise Violation("invariant 4: a valid value without its certificate")
        if certificate is not None:
            self._certificate(certificate, roster)
            decision = self.decided.get(safety.height)
            if decision is not None and certificate.view > decision[0]:
                self._same(certificate, decision[1])

    def _certificate(self, certificate: PrepareCert | CommitCert, roster: Roster) -> None:
        if certificate in self._sound:
            return
        power = sum(roster.power(roster.members[index].key) for index, _signature in certificate.votes)
        if power < needed_power(roster) or not certificate_holds(self._crypto, certificate, roster):
            raise Violation(f"invariant 5: certificate of ({certificate.height}, {certificate.view}) does not hold")
        self._sound.add(certificate)
        table = self._preparable if isinstance(certificate, PrepareCert) else self._decidable
        self._add(table, certificate.height, certificate.view, certificate.block_id)

    @staticmethod
    def _same(certificate: PrepareCert, decision: Decide) -> None:
        if certificate.block_id != decision.certificate.block_id:
            where = f"({certificate.height}, {certificate.view})"
            raise Violation(f"invariant 2: PrepareCert at {where} for another block than was decided")

    def decides(
        self, instance: int, ledger: LedgerState, decision: Decide, state_hash: Callable[[LedgerState], bytes]
    ) -> None:
        """Invariants 1, 2, 5, 7 and 10 at the moment of a decision, by a twin as by anybody."""
        height, certificate = decision.ledger.height, decision.certificate
        if height != ledger.height + 1:
            raise Violation(f"invariant 7: instance {instance} decides {height} after {ledger.height}")
        view, first = self.decided.setdefault(height, (certificate.view, decision))
        if first.certificate.block_id != certificate.block_id:
            raise Violation(f"invariant 1: two blocks decided at height {height}")
        if first.ledger.roster != decision.ledger.roster:
            raise Violation(f"invariant 10: two rosters at height {height}")
        if state_hash(first.ledger) != state_hash(decision.ledger):
            raise Violation(f"invariant 1: two states at height {height}")
        self.decided[height] = (min(view, certificate.view), first)
        self._certificate(certificate, decision.before.roster)
        for proof in decision.prepares:
            self._certificate(proof, decision.before.roster)

    def accused(self, instance: int, proof: Evidence) -> None:
        """Invariant 9: nobody that keeps the rules is ever accused."""
        if proof.accused not in self._twinned:
            raise Violation(f"invariant 9: instance {instance} accuses an honest member: {proof}")

    def diverged(self, instance: int, effect: Diverged) -> None:
        """Invariant 1: a quorum certified the state of every member that keeps the rules."""
        raise Violation(f"invariant 1: instance {instance} diverged: {effect}")


class Blame(Laws):
    """What holds however many are faulty: nobody that keeps the rules is ever accused (invariant 9)."""

    def signed(self, instance: int, vote: Vote, roster: Roster) -> None:
        return

    def kept(self, instance: int, before: Safety | None, safety: Safety, roster: Roster) -> None:
        return

    def decides(
        self, instance: int, ledger: LedgerState, decision: Decide, state_hash: Callable[[LedgerState], bytes]
    ) -> None:
        return

    def diverged(self, instance: int, effect: Diverged) -> None:
        return

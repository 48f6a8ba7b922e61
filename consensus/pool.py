"""Operations that wait for a block: bounded per signer and in all, in arrival order (section 3, rule 1)."""

from __future__ import annotations

from collections.abc import Iterator

from consensus.membership import LedgerState, may_join_again, refuse_admission, refuse_operation
from consensus.messages import Operation, OperationKind
from consensus.types import MemberStatus

OPERATIONS_PER_SIGNER_KEPT = 16
EVIDENCE_PER_SIGNER_KEPT = 2
"""Each may be as large as a block's room for operations."""
OPERATIONS_KEPT = 1024
STRANGERS_KEPT = 64
"""Signers that are no members (their JOIN is pending) for which operations are kept."""


def operation_subject(operation: Operation) -> bytes:
    """Names an operation: its signer and sequence."""
    return operation.signer + operation.sequence.to_bytes(8, "big")


class OperationPool:
    """Pending operations of one replica. Volatile: owners send theirs again until they are in the ledger."""

    def __init__(self) -> None:
        self._operations: dict[bytes, Operation] = {}
        self._own: set[bytes] = set()
        self._shared: set[bytes] = set()
        self._ripe: set[bytes] = set()
        self._judged_in: LedgerState | None = None
        self._refused: set[bytes] = set()
        """Ripe ones that are not valid in that state: asked after each event, it is found out once."""

    def __len__(self) -> int:
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        """In the order of arrival; at the places of one signer by rising sequence, since the ledger takes no lower
        one after a higher one."""
        of_signer: dict[bytes, list[Operation]] = {}
        for operation in sorted(self._operations.values(), key=lambda o: o.sequence, reverse=True):
            of_signer.setdefault(operation.signer, []).append(operation)
        return iter([of_signer[operation.signer].pop() for operation in self._operations.values()])

    def add(self, operation: Operation, ledger: LedgerState, *, own: bool) -> bool:
        """Whether it is new here and was taken."""
        subject = operation_subject(operation)
        if _is_settled(ledger, operation):
            return False
        if subject in self._operations:
            if own and self._operations[subject] == operation:
                self._own.add(subject)  # peers gave it back after a restart: it is to be sent again all the same
            return False
        of_signer = [other for other in self._operations.values() if other.signer == operation.signer]
        if len(of_signer) >= OPERATIONS_PER_SIGNER_KEPT or len(self._operations) >= OPERATIONS_KEPT:
            return False
        accusations = sum(other.evidence is not None for other in of_signer)
        if operation.evidence is not None and accusations >= EVIDENCE_PER_SIGNER_KEPT:
            return False
        if _is_stranger(ledger, operation.signer) and not own:
            strangers = {o.signer for o in self._operations.values() if _is_stranger(ledger, o.signer)}
            if operation.kind is not OperationKind.JOIN or operation.signer in strangers:
                return False  # nothing but one JOIN of theirs can be valid: more would only keep others out
            if len(strangers) >= STRANGERS_KEPT:
                return False
        self._operations[subject] = operation
        if own:
            self._own.add(subject)
        return True

    def ripen(self, subject: bytes) -> None:
        if subject in self._operations:
            self._ripe.add(subject)

    def has_ripe(self, ledger: LedgerState) -> bool:
        """Whether an operation that is valid now has waited for ``op_delay``."""
        if self._judged_in is not ledger:
            self._judged_in, self._refused = ledger, set()
        for subject in self._ripe - self._refused:
            if refuse_operation(ledger, self._operations[subject]) is None:
                return True
            self._refused.add(subject)
        return False

    def accuses(self, key: bytes) -> bool:
        """Whether evidence against ``key`` waits already, whoever sent it."""
        return any(o.evidence is not None and o.evidence.accused == key for o in self._operations.values())

    def own(self) -> list[Operation]:
        return [operation for subject, operation in self._operations.items() if subject in self._own]

    def passed_over(self, ledger: LedgerState) -> list[Operation]:
        """Operations that had waited long enough for the block just decided and are not in it, each once.

        Its leader may never have seen them; whoever holds one passes it on, or else blocks without them follow.
        """
        found = []
        for subject in sorted(self._ripe - self._own - self._shared):
            operation = self._operations[subject]
            if refuse_operation(ledger, operation) is None:
                self._shared.add(subject)
                found.append(operation)
        return found

    def settle(self, ledger: LedgerState) -> None:
        """Forget what is in the ledger or can never be."""
        for subject in [s for s, operation in self._operations.items() if _is_settled(ledger, operation)]:
            del self._operations[subject]
            self._own.discard(subject)
            self._ripe.discard(subject)
            self._shared.discard(subject)


def _is_stranger(ledger: LedgerState, key: bytes) -> bool:
    """No member, or one that failed its probation: a key that cost nothing."""
    member = ledger.roster.by_key(key)
    return member is None or may_join_again(member)


def _is_settled(ledger: LedgerState, operation: Operation) -> bool:
    """In the ledger, or never to be: whoever wanted it has to ask again."""
    standing = ledger.standing(operation.signer)
    member = ledger.roster.by_key(operation.signer)
    if standing is not None and operation.sequence <= standing.sequence:
        return True
    if operation.kind is OperationKind.JOIN:
        is_member = member is not None and not may_join_again(member)
        return is_member or refuse_admission(ledger, operation.signer, operation.invitation) is not None
    if member is None:
        return False  # its JOIN may be on the way
    if operation.kind is OperationKind.PRESENT:
        # Kept while its height is still to come: this replica may be behind the one that announced it. What is not
        # asked for now, because its signer was promoted meanwhile, would only keep that from saying anything else.
        argument = operation.arguments[0]
        assert isinstance(argument, int)
        if argument <= ledger.height:
            return refuse_operation(ledger, operation) is not None
        suspended = member.status is MemberStatus.SUSPENDED and not ledger.standings[member.index].is_returning
        return suspended or member.status is MemberStatus.BANNED
    return refuse_operation(ledger, operation) is not None

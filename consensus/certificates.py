"""The PrepareCerts of one height that a replica has verified: to learn from, and to stand behind the decision.

Each is verified once and alone, whatever first votes are stored (sections 1 and 4). Both stores are bounded; a liar
cannot fill them, since every certificate in them has a quorum behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from consensus.messages import CommitCert, Crypto, PrepareCert, certificate_holds
from consensus.types import NO_VIEW, Roster

CERTIFICATES_KEPT = 16
"""One a view, in either store."""


class PrepareCerts:
    """Of one height. ``on_verified`` is told each certificate when it has been found to hold."""

    def __init__(self, height: int, roster: Roster, crypto: Crypto, on_verified: Callable[[PrepareCert], None]) -> None:
        self._height = height
        self._roster = roster
        self._crypto = crypto
        self._on_verified = on_verified
        self._to_learn: dict[int, PrepareCert] = {}
        self._proven: dict[int, PrepareCert] = {}

    def __len__(self) -> int:
        return len(self._to_learn) + len(self._proven)

    def proves(self, certificate: PrepareCert | None, view: int, block: bytes, *, above: int) -> bool:
        """Whether ``certificate`` holds and is that of ``block`` in ``view``; above the valid view ``above`` it is to
        be learnt."""
        if certificate is None or certificate.height != self._height:
            return False
        if certificate.view != view or certificate.block_id != block:
            return False
        if certificate in (self._to_learn.get(view), self._proven.get(view)):
            return True
        if not certificate_holds(self._crypto, certificate, self._roster):
            return False
        self._on_verified(certificate)
        self.remember(certificate)
        if certificate.view > above:
            self._to_learn.setdefault(certificate.view, certificate)
            if len(self._to_learn) > CERTIFICATES_KEPT:
                del self._to_learn[min(self._to_learn)]
        return True

    def remember(self, certificate: PrepareCert) -> None:
        """As one that may stand behind the decision; those of the oldest views stay when there are many."""
        if len(self._proven) < CERTIFICATES_KEPT:
            self._proven.setdefault(certificate.view, certificate)

    def highest(self, above: int, up_to: int) -> PrepareCert | None:
        """That of the highest view in ``above < view <= up_to`` that is still to be learnt."""
        views = [view for view in self._to_learn if above < view <= up_to]
        return self._to_learn[max(views)] if views else None

    def learnt(self, certificate: PrepareCert) -> None:
        """It is the valid value now: it and lower ones have nothing more to say."""
        self.remember(certificate)
        self._to_learn = {view: known for view, known in self._to_learn.items() if view > certificate.view}

    def behind(
        self, decided: CommitCert, formed: Callable[[int], PrepareCert | None], valid: PrepareCert | None
    ) -> tuple[PrepareCert, ...]:
        """The PrepareCerts that led to a decision, newest first, as far as they are known here; ``formed`` gives the
        one that the PREPAREs of a view make.

        Where ``valid``, this member's valid value, shows that more than F are faulty (another block, certified in the
        view of the decision or after it), those that led to it follow: who made that other block may have shown the
        proof to nobody else, and at the next height it would be forgotten.
        """
        found = self._chain(decided.view, decided.block_id, formed)
        if valid is not None and valid.view >= decided.view and valid.block_id != decided.block_id:
            found += self._chain(valid.view, valid.block_id, formed)
        return tuple(found)

    def _chain(self, view: int, name: bytes, formed: Callable[[int], PrepareCert | None]) -> list[PrepareCert]:
        found: list[PrepareCert] = []
        while view != NO_VIEW:
            proof = formed(view)
            if proof is None or proof.block_id != name:
                proof = self._proven.get(view)
            if proof is None or proof.block_id != name:
                break
            found.append(proof)
            view = proof.valid_view
        return found

"""What this node proposed itself, and the residual that its next proposal starts from.

The own GRAD, the package and the residual after it become durable together, before anything is sent: after a crash the
same GRAD is sent again (another one would be equivocation), and the residual fits to what was proposed. It stays so
whatever becomes of the proposal, so that no leader can wipe residuals; only a node that missed more than
``GAP_ROUNDS_MAX`` rounds starts from zero again (gradients specification, section 1).
"""

from __future__ import annotations

import numpy as np

from aicpnode.envelop.codec import Envelop, decode, encode
from aicpnode.gradients.packages import Packages
from aicpnode.gradients.proposal import EncodedProposal
from aicpnode.gradients.state import array_bytes
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.faults import DamagedBlob, MissingBlob
from kernels.codec import Float32Array

GAP_ROUNDS_MAX = 3
"""Rounds without an own proposal after which the residual is stale."""
ROUNDS_KEPT = 8
"""Own GRADs that stay on record."""


class OwnProposals:
    """The own proposals of the last rounds. Methods block for disk operations, except ``latest_round``."""

    def __init__(self, database: Database, blobs: Blobs, packages: Packages) -> None:
        self._database = database
        self._blobs = blobs
        self._packages = packages
        latest = database.latest_proposal()
        self.latest_round = -1 if latest is None else latest.round
        """No proposal is ever made for this round or an earlier one: its slot may have been signed."""

    def stored(self, round: int) -> Envelop | None:
        """The own GRAD of a round, as it was signed."""
        stored = self._database.proposal(round)
        return None if stored is None else decode(stored.grad)[0]

    def residual(self, round: int, size: int) -> tuple[Float32Array, str]:
        """The residual to start from, float32[size], and why it is zero, if it is for a reason worth telling."""
        zero = np.zeros(size, dtype=np.float32)
        latest = self._database.latest_proposal()
        if latest is None:
            return zero, ""
        missed = round - latest.round - 1
        if missed > GAP_ROUNDS_MAX:
            return zero, f"{missed} rounds were missed"
        try:
            data = self._blobs.get(latest.residual_digest)
        except (DamagedBlob, MissingBlob) as error:
            return zero, f"the stored residual is lost: {error}"
        if len(data) != 4 * size:
            return zero, "the stored residual belongs to a model of another size"
        return np.frombuffer(data, dtype="<f4").astype(np.float32), ""

    def store(self, grad: Envelop, encoded: EncodedProposal) -> None:
        """Make GRAD, package and residual durable together. Raises StorageFull or StorageFailed: nothing is kept."""
        round = encoded.header.round
        assert round > self.latest_round, "one proposal a round, in order"
        package_blob = self._blobs.put(encoded.package)
        residual_blob = self._blobs.put(array_bytes(encoded.residual))
        with self._database.transaction():
            previous = self._database.latest_proposal()
            self._packages.enter(round, encoded.digest, package_blob)
            self._database.put_proposal(
                round=round, grad=encode(grad), package_digest=package_blob, residual_digest=residual_blob
            )
            self._database.prune_proposals(below_round=round - ROUNDS_KEPT + 1)
        self.latest_round = round
        if previous is not None and previous.residual_digest != residual_blob:
            self._blobs.delete(previous.residual_digest)

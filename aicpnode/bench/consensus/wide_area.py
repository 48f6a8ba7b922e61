"""Consensus among up to a hundred members in eight regions, in virtual time, with the processor time they need.

What is real: the replica of each member with its signing key and its database, the bytes of every message, the router
that takes them. What is modelled: the ways and lines of ``simulation.latency`` (100 Mbit/s each way, a full mesh
without relays, which is what nodes keep up to 128 peers), and time: each member has one core
(``simulation.processor``), charged with what this machine measured for the same work in this run: making, sending,
receiving and checking a message, handling it in the replica, hashing states, writing to the disk (while it is waited
for, the core does other work). What is left out: training, gradient bodies, heartbeats and announcements of heads.

Every member proposes in every round and says yes to everybody's proposal. A decision is timed as a node times it: from
its first sight of the height's ballots, its own included, until the decision is on its disk.
"""

from __future__ import annotations

import gc
import hashlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aicpnode.bench.consensus.member import SimulatedMember
from aicpnode.bench.consensus.meter import Meter, TransportCost
from aicpnode.bench.consensus.wire import Wire
from aicpnode.envelop.kinds import encode_block
from aicpnode.errors import AicpError
from aicpnode.identity import Identity
from aicpnode.replication.intent import WITHOUT_END
from aicpnode.replication.ledger import LedgerStore
from aicpnode.simulation.processor import VirtualTime
from aicpnode.storage.database import Database
from consensus.events import Decide
from consensus.membership import LedgerRules, LedgerState, genesis_state
from consensus.pacemaker import Timing

WIDE_AREA_DELTA_MS = 1_000
TRAINING_MS = 1_500.0
"""Between applying a round and announcing a proposal. Nothing else happens then."""
ROUND_LIMIT_MS = 120_000.0
"""Of virtual time, for one height."""
WARM_UP_HEIGHTS = 1


class Undecided(AicpError):
    """The members did not decide in time."""


class WideArea:
    """One run of ``members`` proposers."""

    def __init__(
        self,
        *,
        members: int,
        seed: int,
        meter: Meter,
        transport: TransportCost,
        training_ms: float = TRAINING_MS,
    ) -> None:
        self.seed = seed
        self.meter = meter
        self.training_ms = training_ms
        self.time = VirtualTime()
        self.network_id = hashlib.sha256(b"wide area").digest()
        identities = [Identity(hashlib.sha256(b"%d/%d" % (seed, index)).digest()) for index in range(members)]
        keys = [identity.key for identity in identities]
        self.wire = Wire(network_id=self.network_id, keys=keys, meter=meter, transport=transport)
        genesis = _all_contribute(
            genesis_state(
                [(key, 1, f"member-{index}") for index, key in enumerate(keys)],
                self.network_id,
                LedgerRules(probation_rounds=2, members_max=max(members, 64)),
            )
        )
        timing = Timing(delta_ms=WIDE_AREA_DELTA_MS)
        self.members = [
            SimulatedMember(self, index, identity, genesis, timing) for index, identity in enumerate(identities)
        ]
        self.by_key = {member.identity.key: member for member in self.members}
        self.block_bytes = 0
        """Of the largest block."""
        self.proposals = 0
        """Included in the last block."""
        self.views = 0
        """Highest view that decided."""

    def decided(self, member: SimulatedMember, decision: Decide) -> None:
        if member is self.members[0]:
            self.block_bytes = max(self.block_bytes, len(encode_block(decision.block)))
            training = decision.block.body.training
            self.proposals = 0 if training is None else len(training.included)
        self.views = max(self.views, decision.certificate.view)

    def start(self, folder: Path | None, stack: ExitStack) -> None:
        """Databases in ``folder``, closed with ``stack``; None: nothing is written."""
        for member in self.members:
            if folder is not None:
                place = folder / str(member.index)
                place.mkdir()
                member.store = LedgerStore(stack.enter_context(Database.open(place)), self.network_id)
        for member in self.members:
            member.start(self.members)

    def run_to(self, height: int) -> None:
        """Until every member has decided ``height``."""
        reached = self.time.run(
            until=lambda: all(member.replica.ledger.height >= height for member in self.members),
            limit_ms=self.time.now_ms + ROUND_LIMIT_MS * height,
        )
        if not reached:
            heights = sorted({member.replica.ledger.height for member in self.members})
            raise Undecided(f"the members stand at heights {heights} after {self.time.now_ms / 1000:.0f} s")

    def totals(self) -> tuple[float, float, float, float]:
        """(processor ms, messages, bytes, verifications) of all members so far."""
        counts = [member.counts for member in self.members]
        return (
            sum(member.processor.busy_ms for member in self.members),
            float(sum(count.messages for count in counts)),
            float(sum(count.bytes for count in counts)),
            float(sum(count.verifications for count in counts)),
        )


def measure(
    *, members: int, heights: int, seed: int, meter: Meter, transport: TransportCost, on_disk: bool = True
) -> dict[str, Any]:
    """One row: costs are a decision's, summed over the members except where the name says otherwise."""
    run = WideArea(members=members, seed=seed, meter=meter, transport=transport)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="aicp-bench-"))) if on_disk else None
        # A hundred members in one process would make each collection cost a hundred times what a node pays.
        stack.callback(gc.enable)
        gc.disable()
        run.start(folder, stack)
        run.run_to(WARM_UP_HEIGHTS)
        before = run.totals()
        for member in run.members:
            member.counts.decision_ms.clear()
        for height in range(WARM_UP_HEIGHTS + 1, WARM_UP_HEIGHTS + heights + 1):
            run.run_to(height)
            gc.collect()
    spent = [(later - earlier) / heights for later, earlier in zip(run.totals(), before, strict=True)]
    times = sorted(time for member in run.members for time in member.counts.decision_ms)
    return {
        "mode": "simulated_wan",
        "n": members,
        "proposals": run.proposals,
        "decisions": heights,
        "decision_ms_p50": _percentile(times, 0.5),
        "decision_ms_p99": _percentile(times, 0.99),
        "cpu_ms_per_decision_per_node": spent[0] / members,
        "messages": spent[1],
        "bytes": spent[2],
        "verifications": spent[3],
        "block_bytes": run.block_bytes,
        "views": run.views,
        "fetches": sum(member.counts.fetches for member in run.members) / heights,
    }


def _all_contribute(ledger: LedgerState) -> LedgerState:
    standings = (replace(standing, until_round=WITHOUT_END, since_round=0) for standing in ledger.standings)
    return replace(ledger, standings=tuple(standings))


def _percentile(rising: list[float], share: float) -> float:
    """0 where nothing was timed: a member alone decides in the very step in which it votes."""
    return 0.0 if not rising else rising[min(len(rising) - 1, int(share * len(rising)))]


__all__ = ["Undecided", "WideArea", "measure"]

"""What the members agreed on before the first block, as replication needs it: from the genesis."""

from __future__ import annotations

from dataclasses import dataclass

from aicpnode.genesis import Genesis
from consensus.membership import Admission, LedgerRules, LedgerState, genesis_state
from consensus.pacemaker import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """``genesis`` is the ledger's state at height 0; ``k`` and ``bits`` are the format of proposals."""

    network_id: bytes
    genesis: LedgerState
    timing: Timing
    k: int
    bits: int

    @classmethod
    def of(cls, genesis: Genesis) -> Agreement:
        network_id = genesis.network_id
        rules = LedgerRules(
            probation_rounds=genesis.probation_rounds,
            members_max=genesis.max_members,
            admission=Admission[genesis.admission.name],
            round_ms=genesis.round.round_ms,
            allowlist=frozenset(expected.key for expected in genesis.allowlist),
        )
        founders = ((founder.key, founder.power, founder.name) for founder in genesis.roster)
        return cls(
            network_id=network_id,
            genesis=genesis_state(founders, network_id, rules),
            timing=Timing(
                delta_ms=genesis.consensus.delta_ms,
                operation_delay_ms=genesis.consensus.op_delay_ms,
                timeout_max_ms=genesis.consensus.max_timeout_ms,
            ),
            k=genesis.round.k,
            bits=genesis.round.bits,
        )

"""What goes into a replica and what comes out of it.

Inputs carry no time: time arrives as ``TimerFired``. Effects are carried out in order, except that everything to be
persisted by one ``handle`` call is on disk, in one transaction, before anything of it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from consensus.evidence import Evidence
from consensus.membership import LedgerState
from consensus.messages import BallotEntry, Block, CommitCert, Operation, PrepareCert, Vote


class Step(IntEnum):
    PROPOSE = 0
    PREPARE = 1
    COMMIT = 2


class TimerKind(IntEnum):
    PROPOSE = 1
    """TP: no SET in time."""
    PREPARE = 2
    """TE: Q power of PREPAREs that agree on nothing."""
    COMMIT = 3
    """TC: Q power of COMMITs that agree on nothing."""
    LEADER_SOFT = 4
    """delta/4 after enough ballots: the leader waits no longer for the rest."""
    LEADER_HARD = 5
    """Half of TP: the leader proposes with what it has."""
    OPERATION = 6
    """op_delay: an operation has waited long enough."""
    RESEND = 7
    ENTRY = 8
    """The window in which each lagging peer gets one entry proof."""
    CATCHUP = 9
    FETCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """Names a timer; setting it again replaces it. ``subject`` is the operation's id for OPERATION."""

    kind: TimerKind
    height: int
    view: int = 0
    subject: bytes = b""


# ---- inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message whose signature has been verified."""

    message: Vote


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationReceived:
    operation: Operation
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """This node's state after the block of ``height`` (0: the genesis)."""

    height: int
    state_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What this member thinks of the running round; the latest one replaces earlier ones of the round."""

    round: int
    ready: bool
    entries: tuple[BallotEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReceived:
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReceived:
    block: Block
    certificate: CommitCert


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAnnounced:
    """A peer claims to have decided ``height``. A hint, never a fact."""

    peer: bytes
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMeasured:
    """Twice the median of this node's recent decision times, in milliseconds: raises the local timeout unit."""

    delta_ms: int


Input = (
    Received
    | OperationReceived
    | TimerFired
    | Applied
    | Opinion
    | BlockReceived
    | DecisionReceived
    | HeadAnnounced
    | DeltaMeasured
)


# ---- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Safety:
    """The part of a replica that a crash must not take away (section 4)."""

    height: int
    view: int
    step: Step
    locked_view: int
    locked_id: bytes
    valid_view: int
    valid_id: bytes
    valid_certificate: PrepareCert | None
    entry: tuple[Vote, ...] = ()
    """entry(v): what let this member into ``view``; it proves the view to those that lag behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistVote:
    message: Vote


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistSafety:
    safety: Safety


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistBlock:
    block_id: bytes
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """To everybody (``to`` is None) or to one member."""

    message: Vote | Operation
    to: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    timer: Timer
    delay_ms: int
    jitter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Ask ``targets`` for a block that certificates name but that is not here."""

    height: int
    block_id: bytes
    targets: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDecisions:
    """Ask ``target`` for the decided blocks from ``height`` on."""

    height: int
    target: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDecision:
    """Send ``to``, who is stuck at ``height``, that height's decision."""

    height: int
    to: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """The block of ``ledger.height`` is final: persist it, then apply it. ``before`` is the state it builds on."""

    block: Block
    certificate: CommitCert
    before: LedgerState
    ledger: LedgerState
    prepares: tuple[PrepareCert, ...] = ()
    """The PrepareCerts behind it as far as they are known here, newest first: on a fork they convict the culprits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """A member was seen to break the rules, with the proof."""

    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """This node's state at ``height`` is not the certified one: it stops signing."""

    height: int
    own: bytes
    certified: bytes


Effect = (
    PersistVote
    | PersistSafety
    | PersistBlock
    | Send
    | SetTimer
    | Fetch
    | RequestDecisions
    | ServeDecision
    | Decide
    | Accusation
    | Diverged
)

"""What replication asks of the thing it replicates. Implemented above (by the gradient participant) and injected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class IncludedProposal:
    """A proposal that a block let in. ``power`` of its author at that height: 0 weighs nothing."""

    author: bytes
    power: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedTraining:
    """The agreed set of one round, by rising author index."""

    round: int
    included: tuple[IncludedProposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """What the ledger says of the running round: told again whenever any of it changes."""

    round: int
    height: int
    authors: Mapping[bytes, int]
    """Roster authors: key -> index."""
    voters: frozenset[bytes]
    """Keys with voting power: what the others propose weighs nothing."""
    expected: frozenset[bytes]
    last_round_empty: bool
    contributing: bool
    """Whether anybody contributes: if not, the round has no deadline."""
    own_contribution: bool
    round_ms: int
    """How long the round takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What a snapshot's bytes hold, computed from them. ``round`` is the one that begins on that state."""

    round: int
    model_hash: bytes
    agreed_root: bytes


class Application(Protocol):
    """State that decided blocks change. All methods are called in the order of the ledger, never concurrently."""

    def model_hash(self) -> bytes:
        """Of the state as it is now; 32 bytes."""
        ...

    def agreed_root(self) -> bytes:
        """A hash over all of the state that must be the same everywhere, the model included."""
        ...

    async def apply(self, training: DecidedTraining) -> bytes:
        """Apply one round's agreed proposals, fetching what is missing for as long as it takes; the new model hash."""
        ...

    def begin_round(self, context: RoundContext) -> None:
        """The ledger's view of the running round, after every block."""
        ...

    async def snapshot(self) -> bytes:
        """Store the state as a blob; its digest."""
        ...

    async def forget_snapshot(self, digest: bytes) -> None:
        """Delete a snapshot that nothing refers to any more."""
        ...

    @property
    def snapshot_bytes_max(self) -> int:
        """No snapshot of this run is larger."""
        ...

    def snapshot_size(self, digest: bytes) -> int | None:
        """Bytes of a stored snapshot; None if it is not here."""
        ...

    def read_snapshot(self, digest: bytes, offset: int, length: int) -> bytes:
        """A piece of a stored snapshot, unchecked: whoever asked for it checks the whole."""
        ...

    def inspect_snapshot(self, data: bytes) -> SnapshotFacts:
        """Of bytes that a stranger sent. Blocks for long. MalformedError if they are no snapshot of this run."""
        ...

    async def store_snapshot(self, data: bytes) -> bytes:
        """Make inspected bytes durable; their digest."""
        ...

    async def restore(self, digest: bytes, model_hash: bytes) -> None:
        """Take the state from a stored snapshot in place of the present one."""
        ...

    async def forget_bodies(self, below_round: int) -> None:
        """Delete what was included in earlier rounds: whoever still needs it takes a snapshot."""
        ...

    def waits_for_bodies_s(self) -> float | None:
        """For how long ``apply`` has been waiting for what a block included; None if it is not."""
        ...

    def pause(self, paused: bool) -> None:
        """Whether nothing can be decided at present: what is being computed is dropped, and nothing new begins."""
        ...

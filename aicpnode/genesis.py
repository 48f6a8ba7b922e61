"""The run, agreed by hash: whoever holds the same bytes is in the same network.

The genesis says what is trained, on which data, by what rules, and who decides at the start. Its canonical encoding has
one form, and the network id is the SHA-256 of it, so that no two members can mean different things by one id. All
numbers are integers, with the unit or the scale in the name (``_ms``, ``_micro`` = 1e-6, ``_milli`` = 1e-3, ``_nano`` =
1e-9, ``_q16`` = 16 fractional bits).

A field is declared together with its limits; encoding, decoding and checking all follow from that one declaration. Read
from a peer, everything is suspect: what does not fit the limits is that peer's MalformedError.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from aicpnode.envelop.codec import Value, pack, unpack
from aicpnode.envelop.records import Bytes, Integer, Many, Record, Text
from aicpnode.errors import MalformedError, UserError

VERSION = 1
MAX_GENESIS_BYTES = 1 << 20
MAX_SHARDS = 4096
MAX_SHARD_BYTES = 64 << 20
MAX_MEMBERS = 100
MAX_ALLOWLIST = 1024
MAX_PARAMETERS = 1 << 40
MAX_ROUND_MS = 24 * 3600 * 1000
"""One day."""
HASH_BYTES = 32
KEY_BYTES = 32
NONCE_BYTES = 16
ALLOWED_K = (41, 64, 128, 205, 410)
"""Coordinates kept of a chunk of 4096: 1 % to 10 % (gradients specification, section 2)."""
ALLOWED_BITS = (2, 4, 8)
MAX_LEARNING_RATE_Q16 = 16 << 16
MAX_MOMENTUM_Q16 = 31 << 11
"""0.96875."""


class ModelKind(StrEnum):
    TRANSFORMER = "transformer"


class DataMode(StrEnum):
    SHARED = "shared"


class Split(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"


class Rule(StrEnum):
    """How proposals become one update (gradients specification, section 4)."""

    CENTERED_CLIP = "centered_clip"
    CLIP = "clip"
    MEAN = "mean"


class Admission(StrEnum):
    """Who may join (consensus specification, section 7)."""

    OPEN = "open"
    """Anybody who reaches a member."""
    INVITE = "invite"
    """Whom a voting member has invited, and whom ``allowlist`` names."""
    ALLOWLIST = "allowlist"
    """Whom ``allowlist`` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Record):
    """A decoder-only transformer over bytes."""

    kind: ModelKind = ModelKind.TRANSFORMER
    vocab: Annotated[int, Integer(2, 1 << 20)] = 256
    layers: Annotated[int, Integer(1, 1024)]
    heads: Annotated[int, Integer(1, 1024)]
    kv_heads: Annotated[int, Integer(1, 1024)]
    width: Annotated[int, Integer(1, 1 << 20)]
    ffn_width: Annotated[int, Integer(1, 1 << 22)]
    context: Annotated[int, Integer(1, 1 << 24)]
    """Tokens that one prediction can look back on."""
    rope_theta: Annotated[int, Integer(1, 1 << 40)] = 10_000
    tied: bool = True
    """The output layer is the embedding."""
    norm_eps_nano: Annotated[int, Integer(1, 10**9)] = 1000

    def fault(self) -> str | None:
        if self.width % self.heads or self.heads % self.kv_heads:
            return "width is a multiple of heads, and heads of kv_heads"
        if (self.width // self.heads) % 2:
            return "rotary positions need an even width of a head"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Record):
    """A piece of the data set, a blob named by its SHA-256."""

    name: Annotated[str, Text(128)]
    sha256: Annotated[bytes, Bytes(HASH_BYTES)]
    size: Annotated[int, Integer(1, MAX_SHARD_BYTES)]
    """Bytes."""
    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec(Record):
    """Where the text comes from: shards that every member can fetch."""

    mode: DataMode = DataMode.SHARED
    shards: Annotated[tuple[Shard, ...], Many(0, MAX_SHARDS)]

    def fault(self) -> str | None:
        if len({shard.name for shard in self.shards}) != len(self.shards):
            return "two shards have one name"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec(Record):
    """The inner steps of a round: AdamW on the batches that the round prescribes."""

    inner_steps: Annotated[int, Integer(1, 1 << 20)]
    batch_size: Annotated[int, Integer(1, 1 << 16)]
    """Sequences."""
    sequence_length: Annotated[int, Integer(1, 1 << 24)]
    """Tokens."""
    inner_lr_micro: Annotated[int, Integer(0, 10**7)]
    warmup_steps: Annotated[int, Integer(0, 1 << 30)]
    decay_rounds: Annotated[int, Integer(0, 1 << 30)] = 0
    """Rounds until the inner learning rate has fallen to a tenth; 0 is no decay."""
    weight_decay_milli: Annotated[int, Integer(0, 10_000)]
    beta1_milli: Annotated[int, Integer(0, 999)]
    beta2_milli: Annotated[int, Integer(0, 999)]
    clip_milli: Annotated[int, Integer(0, 10**6)]
    """Largest gradient norm; 0 is no clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSpec(Record):
    """How long a round takes and how its proposals are encoded and aggregated."""

    round_ms: Annotated[int, Integer(100, MAX_ROUND_MS)]
    k: Annotated[int, Integer(min(ALLOWED_K), max(ALLOWED_K))] = 205
    bits: Annotated[int, Integer(min(ALLOWED_BITS), max(ALLOWED_BITS))] = 2
    rule: Rule = Rule.CENTERED_CLIP
    outer_lr_q16: Annotated[int, Integer(1, MAX_LEARNING_RATE_Q16)] = 1 << 16
    momentum_q16: Annotated[int, Integer(0, MAX_MOMENTUM_Q16)] = 0
    nesterov: bool = False
    norm_cap: Annotated[int, Integer(0, (1 << 63) - 1)] = 0
    """R of the first round, in 2^-40; 0 is none."""

    def fault(self) -> str | None:
        if self.k not in ALLOWED_K or self.bits not in ALLOWED_BITS:
            return f"k is one of {ALLOWED_K}, bits one of {ALLOWED_BITS}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Founder(Record):
    """A member from the start."""

    key: Annotated[bytes, Bytes(KEY_BYTES)]
    power: Annotated[int, Integer(1, 1 << 32)] = 1
    name: Annotated[str, Text(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Record):
    """A key that may join without an invitation."""

    key: Annotated[bytes, Bytes(KEY_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSpec(Record):
    """Timeouts of the decision protocol (consensus specification, section 4)."""

    delta_ms: Annotated[int, Integer(1, 60_000)] = 150
    op_delay_ms: Annotated[int, Integer(0, 60_000)] = 200
    max_timeout_ms: Annotated[int, Integer(1, 3_600_000)] = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage(Record):
    """The state of an earlier run that this one goes on from (consensus specification, section 5)."""

    network_id: Annotated[bytes, Bytes(HASH_BYTES)]
    height: Annotated[int, Integer(0, (1 << 63) - 1)]
    round: Annotated[int, Integer(0, (1 << 63) - 1)]
    state_hash: Annotated[bytes, Bytes(HASH_BYTES)]
    model_hash: Annotated[bytes, Bytes(HASH_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Genesis(Record):
    """Everything that the members of a run agree on before its first block."""

    version: Annotated[int, Integer(VERSION, VERSION)] = VERSION
    name: Annotated[str, Text(64)]
    nonce: Annotated[bytes, Bytes(NONCE_BYTES)]
    """Random, so that two runs with the same settings are two networks."""
    created: Annotated[str, Text(64)]
    """For people; nothing depends on it."""
    model: ModelSpec
    parameters: Annotated[int, Integer(1, MAX_PARAMETERS)]
    layout_hash: Annotated[bytes, Bytes(HASH_BYTES)]
    initial_model: Annotated[bytes, Bytes(HASH_BYTES)]
    """The blob with the first theta."""
    initial_model_hash: Annotated[bytes, Bytes(HASH_BYTES)]
    """The model hash of the state before the first round."""
    data: DataSpec
    training: TrainingSpec
    round: RoundSpec
    roster: Annotated[tuple[Founder, ...], Many(1, MAX_MEMBERS)]
    admission: Admission = Admission.OPEN
    allowlist: Annotated[tuple[Expected, ...], Many(0, MAX_ALLOWLIST)] = ()
    probation_rounds: Annotated[int, Integer(1, 100_000)] = 50
    max_members: Annotated[int, Integer(1, MAX_MEMBERS)] = MAX_MEMBERS
    consensus: ConsensusSpec
    lineage: Annotated[tuple[Lineage, ...], Many(0, 1)] = ()
    """Empty for a run that begins with a new model."""

    def fault(self) -> str | None:
        if len({founder.key for founder in self.roster}) != len(self.roster):
            return "one key stands twice in the roster"
        if len(self.roster) > self.max_members:
            return "more founders than max_members"
        if self.admission is Admission.OPEN and self.allowlist:
            return "an allowlist means nothing while admission is open"
        if self.training.sequence_length > self.model.context:
            return "sequence_length is longer than the model's context"
        return None

    def encode(self) -> bytes:
        """The canonical bytes. ValueError above MAX_GENESIS_BYTES."""
        data = pack(self.to_value())
        if len(data) > MAX_GENESIS_BYTES:
            raise ValueError(f"a genesis of {len(data)} bytes; at most {MAX_GENESIS_BYTES} are allowed")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The genesis with these exact bytes. MalformedError if they are not canonical or exceed a limit."""
        value: Value = unpack(data, max_bytes=MAX_GENESIS_BYTES)
        if not isinstance(value, tuple) or value[:1] != (VERSION,):
            raise MalformedError(f"not a genesis of version {VERSION}")
        return cls.from_value(value)

    @property
    def network_id(self) -> bytes:
        """SHA-256 of the canonical bytes, 32 bytes. Computed on each call: keep it."""
        return hashlib.sha256(self.encode()).digest()


def write_genesis(path: Path, genesis: Genesis) -> None:
    """Write the canonical bytes to a new file, durably. UserError if it exists or cannot be written."""
    try:
        with path.open("xb") as file:
            file.write(genesis.encode())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UserError(f"{path} exists already.", advice="Choose another name, or move it away.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.", advice="Choose another folder.") from error


def read_genesis(path: Path) -> Genesis:
    """The genesis in a file. UserError if there is none, or it is not a genesis that this version understands."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_GENESIS_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"The genesis file {path} cannot be read: {error.strerror}.", advice="Write one with: aicp-node init."
        ) from error
    try:
        return Genesis.decode(data)
    except MalformedError as error:
        raise UserError(
            f"{path} is not a genesis file, or is damaged ({error.reason}).",
            advice="Copy it again from whoever started the run, and compare the network id.",
        ) from error

"""A new run that goes on from a state of an old one, after its quorum was lost for good (specification, section 5).

If so many members are gone for ever that the others are no quorum, nothing can be decided any more, by design: whoever
could go on without a quorum could also fork. What is left is to found another run, with other founders, whose first
model is the last one that the old run agreed on. Its genesis names the old network, height and state (its lineage), so
that everybody can see, and check against an old member's disk, where the model comes from. Needs no torch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from aicpnode.errors import MalformedError, UserError
from aicpnode.founding import GENESIS_FILE
from aicpnode.genesis import Admission, Expected, Founder, Genesis, Lineage, write_genesis
from aicpnode.gradients.state import array_bytes, decode_snapshot, initial_state
from aicpnode.node.node import BLOBS_FOLDER
from aicpnode.node.start import GENESIS_BLOBS_FOLDER, GENESIS_META
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import FILE_NAME, Database
from aicpnode.storage.faults import DamagedBlob, MissingBlob
from aicpnode.storage.lock import DataDirLock
from aicpnode.training.checkpoint import CheckpointRefused, checkpoints, read_checkpoint
from kernels.codec import Float32Array

HASH_DIGITS_MIN = 8
MEMBERS_FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bequest:
    """A state of the old run. ``theta``: float32[P] in layout order."""

    height: int
    round: int
    state_hash: bytes
    model_hash: bytes
    theta: Float32Array


def found_successor(
    folder: Path,
    *,
    data_dir: Path,
    checkpoints_dir: Path,
    wanted: str,
    name: str,
    founders: Sequence[Founder],
    probation_rounds: int,
    admission: Admission = Admission.OPEN,
    allowlist: tuple[Expected, ...] = (),
) -> tuple[Path, Genesis]:
    """Write the folder of a run that goes on from the state with the hash ``wanted`` (hex, at least 8 digits, of its
    model or its whole state), as the stopped node in ``data_dir`` has it. Returns the genesis file and the genesis.

    Model, data and rules of training are those of the old run; its schedules and momentum begin anew. UserError if
    there is no such state, the node runs, or the folder holds a run already.
    """
    path = folder / GENESIS_FILE
    if path.exists():
        raise UserError(f"{folder} holds a run already.", advice="Choose another folder, or move it away.")
    if not (data_dir / FILE_NAME).exists():
        raise UserError(f"{data_dir} is no data directory of a node.", advice="Name it with --data-dir or --node-id.")
    with ExitStack() as stack:
        stack.enter_context(DataDirLock(data_dir))
        database = stack.enter_context(Database.open(data_dir))
        old_blobs = stack.enter_context(Blobs(data_dir / BLOBS_FOLDER))
        stored = database.get_meta(GENESIS_META)
        if stored is None:
            raise UserError(f"The node in {data_dir} never took part in a run.", advice="Name another --data-dir.")
        old = Genesis.decode(stored)
        bequest = _find(wanted, database, old_blobs, checkpoints_dir, old)
        new_blobs = stack.enter_context(Blobs.open(folder / GENESIS_BLOBS_FOLDER))
        for shard in old.data.shards:
            if old_blobs.has(shard.sha256):  # else the founders have them, or find them at each other
                new_blobs.put(old_blobs.get(shard.sha256))
        genesis = replace(
            _with_model(old, bequest, new_blobs),
            name=name,
            nonce=secrets.token_bytes(16),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            roster=tuple(founders),
            admission=admission,
            allowlist=allowlist,
            probation_rounds=probation_rounds,
        )
    write_genesis(path, genesis)
    return path, genesis


def _with_model(old: Genesis, bequest: Bequest, blobs: Blobs) -> Genesis:
    first = initial_state(
        bequest.theta,
        parameters=old.parameters,
        momentum_q16=old.round.momentum_q16,
        norm_cap=old.round.norm_cap,
    )
    lineage = Lineage(
        network_id=old.network_id,
        height=bequest.height,
        round=bequest.round,
        state_hash=bequest.state_hash,
        model_hash=bequest.model_hash,
    )
    return replace(
        old,
        initial_model=blobs.put(array_bytes(bequest.theta)),
        initial_model_hash=first.model_hash,
        lineage=(lineage,),
    )


def _find(wanted: str, database: Database, blobs: Blobs, folder: Path, old: Genesis) -> Bequest:
    if len(wanted) < HASH_DIGITS_MIN or set(wanted.lower()) - set("0123456789abcdef"):
        raise UserError(
            f"{wanted!r} is no hash.",
            advice=f"Give at least {HASH_DIGITS_MIN} hex digits of the model_hash or state_hash that status printed.",
        )
    others = []
    for bequest in (*_snapshots(database, blobs), *_checkpoints(folder, old)):
        hashes = (bequest.model_hash.hex(), bequest.state_hash.hex())
        if any(found.startswith(wanted.lower()) for found in hashes):
            return bequest
        others.append(f"height {bequest.height} model_hash {hashes[0][:16]}")
    here = "; ".join(others) if others else "none at all"
    raise UserError(f"No stored state has the hash {wanted}.", advice=f"Stored here: {here}.")


def _snapshots(database: Database, blobs: Blobs) -> Iterator[Bequest]:
    for applied in database.snapshots():
        assert applied.snapshot is not None
        try:
            state = decode_snapshot(blobs.get(applied.snapshot))
        except (MissingBlob, DamagedBlob, MalformedError):
            continue  # another state may be whole; if none is, the user is told what there is
        if state.model_hash == applied.model_hash:
            yield Bequest(
                height=applied.height,
                round=applied.round,
                state_hash=applied.state_hash,
                model_hash=applied.model_hash,
                theta=state.values,
            )


def _checkpoints(folder: Path, old: Genesis) -> Iterator[Bequest]:
    for path in reversed(checkpoints(folder)):
        try:
            checkpoint = read_checkpoint(path, network_id=old.network_id)
        except CheckpointRefused:
            continue  # as above
        if checkpoint.theta.size == old.parameters:
            yield Bequest(
                height=checkpoint.height,
                round=checkpoint.round_number,
                state_hash=checkpoint.state_hash,
                model_hash=checkpoint.model_hash,
                theta=checkpoint.theta,
            )


def read_members(path: Path) -> list[str]:
    """The lines of a members file, each ``KEY:NAME``; empty lines and those that begin with # say nothing."""
    try:
        with path.open() as file:
            text = file.read(MEMBERS_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The members file {path} cannot be read: {error}.", advice="Write one line KEY:NAME for each founder."
        ) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]

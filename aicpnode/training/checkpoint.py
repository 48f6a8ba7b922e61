"""A checkpoint: the model and this node's training state in one file, which is a persisted Envelop.

The file is the length of the Envelop (u32, little-endian), the Envelop of kind CHECKPOINT, whose signed part names
the digest and size of its body, and that body: a safetensors file with the vectors and, as its metadata, the strings
that say what they are. So a checkpoint can be read by any safetensors reader after its header, and nobody can alter
a bit of it, or pass one run's model off as another's, without it being noticed. It is written whole or not at all.
Torch-free.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from aicpnode.envelop.codec import Envelop, Kind, decode, encode
from aicpnode.envelop.signing import seal, verify
from aicpnode.errors import RemoteError, UserError
from aicpnode.identity import Identity
from aicpnode.model.config import TransformerConfig
from aicpnode.storage.faults import disk_errors, sync_directory
from aicpnode.training.optimizer_state import FloatArray, OptimizerState

KEPT_CHECKPOINTS = 3
FORMAT: Final = "aicp-checkpoint-1"
SUFFIX: Final = ".aicp"
HEADER_BYTES_MAX = 4096
BODY_BYTES_MAX = 1 << 40
_LENGTH = struct.Struct("<I")
_NAME = re.compile(r"checkpoint-(\d{8,20})\.aicp")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The model with ``round_number`` rounds behind it, at ``height``, and what this node needs to train on from it."""

    network_id: bytes
    round_number: int
    height: int
    model_hash: bytes
    state_hash: bytes
    config: TransformerConfig
    theta: FloatArray
    """The agreed model, float32[P] in layout order."""
    residual: FloatArray | None = None
    """This node's error-feedback residual, float32, in the gradients room's padded length."""
    optimizer: OptimizerState | None = None
    """This node's inner optimizer. Private, like the residual: no other node has the same."""
    sender: bytes = b""
    """Who signed the file; filled in by reading and ignored by writing."""


class CheckpointRefused(UserError):
    """The file is damaged, foreign, or not a checkpoint; the message says which."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"The checkpoint {path} is refused: {reason}.",
            advice="Use an older one from the same folder, or let the node fetch the model from its peers.",
        )
        self.reason = reason


def write_checkpoint(folder: Path, identity: Identity, checkpoint: Checkpoint) -> Path:
    """Writes, signs and syncs ``checkpoint-ROUND.aicp``, and deletes all but the last ``KEPT_CHECKPOINTS``.

    Returns the path. StorageFull or StorageFailed if the disk refuses; the older checkpoints are then still there.
    """
    body = _encode_body(checkpoint)
    header = encode(
        seal(
            identity,
            Envelop(
                network_id=checkpoint.network_id,
                kind=Kind.CHECKPOINT,
                sender=identity.key,
                seq=checkpoint.round_number,
                height=checkpoint.height,
                body_digest=hashlib.sha256(body).digest(),
                body_size=len(body),
            ),
        )
    )
    assert len(header) <= HEADER_BYTES_MAX
    path = folder / f"checkpoint-{checkpoint.round_number:08d}{SUFFIX}"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, (_LENGTH.pack(len(header)), header, body))
        for old in checkpoints(folder)[:-KEPT_CHECKPOINTS]:
            old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files in ``folder``, the latest round last; empty if there is no such folder."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def read_checkpoint(path: Path, *, network_id: bytes | None = None) -> Checkpoint:
    """Reads and verifies a file: signature, digest of the body, shapes, and the run if ``network_id`` is given.

    CheckpointRefused, with the reason, if any of these fails; UserError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            envelop = _read_header(path, file.read(_LENGTH.size + HEADER_BYTES_MAX))
            file.seek(_LENGTH.size + len(encode(envelop)))
            body = file.read()
    except OSError as error:
        raise UserError(
            f"The checkpoint {path} cannot be read: {error.strerror}.", advice="Check the path and its permissions."
        ) from error
    if network_id is not None and envelop.network_id != network_id:
        raise CheckpointRefused(
            path, f"it is of the run {envelop.network_id.hex()[:16]}, not of {network_id.hex()[:16]}"
        )
    if len(body) != envelop.body_size:
        raise CheckpointRefused(path, f"its body has {len(body)} bytes instead of {envelop.body_size}")
    if hashlib.sha256(body).digest() != envelop.body_digest:
        raise CheckpointRefused(path, "its body is damaged (the digest does not match)")
    return _decode_body(path, envelop, body)


def _read_header(path: Path, start: bytes) -> Envelop:
    if len(start) < _LENGTH.size:
        raise CheckpointRefused(path, "it is shorter than a header")
    (length,) = _LENGTH.unpack_from(start)
    if not 0 < length <= min(HEADER_BYTES_MAX, len(start) - _LENGTH.size):
        raise CheckpointRefused(path, "it is not a checkpoint of this program, or cut short")
    try:
        envelop, _ = decode(start[_LENGTH.size : _LENGTH.size + length])
    except RemoteError as error:
        raise CheckpointRefused(path, f"its header is damaged ({error.reason})") from error
    if envelop.kind is not Kind.CHECKPOINT or envelop.body_size is None:
        raise CheckpointRefused(path, "it is another kind of Envelop")
    if envelop.body_size > BODY_BYTES_MAX:
        raise CheckpointRefused(path, f"a body of {envelop.body_size} bytes is more than any model has")
    if not verify(envelop):
        raise CheckpointRefused(path, "its signature is not valid")
    return envelop


def _encode_body(checkpoint: Checkpoint) -> bytes:
    arrays = {"theta": checkpoint.theta}
    metadata = {
        "format": FORMAT,
        "network_id": checkpoint.network_id.hex(),
        "round": str(checkpoint.round_number),
        "height": str(checkpoint.height),
        "model_hash": checkpoint.model_hash.hex(),
        "state_hash": checkpoint.state_hash.hex(),
        "config": json.dumps(dataclasses.asdict(checkpoint.config), sort_keys=True),
    }
    if checkpoint.residual is not None:
        arrays["residual"] = checkpoint.residual
    if checkpoint.optimizer is not None:
        arrays["first_moment"] = checkpoint.optimizer.first_moment
        arrays["second_moment"] = checkpoint.optimizer.second_moment
        metadata["optimizer_steps"] = str(checkpoint.optimizer.steps)
    assert all(array.dtype == np.float32 and array.ndim == 1 for array in arrays.values())
    # safetensors writes an array's memory as it lies, whatever its strides.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(contiguous, metadata=metadata)


def _decode_body(path: Path, envelop: Envelop, body: bytes) -> Checkpoint:
    try:
        arrays = safetensors.numpy.load(body)
        metadata = _metadata(body)
        if metadata["format"] != FORMAT:
            raise CheckpointRefused(path, f"its format {metadata['format']!r} is unknown here")
        config = TransformerConfig(**json.loads(metadata["config"]))
        optimizer = None
        if "optimizer_steps" in metadata:
            optimizer = OptimizerState(
                first_moment=_vector(arrays, "first_moment", config.parameters),
                second_moment=_vector(arrays, "second_moment", config.parameters),
                steps=int(metadata["optimizer_steps"]),
            )
        checkpoint = Checkpoint(
            network_id=bytes.fromhex(metadata["network_id"]),
            round_number=int(metadata["round"]),
            height=int(metadata["height"]),
            model_hash=bytes.fromhex(metadata["model_hash"]),
            state_hash=bytes.fromhex(metadata["state_hash"]),
            config=config,
            theta=_vector(arrays, "theta", config.parameters),
            residual=_vector(arrays, "residual", None) if "residual" in arrays else None,
            optimizer=optimizer,
            sender=envelop.sender,
        )
    except CheckpointRefused:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, UserError) as error:
        raise CheckpointRefused(path, f"its content does not make sense ({error})") from error
    named = (checkpoint.network_id, checkpoint.round_number, checkpoint.height)
    if named != (envelop.network_id, envelop.seq, envelop.height):
        raise CheckpointRefused(path, "its header and its content name different rounds")
    return checkpoint


def _metadata(body: bytes) -> dict[str, str]:
    """The strings in a safetensors file's JSON header (its length, u64 little-endian, stands first)."""
    (length,) = struct.unpack_from("<Q", body)
    found = json.loads(body[8 : 8 + length])["__metadata__"]
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its metadata are not strings")
    return found


def _vector(arrays: dict[str, Any], name: str, length: int | None) -> FloatArray:
    array: FloatArray = np.asarray(arrays[name])
    if array.dtype != np.float32 or array.ndim != 1 or length not in (None, array.size):
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}")
    return array


def _replace(path: Path, pieces: tuple[bytes, ...]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)

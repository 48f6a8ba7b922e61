from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from aicpnode.envelop.codec import Envelop, Kind, encode
from aicpnode.envelop.signing import seal
from aicpnode.errors import UserError
from aicpnode.identity import Identity
from aicpnode.model.config import TransformerConfig
from aicpnode.storage.faults import StorageFull
from aicpnode.training import checkpoint as subject
from aicpnode.training.checkpoint import (
    KEPT_CHECKPOINTS,
    Checkpoint,
    CheckpointRefused,
    checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from aicpnode.training.optimizer_state import OptimizerState

CONFIG = TransformerConfig(layers=1, heads=2, width=8, ffn_width=8, context=8, vocab=16, tied=False, rope_theta=777)
IDENTITY = Identity(bytes(32))
NETWORK = bytes(range(32))


def vector(seed: int, size: int = CONFIG.parameters) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def make(**changes: object) -> Checkpoint:
    whole = Checkpoint(
        network_id=NETWORK,
        round_number=12,
        height=40,
        model_hash=b"m" * 32,
        state_hash=b"s" * 32,
        config=CONFIG,
        theta=vector(1),
        residual=vector(2, 4096),
        optimizer=OptimizerState(first_moment=vector(3), second_moment=vector(4), steps=99),
    )
    return dataclasses.replace(whole, **changes)


def test_everything_survives_the_file(tmp_path: Path) -> None:
    written = make()
    path = write_checkpoint(tmp_path, IDENTITY, written)
    assert path.name == "checkpoint-00000012.aicp"
    read = read_checkpoint(path, network_id=NETWORK)
    assert read.sender == IDENTITY.key
    for name in ("network_id", "round_number", "height", "model_hash", "state_hash", "config"):
        assert getattr(read, name) == getattr(written, name), name
    assert np.array_equal(read.theta, written.theta)
    assert read.residual is not None
    assert np.array_equal(read.residual, written.residual)
    assert read.optimizer is not None
    assert read.optimizer.steps == 99
    assert np.array_equal(read.optimizer.first_moment, vector(3))
    assert np.array_equal(read.optimizer.second_moment, vector(4))


def test_the_private_parts_may_be_missing_and_no_run_be_asked_for(tmp_path: Path) -> None:
    read = read_checkpoint(write_checkpoint(tmp_path, IDENTITY, make(residual=None, optimizer=None)))
    assert read.residual is None
    assert read.optimizer is None


def test_a_vector_that_is_a_strided_view_is_written_in_order(tmp_path: Path) -> None:
    wide = vector(1, 2 * CONFIG.parameters)
    read = read_checkpoint(write_checkpoint(tmp_path, IDENTITY, make(theta=wide[::2])))
    assert np.array_equal(read.theta, wide[::2])


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for number in (2, 9, 1, 10, 11):
        write_checkpoint(tmp_path, IDENTITY, make(round_number=number))
    assert [read_checkpoint(path).round_number for path in checkpoints(tmp_path)] == [9, 10, 11]
    assert len(checkpoints(tmp_path)) == KEPT_CHECKPOINTS
    assert (tmp_path / "notes.txt").exists()
    assert checkpoints(tmp_path / "missing") == []


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, IDENTITY, make(residual=None, optimizer=None))
    whole = path.read_bytes()
    places = [*range(300), *range(300, len(whole), 97), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointRefused):
            read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 3, 4, 100, 260, 2000, -1])
def test_a_shortened_file_is_refused(tmp_path: Path, length: int) -> None:
    path = write_checkpoint(tmp_path, IDENTITY, make())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointRefused):
        read_checkpoint(path)


def test_a_lengthened_file_and_another_file_are_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, IDENTITY, make())
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CheckpointRefused, match="its body has"):
        read_checkpoint(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))
    with pytest.raises(CheckpointRefused, match="not a checkpoint"):
        read_checkpoint(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_checkpoint(tmp_path / "missing.aicp")


def test_another_run_s_checkpoint_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, IDENTITY, make())
    with pytest.raises(CheckpointRefused, match="it is of the run 0001020304050607, not of ff"):
        read_checkpoint(path, network_id=b"\xff" * 32)


def forged(tmp_path: Path, body: bytes, **changes: object) -> Path:
    fields = {
        "network_id": NETWORK,
        "kind": Kind.CHECKPOINT,
        "sender": IDENTITY.key,
        "seq": 12,
        "height": 40,
        "body_digest": subject.hashlib.sha256(body).digest(),
        "body_size": len(body),
    }
    header = encode(seal(IDENTITY, Envelop(**{**fields, **changes})))
    path = tmp_path / "forged.aicp"
    path.write_bytes(len(header).to_bytes(4, "little") + header + body)
    return path


def test_a_signed_file_with_senseless_content_is_refused(tmp_path: Path) -> None:
    good = subject._encode_body(make())
    assert read_checkpoint(forged(tmp_path, good)).height == 40
    arrays = {"theta": vector(1)}
    metadata = subject._metadata(good)
    bad_bodies = [
        b"",
        b"nonsense",
        safetensors.numpy.save(arrays),
        safetensors.numpy.save(arrays, metadata={**metadata, "format": "other"}),
        safetensors.numpy.save(arrays, metadata={**metadata, "config": "{}"}),
        safetensors.numpy.save(arrays, metadata={**metadata, "config": '{"layers": 1}'}),
        safetensors.numpy.save(arrays, metadata=metadata),
        safetensors.numpy.save({"theta": vector(1, 5)}, metadata={k: v for k, v in metadata.items() if k[0] != "o"}),
        safetensors.numpy.save({"theta": vector(1).astype(np.float64)}, metadata=metadata),
    ]
    for body in bad_bodies:
        with pytest.raises(CheckpointRefused):
            read_checkpoint(forged(tmp_path, body))
    with pytest.raises(CheckpointRefused, match="different rounds"):
        read_checkpoint(forged(tmp_path, good, seq=13))
    with pytest.raises(CheckpointRefused, match="another kind"):
        read_checkpoint(forged(tmp_path, good, kind=Kind.BLOCK))


def test_a_config_that_cannot_be_built_is_refused_as_a_checkpoint(tmp_path: Path) -> None:
    metadata = subject._metadata(subject._encode_body(make()))
    metadata["config"] = metadata["config"].replace('"heads": 2', '"heads": 3')
    body = safetensors.numpy.save({"theta": vector(1)}, metadata=metadata)
    with pytest.raises(CheckpointRefused):
        read_checkpoint(forged(tmp_path, body))


def test_a_full_disk_leaves_the_older_checkpoint_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path, IDENTITY, make())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(subject.os, "fsync", full)
    with pytest.raises(StorageFull):
        write_checkpoint(tmp_path, IDENTITY, make(round_number=13))
    assert list(tmp_path.iterdir()) == [path]
    assert read_checkpoint(path).round_number == 12

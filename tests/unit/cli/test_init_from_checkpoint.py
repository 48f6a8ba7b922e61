"""A run that goes on from a state of one that lost its quorum: what it takes over, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aicpnode.cli.app import run_app
from aicpnode.founding import found_run_folder
from aicpnode.genesis import Founder, Genesis, Lineage, read_genesis
from aicpnode.gradients.state import encode_snapshot, initial_state, vector_from_bytes
from aicpnode.identity import Identity
from aicpnode.model.config import TransformerConfig
from aicpnode.node.node import BLOBS_FOLDER
from aicpnode.node.start import GENESIS_META
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.lock import DataDirLock
from aicpnode.training.checkpoint import Checkpoint, write_checkpoint

IDENTITY = Identity(bytes([7]) * 32)
NEW_KEYS = [bytes([number]) * 32 for number in (21, 22)]
HEIGHT, ROUND, STATE_HASH = 40, 12, bytes([9]) * 32


class Old:
    """A stopped node's directory with one stored state, later than the initial one."""

    def __init__(self, folder: Path, text: Path) -> None:
        self.directory = folder / "old"
        founder = Founder(key=IDENTITY.key, name="alone")
        _, self.genesis = found_run_folder(folder / "run", name="old", founders=[founder], data=text)
        self.directory.mkdir()
        with (
            Database.open(self.directory) as database,
            Blobs.open(self.directory / BLOBS_FOLDER) as blobs,
            Blobs.open(folder / "run" / "blobs") as given,
        ):
            for name in [shard.sha256 for shard in self.genesis.data.shards]:
                blobs.put(given.get(name))
            theta = vector_from_bytes(given.get(self.genesis.initial_model), self.genesis.parameters)
            self.theta = theta + np.float32(0.5)
            state = initial_state(
                self.theta, parameters=self.genesis.parameters, momentum_q16=0, norm_cap=5, round=ROUND
            )
            self.model_hash = state.model_hash
            self.snapshot = blobs.put(encode_snapshot(state))
            database.set_meta(GENESIS_META, self.genesis.encode())
            database.put_applied(
                height=HEIGHT, round=ROUND, state_hash=STATE_HASH, model_hash=state.model_hash, snapshot=self.snapshot
            )

    def lineage(self) -> Lineage:
        return Lineage(
            network_id=self.genesis.network_id,
            height=HEIGHT,
            round=ROUND,
            state_hash=STATE_HASH,
            model_hash=self.model_hash,
        )

    def write_checkpoint(self) -> None:
        checkpoint = Checkpoint(
            network_id=self.genesis.network_id,
            round_number=ROUND,
            height=HEIGHT,
            model_hash=self.model_hash,
            state_hash=STATE_HASH,
            config=TransformerConfig.from_spec(self.genesis.model),
            theta=self.theta,
        )
        write_checkpoint(self.directory / "checkpoints", IDENTITY, checkpoint)


@pytest.fixture
def old(tmp_path: Path) -> Old:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 2000)
    return Old(tmp_path, text)


@pytest.fixture
def members(tmp_path: Path) -> Path:
    path = tmp_path / "members"
    lines = [f"{key.hex()}:n{number}" for number, key in enumerate(NEW_KEYS)]
    path.write_text("\n".join(["# who goes on", "", *lines]) + "\n")
    return path


def init(folder: Path, old: Old, wanted: str, members: Path, *more: str) -> int:
    given = ["--from-checkpoint", wanted, "--members", str(members), "--data-dir", str(old.directory)]
    return run_app(["init", str(folder), *given, *more])


def assert_goes_on(folder: Path, old: Old) -> Genesis:
    genesis = read_genesis(folder / "genesis.aicp")
    assert genesis.lineage == (old.lineage(),)
    assert [founder.key for founder in genesis.roster] == NEW_KEYS
    assert genesis.network_id != old.genesis.network_id
    same = ("model", "parameters", "layout_hash", "data", "training", "round", "consensus")
    assert all(getattr(genesis, name) == getattr(old.genesis, name) for name in same)
    with Blobs.open(folder / "blobs") as blobs:
        model = vector_from_bytes(blobs.get(genesis.initial_model), genesis.parameters)
        assert all(blobs.has(shard.sha256) for shard in genesis.data.shards)
    assert np.array_equal(model, old.theta)
    first = initial_state(model, parameters=genesis.parameters, momentum_q16=0, norm_cap=genesis.round.norm_cap)
    assert first.model_hash == genesis.initial_model_hash == old.model_hash
    return genesis


@pytest.mark.parametrize("which", ["model", "state"])
def test_run_goes_on_from_a_stored_snapshot(tmp_path: Path, old: Old, members: Path, which: str) -> None:
    wanted = (old.model_hash if which == "model" else STATE_HASH).hex()
    assert init(tmp_path / "new", old, wanted, members) == 0
    assert_goes_on(tmp_path / "new", old)


def test_run_goes_on_from_a_checkpoint_file(tmp_path: Path, old: Old, members: Path, capsys) -> None:
    with Blobs.open(old.directory / BLOBS_FOLDER) as blobs:
        blobs.delete(old.snapshot)
    old.write_checkpoint()
    assert init(tmp_path / "new", old, old.model_hash.hex()[:8], members, "--json", "--name", "phoenix") == 0
    assert_goes_on(tmp_path / "new", old)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["lineage"] == {
        "network": old.genesis.network_id.hex(),
        "height": HEIGHT,
        "round": ROUND,
        "state_hash": STATE_HASH.hex(),
        "model_hash": old.model_hash.hex(),
    }
    assert read_genesis(tmp_path / "new" / "genesis.aicp").name == "phoenix"


def test_unknown_hash_is_refused_and_says_what_there_is(tmp_path: Path, old: Old, members: Path, capsys) -> None:
    assert init(tmp_path / "new", old, "0123456789", members) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"height {HEIGHT} model_hash {old.model_hash.hex()[:16]}" in said
    for nonsense in ("zzzzzzzzzz", "0123"):
        assert init(tmp_path / "new", old, nonsense, members) == 2
        assert "is no hash" in capsys.readouterr().err
    assert not (tmp_path / "new" / "genesis.aicp").exists()


def test_running_node_foreign_folder_and_other_data_are_refused(
    tmp_path: Path, old: Old, members: Path, capsys
) -> None:
    wanted = old.model_hash.hex()
    with DataDirLock(old.directory):
        assert init(tmp_path / "new", old, wanted, members) == 2
    assert init(tmp_path / "new", old, wanted, members, "--data", str(members)) == 2
    assert "keeps its data" in capsys.readouterr().err
    old.directory = tmp_path / "nothing"
    assert init(tmp_path / "new", old, wanted, members) == 2
    assert "is no data directory" in capsys.readouterr().err
    assert not old.directory.exists()


def test_members_are_needed_and_a_run_is_not_overwritten(tmp_path: Path, old: Old, members: Path, capsys) -> None:
    wanted = old.model_hash.hex()
    assert init(tmp_path / "new", old, wanted, tmp_path / "none") == 2
    assert "cannot be read" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.write_text("# nobody\n")
    assert init(tmp_path / "new", old, wanted, empty) == 2
    assert "at least one founder" in capsys.readouterr().err
    assert init(tmp_path / "new", old, wanted, members) == 0
    assert init(tmp_path / "new", old, wanted, members) == 2
    assert "holds a run already" in capsys.readouterr().err

"""The genesis: golden bytes and network id, limits, and files."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from aicpnode.envelop.codec import Value, pack, unpack
from aicpnode.errors import MalformedError, UserError
from aicpnode.genesis import (
    MAX_GENESIS_BYTES,
    MAX_SHARDS,
    ConsensusSpec,
    DataSpec,
    Founder,
    Genesis,
    Lineage,
    ModelSpec,
    RoundSpec,
    Rule,
    Shard,
    Split,
    TrainingSpec,
    read_genesis,
    write_genesis,
)

GOLDEN_BYTES = (
    "dc001301a464656d6fc410000102030405060708090a0b0c0d0e0fb4323032352d30312d30315430303a30303a30305a"
    "9bab7472616e73666f726d6572cd010004040240cc80cc80cd2710c3cd03e8ce0001e240c42001010101010101010101"
    "01010101010101010101010101010101010101010101c420020202020202020202020202020202020202020202020202"
    "0202020202020202c420030303030303030303030303030303030303030303030303030303030303030392a673686172"
    "65649194a9747261696e2d303030c4200404040404040404040404040404040404040404040404040404040404040404"
    "cd03e8a5747261696e9a320840cd03e80a0064cd0384cd03b6cd03e898cd1388cccd02ad63656e74657265645f636c69"
    "70ce0001000000c2009293c420050505050505050505050505050505050505050505050505050505050505050501a161"
    "93c420060606060606060606060606060606060606060606060606060606060606060603a162a46f70656e90326493cc96"
    "ccc8cdea6090"
)
GOLDEN_NETWORK_ID = "b58eb80e70d70cc41dcaf4a3597fee453b22da6d65bc7a8c14d0ec17eccd4c9e"


LINEAGE = Lineage(network_id=b"n" * 32, height=10, round=3, state_hash=b"s" * 32, model_hash=b"m" * 32)


def genesis(**changes: Any) -> Genesis:
    values: dict[str, Any] = {
        "name": "demo",
        "nonce": bytes(range(16)),
        "created": "2025-01-01T00:00:00Z",
        "model": ModelSpec(layers=4, heads=4, kv_heads=2, width=64, ffn_width=128, context=128),
        "parameters": 123_456,
        "layout_hash": b"\x01" * 32,
        "initial_model": b"\x02" * 32,
        "initial_model_hash": b"\x03" * 32,
        "data": DataSpec(shards=(Shard(name="train-000", sha256=b"\x04" * 32, size=1000, split=Split.TRAIN),)),
        "training": TrainingSpec(
            inner_steps=50,
            batch_size=8,
            sequence_length=64,
            inner_lr_micro=1000,
            warmup_steps=10,
            weight_decay_milli=100,
            beta1_milli=900,
            beta2_milli=950,
            clip_milli=1000,
        ),
        "round": RoundSpec(round_ms=5000),
        "roster": (Founder(key=b"\x05" * 32, name="a"), Founder(key=b"\x06" * 32, power=3, name="b")),
        "consensus": ConsensusSpec(),
    }
    return Genesis(**{**values, **changes})


def value_of(made: Genesis) -> list[Value]:
    value = unpack(made.encode())
    assert isinstance(value, tuple)
    return list(value)


def place(name: str) -> int:
    return [field.name for field in fields(Genesis)].index(name)


def test_bytes_and_network_id_are_the_golden_ones() -> None:
    made = genesis()
    assert made.encode().hex() == GOLDEN_BYTES
    assert made.network_id.hex() == GOLDEN_NETWORK_ID
    assert made.network_id == hashlib.sha256(bytes.fromhex(GOLDEN_BYTES)).digest()


def test_golden_bytes_decode() -> None:
    assert Genesis.decode(bytes.fromhex(GOLDEN_BYTES)) == genesis()


def test_every_field_changes_the_network_id() -> None:
    made = genesis()
    others = [
        replace(made, name="other"),
        replace(made, nonce=bytes(16)),
        replace(made, created="later"),
        replace(made, model=replace(made.model, tied=False)),
        replace(made, parameters=5),
        replace(made, layout_hash=bytes(32)),
        replace(made, initial_model=bytes(32)),
        replace(made, initial_model_hash=bytes(32)),
        replace(made, data=DataSpec(shards=())),
        replace(made, training=replace(made.training, inner_steps=51)),
        replace(made, round=replace(made.round, rule=Rule.MEAN)),
        replace(made, roster=made.roster[:1]),
        replace(made, roster=made.roster[::-1]),
        replace(made, probation_rounds=2),
        replace(made, max_members=50),
        replace(made, consensus=replace(made.consensus, delta_ms=1000)),
        replace(made, lineage=(LINEAGE,)),
        replace(made, lineage=(replace(LINEAGE, height=11),)),
    ]
    assert len({other.network_id for other in [made, *others]}) == len(others) + 1


def test_every_changed_byte_is_refused_or_another_network() -> None:
    encoded = genesis().encode()
    for position in range(len(encoded)):
        for other in (encoded[position] ^ 1, encoded[position] ^ 0x80, 0xFF):
            mutated = encoded[:position] + bytes([other]) + encoded[position + 1 :]
            if mutated == encoded:
                continue
            try:
                made = Genesis.decode(mutated)
            except MalformedError:
                continue
            assert made != genesis()
            assert made.encode() == mutated


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_cut_or_longer_bytes_are_refused(cut: int) -> None:
    encoded = genesis().encode()
    with pytest.raises(MalformedError):
        Genesis.decode(encoded[:cut])
    with pytest.raises(MalformedError):
        Genesis.decode(encoded + b"\x00")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("version", True),
        ("version", None),
        ("name", ""),
        ("name", "x" * 65),
        ("name", "\x1b[2J"),
        ("nonce", bytes(15)),
        ("parameters", 0),
        ("parameters", -1),
        ("parameters", 1 << 41),
        ("layout_hash", bytes(31)),
        ("admission", "closed"),
        ("probation_rounds", 0),
        ("max_members", 101),
        ("max_members", 1),
        ("roster", ()),
        ("roster", ((b"\x05" * 32, 1, "a"), (b"\x05" * 32, 1, "b"))),
        ("roster", ((b"\x05" * 32, 0, "a"),)),
        ("consensus", (0, 200, 60_000)),
        ("round", (50, 205, 2, "mean", 65536, 0, False, 0)),
        ("round", (5000, 100, 2, "mean", 65536, 0, False, 0)),
        ("round", (5000, 205, 3, "mean", 65536, 0, False, 0)),
        ("round", (5000, 205, 2, "median", 65536, 0, False, 0)),
        ("round", (5000, 205, 2, "mean", (16 << 16) + 1, 0, False, 0)),
        ("round", (5000, 205, 2, "mean", 65536, 63489, False, 0)),
        ("data", ("private", ())),
        ("data", ("shared", (("a", bytes(32), 1, "test"),))),
        ("data", ("shared", (("a", bytes(32), 0, "train"),))),
        ("data", ("shared", (("a", bytes(32), 1, "train"), ("a", bytes([1]) * 32, 1, "train")))),
        ("model", ("transformer", 256, 4, 4, 3, 64, 128, 128, 10_000, True, 1000)),
        ("model", ("transformer", 256, 4, 5, 5, 64, 128, 128, 10_000, True, 1000)),
        ("model", ("transformer", 256, 4, 64, 64, 64, 128, 128, 10_000, True, 1000)),
        ("model", ("transformer", 256, 4, 4, 2, 64, 128, 63, 10_000, True, 1000)),
        ("model", ("mamba", 256, 4, 4, 2, 64, 128, 128, 10_000, True, 1000)),
    ],
    ids=repr,
)
def test_peers_genesis_out_of_limits_is_malformed(name: str, value: Value) -> None:
    changed = value_of(genesis())
    assert Genesis.decode(pack(changed)) == genesis()
    changed[place(name)] = value
    with pytest.raises(MalformedError):
        Genesis.decode(pack(changed))


def test_lineage_comes_back_and_there_is_one_at_most() -> None:
    made = genesis(lineage=(LINEAGE,))
    assert Genesis.decode(made.encode()) == made
    with pytest.raises(ValueError, match="lineage"):
        genesis(lineage=(LINEAGE, LINEAGE))
    changed = value_of(made)
    changed[place("lineage")] = ((b"n", 10, 3, b"s" * 32, b"m" * 32),)
    with pytest.raises(MalformedError):
        Genesis.decode(pack(changed))


def test_largest_data_set_fits() -> None:
    shards = tuple(
        Shard(name=f"{number:0128d}", sha256=number.to_bytes(32, "big"), size=64 << 20, split=Split.TRAIN)
        for number in range(MAX_SHARDS)
    )
    made = genesis(data=DataSpec(shards=shards))
    assert len(made.encode()) <= MAX_GENESIS_BYTES
    assert Genesis.decode(made.encode()) == made
    with pytest.raises(MalformedError):
        Genesis.decode(bytes(MAX_GENESIS_BYTES + 1))


def test_file_round_trips_and_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "genesis"
    write_genesis(path, genesis())
    assert path.read_bytes() == genesis().encode()
    assert read_genesis(path) == genesis()
    with pytest.raises(UserError, match="exists already"):
        write_genesis(path, genesis(name="other"))
    with pytest.raises(UserError, match="cannot be written"):
        write_genesis(tmp_path / "missing" / "genesis", genesis())


@pytest.mark.parametrize("content", [b"", b"hello", bytes(MAX_GENESIS_BYTES + 5)], ids=["empty", "text", "long"])
def test_file_that_is_no_genesis_is_the_users_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "genesis"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a genesis") as caught:
        read_genesis(path)
    assert "network id" in caught.value.advice


def test_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read") as caught:
        read_genesis(tmp_path / "genesis")
    assert "init" in caught.value.advice

"""Keys and the founding of a run, as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aicpnode.cli.app import run_app
from aicpnode.genesis import read_genesis
from aicpnode.identity import USED_MARKER
from aicpnode.interfaces.control import JsonObject


def last_json(capsys: pytest.CaptureFixture[str]) -> JsonObject:
    result: JsonObject = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def new_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_app(["key", "new", "--data-dir", str(folder), "--json"]) == 0
    key: str = last_json(capsys)["key"]
    return key


def test_key_moves_to_another_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key(tmp_path / "a", capsys)
    assert run_app(["key", "show", "--data-dir", str(tmp_path / "a")]) == 0
    assert key in capsys.readouterr().out
    assert run_app(["key", "export", "--data-dir", str(tmp_path / "a")]) == 0
    exported = tmp_path / "exported"
    exported.write_text(capsys.readouterr().out)
    with exported.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_app(["key", "import", "--data-dir", str(tmp_path / "b"), "--json"]) == 0
    assert last_json(capsys)["key"] == key
    # An imported key may have signed elsewhere: a node that starts with it must not vote at once.
    assert (tmp_path / "b" / USED_MARKER).exists()
    assert not (tmp_path / "a" / USED_MARKER).exists()


def test_key_is_never_overwritten_and_nonsense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_key(tmp_path, capsys)
    assert run_app(["key", "new", "--data-dir", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run_app(["key", "show", "--data-dir", str(tmp_path / "none")]) == 2
    (tmp_path / "identity.key").chmod(0o644)
    assert run_app(["key", "show", "--data-dir", str(tmp_path)]) == 2
    assert "chmod 600" in capsys.readouterr().err
    with Path("/dev/null").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_app(["key", "import", "--data-dir", str(tmp_path / "c")]) == 2


def test_init_writes_a_run_that_names_its_founders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [new_key(tmp_path / name, capsys) for name in ("a", "b")]
    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 2000)
    command = ["init", str(tmp_path / "run"), "--data", str(text), "--name", "ours", "--json"]
    for key, name in zip(keys, ("ada", "bob"), strict=True):
        command += ["--member", f"{key}:{name}"]
    assert run_app(command) == 0
    result = last_json(capsys)
    genesis = read_genesis(Path(result["genesis"]))
    assert genesis.network_id.hex() == result["network"]
    assert [(founder.key.hex(), founder.name) for founder in genesis.roster] == [(keys[0], "ada"), (keys[1], "bob")]
    blobs = {path.name for path in (tmp_path / "run" / "blobs").rglob("*") if path.is_file()}
    assert blobs == {shard.sha256.hex() for shard in genesis.data.shards} | {genesis.initial_model.hex()}
    assert run_app(command) == 2
    assert "holds a run already" in capsys.readouterr().err

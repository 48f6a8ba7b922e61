"""NodeConfig: names as the contract has them, clear refusals, and which value wins."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pydantic
import pytest

from aicpnode.config import Fault, NodeConfig, NodeType
from aicpnode.errors import NotAvailableYet, UserError
from aicpnode.storage.lock import DataDirLock


def test_defaults_are_safe() -> None:
    config = NodeConfig()
    assert (config.p2p_host, config.p2p_port, config.p2p_port_explicit) == ("127.0.0.1", 7777, False)
    assert config.web_host == "127.0.0.1"
    assert config.name == "node-7777"
    assert config.directory.name == "7777"
    assert config.trains


def test_classmethods_set_the_type() -> None:
    assert NodeConfig.full("ada").node_type is NodeType.FULL
    assert NodeConfig.full("ada", p2p_port=1).p2p_port == 1
    assert NodeConfig.training().node_type is NodeType.TRAINING
    assert not NodeConfig.lightweight("l").trains
    assert NodeConfig.full("ada").directory.name == "ada"


@pytest.mark.parametrize(
    "values",
    [
        {"node_type": "annotation"},
        {"enable_curation": True},
        {"enable_rlhf": True},
        {"enable_web_interface": True},
        {"advertise": "h:1"},
    ],
)
def test_not_built_yet_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(NotAvailableYet, match="not available yet"):
        NodeConfig.make(values)


def test_switched_off_parts_and_plain_sessions_are_accepted() -> None:
    config = NodeConfig.make({"enable_curation": False, "enable_rlhf": False, "encryption": "off"})
    assert not config.enable_curation and not config.is_encrypted


@pytest.mark.parametrize(("given", "encrypted"), [("on", True), ("off", False), (True, True), (False, False)])
def test_encryption_is_a_switch(given: object, encrypted: bool) -> None:
    """TOML files and JSON files write it as a boolean too."""
    assert NodeConfig.make({"encryption": given}).is_encrypted is encrypted
    assert NodeConfig.make({}).is_encrypted


def test_encryption_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="encryption"):
        NodeConfig.make({"encryption": "rot13"})


def test_annotation_is_refused() -> None:
    with pytest.raises(NotAvailableYet):
        NodeConfig.annotation()


def test_unknown_key_names_the_nearest_known() -> None:
    with pytest.raises(UserError, match=r"'p2p_prt'.*Did you mean p2p_port\?"):
        NodeConfig.make({"p2p_prt": 7})
    with pytest.raises(UserError, match=r"'zzzz'.*Known: .*bootstrap_peers"):
        NodeConfig.make({"zzzz": 7})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"p2p_port": 70000}, "p2p_port"),
        ({"node_id": "../x"}, "node_id"),
        ({"node_id": "-x"}, "node_id"),
        ({"device": "gpu"}, "device"),
        ({"network": "abc"}, "network"),
        ({"bootstrap_peers": ["host"]}, "bootstrap_peers"),
        ({"bootstrap_peers": "host:0"}, "bootstrap_peers"),
        ({"bootstrap_peers": ["::1:7777"]}, "bootstrap_peers"),
        ({"log_level": "loud"}, "log_level"),
        ({"max_cpu_threads": 0}, "max_cpu_threads"),
        ({"max_memory_mb": 1}, "max_memory_mb"),
        ({"byzantine": "kind"}, "byzantine"),
        ({"heartbeat_interval_ms": 10_000, "partition_timeout_ms": 15_000}, "partition_timeout_ms"),
    ],
)
def test_bad_value_is_explained(values: dict[str, object], names: str) -> None:
    with pytest.raises(UserError, match=names):
        NodeConfig.make(values)


def test_bootstrap_peers_as_list_or_text() -> None:
    assert NodeConfig.make({"bootstrap_peers": "a:1, [::1]:2"}).bootstrap_peers == ("a:1", "[::1]:2")
    assert NodeConfig.make({"bootstrap_peers": ["a:1"]}).bootstrap_peers == ("a:1",)


def test_load_json_and_toml_and_command_line_wins(tmp_path: Path) -> None:
    values = {
        "node_id": "ada",
        "p2p_port": 7001,
        "web_port": 8001,
        "bootstrap_peers": ["127.0.0.1:7002"],
        "enable_curation": False,
        "enable_rlhf": False,
        "enable_web_interface": False,
        "max_memory_mb": 2048,
        "max_cpu_threads": 2,
        "heartbeat_interval_ms": 1000,
        "partition_timeout_ms": 5000,
    }
    as_json = tmp_path / "node.json"
    as_json.write_text(json.dumps(values))
    as_toml = tmp_path / "node.toml"
    as_toml.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    assert NodeConfig.load(as_json) == NodeConfig.load(as_toml)
    config = NodeConfig.load(as_json, {"p2p_port": 7003, "node_id": None})
    assert (config.node_id, config.p2p_port, config.p2p_port_explicit) == ("ada", 7003, True)


def test_load_takes_paths_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('genesis = "run/genesis.bin"\ndata_dir = "/abs"\n')
    config = NodeConfig.load(path)
    assert config.genesis == tmp_path / "run" / "genesis.bin"
    assert config.data_dir == Path("/abs")


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.toml", "= 3"), ("a.json", "[1]")])
def test_load_damaged_file_is_explained(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=name):
        NodeConfig.load(path)


def test_load_absent_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        NodeConfig.load(tmp_path / "none.json")


def test_debug_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEBUG_LEVEL", raising=False)
    assert NodeConfig().effective_log_level == "info"
    for level, expected in {"0": "warning", "1": "info", "2": "debug", "3": "debug"}.items():
        monkeypatch.setenv("DEBUG_LEVEL", level)
        assert NodeConfig().effective_log_level == expected
    assert NodeConfig(log_level="ERROR").effective_log_level == "error"
    monkeypatch.setenv("DEBUG_LEVEL", "9")
    with pytest.raises(UserError, match="0, 1, 2 or 3"):
        _ = NodeConfig().effective_log_level


def test_default_port_that_is_taken_moves_on_and_a_named_one_does_not(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = NodeConfig(p2p_port=port, data_dir=tmp_path)
        assert config.with_free_port().p2p_port > port
        explicit = config.with_overrides(p2p_port_explicit=True)
        assert explicit.with_free_port() == explicit
    assert NodeConfig(p2p_port=0).with_free_port().p2p_port == 0


def test_default_port_whose_data_directory_is_in_use_moves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path / name)
    config = NodeConfig()
    settled = config.with_free_port()
    with DataDirLock(settled.directory):
        assert config.with_free_port().p2p_port > settled.p2p_port
        assert config.with_overrides(node_id="ada").with_free_port().p2p_port == settled.p2p_port
    assert config.with_free_port().p2p_port == settled.p2p_port


def test_config_is_frozen_and_overrides_are_checked() -> None:
    config = NodeConfig.full("ada", byzantine=Fault.SILENT)
    with pytest.raises(pydantic.ValidationError):
        config.p2p_port = 3  # type: ignore[misc]
    assert config.with_overrides(p2p_port=3).p2p_port == 3
    with pytest.raises(UserError):
        config.with_overrides(p2p_port=-1)

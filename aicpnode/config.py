"""NodeConfig: the private knobs of this machine. What the whole run must agree on stands in the genesis instead.

Values come, later ones winning, from the defaults, a JSON or TOML file, and the command line. They are checked once,
here; unknown keys are refused with the nearest known name, and what is not built yet is refused rather than ignored.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import socket
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from aicpnode.errors import NotAvailableYet, UserError
from aicpnode.network.peers import Address
from aicpnode.storage.lock import DataDirLock, DataDirLocked

P2P_PORT_DEFAULT = 7777
PORTS_TRIED = 100
WEB_PORT_DEFAULT = 8080
KEY_FILE = "identity.key"
CONFIG_BYTES_MAX = 1024 * 1024
NODE_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LATER_KEYS = ("advertise",)
"""Settings of parts that are not built yet: giving one is refused."""
LOG_LEVELS = ("debug", "info", "warning", "error")
DEBUG_LEVELS = {"0": "warning", "1": "info", "2": "debug", "3": "debug"}
"""Meaning of the environment variable DEBUG_LEVEL; 3 also lets libraries speak."""

Port = Annotated[int, Field(ge=0, le=65535)]


class NodeType(StrEnum):
    """What a node does: everything, training and voting, human annotation (later), or voting without torch."""

    FULL = "full"
    TRAINING = "training"
    ANNOTATION = "annotation"
    LIGHTWEIGHT = "lightweight"


class Encryption(StrEnum):
    """Of sessions with other nodes. Both sides need the same."""

    ON = "on"
    OFF = "off"


class Fault(StrEnum):
    """Faults that ``demo --byzantine`` makes a node show on purpose."""

    GARBAGE = "garbage"
    SILENT = "silent"
    EQUIVOCATE = "equivocate"


class NodeConfig(BaseModel):
    """Configuration of one node. Frozen; make a changed one with ``with_overrides``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, use_attribute_docstrings=True)

    node_id: str | None = None
    """Name of this node for people; keys are what the protocol knows. ``name`` falls back to the port."""
    node_type: NodeType = NodeType.FULL
    p2p_host: str = "127.0.0.1"
    """Address to listen on. Loopback by default: whoever reaches an open run gets a vote after its probation."""
    p2p_port: Port = P2P_PORT_DEFAULT
    """TCP port to listen on; 0 takes any free one."""
    p2p_port_explicit: bool = False
    """Set when the user named the port: then a taken port is an error instead of moving to the next free one."""
    web_host: str = "127.0.0.1"
    web_port: Port = WEB_PORT_DEFAULT
    bootstrap_peers: tuple[str, ...] = ()
    """Members to contact first, each HOST:PORT (an IPv6 host in brackets)."""
    data_dir: Path | None = None
    """Where everything durable lives; ``directory`` gives the default by name or port."""
    genesis: Path | None = None
    """Genesis file of the run to take part in."""
    network: str | None = None
    """Hash of the genesis (64 hex digits); any other genesis is refused."""
    data: Path | None = None
    """Text file or folder to train on when this node starts a run of its own; default the embedded corpus."""
    device: str = "auto"
    """Where training runs: auto, cpu or cuda:N."""
    enable_curation: bool = False
    enable_rlhf: bool = False
    enable_web_interface: bool = False
    max_memory_mb: Annotated[int, Field(ge=64)] | None = None
    """Resident memory at which the node reports and stops cleanly (mebibytes)."""
    max_cpu_threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Processor threads that the node may keep busy at once."""
    encryption: Encryption = Encryption.ON
    """on: sessions are encrypted (Noise). off: they are signed only, for networks in which everybody may listen."""
    heartbeat_interval_ms: Annotated[int, Field(ge=100, le=600_000)] = 5_000
    partition_timeout_ms: Annotated[int, Field(ge=300, le=3_600_000)] = 15_000
    invite: str | None = None
    """An invitation for this node's key, where the members invite whom they want (``aicp-node invite``)."""
    log_level: str | None = None
    """debug, info, warning or error; None takes it from DEBUG_LEVEL, else info."""
    log_json: bool = False
    """Write the log file as JSON lines."""
    repl: bool = False
    """Show the prompt in the terminal that started the node."""
    checkpoint_every_rounds: Annotated[int, Field(ge=0)] = 10
    """Rounds between two checkpoint files; 0 writes one only when asked and at the end."""
    checkpoint_dir: Path | None = None
    """Where checkpoint files go; default the folder checkpoints in the data directory."""
    train_rounds: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Contribute to training up to this round and then stop; None means without end."""
    byzantine: Fault | None = None
    """Show this fault on purpose (``demo --byzantine``); never set it on a node that people rely on."""

    @classmethod
    def full(cls, node_id: str, **overrides: Any) -> Self:
        """A node that trains, votes and serves."""
        return cls.make({"node_id": node_id, "node_type": NodeType.FULL, **overrides})

    @classmethod
    def training(cls, node_id: str | None = None, **overrides: Any) -> Self:
        """A node that trains and votes."""
        return cls.make({"node_id": node_id, "node_type": NodeType.TRAINING, **overrides})

    @classmethod
    def lightweight(cls, node_id: str | None = None, **overrides: Any) -> Self:
        """A node that checks, votes and applies without ever importing torch."""
        return cls.make({"node_id": node_id, "node_type": NodeType.LIGHTWEIGHT, **overrides})

    @classmethod
    def annotation(cls, node_id: str | None = None, **overrides: Any) -> Self:
        """A node for human annotation. Raises ``NotAvailableYet``."""
        return cls.make({"node_id": node_id, "node_type": NodeType.ANNOTATION, **overrides})

    @classmethod
    def make(cls, values: Mapping[str, Any], *, source: str = "the configuration") -> Self:
        """Check ``values`` and build the config. Raises ``UserError`` that names ``source`` and the key."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise UserError(_explain(error, source), advice="Correct the value and start again.") from error

    @classmethod
    def load(cls, path: Path | None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Read a JSON or TOML file (by its suffix) if given, then let ``overrides`` that are not None win.

        Relative paths in the file are taken from the file's folder. Raises ``UserError``.
        """
        values = {} if path is None else _read_file(path)
        if "p2p_port" in values:
            values.setdefault("p2p_port_explicit", True)
        values.update({key: value for key, value in (overrides or {}).items() if value is not None})
        return cls.make(values, source="the command line" if path is None else f"{path} and the command line")

    def with_free_port(self) -> Self:
        """Settle a default port that is taken: the next one that is free, and whose data directory is not in use.

        A node that named its port or chose 0 keeps it; then a taken port is an error when the node listens.
        """
        if self.p2p_port_explicit or self.p2p_port == 0:
            return self
        for port in range(self.p2p_port, min(self.p2p_port + PORTS_TRIED, 65536)):
            moved = self.with_overrides(p2p_port=port)
            own_directory = self.data_dir is None and self.node_id is None
            if _is_free(self.p2p_host, port) and not (own_directory and _in_use(moved.directory)):
                return moved
        raise UserError(
            f"The ports from {self.p2p_port} on are all taken on {self.p2p_host}.", advice="Name one with --p2p-port."
        )

    def with_overrides(self, **changes: Any) -> Self:
        """The same config with these values changed, checked again."""
        return self.make({**self.model_dump(), **changes})

    @property
    def name(self) -> str:
        """What people call this node: its node id, else node-PORT."""
        return self.node_id or f"node-{self.p2p_port}"

    @property
    def directory(self) -> Path:
        """The data directory: as given, else in the user's data directory by node id, else by port."""
        if self.data_dir is not None:
            return self.data_dir.expanduser().absolute()
        return platformdirs.user_data_path("aicp-node") / (self.node_id or str(self.p2p_port))

    @property
    def key_path(self) -> Path:
        """The file with this node's key pair."""
        return self.directory / KEY_FILE

    @property
    def checkpoints(self) -> Path:
        """The folder for checkpoint files."""
        return self.directory / "checkpoints" if self.checkpoint_dir is None else self.checkpoint_dir.absolute()

    @property
    def trains(self) -> bool:
        """Whether this node may compute proposals (and so needs torch)."""
        return self.node_type in (NodeType.FULL, NodeType.TRAINING)

    @property
    def effective_log_level(self) -> str:
        """The log level as given, else from DEBUG_LEVEL, else info. Raises ``UserError`` for a bad DEBUG_LEVEL."""
        if self.log_level is not None:
            return self.log_level
        debug_level = os.environ.get("DEBUG_LEVEL", "1")
        if debug_level not in DEBUG_LEVELS:
            raise UserError(f"DEBUG_LEVEL={debug_level} is not a level.", advice="Use 0, 1, 2 or 3.")
        return DEBUG_LEVELS[debug_level]

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            for key in values:
                if key in LATER_KEYS:
                    raise NotAvailableYet(f"The option {key}")
                if key not in cls.model_fields and key not in LATER_KEYS:
                    near = difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.5)
                    advice = f"Did you mean {near[0]}?" if near else "Known: " + ", ".join(sorted(cls.model_fields))
                    raise UserError(f"Unknown configuration key {key!r}.", advice=advice)
        return values

    @field_validator("encryption", mode="before")
    @classmethod
    def _encryption(cls, value: Any) -> Any:
        """TOML and JSON have a word of their own for on and off."""
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    @property
    def is_encrypted(self) -> bool:
        return self.encryption is Encryption.ON

    @field_validator("node_id")
    @classmethod
    def _node_id(cls, value: str | None) -> str | None:
        if value is not None and not NODE_ID_PATTERN.fullmatch(value):
            raise ValueError(
                "a node id is 1 to 64 letters, digits, dots, dashes or underscores, and starts with a letter or digit"
            )
        return value

    @field_validator("bootstrap_peers", mode="before")
    @classmethod
    def _bootstrap_peers(cls, value: Any) -> Any:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_address(str(item).strip()) for item in items if str(item).strip())

    @field_validator("network")
    @classmethod
    def _network(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", value):
            raise ValueError("a network hash is 64 hex digits")
        return value if value is None else value.lower()

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda:\d{1,3}", value):
            raise ValueError("a device is auto, cpu or cuda:N")
        return value

    @field_validator("log_level")
    @classmethod
    def _log_level(cls, value: str | None) -> str | None:
        if value is not None and value.lower() not in LOG_LEVELS:
            raise ValueError(f"a log level is one of {', '.join(LOG_LEVELS)}")
        return value if value is None else value.lower()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.node_type is NodeType.ANNOTATION:
            raise NotAvailableYet("The node type annotation")
        for switch in ("enable_curation", "enable_rlhf", "enable_web_interface"):
            if getattr(self, switch):
                raise NotAvailableYet(f"The switch {switch}")
        if self.partition_timeout_ms < 2 * self.heartbeat_interval_ms:
            raise ValueError("partition_timeout_ms is at least twice heartbeat_interval_ms")
        return self


def _address(text: str) -> str:
    """The canonical form of HOST:PORT; ``ValueError`` if it is not one."""
    try:
        return str(Address.parse(text))
    except UserError as error:
        raise ValueError(str(error).rstrip(".")) from None


def _is_free(host: str, port: int) -> bool:
    """Whether a TCP port can be listened on. An address that is not this machine's is reported when it is used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _in_use(data_dir: Path) -> bool:
    """Whether a node holds this directory already, perhaps one that is still on its way to listening."""
    if not data_dir.is_dir():
        return False
    try:
        DataDirLock(data_dir).close()
    except DataDirLocked:
        return True
    return False


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()[: CONFIG_BYTES_MAX + 1]
    except OSError as error:
        raise UserError(f"Cannot read the configuration {path}: {error.strerror}.") from error
    if len(data) > CONFIG_BYTES_MAX:
        raise UserError(f"The configuration {path} is longer than {CONFIG_BYTES_MAX} bytes.")
    try:
        text = data.decode("utf-8")
        values = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except ValueError as error:
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
        raise UserError(f"The configuration {path} is not {kind}: {error}.") from error
    if not isinstance(values, dict):
        raise UserError(f"The configuration {path} holds no table of keys and values.")
    for key in ("data_dir", "genesis", "data", "checkpoint_dir"):
        if isinstance(values.get(key), str):
            values[key] = path.absolute().parent / Path(values[key]).expanduser()
    return values


def _explain(error: ValidationError, source: str) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"]) or "the whole"
        text = fault["msg"].removeprefix("Value error, ")
        given = "" if not fault["loc"] else f" (given: {fault['input']!r})"
        faults.append(f"{where}: {text}{given}")
    return f"In {source}: " + "; ".join(faults) + "."

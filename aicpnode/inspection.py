"""A run before one joins it: what it is, who founded it, and what it will take of this machine.

Everything comes from one peer. The genesis is checked against the network id that the peer names, and whether that is
the right network is the reader's to know; the present roster only a member's ledger tells.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from aicpnode.genesis import Genesis
from aicpnode.network.session import Hello
from aicpnode.node.start import MODEL_COPIES
from aicpnode.replication.applier import SNAPSHOTS_KEPT

FLOAT_BYTES = 4
TRAINING_COPIES = 4
"""Of the model, on top of what any node holds: weights that are trained, their gradient, and AdamW's two moments."""
STORED_COPIES = 1 + SNAPSHOTS_KEPT + 1
"""On disk: the initial model, the latest states, and the residual of error feedback."""
CHECKPOINT_COPIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The least that a run takes of a machine, in bytes: without torch itself, activations, and the growing ledger."""

    download: int
    memory: int
    """Of a lightweight node."""
    training_memory: int
    disk: int
    checkpoint: int
    """Each file; a node writes one every ten rounds unless told otherwise, and removes none."""


def needs_of(genesis: Genesis) -> Needs:
    model = FLOAT_BYTES * genesis.parameters
    data = sum(shard.size for shard in genesis.data.shards)
    return Needs(
        download=data + model,
        memory=MODEL_COPIES * model,
        training_memory=(MODEL_COPIES + TRAINING_COPIES) * model + data,
        disk=data + STORED_COPIES * model,
        checkpoint=CHECKPOINT_COPIES * model,
    )


def describe_run(address: str, peer: Hello, genesis: Genesis, *, data_dir: Path) -> dict[str, Any]:
    """What ``inspect`` tells; sizes in bytes. ``data_dir`` is where this machine would keep its part."""
    needs = needs_of(genesis)
    return {
        "address": address,
        "network": genesis.network_id.hex(),
        "name": genesis.name,
        "created": genesis.created,
        "peer": {
            "key": peer.key.hex(),
            "name": peer.name,
            "node_type": peer.node_type,
            "protocol": peer.version,
            "height": peer.head_height,
        },
        "parameters": genesis.parameters,
        "layers": genesis.model.layers,
        "width": genesis.model.width,
        "context": genesis.model.context,
        "shards": len(genesis.data.shards),
        "round_ms": genesis.round.round_ms,
        "admission": genesis.admission.value,
        "probation_rounds": genesis.probation_rounds,
        "max_members": genesis.max_members,
        "founders": [{"name": founder.name, "key": founder.key.hex()} for founder in genesis.roster],
        "download_bytes": needs.download,
        "memory_bytes": needs.memory,
        "training_memory_bytes": needs.training_memory,
        "disk_bytes": needs.disk,
        "checkpoint_bytes": needs.checkpoint,
        "machine_memory_bytes": psutil.virtual_memory().available,
        "machine_disk_bytes": shutil.disk_usage(_existing(data_dir)).free,
    }


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that is there already."""
    return next(folder for folder in (path, *path.parents) if folder.exists())

"""A run folder: a genesis file beside the blobs that it names, to be handed to every founder. Needs no torch.

A node that is given the file (``run --genesis``) takes what it lacks from that folder, and from its peers otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aicpnode.errors import UserError
from aicpnode.genesis import Admission, Expected, Founder, Genesis, write_genesis
from aicpnode.node.start import GENESIS_BLOBS_FOLDER, make_genesis
from aicpnode.storage.blobs import Blobs

GENESIS_FILE = "genesis.aicp"
PROBATION_ROUNDS = 2
"""A run started by hand admits newcomers quickly; its owner watches who they are."""


def found_run_folder(
    folder: Path,
    *,
    name: str,
    founders: Sequence[Founder],
    data: Path | None,
    probation_rounds: int = PROBATION_ROUNDS,
    decay_rounds: int | None = None,
    admission: Admission = Admission.OPEN,
    allowlist: tuple[Expected, ...] = (),
) -> tuple[Path, Genesis]:
    """Make a run on the text at ``data`` (None: the embedded corpus) and write its folder.

    Returns the genesis file and the genesis. Raises ``UserError`` if the folder holds a run already, the data are
    unusable, or the disk is full.
    """
    path = folder / GENESIS_FILE
    if path.exists():
        raise UserError(f"{folder} holds a run already.", advice="Choose another folder, or move it away.")
    with Blobs.open(folder / GENESIS_BLOBS_FOLDER) as blobs:
        genesis = make_genesis(
            name=name,
            founders=tuple(founders),
            data=data,
            blobs=blobs,
            probation_rounds=probation_rounds,
            decay_rounds=decay_rounds,
            admission=admission,
            allowlist=allowlist,
        )
    write_genesis(path, genesis)
    return path, genesis

"""Which run this node takes part in, and how it comes by what the genesis names.

A data directory belongs to one run for ever: its genesis is stored there the first time, and another one is refused.
The first time it comes from a file, from the first bootstrap peer that answers, or is made here (a run of its own).
"""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime
from pathlib import Path

import psutil
import trio

from aicpnode.config import NodeConfig
from aicpnode.envelop.codec import pack
from aicpnode.errors import RemoteError, UserError
from aicpnode.genesis import Admission, Expected, Founder, Genesis, read_genesis
from aicpnode.gradients.state import initial_state
from aicpnode.identity import USED_MARKER, Identity, short
from aicpnode.network.discovery import fetch_genesis
from aicpnode.network.peers import Address
from aicpnode.replication.driver import AMNESIA_META
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.faults import sync_directory

GENESIS_META = "genesis"
OWNER_META = "owner"
GENESIS_BLOBS_FOLDER = "blobs"
FETCH_TIMEOUT_S = 10.0
MODEL_COPIES = 3
"""Of the model in memory at once, at the least: the present state, the next one, and the bytes being read."""
RETRY_S_MIN = 0.5
RETRY_S_MAX = 15.0

log = logging.getLogger(__name__)


def note_first_use(directory: Path, key: bytes, database: Database) -> None:
    """Tie the database to the key, and notice one that was lost: then this member must not sign what it may have
    signed before (consensus specification, section 5).

    UserError if the database belongs to another key.
    """
    marker = directory / USED_MARKER
    owner = database.get_meta(OWNER_META)
    if owner is not None and owner != key:
        raise UserError(
            f"The database in {directory} belongs to another key ({short(owner)}) than the key file ({short(key)}).",
            advice="Put the right key file back, or use another --data-dir for this key.",
        )
    if owner is None:
        with database.transaction():
            if marker.exists():
                database.set_meta(AMNESIA_META, pack((0, 0)))
                log.warning("the database of this member is gone: it follows until it is safe to vote again")
            database.set_meta(OWNER_META, key)
    if not marker.exists():
        marker.touch(mode=0o600)
        sync_directory(directory)


async def settle_genesis(config: NodeConfig, identity: Identity, database: Database, blobs: Blobs) -> Genesis:
    """The genesis of the run that this data directory takes part in; stored before this returns.

    Waits for a bootstrap peer for as long as it takes. UserError if the user named another run than is stored here.
    """
    stored = await trio.to_thread.run_sync(database.get_meta, GENESIS_META)
    if stored is not None:
        genesis = Genesis.decode(stored)
        if config.genesis is not None:
            _refuse_other(config, genesis, await trio.to_thread.run_sync(read_genesis, config.genesis))
    elif config.genesis is not None:
        genesis = await trio.to_thread.run_sync(read_genesis, config.genesis)
        refuse_unsound(genesis)
        await trio.to_thread.run_sync(_import_blobs, config.genesis.parent / GENESIS_BLOBS_FOLDER, genesis, blobs)
    elif config.bootstrap_peers:
        genesis = await _fetch(config)
    else:
        genesis = await trio.to_thread.run_sync(own_genesis, config, identity, blobs)
    network_id = genesis.network_id
    if config.network is not None and bytes.fromhex(config.network) != network_id:
        raise UserError(
            f"The genesis here is of network {network_id.hex()}, not of {config.network}.",
            advice="Use another --data-dir for another run, or check the hash with whoever invited you.",
        )
    refuse_unsound(genesis)
    if stored is None:
        await trio.to_thread.run_sync(database.set_meta, GENESIS_META, genesis.encode())
    return genesis


def refuse_unsound(genesis: Genesis) -> None:
    """UserError for a genesis whose numbers contradict each other, or whose model this machine cannot hold: found out
    here, before anything that it names is fetched."""
    from aicpnode.model.config import TransformerConfig

    config = TransformerConfig.from_spec(genesis.model)
    if (config.parameters, config.layout_hash) != (genesis.parameters, genesis.layout_hash):
        raise UserError(
            f"The genesis names {genesis.parameters} parameters; its model has {config.parameters}, or another layout.",
            advice="Whoever wrote it has to write it again (aicp-node init); do not trust who gave it to you.",
        )
    needed, memory = 4 * genesis.parameters * MODEL_COPIES, psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"The model of this run needs about {needed >> 20} MiB of memory; this machine has {memory >> 20} MiB.",
            advice="Take part from a larger machine.",
        )


def _refuse_other(config: NodeConfig, stored: Genesis, given: Genesis) -> None:
    if stored.network_id != given.network_id:
        raise UserError(
            f"{config.directory} belongs to network {stored.network_id.hex()}; "
            f"{config.genesis} is of network {given.network_id.hex()}.",
            advice="Use another --data-dir for another run.",
        )


def genesis_blobs(genesis: Genesis) -> dict[bytes, int]:
    """What the genesis names by hash: digest -> size in bytes."""
    named = {shard.sha256: shard.size for shard in genesis.data.shards}
    named[genesis.initial_model] = 4 * genesis.parameters
    return named


def _import_blobs(folder: Path, genesis: Genesis, blobs: Blobs) -> None:
    """Blobs that were written next to the genesis file; what is not there comes from peers."""
    if not folder.is_dir():
        return
    with Blobs(folder) as source:
        for digest in genesis_blobs(genesis):
            if source.has(digest) and not blobs.has(digest):
                blobs.put(source.get(digest))


async def _fetch_from(address: Address, config: NodeConfig) -> bytes:
    return await fetch_genesis(address, timeout=FETCH_TIMEOUT_S, encrypted=config.is_encrypted)


async def _fetch(config: NodeConfig) -> Genesis:
    addresses = [Address.parse(text) for text in config.bootstrap_peers]
    delay_s, attempts = RETRY_S_MIN, 0
    while True:
        attempts += 1
        for address in addresses:
            try:
                genesis = Genesis.decode(await _fetch_from(address, config))
            except (UserError, RemoteError) as error:
                # A bootstrap that is away may come back: said each time, given up never.
                reason = error.message if isinstance(error, UserError) else error.reason
                log.warning("bootstrap: %s Attempt %d, next in %.1f s", reason, attempts, delay_s)
                continue
            if config.network is None:
                log.warning("UNVERIFIED: trusting %s for the genesis %s", address, genesis.network_id.hex())
            elif genesis.network_id != bytes.fromhex(config.network):
                raise UserError(
                    f"{address} is of network {genesis.network_id.hex()}, not of {config.network}.",
                    advice="Check the address and the hash with whoever invited you.",
                )
            return genesis
        await trio.sleep(delay_s)
        delay_s = min(2 * delay_s, RETRY_S_MAX)


def own_genesis(config: NodeConfig, identity: Identity, blobs: Blobs) -> Genesis:
    """A run of this node's own: the embedded default on its own text, itself the only founder."""
    founders = (Founder(key=identity.key, power=1, name=config.name),)
    return make_genesis(name=config.name, founders=founders, data=config.data, blobs=blobs, probation_rounds=2)


def make_genesis(
    *,
    name: str,
    founders: tuple[Founder, ...],
    data: Path | None,
    blobs: Blobs,
    probation_rounds: int,
    decay_rounds: int | None = None,
    admission: Admission = Admission.OPEN,
    allowlist: tuple[Expected, ...] = (),
) -> Genesis:
    """A genesis with the default model and training on the text at ``data``, its blobs stored in ``blobs``."""
    from aicpnode.model.initial import initial_theta
    from aicpnode.training.corpus import build_corpus
    from aicpnode.training.presets import default_genesis

    nonce = secrets.token_bytes(16)
    shards = build_corpus(data)
    for shard in shards:
        blobs.put(shard.content)
    preset = default_genesis(decay_rounds=decay_rounds)
    theta = initial_theta(preset.config, seed=int.from_bytes(nonce[:4], "little"))
    first = initial_state(
        theta,
        parameters=preset.config.parameters,
        momentum_q16=preset.round.momentum_q16,
        norm_cap=preset.round.norm_cap,
    )
    genesis = Genesis(
        name=name,
        nonce=nonce,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=preset.model,
        parameters=preset.config.parameters,
        layout_hash=preset.config.layout_hash,
        initial_model=blobs.put(theta.astype("<f4").tobytes()),
        initial_model_hash=first.model_hash,
        data=preset.data(tuple(shard.record for shard in shards)),
        training=preset.training,
        round=preset.round,
        roster=founders,
        admission=admission,
        allowlist=allowlist,
        probation_rounds=probation_rounds,
        consensus=preset.consensus,
    )
    log.info("made the genesis %s with %d shards", short(genesis.network_id), len(shards))
    return genesis

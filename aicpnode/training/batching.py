"""Which text an author trains on in a round: a pure function of (network, round, author, step).

Anybody can compute anybody's batches, which is what lets evaluators test a proposal on the text that its author
was given. The position in the data is therefore never stored: after a restart, or a wrap, the same round gives
the same batches. Only raw Philox output is used (Salmon et al. 2011): numpy promises to keep that stream for
ever, which it does not promise for the distributions made of it. Torch-free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

BATCH_DOMAIN = b"aicp-batch-1"

Offsets = npt.NDArray[np.int64]


def batch_offsets(
    *, network_id: bytes, round_number: int, author_index: int, step: int, batch_size: int, positions: int
) -> Offsets:
    """Returns the starts of the step's windows, int64[batch_size], each in [0, positions).

    ``positions`` is the number of windows that the training text has; it must be below 2^48, so that the bias of
    the remainder stays below 2^-16 of one offset's probability.
    """
    assert len(network_id) == 32 and 0 < positions < 1 << 48 and batch_size > 0
    numbers = np.array([round_number, author_index, step], dtype="<u8").tobytes()
    seed = hashlib.sha256(BATCH_DOMAIN + b"\x00" + network_id + numbers).digest()
    stream = np.random.Philox(key=int.from_bytes(seed[:16], "little"))
    raw = np.asarray(stream.random_raw(batch_size), dtype=np.uint64)
    return (raw % np.uint64(positions)).astype(np.int64)


def offsets_digest(batches: Iterable[Offsets]) -> bytes:
    """SHA-256 of the offsets in the order of their use, each an int64, little-endian (the header's field)."""
    digest = hashlib.sha256()
    for offsets in batches:
        digest.update(offsets.astype("<i8").tobytes())
    return digest.digest()

"""The data set of a run: shards of bytes, seen as one long training text and one long validation text.

Shards are memory maps of content-addressed blobs, so a data set larger than memory is no problem, and each is
verified against the digest in the genesis before it is used. A window may cross from one shard to the next.
Torch-free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from aicpnode.errors import UserError
from aicpnode.genesis import Shard, Split

TokenArray = npt.NDArray[np.uint8]


class Text:
    """One side of the split: the shards in genesis order, as if they were one array of tokens (uint8)."""

    def __init__(self, parts: Sequence[TokenArray]) -> None:
        assert all(part.dtype == np.uint8 and part.ndim == 1 for part in parts)
        self._parts = [part for part in parts if part.size]
        self._starts = np.cumsum([0, *(part.size for part in self._parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def parts(self) -> Sequence[TokenArray]:
        return self._parts

    def window(self, offset: int, length: int) -> TokenArray:
        """Returns ``length`` tokens from ``offset`` on; a view where they lie in one shard."""
        assert offset >= 0 and offset + length <= len(self), "window outside the text"
        number = int(np.searchsorted(self._starts, offset, side="right")) - 1
        pieces = []
        while length > 0:
            begin = offset - int(self._starts[number])
            piece = self._parts[number][begin : begin + length]
            pieces.append(piece)
            offset += piece.size
            length -= piece.size
            number += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def windows(self, offsets: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Returns the windows at ``offsets``, int64[len(offsets), length]."""
        batch = np.empty((offsets.size, length), dtype=np.int64)
        for row, offset in enumerate(offsets.tolist()):
            batch[row] = self.window(offset, length)
        return batch


class Dataset:
    """``train`` and ``validation`` text of one run."""

    def __init__(self, *, train: Text, validation: Text) -> None:
        self.train = train
        self.validation = validation

    @classmethod
    def load(cls, shards: Iterable[Shard], open_map: Callable[[bytes], memoryview]) -> Dataset:
        """Maps each shard with ``open_map(sha256)`` (``Blobs.open_map``) and verifies its size and digest."""
        parts: dict[Split, list[TokenArray]] = {split: [] for split in Split}
        for shard in shards:
            content = open_map(shard.sha256)
            if content.nbytes != shard.size or hashlib.sha256(content).digest() != shard.sha256:
                raise UserError(
                    f"The data shard {shard.name} on this disk is damaged.",
                    advice=f"Delete the blob {shard.sha256.hex()}; the node fetches it again from a peer.",
                )
            parts[shard.split].append(np.frombuffer(content, dtype=np.uint8))
        return cls(train=Text(parts[Split.TRAIN]), validation=Text(parts[Split.VALIDATION]))

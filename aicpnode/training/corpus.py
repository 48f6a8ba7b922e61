"""From files on a disk to content-addressed shards of bytes, split into training and validation.

Only the writer of a genesis builds a corpus; all others fetch its shards by hash. The embedded default is the
source of the Python standard library on this machine: real text, everywhere, without a download. Whole files go
to one side or the other, by the hash of their relative name, so that the split does not depend on what else is
in the folder, and no text is on both sides by being cut in two. Torch-free.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aicpnode.errors import UserError
from aicpnode.genesis import Shard, Split

SHARD_BYTES_MAX = 1 << 20
CORPUS_BYTES_MAX = 1 << 32
FILES_MAX = 200_000
SEPARATOR = b"\x00"
"""Stands between files, so that the model can learn where one ends."""
SPLIT_DOMAIN = b"split\x00"
"""Hashed before the name. With it 5.0 % of the bytes of the 3.11 standard library are for validation, without the
one huge prose file, and the bigram model has 2.41 nats a byte there, as it has on most splits of that library."""
VALIDATION_PER_256 = 13
"""A file is for validation if the first byte of the SHA-256 is below this: 5.1 % of the files."""
VALIDATION_TAIL = 20
"""Of a single file, the last 1/20 is for validation."""
SPLIT_BYTES_MIN = 4096
"""Less text than this on either side cannot be trained on or measured."""
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardText:
    """One shard: ``content`` has at most ``SHARD_BYTES_MAX`` bytes."""

    name: str
    split: Split
    content: bytes

    @property
    def record(self) -> Shard:
        """What the genesis says of this shard; its blob is ``content``."""
        sha256 = hashlib.sha256(self.content).digest()
        return Shard(name=self.name, sha256=sha256, size=len(self.content), split=self.split)


def standard_library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def build_corpus(path: Path | None = None) -> list[ShardText]:
    """Cuts the text under ``path``, or the standard library's sources, into shards, training first.

    UserError if there is no text, too little, or too much (``CORPUS_BYTES_MAX``).
    """
    if path is None:
        folder = standard_library_folder()
        files = _read_all(folder, _python_sources(folder))
    elif path.is_file():
        return _shards(_split_tail(_read(path), source=path), source=path)
    elif path.is_dir():
        folder = path
        files = _read_all(folder, _any_files(folder))
    else:
        raise UserError(f"There is no file or folder {path}.", advice="Give --data a text file or a folder of them.")
    parts: dict[Split, list[bytes]] = {Split.TRAIN: [], Split.VALIDATION: []}
    names = []
    for name, content in files:
        names.append(name)
        parts[split_of(name)].append(content)
    if len(names) == 1:
        return _shards(_split_tail(parts[split_of(names[0])][0], source=folder), source=folder)
    return _shards({split: SEPARATOR.join(texts) for split, texts in parts.items()}, source=folder)


def split_of(relative_name: str) -> Split:
    """The side of a file, by the hash of its name relative to the folder, with ``/`` on every system."""
    first = hashlib.sha256(SPLIT_DOMAIN + relative_name.encode("utf-8", "surrogateescape")).digest()[0]
    return Split.VALIDATION if first < VALIDATION_PER_256 else Split.TRAIN


def _split_tail(content: bytes, *, source: Path) -> dict[Split, bytes]:
    if len(content) < VALIDATION_TAIL * SPLIT_BYTES_MIN:
        raise UserError(
            f"{source} has {len(content)} bytes.",
            advice=f"Give --data at least {VALIDATION_TAIL * SPLIT_BYTES_MIN} bytes of text.",
        )
    cut = len(content) - len(content) // VALIDATION_TAIL
    return {Split.TRAIN: content[:cut], Split.VALIDATION: content[cut:]}


def _shards(texts: dict[Split, bytes], *, source: Path) -> list[ShardText]:
    shards = []
    for split in (Split.TRAIN, Split.VALIDATION):
        text = texts[split]
        if len(text) < SPLIT_BYTES_MIN:
            raise UserError(
                f"Only {len(text)} bytes of {source} are on the {split.value} side.",
                advice="Give --data more text, or one single file, whose end is then used for validation.",
            )
        for number, start in enumerate(range(0, len(text), SHARD_BYTES_MAX)):
            content = text[start : start + SHARD_BYTES_MAX]
            shards.append(ShardText(name=f"{split.value}-{number:04d}", split=split, content=content))
    return shards


def _python_sources(folder: Path) -> Iterator[Path]:
    return (path for path in _walk(folder) if path.suffix == ".py")


def _any_files(folder: Path) -> Iterator[Path]:
    return (path for path in _walk(folder) if not path.name.startswith("."))


def _walk(folder: Path) -> Iterator[Path]:
    """Regular files below ``folder``; links to folders are not followed, hidden and skipped folders not entered."""

    def fail(error: OSError) -> None:
        raise UserError(f"Cannot read {error.filename}: {error.strerror}.", advice="Check the folder's permissions.")

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if path.is_file():
                yield path


def _read_all(folder: Path, paths: Iterable[Path]) -> list[tuple[str, bytes]]:
    """Returns (relative name, content) sorted by name, empty files left out."""
    named = []
    for path in paths:
        named.append((path.relative_to(folder).as_posix(), path))
        if len(named) > FILES_MAX:
            raise UserError(f"{folder} has more than {FILES_MAX} files.", advice="Join them into fewer, larger files.")
    named.sort()
    total = 0
    files = []
    for name, path in named:
        content = _read(path)
        total += len(content)
        if total > CORPUS_BYTES_MAX:
            raise UserError(f"{folder} has more than {CORPUS_BYTES_MAX} bytes.", advice="Give --data a part of it.")
        if content:
            files.append((name, content))
    if not files:
        raise UserError(f"There is no text in {folder}.", advice="Give --data a text file or a folder of text files.")
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.", advice="Check the file's permissions.") from error

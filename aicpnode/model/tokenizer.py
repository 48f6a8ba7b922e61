"""Tokens are bytes: every text, in every language, with no table to agree on. Torch-free."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

TEXT_START = 0
"""The byte that the corpus puts between files; generation without a prompt starts from it."""


def encode(text: str | bytes) -> list[int]:
    """Returns token numbers, each 0 to 255; text is taken as UTF-8."""
    return list(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)


def decode(tokens: Iterable[int]) -> bytes:
    """The inverse of ``encode`` for bytes."""
    return bytes(tokens)


class StreamDecoder:
    """Turns a stream of bytes into text, holding back the bytes of a character that is not complete yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left of an unfinished character, as replacement characters."""
        return self._decoder.decode(b"", final=True)

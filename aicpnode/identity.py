"""Who a node is: one Ed25519 key pair, kept in one file that only its owner may read.

The key file and the text that ``key export`` prints are the same single line, ``aicp-key-1:`` followed by the seed and
a checksum in hex, so that a mistyped or cut line is refused instead of becoming another identity. Verification goes
through libsodium, which also refuses small-order keys, small-order or non-canonical points and scalars that are not
reduced (RFC 8032, section 5.1.7, read strictly): one content has one valid signature form per signing act.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from aicpnode.errors import UserError

KEY_BYTES = 32
SEED_BYTES = 32
SIGNATURE_BYTES = 64

USED_MARKER = "identity.used"
"""Lies beside the key file once the key may have signed; it outlives a database that is moved away."""
KEY_TEXT_PREFIX = "aicp-key-1:"
KEY_CHECKSUM_BYTES = 4
KEY_FILE_BYTES_MAX = 1024
KEY_FILE_MODE = 0o600
READABLE_BY_OTHERS = 0o077


def verify(key: bytes, data: bytes, signature: bytes) -> bool:
    """True iff ``signature`` (64 bytes) over ``data`` was made by the owner of ``key`` (32 bytes).

    Never raises on what a peer sent: wrong lengths, invalid points and small-order keys are simply False. About 55 us.
    """
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + data, key)
    except BadSignatureError:
        return False
    return True


def short(key: bytes) -> str:
    """The first 8 hex digits of a public key: for people, never for comparing."""
    return key[:4].hex()


class Identity:
    """A node's key pair. ``key`` is the public half (32 bytes); the secret half leaves only through ``to_text``."""

    __slots__ = ("_secret_key", "_seed", "key")

    key: bytes

    def __init__(self, seed: bytes) -> None:
        """``seed`` (32 bytes) determines the key pair, as in RFC 8032."""
        assert len(seed) == SEED_BYTES, "an Ed25519 seed has 32 bytes"
        self._seed = seed
        self.key, self._secret_key = crypto_sign_seed_keypair(seed)

    def __repr__(self) -> str:
        return f"Identity({short(self.key)})"

    @classmethod
    def generate(cls) -> Self:
        """A new key pair from the operating system's randomness."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def sign(self, data: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``data``; the same data gives the same bytes."""
        return crypto_sign(data, self._secret_key)[:SIGNATURE_BYTES]

    def to_text(self) -> str:
        """The SECRET key as one line with a checksum: what ``key export`` prints and the key file holds."""
        return KEY_TEXT_PREFIX + self._seed.hex() + _checksum(self._seed).hex()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The identity that ``to_text`` wrote. Raises UserError if the line is not one, or was cut or mistyped."""
        line = text.strip()
        if not line.startswith(KEY_TEXT_PREFIX):
            raise UserError(
                "This is not an aicp-node key.",
                advice=f"An exported key is one line that starts with {KEY_TEXT_PREFIX}",
            )
        try:
            raw = bytes.fromhex(line.removeprefix(KEY_TEXT_PREFIX))
        except ValueError:
            raw = b""
        seed, checksum = raw[:SEED_BYTES], raw[SEED_BYTES:]
        if len(raw) != SEED_BYTES + KEY_CHECKSUM_BYTES or checksum != _checksum(seed):
            raise UserError(
                "The key is damaged: its checksum does not match.",
                advice="Copy the whole line again from where it was exported.",
            )
        return cls(seed)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the key file. Raises UserError if it is missing, readable by others, or damaged."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                raw = file.read(KEY_FILE_BYTES_MAX)
        except FileNotFoundError:
            raise UserError(
                f"There is no key file at {path}.", advice="Make one with: aicp-node key new, or key import."
            ) from None
        except OSError as error:
            raise UserError(
                f"The key file {path} cannot be read: {error.strerror}.",
                advice="Check that it is a file that belongs to the user who runs the node.",
            ) from error
        if stat.S_IMODE(mode) & READABLE_BY_OTHERS:
            raise UserError(
                f"The key file {path} can be read by other users (mode {stat.S_IMODE(mode):o}).",
                advice=f"Run: chmod 600 '{path}'. If others may have read it, make a new key and join with that.",
            )
        try:
            return cls.from_text(raw.decode("ascii", errors="replace"))
        except UserError as error:
            raise UserError(
                f"The key file {path} is damaged. {error.message}",
                advice=f"Restore it from a backup or with: aicp-node key import. To start with a new identity, "
                f"move '{path}' away.",
            ) from error

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Read the key file, or make a new key pair and write it there if there is none."""
        if not os.path.lexists(path):
            with suppress(KeyFileExists):  # another process was faster: then its key is the one
                identity = cls.generate()
                identity.save(path)
                return identity
        return cls.load(path)

    def save(self, path: Path) -> None:
        """Write the key file: mode 600, complete or not at all, on the disk when this returns.

        Raises KeyFileExists rather than overwrite, UserError if the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_new(path, (self.to_text() + "\n").encode("ascii"))
        except OSError as error:
            if os.path.lexists(path):
                raise KeyFileExists(path) from None
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "Free some space on that disk." if full else "Choose a folder that you may write, on a local disk."
            raise UserError(f"The key file {path} cannot be written: {error.strerror}.", advice=advice) from error


class KeyFileExists(UserError):
    """A key is never overwritten: it may be the only copy of a member's vote."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"The key file {path} exists already.", advice="Move it away first if you want another key.")


def _checksum(seed: bytes) -> bytes:
    return hashlib.sha256(KEY_TEXT_PREFIX.encode() + seed).digest()[:KEY_CHECKSUM_BYTES]


def _write_new(path: Path, content: bytes) -> None:
    """Create ``path`` with ``content``, atomically and durably; FileExistsError if it exists.

    A hard link, unlike a rename, fails where the name is taken, so two processes cannot overwrite each other's key.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, KEY_FILE_MODE)
            os.fsync(descriptor)
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

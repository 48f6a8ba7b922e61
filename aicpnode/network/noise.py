"""Noise_XX_25519_ChaChaPoly_BLAKE2s: an encrypted channel between two parties that know nothing of each other. Pure.

    initiator                            accepter
    e                  ------------>
                       <------------     e, ee, s, es
    s, se              ------------>

Names and rules are those of the Noise Protocol Framework, revision 34 (Trevor Perrin, 2018), sections 5 and 7.5; of its
patterns and primitives only these are here. Afterwards each direction has a key of its own, and ``handshake_hash`` is
the same on both sides and on no other channel: whoever signs it is bound to this one (section 11.2).

The primitives are libsodium's, through PyNaCl, and the standard library's BLAKE2s.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError

from aicpnode.errors import RemoteError

PROTOCOL_NAME = b"Noise_XX_25519_ChaChaPoly_BLAKE2s"
DH_BYTES = 32
HASH_BYTES = 32
TAG_BYTES = 16
NOISE_MESSAGE_BYTES_MAX = 65_535
NONCE_MAX = (1 << 64) - 1
"""Never used (section 5.1): a channel ends long before."""

PATTERN = (("e",), ("e", "ee", "s", "es"), ("s", "se"))
"""The tokens of the three messages; the initiator writes the first and the third."""


class NoiseError(RemoteError):
    """What came was not sent like this: changed, replayed, cut short, or meant for another channel.

    It ends the session and costs the peer nothing: whoever sits on the way can do it to anybody.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, penalty=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An X25519 key pair, 32 bytes each."""

    private: bytes
    public: bytes

    @classmethod
    def generate(cls) -> KeyPair:
        return cls.of(secrets.token_bytes(DH_BYTES))

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        return cls(private=private, public=crypto_scalarmult_base(private))


class CipherState:
    """One direction of a channel: a key and the number of messages so far (section 5.1)."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == HASH_BYTES, "a key has 32 bytes"
        self._key = key
        self._sent = 0

    def encrypt(self, plaintext: bytes, associated: bytes = b"") -> bytes:
        """``plaintext`` and a tag of 16 bytes."""
        return crypto_aead_chacha20poly1305_ietf_encrypt(plaintext, associated, self._next_nonce(), self._key)

    def decrypt(self, ciphertext: bytes, associated: bytes = b"") -> bytes:
        """NoiseError unless the other side encrypted exactly this as its next message: the end of the channel."""
        if len(ciphertext) < TAG_BYTES:
            raise NoiseError("an encrypted message without its tag")
        try:
            return crypto_aead_chacha20poly1305_ietf_decrypt(ciphertext, associated, self._next_nonce(), self._key)
        except CryptoError:
            raise NoiseError("a message that was not encrypted for this place") from None

    def _next_nonce(self) -> bytes:
        assert self._sent < NONCE_MAX, "a channel ends before its nonces do"
        nonce = bytes(4) + self._sent.to_bytes(8, "little")
        self._sent += 1
        return nonce


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """What a handshake leads to."""

    sending: CipherState
    receiving: CipherState
    handshake_hash: bytes
    """32 bytes, the same on both sides of this channel alone."""
    remote_static: bytes
    """The other side's static public key, 32 bytes."""


class Handshake:
    """One side of the three messages. ``write`` and ``read`` take turns; the initiator writes first.

    ``prologue`` is what both sides must agree on beforehand. ``ephemeral`` is for published test vectors only.
    """

    def __init__(
        self, *, initiator: bool, static: KeyPair, prologue: bytes = b"", ephemeral: KeyPair | None = None
    ) -> None:
        self._initiator = initiator
        self._static = static
        self._ephemeral = ephemeral
        self._remote_static = b""
        self._remote_ephemeral = b""
        self._messages = 0
        self._cipher: CipherState | None = None
        # Section 5.2: a name that is no longer than a hash is padded, a longer one is hashed.
        self._hash = hashlib.blake2s(PROTOCOL_NAME).digest()
        self._chaining_key = self._hash
        self._mix_hash(prologue)

    @property
    def writes_next(self) -> bool:
        return not self.is_over and (self._messages % 2 == 0) == self._initiator

    @property
    def is_over(self) -> bool:
        return self._messages == len(PATTERN)

    @property
    def bytes_without_payload(self) -> int:
        """Length of the next message, whoever writes it, if it carries nothing."""
        tag = TAG_BYTES if self._messages else 0
        keys = {"e": DH_BYTES, "s": DH_BYTES + tag}
        return sum(keys.get(token, 0) for token in PATTERN[self._messages]) + tag

    @property
    def handshake_hash(self) -> bytes:
        """Of all that was said so far, 32 bytes."""
        return self._hash

    def write(self, payload: bytes = b"") -> bytes:
        """The next message, which carries ``payload``: in the clear in the first one, encrypted in the others."""
        assert self.writes_next, "it is the other side's turn"
        message = bytearray()
        for token in PATTERN[self._messages]:
            if token == "e":
                self._ephemeral = self._ephemeral or KeyPair.generate()
                message += self._ephemeral.public
                self._mix_hash(self._ephemeral.public)
            elif token == "s":
                message += self._encrypt_and_hash(self._static.public)
            else:
                self._mix_dh(token)
        message += self._encrypt_and_hash(payload)
        self._messages += 1
        return bytes(message)

    def read(self, message: bytes) -> bytes:
        """The payload of the other side's next message. NoiseError, after which this handshake is of no use."""
        assert not self.writes_next and not self.is_over, "it is this side's turn"
        rest = memoryview(message)
        for token in PATTERN[self._messages]:
            if token == "e":
                self._remote_ephemeral, rest = _take(rest, DH_BYTES)
                self._mix_hash(self._remote_ephemeral)
            elif token == "s":
                encrypted, rest = _take(rest, DH_BYTES + TAG_BYTES)
                self._remote_static = self._decrypt_and_hash(encrypted)
            else:
                self._mix_dh(token)
        payload = self._decrypt_and_hash(bytes(rest))
        self._messages += 1
        return payload

    def channel(self) -> Channel:
        """Once all three messages have gone."""
        assert self.is_over, "the handshake goes on"
        first, second = self._derive(b"")
        ours, theirs = (first, second) if self._initiator else (second, first)
        return Channel(
            sending=CipherState(ours),
            receiving=CipherState(theirs),
            handshake_hash=self._hash,
            remote_static=self._remote_static,
        )

    # ---- the symmetric state (section 5.2)

    def _mix_hash(self, data: bytes) -> None:
        self._hash = hashlib.blake2s(self._hash + data).digest()

    def _mix_dh(self, token: str) -> None:
        """``ee``, ``es`` or ``se``: the first letter names the initiator's key, the second the accepter's."""
        ours, theirs = (token[0], token[1]) if self._initiator else (token[1], token[0])
        pair = self._ephemeral if ours == "e" else self._static
        remote = self._remote_ephemeral if theirs == "e" else self._remote_static
        assert pair is not None and remote, "the pattern sends keys before it uses them"
        try:
            shared = crypto_scalarmult(pair.private, remote)
        except CryptoError:
            raise NoiseError("a public key with which every secret is the same") from None
        self._chaining_key, key = self._derive(shared)
        self._cipher = CipherState(key)

    def _encrypt_and_hash(self, plaintext: bytes) -> bytes:
        ciphertext = plaintext if self._cipher is None else self._cipher.encrypt(plaintext, self._hash)
        self._mix_hash(ciphertext)
        return ciphertext

    def _decrypt_and_hash(self, ciphertext: bytes) -> bytes:
        plaintext = ciphertext if self._cipher is None else self._cipher.decrypt(ciphertext, self._hash)
        self._mix_hash(ciphertext)
        return plaintext

    def _derive(self, material: bytes) -> tuple[bytes, bytes]:
        """HKDF with two outputs (section 4.3)."""
        secret = hmac.digest(self._chaining_key, material, "blake2s")
        first = hmac.digest(secret, b"\x01", "blake2s")
        return first, hmac.digest(secret, first + b"\x02", "blake2s")


def _take(message: memoryview, count: int) -> tuple[bytes, memoryview]:
    if len(message) < count:
        raise NoiseError("a handshake message that was cut short")
    return bytes(message[:count]), message[count:]


__all__ = ["PROTOCOL_NAME", "Channel", "CipherState", "Handshake", "KeyPair", "NoiseError"]

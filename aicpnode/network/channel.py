"""What stands between frames and the byte stream: nothing, or a Noise channel. Pure: bytes in, bytes out.

On the stream a Noise message is its length (u16, big-endian) and its bytes. The first one has 32 bytes, so an encrypted
session begins with a zero byte and a plain one never does: either side notices at once if the other does not do what it
does itself, and can still say so in words.
"""

from __future__ import annotations

from typing import Protocol

from aicpnode.network.noise import (
    NOISE_MESSAGE_BYTES_MAX,
    TAG_BYTES,
    Channel,
    Handshake,
    KeyPair,
    NoiseError,
)

LENGTH_BYTES = 2
PLAINTEXT_BYTES_MAX = NOISE_MESSAGE_BYTES_MAX - TAG_BYTES
PROLOGUE = b"aicp/session/1"


class Wire(Protocol):
    """How a session's frames travel."""

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent."""
        ...

    @property
    def binding(self) -> bytes:
        """What identifies an open wire on both sides, and no other; empty if nothing does."""
        ...

    def to_send(self) -> bytes:
        """What the wire itself has to say, once."""
        ...

    def incoming(self, data: bytes) -> bytes:
        """The bytes of frames that are complete with ``data``. NoiseError, which ends the session."""
        ...

    def outgoing(self, data: bytes) -> bytes:
        """Whole frames, as they travel."""
        ...


class PlainWire:
    """For networks whose members trust everybody on the way (``encryption = "off"``)."""

    is_open = True
    binding = b""

    def to_send(self) -> bytes:
        return b""

    def incoming(self, data: bytes) -> bytes:
        return data

    def outgoing(self, data: bytes) -> bytes:
        return data


class NoiseWire:
    """Encrypted with keys that are made for this session alone, so that what was recorded stays secret for ever.

    Who is on the other side it does not know: the session signs ``binding``.
    """

    def __init__(self, *, initiator: bool) -> None:
        self._handshake = Handshake(initiator=initiator, static=KeyPair.generate(), prologue=PROLOGUE)
        self._channel: Channel | None = None
        self._received = bytearray()
        self._output = bytearray()
        self._continue()

    @property
    def is_open(self) -> bool:
        return self._channel is not None

    @property
    def binding(self) -> bytes:
        return b"" if self._channel is None else self._channel.handshake_hash

    def to_send(self) -> bytes:
        data = bytes(self._output)
        self._output.clear()
        return data

    def incoming(self, data: bytes) -> bytes:
        self._received += data
        plaintext = b""
        while (message := self._next_message()) is not None:
            if self._channel is not None:
                opened = self._channel.receiving.decrypt(message)
                plaintext = plaintext + opened if plaintext else opened
            else:
                self._handshake.read(message)
                self._continue()
        return plaintext

    def outgoing(self, data: bytes) -> bytes:
        assert self._channel is not None, "nothing is sent before the channel is open"
        encrypt = self._channel.sending.encrypt
        if len(data) <= PLAINTEXT_BYTES_MAX:
            return _with_length(encrypt(data))
        pieces = range(0, len(data), PLAINTEXT_BYTES_MAX)
        return b"".join(_with_length(encrypt(data[at : at + PLAINTEXT_BYTES_MAX])) for at in pieces)

    def _continue(self) -> None:
        """Say what it is this side's turn to say."""
        if self._handshake.writes_next:
            self._output += _with_length(self._handshake.write())
        if self._handshake.is_over:
            self._channel = self._handshake.channel()

    def _next_message(self) -> bytes | None:
        """The next complete Noise message."""
        if len(self._received) < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._received[:LENGTH_BYTES], "big")
        if self._channel is None and length != self._handshake.bytes_without_payload:
            raise NoiseError(f"a handshake message of {length} bytes: not an aicp-node peer?")
        end = LENGTH_BYTES + length
        if len(self._received) < end:
            return None
        message = bytes(self._received[LENGTH_BYTES:end])
        del self._received[:end]
        return message


def _with_length(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


__all__ = ["NoiseWire", "PlainWire", "Wire"]

"""The handshake: who is on the other side, and may we talk? Pure: bytes in, events out; the driver keeps the clock.

    initiator                                accepter
    HELLO            ------------------->    checks version, network, self
    PeerAuthenticated <------------------    HELLO, AUTH
    accept(): AUTH   ------------------->    PeerAuthenticated
    SessionEstablished <-----------------    accept(): WELCOME; SessionEstablished

At PeerAuthenticated each driver says accept() or refuse(): it knows who is connected already.

HELLO carries who one is and a fresh nonce; AUTH is an Ed25519 signature over a domain tag, the role, the hashes of both
HELLOs and the binding of the wire, so that it cannot be replayed, reflected, or moved to another session. Whoever does
not want to go on says why in REFUSE, whose form never changes with the version, before it closes.

All of it travels through a ``Wire``: encrypted by Noise, whose handshake comes first and whose hash is the binding, so
that nobody who sits between two nodes shares a key with both; or plain, if both sides are told to.

A HELLO with the network id of 32 zero bytes asks only for the genesis: such a session may fetch bodies of the GENESIS
namespace and nothing else.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from aicpnode.envelop.codec import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES, pack, unpack
from aicpnode.errors import PENALTY_MALFORMED, MalformedError, RemoteError
from aicpnode.identity import Identity, short, verify
from aicpnode.network.channel import NoiseWire, PlainWire, Wire
from aicpnode.network.framing import (
    HANDSHAKE_PAYLOAD_BYTES_MAX,
    FrameReader,
    FrameType,
    Lane,
    Message,
    encode_frame,
)

PROTOCOL_VERSION = 1
MAGIC = b"aicp"
AUTH_DOMAIN = b"aicp/session/1"
NO_NETWORK = bytes(HASH_BYTES)
"""The network id of somebody who asks for the genesis first."""
NONCE_BYTES = 16
NAME_BYTES_MAX = 64
NODE_TYPE_BYTES_MAX = 32
FEATURES_MAX = 16
FEATURE_BYTES_MAX = 32
REASON_BYTES_MAX = 400


class Role(IntEnum):
    INITIATOR = 0
    ACCEPTER = 1


class RefusalCode(IntEnum):
    """Why a session is not opened, or ended. OTHER stands for codes of later versions."""

    OTHER = 0
    VERSION = 1
    NETWORK = 2
    SELF = 3
    SAME_KEY = 4
    DUPLICATE = 5
    FULL = 6
    BANNED = 7
    MALFORMED = 8
    SHUTTING_DOWN = 9
    TOO_SLOW = 10
    REPLACED = 11
    ENCRYPTION = 12


class HandshakeFailed(RemoteError):
    """This side refuses the peer; ``data_to_send`` holds the REFUSE that says so."""

    def __init__(self, code: RefusalCode, reason: str, *, penalty: int = 0) -> None:
        super().__init__(reason, penalty=penalty)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """How a node introduces itself. ``listen_port`` 0: it cannot be dialled; ``head_height`` 0: no block yet."""

    version: int = PROTOCOL_VERSION
    network_id: bytes
    key: bytes
    node_type: str
    name: str
    listen_port: int
    head_height: int
    nonce: bytes
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAuthenticated:
    """This side knows who the other is; it answers with ``accept`` or ``refuse``."""

    peer: Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEstablished:
    peer: Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRefused:
    """The other side does not want us. ``reason`` is its text, made printable."""

    code: RefusalCode
    reason: str


SessionEvent = PeerAuthenticated | SessionEstablished | SessionRefused


class _State(Enum):
    WAIT_HELLO = auto()
    WAIT_AUTH = auto()
    WAIT_DECISION = auto()
    WAIT_WELCOME = auto()
    ESTABLISHED = auto()
    CLOSED = auto()


def printable(text: str, bytes_max: int = REASON_BYTES_MAX) -> str:
    """A peer's text for our terminal and logs: no control characters, bounded."""
    cut = text.encode(errors="replace")[:bytes_max].decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in cut)


def encode_refusal(code: RefusalCode, reason: str) -> bytes:
    """The payload of REFUSE: code u8, then text in UTF-8. The same in every protocol version."""
    return bytes((code,)) + printable(reason).encode()


def decode_refusal(payload: bytes) -> SessionRefused:
    """Lenient on purpose: the reason may come from another protocol version."""
    known = {int(code): code for code in RefusalCode}
    code = known.get(payload[0], RefusalCode.OTHER) if payload else RefusalCode.OTHER
    return SessionRefused(code=code, reason=printable(payload[1:].decode(errors="replace")) or "no reason given")


def encode_hello(hello: Hello) -> bytes:
    """MAGIC, version u16 LE, then the rest as canonical msgpack; the first two are the same in every version."""
    rest = (
        hello.network_id,
        hello.key,
        hello.node_type,
        hello.name,
        hello.listen_port,
        hello.head_height,
        hello.nonce,
        hello.features,
    )
    payload = MAGIC + hello.version.to_bytes(2, "little") + pack(rest)
    assert len(payload) <= HANDSHAKE_PAYLOAD_BYTES_MAX, "name, type and features must fit into the HELLO"
    return payload


def decode_hello(payload: bytes) -> Hello:
    """MalformedError on what no node sends, HandshakeFailed on another protocol version."""
    if payload[: len(MAGIC)] != MAGIC or len(payload) < len(MAGIC) + 2:
        raise MalformedError("not an aicp HELLO")
    version = int.from_bytes(payload[len(MAGIC) : len(MAGIC) + 2], "little")
    if version != PROTOCOL_VERSION:
        raise HandshakeFailed(
            RefusalCode.VERSION,
            f"wrong protocol version: this node speaks version {PROTOCOL_VERSION}, the other side version {version}",
        )
    fields = unpack(payload[len(MAGIC) + 2 :], max_bytes=HANDSHAKE_PAYLOAD_BYTES_MAX)
    if not isinstance(fields, tuple) or len(fields) != 8:
        raise MalformedError("a HELLO has eight fields")
    network_id, key, node_type, name, listen_port, head_height, nonce, features = fields
    if not isinstance(network_id, bytes) or len(network_id) != HASH_BYTES:
        raise MalformedError("a network id has 32 bytes")
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise MalformedError("a key has 32 bytes")
    if not isinstance(nonce, bytes) or len(nonce) != NONCE_BYTES:
        raise MalformedError(f"a nonce has {NONCE_BYTES} bytes")
    if type(listen_port) is not int or not 0 <= listen_port <= 65_535:
        raise MalformedError("a port lies between 0 and 65535")
    if type(head_height) is not int or not 0 <= head_height < 1 << 63:
        raise MalformedError("a height is not negative and has at most 63 bits")
    if not isinstance(features, tuple) or len(features) > FEATURES_MAX:
        raise MalformedError(f"at most {FEATURES_MAX} features")
    return Hello(
        network_id=network_id,
        key=key,
        node_type=_checked_text(node_type, NODE_TYPE_BYTES_MAX),
        name=_checked_text(name, NAME_BYTES_MAX),
        listen_port=listen_port,
        head_height=head_height,
        nonce=nonce,
        features=tuple(_checked_text(feature, FEATURE_BYTES_MAX) for feature in features),
    )


def _checked_text(value: object, bytes_max: int) -> str:
    if not isinstance(value, str) or len(value.encode()) > bytes_max or not value.isprintable():
        raise MalformedError(f"a text in a HELLO is printable and has at most {bytes_max} bytes")
    return value


class Session:
    """One handshake. Feed ``receive_data``, then drain ``next_event`` and write ``data_to_send``; repeat.

    RemoteError (with ``data_to_send`` holding the reason for the other side) and SessionRefused are final. After
    SessionEstablished, ``frames`` holds whatever bytes came behind the handshake.
    """

    def __init__(
        self,
        *,
        role: Role,
        identity: Identity,
        hello: Hello,
        is_own_nonce: Callable[[bytes], bool] = lambda _: False,
        encrypted: bool = True,
    ) -> None:
        assert hello.key == identity.key, "a node introduces itself"
        self.role = role
        self.encrypted = encrypted
        self.frames = FrameReader(payload_bytes_max=HANDSHAKE_PAYLOAD_BYTES_MAX)
        self.peer: Hello | None = None
        """Set once the other side has proved its key."""
        self._identity = identity
        self._hello = hello
        self._hello_bytes = encode_hello(hello)
        self._is_own_nonce = is_own_nonce
        self._claimed: Hello | None = None
        self._claimed_bytes = b""
        self._state = _State.WAIT_HELLO
        self._wire: Wire = NoiseWire(initiator=role is Role.INITIATOR) if encrypted else PlainWire()
        self._received = bytearray()
        self._is_first_byte = True
        self._greeted = False
        self._output = bytearray()
        self._events: deque[SessionEvent] = deque()
        self._greet()

    @property
    def nonce(self) -> bytes:
        """The nonce of this side's HELLO."""
        return self._hello.nonce

    def data_to_send(self) -> bytes:
        """Bytes for the other side; each is returned once."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def receive_data(self, data: bytes) -> None:
        self._received += data

    def incoming(self, data: bytes) -> bytes:
        """Of an established session: the bytes of frames in what came. NoiseError if it was not sent like this."""
        if self._received:  # came while this side made up its mind
            data = bytes(self._received) + data
            self._received.clear()
        return self._wire.incoming(data)

    def outgoing(self, data: bytes) -> bytes:
        """Of an established session: whole frames, as they travel."""
        return self._wire.outgoing(data)

    def next_event(self) -> SessionEvent | None:
        """The next event, or None until more bytes arrive. RemoteError if the other side broke the protocol."""
        while not self._events and self._state not in (_State.WAIT_DECISION, _State.ESTABLISHED, _State.CLOSED):
            try:
                self._read_wire()
                message = self.frames.next_message()
                if message is None:
                    return None
                self._handle(message)
            except HandshakeFailed as failure:
                self._close_with(failure.code, failure.reason)
                raise
            except RemoteError as error:
                self._close_with(RefusalCode.MALFORMED, error.reason)
                raise
        return self._events.popleft() if self._events else None

    def accept(self) -> None:
        """This side wants the peer: the initiator proves its own key, the accepter opens the session."""
        assert self._state is _State.WAIT_DECISION and self.peer is not None
        if self.role is Role.INITIATOR:
            self._send(FrameType.AUTH, self._identity.sign(self._transcript(Role.INITIATOR)))
            self._state = _State.WAIT_WELCOME
        else:
            self._send(FrameType.WELCOME, b"")
            self._establish(self.peer)

    def refuse(self, code: RefusalCode, reason: str) -> None:
        """This side does not want the session, for a reason that is nobody's fault."""
        assert self._state not in (_State.ESTABLISHED, _State.CLOSED)
        self._close_with(code, reason)

    def _greet(self) -> None:
        """Pass on what the wire has to say; the initiator introduces itself as soon as it is open."""
        self._output += self._wire.to_send()
        if self.role is Role.INITIATOR and self._wire.is_open and not self._greeted:
            self._greeted = True
            self._send(FrameType.HELLO, self._hello_bytes)

    def _read_wire(self) -> None:
        if not self._received:
            return
        data = bytes(self._received)
        self._received.clear()
        if self._is_first_byte:
            self._is_first_byte = False
            self._check_first_byte(data[0])
        self.frames.receive_data(self._wire.incoming(data))
        self._greet()

    def _check_first_byte(self, first: int) -> None:
        """An encrypted session begins with 0, a plain one with the type of a frame."""
        if self.encrypted == (first == 0):
            return
        self._wire = PlainWire()
        if self.encrypted and first == FrameType.REFUSE:
            return  # the other side says itself what is wrong
        dialled_encrypts = self.encrypted == (self.role is Role.ACCEPTER)
        dialled, dialling = ("encrypts", "does not") if dialled_encrypts else ("does not encrypt", "does")
        raise HandshakeFailed(
            RefusalCode.ENCRYPTION,
            f"the node that was dialled {dialled} its sessions, the one that dialled it {dialling}; "
            "both need the same encryption",
        )

    def _handle(self, message: Message) -> None:
        if self.encrypted and self._wire.binding == b"" and message.type is not FrameType.REFUSE:
            raise MalformedError(f"a {message.type.name} frame that is not encrypted")
        match message.type, self._state:
            case FrameType.REFUSE, _:
                self._events.append(decode_refusal(message.payload))
                self._state = _State.CLOSED
            case FrameType.HELLO, _State.WAIT_HELLO:
                self._handle_hello(message.payload)
            case FrameType.AUTH, _State.WAIT_AUTH:
                self._handle_auth(message.payload)
            case FrameType.WELCOME, _State.WAIT_WELCOME:
                assert self.peer is not None
                self._establish(self.peer)
            case _:
                raise MalformedError(f"a {message.type.name} frame in the state {self._state.name} of a handshake")

    def _handle_hello(self, payload: bytes) -> None:
        peer = decode_hello(payload)
        ours = self._hello.network_id
        if self._is_own_nonce(peer.nonce):
            raise HandshakeFailed(RefusalCode.SELF, "this node dialled itself")
        if peer.key == self._hello.key:
            raise HandshakeFailed(
                RefusalCode.SAME_KEY,
                f"another node runs with the same key {short(peer.key)}; each node needs a key and data_dir of its own",
            )
        if peer.network_id != ours and NO_NETWORK not in (peer.network_id, ours):
            raise HandshakeFailed(
                RefusalCode.NETWORK,
                f"wrong network: this node is in {ours.hex()}, the other side in {peer.network_id.hex()}",
            )
        if peer.network_id == ours == NO_NETWORK:
            raise HandshakeFailed(RefusalCode.NETWORK, "neither side has a genesis")
        self._claimed, self._claimed_bytes = peer, payload
        self._state = _State.WAIT_AUTH
        if self.role is Role.ACCEPTER:
            self._send(FrameType.HELLO, self._hello_bytes)
            self._send(FrameType.AUTH, self._identity.sign(self._transcript(Role.ACCEPTER)))

    def _handle_auth(self, payload: bytes) -> None:
        assert self._claimed is not None
        other = Role(1 - self.role)
        if len(payload) != SIGNATURE_BYTES or not verify(self._claimed.key, self._transcript(other), payload):
            raise HandshakeFailed(
                RefusalCode.MALFORMED, "the signature of the handshake is wrong", penalty=PENALTY_MALFORMED
            )
        self.peer = self._claimed
        self._state = _State.WAIT_DECISION
        self._events.append(PeerAuthenticated(peer=self.peer))

    def _transcript(self, signer: Role) -> bytes:
        """What AUTH signs."""
        hellos = (self._hello_bytes, self._claimed_bytes)
        first, second = hellos if self.role is Role.INITIATOR else hellos[::-1]
        hashes = hashlib.sha256(first).digest() + hashlib.sha256(second).digest()
        return AUTH_DOMAIN + bytes((signer,)) + hashes + self._wire.binding

    def _establish(self, peer: Hello) -> None:
        self._state = _State.ESTABLISHED
        self.frames.allow_full_frames()
        self._events.append(SessionEstablished(peer=peer))

    def _close_with(self, code: RefusalCode, reason: str) -> None:
        self._send(FrameType.REFUSE, encode_refusal(code, reason))
        self._state = _State.CLOSED

    def _send(self, frame_type: FrameType, payload: bytes) -> None:
        if not self._wire.is_open:
            self._wire = PlainWire()  # a REFUSE before there is a channel: the other side may understand it
        self._output += self._wire.outgoing(encode_frame(frame_type, Lane.CONTROL, payload))

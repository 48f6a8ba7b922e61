"""The calling side of the control socket, for trio programs and for plain ones.

Both clients open one connection a command, hand events over as they arrive, and give up when no line arrives for
``idle_timeout_s``: a command that takes long streams events or is called with a longer limit.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from aicpnode.errors import AicpError, UserError
from aicpnode.interfaces.control import Emit, JsonObject, encode_line

ANSWER_LINE_BYTES_MAX = 4 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 15.0
RECEIVE_BYTES = 64 * 1024


class NodeUnreachable(UserError):
    """No node answers on this control socket."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"No node answers on {path}: {cause}.", advice="Is it running? Start one with: aicp-node run")


class CommandFailed(AicpError):
    """The node answered that the command failed because of a defect of its own."""


class ControlClient:
    """Calls the commands of one running node from a trio program."""

    def __init__(self, path: Path, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self.path = path
        self.idle_timeout_s = idle_timeout_s

    async def call(self, name: str, args: JsonObject | None = None, *, emit: Emit | None = None) -> JsonObject:
        """Run one command; ``await emit(event)`` for each event. Cancelling the call cancels the command.

        Raises ``NodeUnreachable``, the node's ``UserError``, or ``CommandFailed``.
        """
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await trio.open_unix_socket(os.fspath(self.path))
        except (OSError, trio.TooSlowError) as error:
            raise NodeUnreachable(self.path, _cause(error)) from error
        lines = _Lines()
        async with stream:
            try:
                await stream.send_all(encode_line({"command": name, "args": args or {}}))
                while True:
                    message = lines.next()
                    if message is None:
                        with trio.fail_after(self.idle_timeout_s):
                            chunk = await stream.receive_some(RECEIVE_BYTES)
                        lines.feed(chunk)
                    elif "event" in message:
                        if emit is not None:
                            await emit(message["event"])
                    else:
                        return _result(message)
            except (trio.BrokenResourceError, trio.TooSlowError) as error:
                raise NodeUnreachable(self.path, _cause(error)) from error


class SyncControlClient:
    """Calls the commands of one running node from a program without an event loop."""

    def __init__(self, path: Path, *, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self.path = path
        self.idle_timeout_s = idle_timeout_s

    def call(
        self, name: str, args: JsonObject | None = None, *, on_event: Callable[[JsonObject], None] | None = None
    ) -> JsonObject:
        """Run one command; ``on_event(event)`` for each event. Raises as ``ControlClient.call``."""
        lines = _Lines()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            try:
                stream.settimeout(CONNECT_TIMEOUT_S)
                stream.connect(os.fspath(self.path))
                stream.sendall(encode_line({"command": name, "args": args or {}}))
                stream.settimeout(self.idle_timeout_s)
                while True:
                    message = lines.next()
                    if message is None:
                        lines.feed(stream.recv(RECEIVE_BYTES))
                    elif "event" in message:
                        if on_event is not None:
                            on_event(message["event"])
                    else:
                        return _result(message)
            except OSError as error:
                raise NodeUnreachable(self.path, _cause(error)) from error


class _Lines:
    """Bytes in, JSON objects out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, chunk: bytes) -> None:
        if not chunk:
            raise CommandFailed("The node closed the connection before it answered; its log may say why.")
        self._data += chunk
        if len(self._data) > ANSWER_LINE_BYTES_MAX:
            raise CommandFailed(f"The node's answer is longer than {ANSWER_LINE_BYTES_MAX} bytes.")

    def next(self) -> JsonObject | None:
        line, found, rest = self._data.partition(b"\n")
        if not found:
            return None
        self._data = rest
        message: Any = json.loads(line)
        if not isinstance(message, dict):
            raise CommandFailed("The node's answer is not a JSON object.")
        return message


def _result(message: JsonObject) -> JsonObject:
    if "result" in message:
        result: JsonObject = message["result"]
        return result
    error = message.get("error", {})
    if error.get("kind") == "internal":
        raise CommandFailed(f"{error.get('message', '')} {error.get('advice', '')}".strip())
    raise UserError(str(error.get("message", "The node refused the command.")), advice=str(error.get("advice", "")))


def _cause(error: BaseException) -> str:
    if isinstance(error, TimeoutError | trio.TooSlowError):
        return "no answer in time"
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or "it closed"

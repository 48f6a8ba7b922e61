"""One command surface for every way of talking to a running node: the prompt, the command line, other tools.

A node registers named commands on a ``CommandSurface``. They can be called in the process (``call``) or through a
Unix socket that only the owner may open (``serve``), one request a connection, one JSON object a line::

    -> {"command": "status", "args": {}}
    <- {"event": {...}}                      any number, only from commands that stream
    <- {"result": {...}}                     or {"error": {"message": ..., "advice": ..., "kind": ...}}

Closing the connection, even half of it, cancels the command: that is how Ctrl-C in an attached prompt works.
A handler's ``UserError`` is an answer. Any other exception is our own fault: it is logged with its traceback and
answered as kind ``internal``; a failed assertion also stops the node, as everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import platformdirs
import trio

from aicpnode.errors import UserError

SOCKET_NAME = "control.sock"
SOCKET_PATH_BYTES_MAX = 100
"""The kernel's limit is 108 bytes on Linux and 104 on macOS, terminator included."""
REQUEST_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 32
REQUEST_DEADLINE_S = 10.0
SEND_DEADLINE_S = 10.0

JsonObject = dict[str, Any]
Emit = Callable[[JsonObject], Awaitable[None]]
Handler = Callable[[JsonObject], Awaitable[JsonObject]]
StreamHandler = Callable[[JsonObject, Emit], Awaitable[JsonObject]]

log = logging.getLogger(__name__)


class CommandCaller(Protocol):
    """What the prompt needs: ``CommandSurface`` (in the process) and ``ControlClient`` (attached) both are one."""

    async def call(self, name: str, args: JsonObject | None = None, *, emit: Emit | None = None) -> JsonObject: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A registered command. ``handler`` gets the arguments and an ``emit`` for its events, and returns its result."""

    name: str
    help: str
    handler: StreamHandler


class CommandSurface:
    """Named async commands of one node, callable in the process or over a Unix socket."""

    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}
        self._connections = 0

    def register(self, name: str, handler: Handler, *, help: str = "") -> None:
        """Register ``async handler(args) -> result``. A name is registered once."""

        async def without_events(args: JsonObject, emit: Emit) -> JsonObject:
            return await handler(args)

        self.register_stream(name, without_events, help=help)

    def register_stream(self, name: str, handler: StreamHandler, *, help: str = "") -> None:
        """Register ``async handler(args, emit) -> result``; ``await emit(event)`` sends one event to the caller."""
        assert name not in self._commands, f"command {name!r} is registered twice"
        self._commands[name] = Command(name=name, help=help, handler=handler)

    def commands(self) -> tuple[Command, ...]:
        """All registered commands by name."""
        return tuple(self._commands[name] for name in sorted(self._commands))

    async def call(self, name: str, args: JsonObject | None = None, *, emit: Emit | None = None) -> JsonObject:
        """Run one command in this process. Raises what its handler raises; ``UserError`` for an unknown name."""
        command = self._commands.get(name)
        if command is None:
            raise UserError(f"Unknown command {name!r}.", advice="Known are: " + ", ".join(sorted(self._commands)))
        return await command.handler(dict(args or {}), emit or _drop)

    async def serve(self, data_dir: Path, *, task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve on ``socket_path(data_dir)`` (mode 600) until cancelled; ``started`` with the socket's path.

        Raises ``UserError`` if another process serves there.
        """
        path = socket_path(data_dir)
        listener = _bind(path)
        inode = path.stat().st_ino
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(path)
                await trio.serve_listeners(
                    self._serve_connection, [trio.SocketListener(listener)], handler_nursery=nursery
                )
        finally:
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    path.unlink()

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                if self._connections > CONNECTIONS_MAX:
                    await _send(stream, _error("Too many control connections at once.", "Close some prompts.", "user"))
                    return
                await self._serve_request(stream)
        except _CallerLeft as left:
            log.debug("a control connection ended early: %r", left.__cause__)
        finally:
            self._connections -= 1

    async def _serve_request(self, stream: trio.SocketStream) -> None:
        line = await _receive_line(stream)
        try:
            name, args = _parse_request(line)
        except UserError as error:
            await _send(stream, _error(error.message, error.advice, "user"))
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_hangup, stream, nursery.cancel_scope)
            answer = await self._answer(stream, name, args)
            with contextlib.suppress(_CallerLeft):
                await _send(stream, answer)
            nursery.cancel_scope.cancel()

    async def _answer(self, stream: trio.SocketStream, name: str, args: JsonObject) -> JsonObject:
        async def emit(event: JsonObject) -> None:
            await _send(stream, {"event": event})

        try:
            result = await self.call(name, args, emit=emit)
        except UserError as error:
            return _error(error.message, error.advice, "user")
        except _CallerLeft:
            return _error("The caller left.", "", "user")
        except AssertionError:
            raise
        except Exception as error:
            log.exception("command %s failed", name)
            return _error(
                f"{name} failed inside the node: {error!r}.",
                "This is a defect; the node's log has the details.",
                "internal",
            )
        return {"result": result}


def socket_path(data_dir: Path) -> Path:
    """Where the node with this data directory serves: inside it, or in a short private directory if too long."""
    path = data_dir.expanduser().absolute() / SOCKET_NAME
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16] + ".sock"
    runtime = platformdirs.user_runtime_path("aicp-node") / name
    if runtime.parent.parent.is_dir() and len(os.fsencode(runtime)) <= SOCKET_PATH_BYTES_MAX:
        return runtime
    return Path(tempfile.gettempdir()) / f"aicp-node-{os.getuid()}" / name


def encode_line(value: JsonObject) -> bytes:
    """One JSON object as one line. Strict JSON: a number that is not finite (a diverged loss) becomes null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def accepts(path: Path) -> bool:
    """Whether a process listens on this socket now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except TimeoutError:
            return True
        except OSError as error:
            return error.errno == errno.EAGAIN
        return True


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


async def _drop(event: JsonObject) -> None:
    """Where events go when the caller did not ask for them."""


def _error(message: str, advice: str, kind: str) -> JsonObject:
    return {"error": {"message": message, "advice": advice, "kind": kind}}


def _bind(path: Path) -> trio.socket.SocketType:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.parent.stat()
    if info.st_uid != os.getuid() and path.parent.name.startswith("aicp-node-"):
        raise UserError(f"{path.parent} belongs to another user.", advice="Use a shorter data_dir.")
    if path.exists() or path.is_symlink():
        if stat.S_ISSOCK(path.lstat().st_mode) and accepts(path):
            raise UserError(f"Another process serves {path}.", advice="Stop it, or use another data_dir.")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _umask(0o177):
        listener.bind(os.fspath(path))
    listener.listen(CONNECTIONS_MAX)
    listener.setblocking(False)
    return trio.socket.from_stdlib_socket(listener)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


class _CallerLeft(Exception):
    """The other end of a control connection closed it, or stopped reading or writing."""


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as gone:
        raise _CallerLeft from gone


async def _send(stream: trio.SocketStream, value: JsonObject) -> None:
    line = encode_line(value)
    with _deadline(SEND_DEADLINE_S):
        await stream.send_all(line)


async def _receive_line(stream: trio.SocketStream) -> bytes:
    """One request without its line end; longer than ``REQUEST_BYTES_MAX`` if the caller sent too much."""
    data = bytearray()
    with _deadline(REQUEST_DEADLINE_S):
        while b"\n" not in data and len(data) <= REQUEST_BYTES_MAX:
            chunk = await stream.receive_some(REQUEST_BYTES_MAX)
            if not chunk:
                break
            data += chunk
    return bytes(data).split(b"\n", 1)[0]


def _parse_request(line: bytes) -> tuple[str, JsonObject]:
    if len(line) > REQUEST_BYTES_MAX:
        raise UserError(f"A request is longer than {REQUEST_BYTES_MAX} bytes.")
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"A request is not JSON: {error}.", advice='Send {"command": NAME, "args": {}}.') from error
    if not isinstance(request, dict) or not isinstance(request.get("command"), str):
        raise UserError("A request needs a command.", advice='Send {"command": NAME, "args": {}}.')
    args = request.get("args", {})
    if not isinstance(args, dict):
        raise UserError("The args of a request are an object.", advice='Send {"command": NAME, "args": {}}.')
    return request["command"], args


async def _cancel_on_hangup(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.receive_some(1)
    scope.cancel()

"""`kubelet-trio exec` and `attach`: the streams of a container, over the control socket.

The connection is a WebSocket of the protocol `v5.channel.k8s.io`, as for any client. Both
directions are always served: a command may write output before it reads more input.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection

from kubelet_trio.cli.client import AgentClient, ClientError

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_BLOCK = 32 * 1024
_ENDED = 137  # the exit code if the connection ended without one


class Ends(NamedTuple):
    """Our ends of a command's streams.

    `source` is the descriptor of the input, None for no input; `out` and `err` take output, and
    raise BrokenPipeError if they want no more of it: this ends the connection.
    """

    source: int | None
    out: Callable[[bytes], None]
    err: Callable[[bytes], None]


def run(
    agent: AgentClient,
    path: Sequence[str],
    command: Sequence[str],
    *,
    with_input: bool,
    with_terminal: bool,
) -> int:
    """Run a command in the container at `path` (namespace, pod, name); return its exit code.

    Raises `ClientError`.
    """
    ends = Ends(0 if with_input else None, _to_stdout, _to_stderr)
    return run_between(agent, path, command, ends, with_terminal=with_terminal)


def run_between(
    agent: AgentClient,
    path: Sequence[str],
    command: Sequence[str],
    ends: Ends,
    *,
    with_terminal: bool = False,
) -> int:
    """Run a command between `ends`; return its exit code. Raises `ClientError`."""
    query = [("command", word) for word in command]
    outcome = _connect(agent, ("exec", *path), query, ends, with_terminal=with_terminal)
    return _exit_code(outcome)


def attach(
    agent: AgentClient, path: Sequence[str], *, with_input: bool, with_terminal: bool
) -> bool:
    """Connect with the main process of the container at `path` until it ends.

    Returns whether it has written anything since then. Raises `ClientError`.
    """
    has_written = False

    def out(content: bytes) -> None:
        nonlocal has_written
        has_written = True
        _to_stdout(content)

    def err(content: bytes) -> None:
        nonlocal has_written
        has_written = True
        _to_stderr(content)

    ends = Ends(0 if with_input else None, out, err)
    # Our own end says nothing about the container: its status has the exit code.
    _exit_code(_connect(agent, ("attach", *path), [], ends, with_terminal=with_terminal))
    return has_written


def feed(agent: AgentClient, path: Sequence[str]) -> None:
    """Pass our input to the main process of the container at `path`, and leave its output alone.

    Raises `ClientError`.
    """
    ends = Ends(0, lambda _: None, lambda _: None)
    _exit_code(_connect(agent, ("attach", *path), [], ends, with_terminal=False))


def _connect(
    agent: AgentClient,
    path: Sequence[str],
    query: list[tuple[str, str]],
    ends: Ends,
    *,
    with_terminal: bool,
) -> bytes:
    """Serve the streams of `path` until they end; return the outcome, a metav1.Status."""
    query = [*query, ("output", "1"), *[("input", "1")] * (ends.source is not None)]
    query.append(("tty", "1") if with_terminal else ("error", "1"))
    # A fixed key: it guards against proxies only, and there is none on a unix socket.
    headers = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    headers["Sec-WebSocket-Protocol"] = "v5.channel.k8s.io"
    with agent.upgraded(path, query, "websocket", headers) as (connection, early):
        session = _ExecConnection(connection, early, ends)
        try:
            with _terminal(session) if with_terminal else contextlib.nullcontext():
                session.run()
        finally:
            session.close()
    return session.outcome


def _to_stdout(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _to_stderr(content: bytes) -> None:
    sys.stderr.buffer.write(content)
    sys.stderr.buffer.flush()


class _ExecConnection:
    """The streams of one command, over one WebSocket."""

    def __init__(self, connection: socket.socket, early: bytes, ends: Ends) -> None:
        connection.setblocking(False)  # a full socket must not stop the output
        self._connection = connection
        self._wire = Connection(ConnectionType.CLIENT)
        self._early = early
        self._source, self._ends = ends.source, ends
        self._pending = b""
        self._message = bytearray()
        self._is_over = False
        self.wakeups, self.wakes = os.pipe()
        self.outcome = b""

    def run(self) -> None:
        """Copy input and output until the agent closes the connection."""
        self._take(self._early)
        # select(2), not trio: the command must start fast, and there are only three descriptors.
        while not self._is_over:
            reads = [self._connection.fileno(), self.wakeups]
            # No input is read while the last one is unsent: this is the backpressure.
            if self._source is not None and not self._pending:
                reads.append(self._source)
            writes = [self._connection.fileno()] if self._pending else []
            ready, free, _ = select.select(reads, writes, [])
            if free:
                self._flush()
            if self.wakeups in ready:
                os.read(self.wakeups, 4096)
                self.send_size()
            if self._source is not None and self._source in ready:
                self._pass_input(self._source)
            if self._connection.fileno() in ready:
                self._receive()

    def send_size(self) -> None:
        """Send the size of our terminal."""
        packed = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        rows, columns, _, _ = struct.unpack("HHHH", packed)
        self._send(_RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    def close(self) -> None:
        os.close(self.wakeups)
        os.close(self.wakes)

    def _pass_input(self, source: int) -> None:
        try:
            content = os.read(source, _BLOCK)
        except OSError:  # EIO: our terminal was closed
            content = b""
        if content:
            self._send(_STDIN, content)
        else:
            self._source = None
            # v5.channel.k8s.io: channel 255 with the number of a stream closes that stream.
            self._send(_CLOSE, bytes([_STDIN]))

    def _send(self, channel: int, content: bytes) -> None:
        self._pending += self._wire.send(BytesMessage(bytes([channel]) + content))
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while self._pending:
                    self._pending = self._pending[self._connection.send(self._pending) :]
            except (BrokenPipeError, ConnectionResetError):
                self._pending, self._source = b"", None

    def _receive(self) -> None:
        try:
            content = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            content = b""
        self._is_over = not content
        self._take(content)

    def _take(self, content: bytes) -> None:
        if content:
            self._wire.receive_data(content)
        for event in self._wire.events():
            if isinstance(event, BytesMessage):
                self._message += event.data
                if event.message_finished:
                    message = bytes(self._message)
                    self._write_output(message[:1], message[1:])
                    self._message.clear()
            elif isinstance(event, CloseConnection):
                self._is_over = True

    def _write_output(self, channel: bytes, content: bytes) -> None:
        if channel == bytes([_ERROR]):
            self.outcome += content
        elif content:
            (self._ends.err if channel == bytes([_STDERR]) else self._ends.out)(content)


@contextlib.contextmanager
def _terminal(session: _ExecConnection) -> Iterator[None]:
    """Put our terminal into raw mode, and send its size changes. Raises `ClientError`."""
    if not os.isatty(0):
        raise ClientError("-t needs a terminal on the input")
    before = termios.tcgetattr(0)
    # `set_wakeup_fd` refuses a blocking descriptor.
    os.set_blocking(session.wakes, False)
    # A full pipe is no problem: one byte in it is enough to wake `select`.
    signal.set_wakeup_fd(session.wakes, warn_on_full_buffer=False)
    # Without a handler of ours, Python writes nothing to the wake-up descriptor.
    signal.signal(signal.SIGWINCH, lambda *_: None)
    try:
        tty.setraw(0)
        session.send_size()
        yield
    finally:
        # Otherwise the user's shell would stay in raw mode, without echo.
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(-1)


def _exit_code(outcome: bytes) -> int:
    """Return the exit code in a metav1.Status. Raises `ClientError`."""
    if not outcome:
        return _ENDED
    status = json.loads(outcome)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise ClientError(str(status.get("message")))

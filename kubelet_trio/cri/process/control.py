"""The agent's side of a shim's control socket: requests, streams, commands."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import trio

from kubelet_trio.cri.errors import RuntimeCallError
from kubelet_trio.cri.process.shim import protocol

Stream = Literal["stdout", "stderr"]

_STREAMS: dict[bytes, Stream] = {protocol.STDOUT: "stdout", protocol.STDERR: "stderr"}
_BLOCK = 1 << 16
_LEAVE_LIMIT = 10.0  # s for a command to die after we hung up
_KILLED = 137  # 128 + SIGKILL


class Output(NamedTuple):
    """Some bytes that a process wrote. All output of a terminal is stdout."""

    stream: Stream
    content: bytes


class _Answer(msgspec.Struct):
    error: str = ""
    pid: int = 0


class _Exit(msgspec.Struct):
    code: int


class ShimConnection:
    """A connection to a shim. One task at a time may receive; any task may send."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = b""
        self._sending = trio.Lock()
        self._is_cut = False  # a frame was sent in part: no further frame would be understood

    async def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a frame. Does not fail if the shim is gone: `receive` shows that."""
        async with self._sending:
            if self._is_cut:
                return
            self._is_cut = True  # stays set if we are cancelled within `send_all`
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_all(protocol.HEADER.pack(kind, len(content)) + content)
                self._is_cut = False

    def hang_up(self) -> None:
        """Close our sending side; the shim then kills the command of this connection."""
        # Not a frame: a frame would queue behind input that the command does not read, or land
        # within a frame whose sender was cancelled.
        with suppress(OSError, trio.ClosedResourceError):
            self._stream.socket.shutdown(trio.socket.SHUT_WR)

    async def receive(self) -> tuple[bytes, bytes] | None:
        """Return the next frame, None at the end."""
        header = protocol.HEADER
        while True:
            if len(self._received) >= header.size:
                kind, size = header.unpack_from(self._received)
                end = header.size + size
                if len(self._received) >= end:
                    content = self._received[header.size : end]
                    self._received = self._received[end:]
                    await trio.lowlevel.checkpoint()
                    return kind, content
            try:
                block = await self._stream.receive_some(_BLOCK)
            except trio.BrokenResourceError:
                return None
            if not block:
                return None
            self._received += block

    async def request(self, call: str, op: str, **values: Any) -> None:
        """Send a request and wait for the answer. Raises `RuntimeCallError`.

        If the shim ends first, return without one: its container has exited.
        """
        await self.send(protocol.REQUEST, msgspec.json.encode({"op": op, **values}))
        while (frame := await self.receive()) is not None:
            kind, content = frame
            if kind == protocol.EXITED:
                # Put it back: `wait_exited` or `ProcessStreams.receive` needs it.
                self._received = protocol.HEADER.pack(kind, len(content)) + content
                return
            if kind == protocol.ANSWER:
                if error := msgspec.json.decode(content, type=_Answer).error:
                    raise RuntimeCallError(call, error)
                return

    async def wait_exited(self) -> None:
        """Wait until the shim reports the container's exit, or is gone."""
        while (frame := await self.receive()) is not None:
            if frame[0] == protocol.EXITED:
                return


class ProcessStreams:
    """Input and output of a command (`open_exec`) or of a container's process (`open_attach`)."""

    def __init__(self, connection: ShimConnection) -> None:
        self._connection = connection
        # Set once `receive` has returned None; 128 + n after signal n.
        self.exit_code: int | None = None

    async def receive(self) -> Output | None:
        """Return the next output; None once the process has ended and all output is read."""
        while (frame := await self._connection.receive()) is not None:
            kind, content = frame
            if kind in _STREAMS:
                return Output(_STREAMS[kind], content)
            if kind == protocol.EXITED:
                self.exit_code = msgspec.json.decode(content, type=_Exit).code
                return None
        if self.exit_code is None:
            self.exit_code = _KILLED  # together with its container
        return None

    def __aiter__(self) -> ProcessStreams:
        return self

    async def __anext__(self) -> Output:
        output = await self.receive()
        if output is None:
            raise StopAsyncIteration
        return output

    async def send_stdin(self, content: bytes) -> None:
        """Send input; a process without an open stdin does not receive it."""
        for start in range(0, len(content), _BLOCK):
            await self._connection.send(protocol.STDIN, content[start : start + _BLOCK])

    async def end_stdin(self) -> None:
        await self._connection.send(protocol.STDIN_END)

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal, if it has one."""
        await self._connection.send(protocol.RESIZE, msgspec.json.encode([rows, columns]))


class ShimGoneError(RuntimeCallError):
    """The shim does not answer: the container has exited, or is about to."""


@asynccontextmanager
async def connect(directory: Path, call: str) -> AsyncIterator[ShimConnection]:
    """Connect to the shim of a container's directory. Raises `ShimGoneError`."""
    with trio.socket.socket(trio.socket.AF_UNIX) as connection:
        try:
            # Through /proc/self/fd: the path may be longer than sun_path's 108 bytes, unix(7).
            fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                await connection.connect(f"/proc/self/fd/{fd}/{protocol.CONTROL}")
            finally:
                os.close(fd)
        except OSError as exc:
            raise ShimGoneError(call, f"container is not running: {exc.strerror}") from exc
        yield ShimConnection(trio.SocketStream(connection))


@asynccontextmanager
async def attach(directory: Path, call: str) -> AsyncIterator[ProcessStreams]:
    """Attach to the input and output of a container's process. Raises `RuntimeCallError`."""
    async with connect(directory, call) as connection:
        await connection.request(call, "attach")
        yield ProcessStreams(connection)


@asynccontextmanager
async def run_command(
    directory: Path, command: Sequence[str], *, call: str, tty: bool, stdin: bool
) -> AsyncIterator[ProcessStreams]:
    """Run a command in a container; leaving the context kills it and its descendants.

    Raises `RuntimeCallError` if it cannot be started.
    """
    async with connect(directory, call) as connection:
        streams = ProcessStreams(connection)
        try:
            await connection.request(call, "exec", argv=list(command), tty=tty, stdin=stdin)
            yield streams
        finally:
            if streams.exit_code is None:
                # Shielded: our own cancellation must not leave the command running. Bounded: an
                # unkillable process must not hold us; the container's end kills it.
                with trio.move_on_after(_LEAVE_LIMIT, shield=True):
                    connection.hang_up()
                    while await connection.receive() is not None:
                        pass

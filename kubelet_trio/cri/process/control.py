"""Talking to a container's shim through the socket in its directory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import trio

from kubelet_trio.cri._errors import RuntimeCallError
from kubelet_trio.cri.process.shim import protocol

Stream = Literal["stdout", "stderr"]

_STREAMS: dict[bytes, Stream] = {protocol.STDOUT: "stdout", protocol.STDERR: "stderr"}
_BLOCK = 1 << 16
_LEAVE_LIMIT = 10.0  # s for a command to be dead after we left it
_KILLED = 137


class Output(NamedTuple):
    """Some bytes that a process wrote. A terminal's are all stdout."""

    stream: Stream
    content: bytes


class _Answer(msgspec.Struct):
    error: str = ""
    pid: int = 0


class _Exit(msgspec.Struct):
    code: int


class ShimConnection:
    """One connection; one task at a time may receive, any may send."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = b""
        self._sending = trio.Lock()
        self._is_cut = False  # in the middle of a frame: nothing more can be said

    async def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a frame; a shim that is gone is found out by `receive`."""
        async with self._sending:
            if self._is_cut:
                return
            self._is_cut = True
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_all(protocol.HEADER.pack(kind, len(content)) + content)
                self._is_cut = False

    def leave(self) -> None:
        """Say that nobody is interested any more; a command is killed then.

        By the end of what we send and not by a frame: that would wait behind input which the
        command does not take, or come in the middle of a piece whose sender was cancelled.
        """
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
        """Ask for something and wait for the answer. Raises `RuntimeCallError`.

        A shim that ends meanwhile gives none, which is no error: its container is over.
        """
        await self.send(protocol.REQUEST, msgspec.json.encode({"op": op, **values}))
        while (frame := await self.receive()) is not None:
            kind, content = frame
            if kind == protocol.EXITED:
                self._received = protocol.HEADER.pack(kind, len(content)) + content
                return
            if kind == protocol.ANSWER:
                if error := msgspec.json.decode(content, type=_Answer).error:
                    raise RuntimeCallError(call, error)
                return

    async def wait_exited(self) -> None:
        """Return once the shim says that the container is over, or is gone itself."""
        while (frame := await self.receive()) is not None:
            if frame[0] == protocol.EXITED:
                return


class ProcessStreams:
    """A process' input and output: of a command that `open_exec` runs, or of a container."""

    def __init__(self, connection: ShimConnection) -> None:
        self._connection = connection
        self.exit_code: int | None = None  # once `receive` has returned None; 128 + n: signal n

    async def receive(self) -> Output | None:
        """Return what it writes next, None once it has ended and all is read."""
        while (frame := await self._connection.receive()) is not None:
            kind, content = frame
            if kind in _STREAMS:
                return Output(_STREAMS[kind], content)
            if kind == protocol.EXITED:
                self.exit_code = msgspec.json.decode(content, type=_Exit).code
                return None
        if self.exit_code is None:
            self.exit_code = _KILLED  # with its container
        return None

    def __aiter__(self) -> ProcessStreams:
        return self

    async def __anext__(self) -> Output:
        output = await self.receive()
        if output is None:
            raise StopAsyncIteration
        return output

    async def send_stdin(self, content: bytes) -> None:
        """Give it input; without an open stdin it goes nowhere."""
        for start in range(0, len(content), _BLOCK):
            await self._connection.send(protocol.STDIN, content[start : start + _BLOCK])

    async def end_stdin(self) -> None:
        await self._connection.send(protocol.STDIN_END)

    async def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal, if it has one, that it has another size now."""
        await self._connection.send(protocol.RESIZE, msgspec.json.encode([rows, columns]))


class ShimGoneError(RuntimeCallError):
    """There is no shim to talk to: the container is over, or about to be."""


@asynccontextmanager
async def connect(directory: Path, call: str) -> AsyncIterator[ShimConnection]:
    """Connect to the shim of a container's directory. Raises `ShimGoneError`."""
    with trio.socket.socket(trio.socket.AF_UNIX) as connection:
        try:
            # By way of a descriptor: the path itself may be longer than a socket's address.
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
    """Join a container's own input and output. Raises `ShimGoneError`."""
    async with connect(directory, call) as connection:
        await connection.request(call, "attach")
        yield ProcessStreams(connection)


@asynccontextmanager
async def run_command(
    directory: Path, command: Sequence[str], *, call: str, tty: bool, stdin: bool
) -> AsyncIterator[ProcessStreams]:
    """Run a command beside a container's process; leaving kills it and what came of it.

    Raises `RuntimeCallError` where it cannot be started.
    """
    async with connect(directory, call) as connection:
        streams = ProcessStreams(connection)
        try:
            await connection.request(call, "exec", argv=list(command), tty=tty, stdin=stdin)
            yield streams
        finally:
            if streams.exit_code is None:
                # Shielded: nothing may be left behind. Bounded: by then it is the container's.
                with trio.move_on_after(_LEAVE_LIMIT, shield=True):
                    connection.leave()
                    while await connection.receive() is not None:
                        pass

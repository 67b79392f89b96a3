"""Connects a command with its client: input and terminal sizes, output, and the outcome.

The client is behind SPDY streams or the channels of a WebSocket, the command behind
`CommandStreams`. A client that disconnects ends the command. When a command ends, all its output
is sent before its outcome, and the client has some time to read it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import trio

from kubelet_trio.cri import CommandStreams, RuntimeCallError, StreamOptions
from kubelet_trio.model import get_logger
from kubelet_trio.streaming import channels
from kubelet_trio.streaming.backpressure import PEER_GONE
from kubelet_trio.streaming.channels import Outcome, SizeReader
from kubelet_trio.streaming.spdy_link import SpdyLink, SpdyStream
from kubelet_trio.streaming.websocket import WebSocket

log = get_logger()

_CREATION_LIMIT = 30.0  # s for a client to open all its streams
_LEAVE_LIMIT = 5.0  # s for a client to close when it has the outcome


class CommandClient(Protocol):
    """The client of a command."""

    async def listen(self, command: CommandStreams) -> None:
        """Pass the client's input and terminal sizes to the command until it disconnects."""
        ...

    async def send(self, stream: str, content: bytes) -> None:
        """Send output. Raises BrokenResourceError if the client has disconnected."""
        ...

    async def finish(self, outcome: Outcome) -> None:
        """Send the outcome and close the connection."""
        ...


async def serve_command(
    client: CommandClient,
    opening: AbstractAsyncContextManager[CommandStreams],
    options: StreamOptions,
    *,
    is_attach: bool,
) -> None:
    """Run the command, or attach to it, and connect it with its client until either ends."""
    code: int | None = None
    try:
        async with opening as command, trio.open_nursery() as nursery:
            nursery.start_soon(_listen, client, command, nursery.cancel_scope)
            while (output := await command.receive()) is not None:
                stream, content = output
                if options.stderr if stream == "stderr" else options.stdout:
                    await client.send(stream, content)
            code = command.exit_code
            nursery.cancel_scope.cancel()
    except RuntimeCallError as exc:
        what = "attaching to container" if is_attach else "executing command in container"
        log.warning("stream.failed", error=str(exc))
        await client.finish(channels.failed(f"error {what}: {exc.go_text}"))
        return
    # Without an exit code the client has disconnected, and no outcome is sent.
    if code is not None:
        # As upstream: an attached client finds the exit code in the container's status.
        await client.finish(channels.SUCCESS if is_attach else channels.exited(code))


async def _listen(client: CommandClient, command: CommandStreams, scope: trio.CancelScope) -> None:
    await client.listen(command)
    scope.cancel()


class WebSocketClient:
    """A client behind the channels of a WebSocket."""

    def __init__(self, socket: WebSocket, protocol: str, options: StreamOptions) -> None:
        self._socket, self._protocol, self._options = socket, protocol, options

    async def greet(self) -> None:
        """Send an empty message on the lowest output channel, as upstream does at the start."""
        await self._socket.send(channels.greeting(self._options))

    async def listen(self, command: CommandStreams) -> None:
        sizes, takes_input = SizeReader(), self._options.stdin

        async def take(message: bytes) -> None:
            nonlocal takes_input
            channel, content = (message[0], message[1:]) if message else (None, b"")
            if channel == channels.STDIN and takes_input and content:
                await command.send_stdin(content)
            # v5.channel.k8s.io: a half-close of the input (KEP-4006).
            elif channel == channels.CLOSE and content == bytes([channels.STDIN]):
                if takes_input:
                    await command.end_stdin()
                takes_input = False
            elif channel == channels.RESIZE and (size := sizes.feed(content)) is not None:
                await command.resize(*size)

        await self._socket.deliver(take)

    async def send(self, stream: str, content: bytes) -> None:
        channel = channels.STDERR if stream == "stderr" else channels.STDOUT
        await self._socket.send(bytes([channel]) + content)

    async def finish(self, outcome: Outcome) -> None:
        with suppress(*PEER_GONE):
            if encoded := outcome.encoded(self._protocol):
                await self._socket.send(bytes([channels.ERROR]) + encoded)
        await self._socket.close()


class SpdyClient:
    """A client behind SPDY streams; their header `streamtype` names them."""

    def __init__(self, link: SpdyLink, protocol: str, options: StreamOptions) -> None:
        self._link, self._protocol, self._options = link, protocol, options
        self._streams: dict[str, SpdyStream] = {}

    async def wait_streams(self) -> bool:
        """Wait until the client has opened its streams; return False if it does not in time."""
        wanted = {"error", *self._wanted()}
        with trio.move_on_after(_CREATION_LIMIT):
            async for stream in self._link.offered:
                kind = stream.headers.get("streamtype", "")
                if kind in wanted:
                    self._streams[kind] = stream
                else:
                    await stream.aclose()
                if wanted == self._streams.keys():
                    return True
        return False

    def _wanted(self) -> list[str]:
        options = self._options
        found = [n for n in ("stdin", "stdout", "stderr") if getattr(options, n)]
        if options.tty and channels.has_resize(self._protocol):
            found.append("resize")
        return found

    async def listen(self, command: CommandStreams) -> None:
        async with trio.open_nursery() as nursery:
            if "stdin" in self._streams:
                nursery.start_soon(self._pass_stdin, command)
            if "resize" in self._streams:
                nursery.start_soon(self._pass_sizes, command)
            await self._link.ended.wait()
            nursery.cancel_scope.cancel()

    async def _pass_stdin(self, command: CommandStreams) -> None:
        stream = self._streams["stdin"]
        with suppress(*PEER_GONE):
            while content := await stream.receive_some():
                await command.send_stdin(content)
        await command.end_stdin()

    async def _pass_sizes(self, command: CommandStreams) -> None:
        sizes = SizeReader()
        with suppress(*PEER_GONE):
            while content := await self._streams["resize"].receive_some():
                if (size := sizes.feed(content)) is not None:
                    await command.resize(*size)

    async def send(self, stream: str, content: bytes) -> None:
        await self._streams[stream].send_all(content)

    async def finish(self, outcome: Outcome) -> None:
        with suppress(*PEER_GONE):
            for name in ("stdout", "stderr"):
                if name in self._streams:
                    await self._streams[name].send_eof()
            if encoded := outcome.encoded(self._protocol):
                await self._streams["error"].send_all(encoded)
            await self._streams["error"].send_eof()
            await self._link.go_away()
        # Closing a socket with unread input makes the kernel reset the connection, and the client
        # may lose output that it has not read. So read its input until it closes.
        with trio.move_on_after(_LEAVE_LIMIT):
            async with trio.open_nursery() as drains:
                for name in self._streams.keys() & {"stdin", "resize"}:
                    drains.start_soon(_drain, self._streams[name])
                await self._link.ended.wait()
                drains.cancel_scope.cancel()


async def _drain(stream: SpdyStream) -> None:
    with suppress(*PEER_GONE):
        while await stream.receive_some():
            pass

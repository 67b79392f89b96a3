"""Translates the channels of a WebSocket client into SPDY streams of a runtime.

The streaming servers of runtimes speak WebSocket up to `v4`, which cannot half-close input. So, as
the Go kubelet, we serve a `v5` client ourselves and connect to the runtime over SPDY.

Source: StreamTranslatorHandler in k8s.io/apiserver/pkg/util/proxy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

import trio

from kubelet_trio.cri import StreamOptions
from kubelet_trio.streaming import channels
from kubelet_trio.streaming.backpressure import PEER_GONE, Busy
from kubelet_trio.streaming.spdy import Content
from kubelet_trio.streaming.spdy_link import Deliver, Run, SpdyLink, SpdyStream
from kubelet_trio.streaming.websocket import Message, Part, WebSocket

_MOST_OUTCOME = 64 * 1024  # bytes
_HANG_UP_LIMIT = 2.0  # s for the runtime to take what hangs up
_HANG_UP_PAUSE = 0.2  # s for a shell to take its terminal back
_CREATION_LIMIT = 30.0  # s for the runtime to accept all streams


async def translate_command(
    socket: WebSocket, link: SpdyLink, options: StreamOptions, *, hangs_up: bool = False
) -> None:
    """Connect client and runtime until the runtime ends its output or the client disconnects.

    Runs the link. With `hangs_up` the command is then asked to end, as far as its terminal can do
    that: runtimes let it run on when their client leaves.
    """
    with suppress(*PEER_GONE):
        await socket.send(channels.greeting(options))
    outputs = _Outputs(socket)
    streams: dict[int, SpdyStream] = {}
    outcome: bytes | None = None
    try:
        async with trio.open_nursery() as clients:
            clients.start_soon(link.run)
            clients.start_soon(outputs.ping, link)
            streams = await _open_streams(link, _wanted(options), outputs.take)
            clients.start_soon(_listen, socket, streams, clients.cancel_scope)
            # It ends with the last output of the runtime; a client that disconnects cancels it.
            outcome = await outputs.wait_outcome(streams)
            clients.cancel_scope.cancel()
    finally:
        if hangs_up and outcome is None and channels.STDIN in streams:
            with trio.move_on_after(_HANG_UP_LIMIT, shield=True), suppress(*PEER_GONE):
                await _hang_up(streams[channels.STDIN])
    if outcome is None:
        await socket.close()
    else:
        await _finish(socket, outcome)


async def _open_streams(
    link: SpdyLink, wanted: list[int], deliver: Deliver
) -> dict[int, SpdyStream]:
    """Open a stream for each channel; return none if the runtime does not take them all."""
    streams: dict[int, SpdyStream] = {}
    with trio.move_on_after(_CREATION_LIMIT), suppress(*PEER_GONE):
        for channel in wanted:
            name = channels.STREAM_NAMES[channel]
            streams[channel] = await link.open({"streamtype": name}, deliver)
        return streams
    return {}


class _Outputs:
    """Passes output on to the client, in the order in which the runtime has sent it.

    This is done in the task that reads the runtime's connection. Nothing waits to become a larger
    message, and what comes during a send is in the next read. A task of its own would read more
    often and find less each time, and a client that does not read would fill its queue.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._outcome = bytearray()
        self._busy = Busy()

    async def take(self, runs: list[Run]) -> None:
        """Pass on what one read has brought; keep the outcome."""
        messages: list[Message] = []
        for stream, contents in runs:
            channel = channels.STREAM_NAMES.index(stream.headers["streamtype"])
            if channel == channels.ERROR:
                for content in contents:
                    self._outcome += content[: _MOST_OUTCOME - len(self._outcome)]
            elif channel in (channels.STDOUT, channels.STDERR):
                messages.append((channel, contents))
        if messages:
            with self._busy, suppress(*PEER_GONE):
                await self._socket.send_parts(messages)

    async def ping(self, link: SpdyLink) -> None:
        """Ping the runtime while the client does not read: it ends connections that are idle."""
        await self._busy.ping(link.ping)

    async def wait_outcome(self, streams: dict[int, SpdyStream]) -> bytes:
        """Wait for the end of all output, and return the outcome, which is sent then.

        As upstream does: some clients stop reading at the outcome.
        """
        if not streams:
            return _failure("the runtime does not take the streams of this command")
        for channel in streams.keys() & {channels.ERROR, channels.STDOUT, channels.STDERR}:
            await streams[channel].input_ended.wait()
        # In `v4.channel.k8s.io` success is told as well.
        return bytes(self._outcome) or _failure("the runtime did not tell how the command ended")


def _failure(message: str) -> bytes:
    return channels.failed(message).encoded(channels.WEBSOCKET_V5)


async def _finish(socket: WebSocket, outcome: bytes) -> None:
    with suppress(*PEER_GONE):
        await socket.send(bytes([channels.ERROR]) + outcome)
    await socket.close()


async def _hang_up(stdin: SpdyStream) -> None:
    """Type Ctrl-C, which ends what runs in the foreground, and Ctrl-D, which ends the shell."""
    for key in (b"\x03", b"\x03", b"\x04", b"\x04"):
        await stdin.send_all(key)
        await trio.sleep(_HANG_UP_PAUSE)


def _wanted(options: StreamOptions) -> list[int]:
    """Return the wanted channels, in the order in which kubectl opens their streams."""
    asked = {
        channels.ERROR: True,
        channels.STDIN: options.stdin,
        channels.STDOUT: options.stdout,
        channels.STDERR: options.stderr,
        channels.RESIZE: options.tty,
    }
    return [channel for channel, is_asked in asked.items() if is_asked]


async def _listen(
    socket: WebSocket, streams: dict[int, SpdyStream], scope: trio.CancelScope
) -> None:
    async def take(parts: list[Part]) -> None:
        with suppress(*PEER_GONE):  # the command has ended; its outcome follows
            for channel, contents in _by_channel(parts):
                if channel == channels.CLOSE:
                    if contents[0][0] == channels.STDIN and channels.STDIN in streams:
                        await streams[channels.STDIN].send_eof()
                elif channel in (channels.STDIN, channels.RESIZE) and channel in streams:
                    await streams[channel].send_parts(contents)

    await socket.deliver_parts(take)
    scope.cancel()


def _by_channel(parts: list[Part]) -> Iterator[tuple[int, list[Content]]]:
    """Yield what follows each other on one channel together: a frame has a cost at both ends."""
    for channel, found in groupby(parts, itemgetter(0)):
        yield channel, [content for _, content in found]

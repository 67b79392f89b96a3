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
from kubelet_trio.streaming.backpressure import PEER_GONE
from kubelet_trio.streaming.spdy import Content
from kubelet_trio.streaming.spdy_link import SpdyLink, SpdyStream
from kubelet_trio.streaming.websocket import Part, WebSocket

# Bytes that make a message although more has arrived. What one read has brought is not divided, so
# a message is mostly what TLS takes at once.
_MESSAGE = 128 * 1024
_MOST_OUTCOME = 64 * 1024  # bytes
_HANG_UP_LIMIT = 2.0  # s for the runtime to take what hangs up
_HANG_UP_PAUSE = 0.2  # s for a shell to take its terminal back
_CREATION_LIMIT = 30.0  # s for the runtime to accept all streams


async def translate_command(
    socket: WebSocket, link: SpdyLink, options: StreamOptions, *, hangs_up: bool = False
) -> None:
    """Connect client and runtime until the runtime ends its output or the client disconnects.

    With `hangs_up` the command is then asked to end, as far as its terminal can do that: runtimes
    let it run on when their client leaves.
    """
    with suppress(*PEER_GONE):
        await socket.send(channels.greeting(options))
    streams = await _open_streams(link, _wanted(options))
    if not streams:
        await _finish(socket, _failure("the runtime does not take the streams of this command"))
        return
    outcome: bytes | None = None
    try:
        async with trio.open_nursery() as clients:
            clients.start_soon(_listen, socket, streams, clients.cancel_scope)
            # It ends with the last output of the runtime; a client that disconnects cancels it.
            outcome = await _pass_outputs(streams, socket)
            clients.cancel_scope.cancel()
    finally:
        if hangs_up and outcome is None and channels.STDIN in streams:
            with trio.move_on_after(_HANG_UP_LIMIT, shield=True), suppress(*PEER_GONE):
                await _hang_up(streams[channels.STDIN])
    if outcome is None:
        await socket.close()
    else:
        await _finish(socket, outcome)


async def _open_streams(link: SpdyLink, wanted: list[int]) -> dict[int, SpdyStream]:
    """Open a stream for each channel; return none if the runtime does not take them all."""
    streams: dict[int, SpdyStream] = {}
    with trio.move_on_after(_CREATION_LIMIT), suppress(*PEER_GONE):
        for channel in wanted:
            name = channels.STREAM_NAMES[channel]
            streams[channel] = await link.open({"streamtype": name})
        return streams
    return {}


async def _pass_outputs(streams: dict[int, SpdyStream], socket: WebSocket) -> bytes:
    """Pass on all output, and return the outcome.

    The outcome is sent after the last output, as upstream does: some clients stop reading there.
    """
    found = bytearray()
    async with trio.open_nursery() as outputs:
        outputs.start_soon(_collect, streams[channels.ERROR], found)
        for channel in streams.keys() & {channels.STDOUT, channels.STDERR}:
            outputs.start_soon(_pass_on, streams[channel], socket, channel)
    # In `v4.channel.k8s.io` success is told as well.
    return bytes(found) or _failure("the runtime did not tell how the command ended")


async def _collect(stream: SpdyStream, found: bytearray) -> None:
    with suppress(*PEER_GONE):
        while content := await stream.receive_some():
            found += content[: _MOST_OUTCOME - len(found)]


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


async def _pass_on(stream: SpdyStream, socket: WebSocket, channel: int) -> None:
    with suppress(*PEER_GONE):
        while parts := await stream.receive_parts(_MESSAGE):
            await socket.send_parts(channel, parts)

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

_MESSAGE = 256 * 1024 - 16  # bytes in one message, if so much has arrived: what TLS takes at once
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
    streams: dict[int, SpdyStream] = {}
    with trio.move_on_after(_CREATION_LIMIT) as opening, suppress(*PEER_GONE):
        for channel in _wanted(options):
            name = channels.STREAM_NAMES[channel]
            streams[channel] = await link.open({"streamtype": name})
    if opening.cancelled_caught or len(streams) < len(_wanted(options)):
        outcome = channels.failed("the runtime does not take the streams of this command")
        with suppress(*PEER_GONE):
            encoded = outcome.encoded(channels.WEBSOCKET_V5)
            await socket.send(bytes([channels.ERROR]) + encoded)
        await socket.close()
        return
    has_ended = False
    try:
        async with trio.open_nursery() as clients:
            clients.start_soon(_listen, socket, streams, clients.cancel_scope)
            # It ends with the last output of the runtime; a client that disconnects cancels it.
            async with trio.open_nursery() as outputs:
                for channel in streams.keys() & {channels.STDOUT, channels.STDERR, channels.ERROR}:
                    outputs.start_soon(_pass_on, streams[channel], socket, channel)
            has_ended = True
            clients.cancel_scope.cancel()
    finally:
        if hangs_up and not has_ended and channels.STDIN in streams:
            with trio.move_on_after(_HANG_UP_LIMIT, shield=True), suppress(*PEER_GONE):
                await _hang_up(streams[channels.STDIN])
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

"""However small the frames are that a client sends: between a few of them others get their turn."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
from trio.testing import memory_stream_pair

from kubelet_trio.cri import StreamOptions
from kubelet_trio.streaming import SpdyLink, WebSocket, spdy, translate_command
from kubelet_trio.streaming.channels import STDIN
from tests.harness.linear import longest_turn

FRAMES = 4_000  # of one read
MOST = 8_000  # steps of a turn
MASK = b"\0\0\0\0"
CLOSED = b"\x88\x02\x03\xe8"
_HEAD = struct.Struct(">HHI")


def websocket_frames(opcode: int, payload: bytes = b"", *, is_last: bool = True) -> bytes:
    return bytes([opcode | (0x80 if is_last else 0), 0x80 | len(payload)]) + MASK + payload


async def read_websocket(data: bytes) -> int:
    ours, theirs = memory_stream_pair()
    socket, found = WebSocket(ours, data), 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, theirs)
        await theirs.send_eof()
        while await socket.receive() is not None:
            found += 1
        await ours.send_eof()
    return found


async def deliver_websocket(data: bytes) -> int:
    ours, theirs = memory_stream_pair()
    found = 0

    async def take(_message: bytes) -> None:
        nonlocal found
        found += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, theirs)
        await theirs.send_eof()
        await WebSocket(ours, data).deliver(take)
        await ours.send_eof()
    return found


async def read_spdy(data: bytes) -> int:
    ours, theirs = memory_stream_pair()
    link, found = SpdyLink(ours, is_client=False), 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, theirs)
        nursery.start_soon(_send, theirs, data)
        nursery.start_soon(link.run)
        async for stream in link.offered:
            found += 1
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
        await ours.send_eof()
    return found


async def translate(data: bytes) -> int:
    """Translate what a runtime sends on its streams 3, stdout, and 5, stderr."""
    client, ours = memory_stream_pair()
    asking, asked = memory_stream_pair()
    wire, found = spdy.SpdyWire(is_client=False), b""
    options = StreamOptions(stdin=False, stdout=True, stderr=True, tty=False)
    link = SpdyLink(asking, is_client=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(translate_command, WebSocket(ours), link, options)
        for stream_id in (1, 3, 5):
            await asked.receive_some()
            await asked.send_all(wire.reply(stream_id))
        await _send(asked, data)
        while not found.endswith(CLOSED):
            found += await client.receive_some()
        await client.send_eof()
    return len(found)


async def _send(stream: trio.abc.HalfCloseableStream, data: bytes) -> None:
    await stream.send_all(data)
    await stream.send_eof()


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass


def control(kind: int, content: bytes) -> bytes:
    return _HEAD.pack(0x8000 | 3, kind, len(content)) + content


def many_headers() -> bytes:
    """As few bytes as say the most: thousands of headers without a name."""
    deflater = zlib.compressobj(zdict=spdy.DICTIONARY)
    frames = spdy.SpdyWire(is_client=True).open({})[1]
    deflater.compress(struct.pack(">I", 0)) + deflater.flush(zlib.Z_SYNC_FLUSH)
    for _ in range(100):
        plain = struct.pack(">I", 8_000) + b"\0" * 64_000
        block = deflater.compress(plain) + deflater.flush(zlib.Z_SYNC_FLUSH)
        frames += control(8, struct.pack(">I", 1) + block)
    return frames


Read = Callable[[bytes], Awaitable[int]]
FLOODS: dict[str, tuple[Read, bytes]] = {
    "messages of a byte": (read_websocket, websocket_frames(2, bytes([STDIN])) * FRAMES),
    "messages of a byte, handed on": (
        deliver_websocket,
        websocket_frames(2, bytes([STDIN])) * FRAMES,
    ),
    "empty messages": (read_websocket, websocket_frames(2) * FRAMES),
    "one message in pieces of nothing": (
        read_websocket,
        websocket_frames(2, b"x", is_last=False)
        + websocket_frames(0, is_last=False) * FRAMES
        + websocket_frames(0),
    ),
    "pings": (read_websocket, websocket_frames(9) * FRAMES + websocket_frames(2, b"x")),
    "pongs": (read_websocket, websocket_frames(10) * FRAMES + websocket_frames(2, b"x")),
    "data of no stream": (
        read_spdy,
        spdy.data(77, b"x") * FRAMES + spdy.SpdyWire(is_client=True).open({})[1],
    ),
    "empty data": (
        read_spdy,
        spdy.data(77, b"") * FRAMES + spdy.SpdyWire(is_client=True).open({})[1],
    ),
    "data of a byte": (
        read_spdy,
        spdy.SpdyWire(is_client=True).open({})[1]
        + spdy.data(1, b"x") * FRAMES
        + spdy.data(1, b"", is_last=True),
    ),
    "settings": (
        read_spdy,
        control(4, b"\0\0\0\0") * FRAMES + spdy.SpdyWire(is_client=True).open({})[1],
    ),
    "pings of SPDY": (
        read_spdy,
        spdy.ping(1) * FRAMES + spdy.SpdyWire(is_client=True).open({})[1],
    ),
    "pings that are ours": (
        read_spdy,
        spdy.ping(2) * FRAMES + spdy.SpdyWire(is_client=True).open({})[1],
    ),
    "bytes of two outputs in turn": (
        translate,
        (spdy.data(3, b"x") + spdy.data(5, b"x")) * (FRAMES // 2),
    ),
    "headers": (read_spdy, many_headers()),
    "resets of no stream": (
        read_spdy,
        spdy.SpdyWire(is_client=True).open({})[1]
        + spdy.data(1, b"", is_last=True)
        + spdy.reset(77, spdy.ResetStatus.CANCEL) * 900,
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_between_small_frames_others_get_their_turn(name: str) -> None:
    read, data = FLOODS[name]
    found = 0

    async def main() -> None:
        nonlocal found
        found = await read(data)

    longest = longest_turn(main)
    assert found, "nothing came through"
    assert longest < MOST

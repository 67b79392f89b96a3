"""Clients of a kubelet's HTTPS port that mean harm, in a process of their own.

`python -m tests.harness.rude PORT` says `{"silent": N}` once its silent connections stand, and
attacks until its stdin ends; then it says how often it did what. Everybody comes from an address of
its own, 127.1.x.y.
"""

from __future__ import annotations

import base64
import json
import random
import resource
import ssl
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from kubelet_trio.streaming import spdy
from tests.harness.besieged import FILES

SILENT = 1_024
EACH = 9  # clients of a kind
_TARGET = "default/web"
_LOST = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
_TURN = 0.02  # seconds between two connections of one client

Stream = trio.SSLStream[trio.SocketStream]


class Rude:
    def __init__(self, port: int) -> None:
        self.port = port
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.done: Counter[str] = Counter()
        self._clients = 0

    def address(self) -> str:
        self._clients += 1
        return f"127.1.{self._clients // 250}.{self._clients % 250 + 1}"

    async def connect(self, source: str) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port, local_address=source)

    async def secure(self, source: str) -> Stream:
        tcp = await self.connect(source)
        stream = trio.SSLStream(tcp, self.context, server_hostname="node", https_compatible=True)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(tcp)
            raise
        return stream

    async def silent(self, source: str) -> None:
        """Connect and say nothing; once closed, again."""
        while True:
            with suppress(*_LOST):
                stream = await self.connect(source)
                async with stream:
                    await stream.receive_some()
            await trio.sleep(2)

    async def again(self, act: Callable[[Stream], Awaitable[None]], source: str) -> None:
        """Do it on one connection after the other."""
        while True:
            with suppress(*_LOST):
                stream = await self.secure(source)
                try:
                    self.done[act.__name__.strip("_")] += 1
                    await act(stream)
                finally:
                    await trio.aclose_forcefully(stream)
            await trio.sleep(_TURN)

    async def hello(self, source: str) -> None:
        """Begin handshakes, and leave."""
        while True:
            with suppress(*_LOST):
                stream = await self.connect(source)
                async with stream:
                    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                    tls = self.context.wrap_bio(incoming, outgoing, server_hostname="node")
                    with suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                    await stream.send_all(outgoing.read())
                    self.done["hello"] += 1
                    await stream.receive_some()
            await trio.sleep(_TURN)


def head(method: str, target: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {target} HTTP/1.1", "Host: node", *lines, "", "")).encode()


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


_CHUNKED = "Transfer-Encoding: chunked"
_CHUNKS = b"1\r\nx\r\n" * 40_000


async def _chunks(stream: Stream) -> None:
    """A body in pieces of a byte."""
    await stream.send_all(head("POST", f"/run/{_TARGET}/web?cmd=a", _CHUNKED) + _CHUNKS)
    await _read(stream)


async def _known_chunks(stream: Stream) -> None:
    """The same of somebody who may."""
    asked = head("POST", f"/run/{_TARGET}/web?cmd=a", _CHUNKED, bearer("runner"))
    await stream.send_all(asked + _CHUNKS + b"0\r\n\r\n")
    await _read(stream)


async def _long_head(stream: Stream) -> None:
    await stream.send_all(b"GET /pods HTTP/1.1\r\nX: " + b"x" * (1 << 20))
    await _read(stream)


async def _many_headers(stream: Stream) -> None:
    await stream.send_all(b"GET /pods HTTP/1.1\r\n" + b"a:b\r\n" * 200_000)
    await _read(stream)


async def _many_arguments(stream: Stream) -> None:
    for _ in range(20):
        await stream.send_all(head("GET", "/metrics?" + "a&" * 30_000))
        await _read(stream)


async def _tokens(stream: Stream) -> None:
    for _ in range(20):
        await stream.send_all(head("GET", "/metrics", bearer(f"{random.random()}")))
        await _read(stream)


async def _pipelined(stream: Stream) -> None:
    """Requests without waiting for an answer."""
    await stream.send_all(head("GET", "/metrics") * 2_000)
    await _read(stream)


async def _forbidden(stream: Stream) -> None:
    """Somebody known who may nothing asks for everything."""
    for number in range(20):
        method = random.choice(("GET", "POST", "PUT", "PATCH", "DELETE"))
        await stream.send_all(head(method, f"/stats/{number}", bearer("nobody")))
        await _read(stream)


_EXEC = f"/exec/{_TARGET}/web?command=sh&input=1&output=1&tty=1"


def _websocket(protocol: str) -> bytes:
    key = base64.b64encode(b"0123456789abcdef").decode()
    return head(
        "GET",
        _EXEC,
        bearer("runner"),
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        f"Sec-WebSocket-Protocol: {protocol}",
    )


def _frame(opcode: int, payload: bytes = b"") -> bytes:
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + b"\0" * 4 + payload


async def _frames(stream: Stream) -> None:
    """An exec whose client sends the smallest of messages, pings, and sizes of a terminal."""
    await stream.send_all(_websocket("v5.channel.k8s.io"))
    floods = (
        _frame(2, b"\0x") * 30_000,
        _frame(9) * 30_000,
        _frame(10) * 40_000,
        _frame(2, b"\4" + b"[" * 100) * 2_000,
        _frame(2, b"\4{}") * 20_000,
    )
    await _flood(stream, floods)


def _spdy_head(target: str) -> bytes:
    return head(
        "POST",
        target,
        bearer("runner"),
        "Connection: Upgrade",
        "Upgrade: SPDY/3.1",
        "X-Stream-Protocol-Version: v4.channel.k8s.io",
        "X-Stream-Protocol-Version: portforward.k8s.io",
    )


def _control(kind: int, content: bytes) -> bytes:
    return struct.pack(">HHI", 0x8003, kind, len(content)) + content


async def _spdy(stream: Stream) -> None:
    """An exec whose client sends frames that say nothing."""
    await stream.send_all(_spdy_head(_EXEC))
    wire = spdy.SpdyWire(is_client=True)
    opened = b"".join(
        wire.open({"streamtype": kind})[1] for kind in ("error", "stdin", "stdout", "resize")
    )
    floods = (
        opened,
        _control(4, b"\0\0\0\0") * 30_000,
        spdy.data(99, b"x") * 30_000,
        spdy.ping(1) * 30_000,
        spdy.data(7, b"{}" * 2_000) * 20,
        spdy.data(3, b"x") * 30_000,
    )
    await _flood(stream, floods)


async def _resets(stream: Stream) -> None:
    """A port-forward whose client opens streams to reset them, with headers by the thousand."""
    await stream.send_all(_spdy_head(f"/portForward/{_TARGET}"))
    wire = spdy.SpdyWire(is_client=True)
    flood = b""
    for _ in range(900):
        stream_id, frame = wire.open({"streamtype": "data", "port": "80"})
        flood += frame + spdy.reset(stream_id, spdy.ResetStatus.CANCEL)
    deflater = zlib.compressobj(zdict=spdy.DICTIONARY)
    plain = struct.pack(">I", 8_000) + b"\0" * 64_000
    block = deflater.compress(plain) + deflater.flush(zlib.Z_SYNC_FLUSH)
    await _flood(stream, (flood, _control(8, struct.pack(">I", 1) + block) * 20))


async def _flood(stream: Stream, floods: tuple[bytes, ...]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, stream)
        with trio.move_on_after(5):
            for flood in floods:
                await stream.send_all(flood)
        nursery.cancel_scope.cancel()


async def _drain(stream: Stream) -> None:
    with suppress(*_LOST):
        while await stream.receive_some(1 << 18):
            pass


async def _read(stream: Stream) -> None:
    with trio.move_on_after(5):
        await stream.receive_some(1 << 16)


ACTS: tuple[Callable[[Stream], Awaitable[None]], ...] = (
    _chunks,
    _known_chunks,
    _long_head,
    _many_headers,
    _many_arguments,
    _tokens,
    _pipelined,
    _forbidden,
    _frames,
    _spdy,
    _resets,
)


async def attack(port: int) -> None:
    rude = Rude(port)
    async with trio.open_nursery() as nursery:
        for _ in range(SILENT):
            nursery.start_soon(rude.silent, rude.address())
        await trio.sleep(1)
        print(json.dumps({"silent": SILENT}), flush=True)
        for _ in range(EACH):
            nursery.start_soon(rude.hello, rude.address())
            for act in ACTS:
                nursery.start_soon(rude.again, act, rude.address())
        await trio.to_thread.run_sync(sys.stdin.read)
        print(json.dumps(rude.done), flush=True)
        nursery.cancel_scope.cancel()


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    trio.run(attack, int(sys.argv[1]))


if __name__ == "__main__":
    main()

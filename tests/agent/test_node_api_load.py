"""Two hundred clients on the HTTPS port of a whole agent, most of them rude.

Some never finish their head, some never read what they asked for, some hold commands open. The
others, on connections that they keep, are answered all the same, and what nobody reads is not
gathered in memory.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from kubelet_trio.agent import Agent, NodeApiSettings
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.gc import LogRotationPolicy
from kubelet_trio.model import pod_uid, thread_offload
from kubelet_trio.server import Port, open_tcp
from tests.agent.node import Node, make_pod, ready

SLOW, UNREAD, COMMANDS, KEPT = 60, 40, 20, 80
ROUNDS = 5
LOG = 16 << 20  # bytes; of one, so forty would be more than the agent may grow
GROWTH = 128 << 20
PATIENCE = 120.0
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"


class Api:
    """The HTTPS port of an agent with one pod, whose runtime serves commands that echo."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.node = Node(base)
        self.port = 0
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self._nursery: trio.Nursery

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Agent]:
        opened: list[trio.SocketListener] = []

        async def open_any() -> list[trio.SocketListener]:
            opened.extend(await open_tcp("127.0.0.1", 0))
            return opened

        async def nobody() -> None:
            await trio.lowlevel.checkpoint()

        pod = make_pod()
        settings = NodeApiSettings(
            "127.0.0.1", cert_dir=self.base / "pki", anonymous=True, always_allow=True
        )
        kept = LogRotationPolicy(max_size=-1)  # rotated, the log would be read to its end at once
        async with (
            self.node.running(pod, log_rotation=kept) as agent,
            trio.open_nursery() as nursery,
        ):
            with trio.fail_after(PATIENCE):
                await agent.pods.wait_value(
                    lambda pods: any(p.status and ready(p.status) for p in pods.values())
                )
                api = NodeApi(agent, settings, None, thread_offload)
                await nursery.start(api.serve_https, Port("https", "", "", open_any, nobody))
                self.port = opened[0].socket.getsockname()[1]
                commands = await trio.open_tcp_listeners(0, host="127.0.0.1")
                await nursery.start(trio.serve_listeners, _echo, commands)
                port = commands[0].socket.getsockname()[1]
                self.node.runtime.stream_url = f"http://127.0.0.1:{port}/exec/token"
            (container,) = self.node.runtime.alive(pod_uid(pod))
            line = b"2026-01-02T15:04:05.000000000Z stdout F " + b"x" * 1000 + b"\n"
            Path(container.log_path).write_bytes(line * (LOG // len(line)))
            yield agent
            nursery.cancel_scope.cancel()
        for listener in (*opened, *commands):
            await listener.aclose()

    async def connect(self) -> trio.SSLStream[trio.SocketStream]:
        tcp = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream = trio.SSLStream(tcp, self.context, server_hostname="node", https_compatible=True)
        await stream.do_handshake()
        return stream


async def _echo(stream: trio.SocketStream) -> None:
    async with stream:
        await stream.receive_some()
        await stream.send_all(_SWITCH)
        async for piece in stream:
            await stream.send_all(piece)


async def _read_to(stream: trio.abc.Stream, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = bytes(await stream.receive_some())
        assert piece, data
        data += piece
    return data


async def _answer(stream: trio.abc.Stream, path: str) -> tuple[int, bytes]:
    """Ask on a connection that is kept; return status and body."""
    await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += bytes(await stream.receive_some())
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    (size,) = [int(v[15:]) for v in lines if v.startswith(b"content-length:")]
    while len(body) < size:
        body += bytes(await stream.receive_some())
    return int(head.split(b" ")[1]), body


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_rude_clients_hold_nobody_up_and_take_no_memory(
    tmp_path: Path,
) -> None:
    api, served = Api(tmp_path), 0
    async with api.serving() as agent, trio.open_nursery() as rude:
        before = resident()
        streams = []
        with trio.fail_after(PATIENCE):
            for _ in range(SLOW):
                stream = await api.connect()
                await stream.send_all(b"GET /pods HTTP/1.1\r\nHo")
                streams.append(stream)
            for _ in range(UNREAD):
                stream = await api.connect()
                path = b"/containerLogs/default/web-node/web"
                await stream.send_all(b"GET %s HTTP/1.1\r\nHost: node\r\n\r\n" % path)
                streams.append(stream)
            commands = []
            for number in range(COMMANDS):
                stream = await api.connect()
                await stream.send_all(
                    b"POST /exec/default/web-node/web?command=cat&input=1&output=1 HTTP/1.1\r\n"
                    b"Host: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
                )
                assert (await _read_to(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
                commands.append((stream, b"%d" % number))
            kept = []
            for _ in range(KEPT):
                kept.append(await api.connect())
                # Whoever stays silent makes room for others of its address.
                assert (await _answer(kept[-1], "/healthz"))[0] == 200

            async def ask(stream: trio.SSLStream[trio.SocketStream]) -> None:
                nonlocal served
                for path in ("/pods", "/healthz", "/metrics", "/runningpods/", "/configz"):
                    status, body = await _answer(stream, path)
                    assert status == 200
                    assert body
                    served += 1

            async with trio.open_nursery() as askers:
                for stream in kept:
                    askers.start_soon(ask, stream)
            for stream, word in commands:  # still open, and each still its own
                await stream.send_all(word)
                assert await _read_to(stream, word) == word
        assert served == KEPT * ROUNDS
        assert resident() - before < GROWTH
        inflight = sum(v for _, v in agent.meter.gauges("kubelet_http_inflight_requests"))
        assert inflight >= COMMANDS + UNREAD
        for stream in (*streams, *kept, *(c for c, _ in commands)):
            rude.start_soon(trio.aclose_forcefully, stream)
        with trio.fail_after(PATIENCE):  # and nothing is left of them
            while sum(v for _, v in agent.meter.gauges("kubelet_http_inflight_requests")):  # noqa: ASYNC110
                await trio.sleep(0.05)

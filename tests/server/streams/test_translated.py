"""WebSocket clients of v5, and SPDY in WebSockets, before a runtime that speaks SPDY only.

The runtime's streaming server is another node's API, with streams of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kubelet_trio.model import Meter
from kubelet_trio.server import ApiOptions, ApiParts, kubelet_router, serve_connection
from kubelet_trio.testing import TrioClock
from tests.server.node_view import FakeKubeletApiView
from tests.server.streams.test_local import (
    ATTACH,
    EXEC,
    FORWARD,
    TTY,
    Node,
    Socket,
    by_channel,
    forward_in_spdy,
)

_LIMIT = 60.0  # s


class Front(Node):
    """A node whose runtime names a URL on loopback, where `behind` serves SPDY."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.view = FakeKubeletApiView()
        self.behind = Node()
        self._path = path
        self.meter = Meter()
        parts = ApiParts(self.view, TrioClock(), {}, ApiOptions(), meter=self.meter)
        self._router = kubelet_router(parts)

    def counted(self) -> dict[tuple[str, ...], float]:
        """Return the WebSocket clients that API servers may have handed through."""
        return dict(self.meter.counters("kubelet_websocket_streaming_requests_total"))

    @asynccontextmanager
    async def open(self, protocol: str) -> AsyncIterator[Socket]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        self.view.fake_runtime.stream_url = f"http://127.0.0.1:{port}{self._path}"
        async with trio.open_nursery() as nursery:
            self.behind.local.nursery = nursery
            serve = lambda stream: serve_connection(stream, self.behind._router)  # noqa: E731
            await nursery.start(trio.serve_listeners, serve, listeners)
            with trio.fail_after(_LIMIT):
                async with self.websocket(self._path, protocol) as socket:
                    yield socket
            nursery.cancel_scope.cancel()


async def test_input_that_ends_in_a_websocket_ends_in_spdy() -> None:
    front = Front(EXEC)
    async with front.open("v5.channel.k8s.io") as socket:
        await socket.send(b"\0hello ")
        await socket.send(b"\0fail")
        await socket.send(b"\xff\0")
        found = by_channel(await socket.receive_all())
    assert found[1] == b"hello fail"
    assert json.loads(found[3])["details"]["causes"][0]["message"] == "3"
    [asked] = front.view.fake_runtime.stream_requests
    assert asked.stdin  # type: ignore[union-attr]
    assert front.counted() == {("exec",): 1}


async def test_the_size_of_a_terminal_is_passed_on() -> None:
    async with Front(TTY).open("v5.channel.k8s.io") as socket:
        assert await socket.receive() == b"\x01"  # the command is connected
        await socket.send(b'\4{"Width":80,"Height":24}')
        assert await socket.receive() == b"\x0124x80;"


async def test_a_client_that_goes_takes_the_command_along() -> None:
    front = Front(EXEC)
    async with front.open("v5.channel.k8s.io") as socket:
        await socket.send(b"\0hello")
        assert await socket.receive() == b"\x01"
        assert await socket.receive() == b"\1hello"
        await socket.close()
        await front.behind.local.left.wait()


async def test_attaching_is_translated_too() -> None:
    front = Front(ATTACH)
    async with front.open("v5.channel.k8s.io") as socket:
        await socket.send(b"\0bad")
        await socket.send(b"\xff\0")
        found = by_channel(await socket.receive_all())
    assert found[2] == b"bad"
    assert json.loads(found[3])["status"] == "Success"
    assert front.counted() == {("attach",): 1}


async def test_a_runtime_that_does_not_take_the_streams() -> None:
    front = Front(EXEC)
    front.behind.local.refusal = "not today"
    async with front.open("v5.channel.k8s.io") as socket:
        found = by_channel(await socket.receive_all())
    assert "not today" in json.loads(found[3])["message"]


async def test_spdy_in_a_websocket_leaves_as_it_is() -> None:
    front = Front(FORWARD)
    async with front.open("SPDY/3.1+portforward.k8s.io") as socket:
        assert await forward_in_spdy(socket, b"this") == b"you said this"
    assert front.counted() == {("portforward",): 1}


async def test_older_protocols_go_to_the_runtime_uncounted() -> None:
    front = Front(EXEC)
    async with front.open("v4.channel.k8s.io") as socket:
        await socket.send(b"\0hello")
        while await socket.receive() != b"\1hello":  # an empty message of each channel comes first
            pass
    assert front.counted() == {}

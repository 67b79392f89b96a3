"""Log lines of a request name the pod and the container of its path, until its stream has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import trio
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.server import Request, Response, Router, serve_connection
from kubelet_trio.server.http.types import Send
from tests.server.http.test_http import read_answer


async def test_a_request_and_its_stream_name_pod_and_container(autojump_clock: MockClock) -> None:
    seen: list[Mapping[str, Any]] = []
    router, (client, server) = Router(), memory_stream_pair()

    def look() -> None:
        seen.append(structlog.contextvars.get_contextvars())

    async def stream(request: Request) -> Response:
        async def write(send: Send) -> None:
            look()
            await send(b"x")

        look()
        return Response(stream=write)

    async def plain(request: Request) -> Response:
        look()
        await trio.lowlevel.checkpoint()
        return Response()

    router.add("GET", "/containerLogs/{namespace}/{pod}/{container}", stream)
    router.add("GET", "/pods/{namespace}/{name}", plain)
    router.add("GET", "/pods", plain)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, server, router)
        for path in ("/containerLogs/ns/web/main", "/pods/ns/web", "/pods"):
            await client.send_all(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            await read_answer(client)
        await client.aclose()
    whole = {"pod": "ns/web", "containerName": "main"}
    assert seen == [whole, whole, {"pod": "ns/web"}, {}]

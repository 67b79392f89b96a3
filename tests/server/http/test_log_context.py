"""Log lines of a request name the pod and the container of its path, until its stream has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.server import Request, Response, Router, Upgrade, serve_connection
from kubelet_trio.server.http.types import Send
from tests.server.http.test_http import read_answer


async def test_a_line_tells_how_each_request_ended(autojump_clock: MockClock) -> None:
    async def upgrade(request: Request) -> Response:
        async def take(upgrade: Upgrade) -> None:
            await upgrade.accept(())
            await trio.sleep(7)

        return Response(upgrade=take)

    router, (client, server) = Router(), memory_stream_pair()
    router.add("GET", "/exec/{namespace}/{pod}/{container}", upgrade)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, server, router)
            upgraded = b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            for path, more in (
                (b"/nothing?token=secret", b""),
                (b"/exec/ns/web/main?command=secret", upgraded),
            ):
                await client.send_all(b"GET %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (path, more))
                await read_answer(client)
            await trio.sleep(10)
            await client.aclose()
    told = [(line["path"], line["status"]) for line in logs if line["event"] == "http.request"]
    assert told == [("/nothing", 404), ("/exec/ns/web/main", 101)]
    assert "secret" not in str(logs)


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

"""Requests to the kubelet API as spans: of callers that the gate lets in, below their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.abc import HalfCloseableStream
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.server import (
    HttpError,
    Request,
    Response,
    Router,
    Upgrade,
    serve_connection,
    traced,
)
from kubelet_trio.server.http.types import Send
from kubelet_trio.tracing import span
from tests.server.http.test_http import read_answer
from tests.tracing.traces import Tree, drawn, ended, tracer, trees

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def gate(request: Request) -> None:
    if "authorization" not in request.headers:
        raise HttpError(401, "Unauthorized")


def router() -> Router:
    found = Router()

    async def plain(request: Request) -> Response:
        with span("work"):
            return Response(body=b"all")

    async def stream(request: Request) -> Response:
        async def write(send: Send) -> None:
            with span("writing"):
                await trio.sleep(5)
                await send(b"x")

        return Response(stream=write)

    async def upgrade(request: Request) -> Response:
        async def take(upgrade: Upgrade) -> None:
            await upgrade.accept(())
            with span("session"):
                await trio.sleep(7)

        return Response(upgrade=take)

    async def broken(request: Request) -> Response:
        raise HttpError(int(request.params["status"]), "as told")

    for path, handler in {
        "/pods": plain,
        "/containerLogs/{namespace}/{pod}/{container}": stream,
        "/exec/{namespace}/{pod}/{container}": upgrade,
        "/broken/{status}": broken,
    }.items():
        found.add("GET", path, handler)
    return found


@asynccontextmanager
async def serving() -> AsyncIterator[HalfCloseableStream]:
    client, server = memory_stream_pair()

    serving_it = partial(serve_connection, gate=gate, within=traced)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving_it, server, router())
        yield client
        await client.aclose()


async def ask(path: str, *headers: str) -> list[Tree]:
    """Ask for a path; return the trees of spans, of callers that sample and of no others."""
    made, queue = tracer(rate=0)
    lines = (f"GET {path} HTTP/1.1", "Host: node", *headers)
    with made.active():
        async with serving() as client:
            await client.send_all("\r\n".join((*lines, "", "")).encode())
            await read_answer(client)
            await trio.sleep(30)
    return trees(ended(queue))


UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
KNOWN = ("Authorization: Bearer x", f"traceparent: 00-{TRACE}-{PARENT}-01")


@pytest.mark.parametrize(
    ("path", "tree", "status"),
    [
        ("/pods", "/pods\n  work", 200),
        (
            "/containerLogs/default/web/c",
            "/containerLogs/{namespace}/{pod}/{container}\n  writing",
            200,
        ),
        ("/exec/default/web/c", "/exec/{namespace}/{pod}/{container}\n  session", 101),
        ("/broken/404", "/broken/{status}", 404),
        ("/broken/500", "/broken/{status}", 500),
        ("/nothing", "HTTP GET route not found", 404),
    ],
)
async def test_a_request_is_a_span_below_the_callers(
    path: str, tree: str, status: int, autojump_clock: MockClock
) -> None:
    (found,) = await ask(path, *KNOWN, *(UPGRADE if status == 101 else ()))
    assert drawn(found) == tree
    assert found.span.kind.name == "SERVER"
    assert found.attributes["http.response.status_code"] == status
    assert found.attributes["url.path"] == path
    assert found.has_failed == (status >= 500)
    parent = found.span.parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, PARENT)


async def test_a_stranger_is_not_traced_whatever_it_asks_for(autojump_clock: MockClock) -> None:
    assert await ask("/pods", KNOWN[1]) == []


async def test_a_caller_that_does_not_sample_leaves_it_to_the_rate(
    autojump_clock: MockClock,
) -> None:
    assert await ask("/pods", KNOWN[0]) == []

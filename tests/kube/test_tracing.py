"""Each attempt of a request is a span, and the API server is told it."""

from __future__ import annotations

import pytest
import trio
from lightkube.models.core_v1 import ConfigMap
from trio.testing import MockClock

from kubelet_trio.kube import NotFoundError
from kubelet_trio.tracing import span
from tests.kube.test_client import answering, asking, get, in_turn, status
from tests.tracing.traces import Tree, drawn, ended, tracer, trees


def parent_of(tree: Tree) -> str:
    context = tree.span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


async def test_a_request_is_a_span_and_says_so_to_the_server(autojump_clock: MockClock) -> None:
    made, queue = tracer()
    async with asking(answering()) as (client, server):
        with made.active(), span("work"):
            await get(client)
    (tree,) = trees(ended(queue))
    assert drawn(tree) == "work\n  HTTP GET"
    request = tree.find("HTTP GET")
    assert request.span.kind.name == "CLIENT"
    assert request.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "server.address": "kube.example",
        "url.path": "/api/v1/namespaces/default/configmaps/settings",
        "url.query": "",
        "url.scheme": "http",
    }
    assert server.asked[0].headers["traceparent"] == parent_of(request)


async def test_each_attempt_is_one(autojump_clock: MockClock) -> None:
    made, queue = tracer()
    busy = answering(429, status(429, "TooManyRequests"), ("Retry-After", "2"))
    async with asking(in_turn(busy, answering())) as (client, server):
        with made.active(), span("work"):
            await get(client)
    first, second = trees(ended(queue))[0].below
    assert (first.has_failed, second.has_failed) == (True, False)
    assert first.attributes["http.response.status_code"] == 429
    told = [asked.headers["traceparent"] for asked in server.asked]
    assert told == [parent_of(first), parent_of(second)]


async def test_a_refusal_and_a_lost_connection_fail_theirs(autojump_clock: MockClock) -> None:
    made, queue = tracer()
    async with asking(answering(404, status(404, "NotFound"))) as (client, _):
        with made.active(), pytest.raises(NotFoundError):
            await get(client)
    (tree,) = trees(ended(queue))
    assert tree.has_failed
    assert tree.attributes["http.response.status_code"] == 404


async def test_a_watch_is_a_span_until_it_has_begun(autojump_clock: MockClock) -> None:
    made, queue = tracer()
    async with asking(answering(200, b"")) as (client, _):
        with made.active():
            async with client.watch(ConfigMap, namespace="default"):
                assert [found.name for found in ended(queue)] == ["HTTP GET"]
                await trio.sleep(1)
    (tree,) = trees(ended(queue))
    assert "watch=true" in str(tree.attributes["url.query"])


async def test_without_tracing_nothing_is_told(autojump_clock: MockClock) -> None:
    async with asking(answering()) as (client, server):
        await get(client)
    assert "traceparent" not in server.asked[0].headers

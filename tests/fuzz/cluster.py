"""Targets: what an API server, or whoever answers in its place, sends to the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import httpcore2
import httpx2
import trio
from hypothesis import strategies as st
from lightkube.models.core_v1 import Node, Pod

from kubelet_trio.kube import ClientConfig, KubeClient, KubeError, KubeUnavailableError, open_client
from kubelet_trio.model import inline_offload
from kubelet_trio.sources.http import HttpSource
from tests.fuzz.mutate import Bytes, documents, edited, encode_tree
from tests.fuzz.target import Target, in_trio
from tests.kube.http_server import Asked, Handler, Reply, serve

_Ask = Callable[[KubeClient], Awaitable[object]]

_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "5",
        "creationTimestamp": "2024-01-02T03:04:05Z",
        "managedFields": [{"manager": "m", "fieldsV1": {"f:a": {}}}],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"}],
    },
    "spec": {
        "containers": [
            {"name": "main", "image": "a", "ports": [{"containerPort": 80}], "unknown": {}}
        ],
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
    "status": {"phase": "Running", "startTime": "2024-01-02T03:04:05.123456Z"},
}
_STATUS = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "code": 409,
    "reason": "AlreadyExists",
    "message": "no",
    "details": {"retryAfterSeconds": 1, "causes": [{"reason": "r", "field": "f"}]},
}
_LIST = {
    "kind": "PodList",
    "metadata": {"resourceVersion": "7", "continue": "next", "remainingItemCount": 3},
    "items": [_POD, _POD],
}
_ADDED = {"type": "ADDED", "object": _POD}
_BOOKMARK = {
    "type": "BOOKMARK",
    "object": {
        "kind": "Pod",
        "metadata": {
            "resourceVersion": "9",
            "annotations": {"k8s.io/initial-events-end": "true"},
        },
    },
}
_ERROR = {"type": "ERROR", "object": _STATUS | {"code": 410, "reason": "Expired"}}


def _asked(ask: _Ask, handler: Handler) -> object:
    async def main() -> object:
        config = ClientConfig(server="http://kube.example:8080", token="secret")
        failure: Exception | None = None
        answer: object = None
        async with serve(handler) as server:
            async with open_client(config, network=server, offload=inline_offload) as client:
                try:
                    answer = await ask(client)
                except (KubeError, KubeUnavailableError) as exc:  # not through the nursery
                    failure = exc
            assert server.open == 0, "the client left connections open"
        if failure is not None:
            raise failure
        return answer

    return in_trio(main)


def _body(code: int, ask: _Ask, data: bytes) -> object:
    async def handle(_: Asked, reply: Reply) -> None:
        await reply.send(code, data)

    return _asked(ask, handle)


def _chunks(ask: _Ask, data: bytes) -> object:
    """Send the body in pieces of odd sizes, then end it."""

    async def handle(_: Asked, reply: Reply) -> None:
        await reply.begin()
        for start in range(0, len(data), 97):
            await reply.chunk(data[start : start + 97])

    return _asked(ask, handle)


def _raw(ask: _Ask, data: bytes) -> object:
    async def handle(_: Asked, reply: Reply) -> None:
        await reply.raw(data)
        await reply.abort()

    return _asked(ask, handle)


async def _get(client: KubeClient) -> object:
    return await client.get(Pod, "web", namespace="default")


async def _list(client: KubeClient) -> object:
    return await client.list(Node)


async def _watch(client: KubeClient) -> object:
    async with client.watch(Pod, resource_version="1") as events:
        return [event async for event in events]


def _manifest_url(data: bytes) -> object:
    """Ask once for a manifest that is answered with these bytes."""

    async def main() -> object:
        async with serve(_answering(data)) as server:
            transport = httpx2.AsyncHTTPTransport()
            transport._pool = httpcore2.AsyncConnectionPool(network_backend=server)
            source = HttpSource(
                "http://manifests.example/pods.yaml",
                "n",
                transport=transport,
                offload=inline_offload,
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(source.run)
                await trio.sleep(100)
                nursery.cancel_scope.cancel()
            return source.problems.value, source.delivered

    return in_trio(main)


def _answering(data: bytes) -> Handler:
    async def handle(_: Asked, reply: Reply) -> None:
        await reply.raw(data)
        await reply.abort()

    return handle


_HTTP = [
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 429 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: https://other.example/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\0",
    b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n{}",
    b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
]
_HTTP_TOKENS = (
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 99\r\n",
    b"Content-Encoding: br\r\n",
    b"Retry-After: nan\r\n",
    b"Retry-After: 9" + b"9" * 400 + b"\r\n",
    b"Location: http://[\r\n",
    b"Location: //\xff\r\n",
    b"Set-Cookie: a=b; expires=x\r\n",
    b"ffffffffffffffff\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
)


def _of(
    name: str,
    run: Callable[[bytes], object],
    examples: Sequence[bytes],
    strategy: Bytes,
    per_byte: int = 16,
) -> Target:
    return Target(name, run, examples, strategy, (KubeError, KubeUnavailableError), per_byte)


_pods = [encode_tree(_POD)]
_lists = [encode_tree(_LIST)]
_events = [encode_tree(event) for event in (_ADDED, _BOOKMARK)]
_lines = [line + b"\n" for line in _events]
_watched = documents([*_events, encode_tree(_ERROR)]).map(
    lambda event: _lines[0] + event.replace(b"\n", b" ") + b"\n" + _lines[1]
)
_statuses = [encode_tree(_STATUS)]

TARGETS = [
    _of("object of an API server", partial(_body, 200, _get), _pods, documents(_pods), 64),
    _of("list of an API server", partial(_body, 200, _list), _lists, documents(_lists), 64),
    _of("watch of an API server", partial(_chunks, _watch), _lines, _watched | edited(_watched)),
    Target(
        "refusal of an API server",
        partial(_body, 409, _get),
        [],
        documents(_statuses),
        (KubeError, KubeUnavailableError),
    ),
    _of(
        "HTTP of an API server",
        partial(_raw, _get),
        [],
        edited(st.sampled_from(_HTTP), _HTTP_TOKENS),
    ),
    Target(
        "HTTP of a manifest URL",
        _manifest_url,
        _HTTP,
        edited(st.sampled_from(_HTTP), _HTTP_TOKENS),
    ),
]

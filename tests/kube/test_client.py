"""The client over HTTP, against a server that does what no API server should."""

from __future__ import annotations

import gzip
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio
from lightkube.models.coordination_v1 import Lease
from lightkube.models.core_v1 import ConfigMap, Pod
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import ResourceSlice
from lightkube.models.storage_v1 import CSINode
from trio.testing import MockClock

from kubelet_trio.kube import (
    Bookmark,
    ClientConfig,
    ConflictError,
    GoneError,
    KubeClient,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
    PatchKind,
    WatchEvent,
    from_json,
    open_client,
)
from kubelet_trio.kube.codec import decode
from kubelet_trio.kube.kubeconfig import DataOrFile
from kubelet_trio.kube.request import RequestAttempt
from kubelet_trio.model import inline_offload
from tests.harness.authority import Authority, Pair
from tests.kube.http_server import Asked, Handler, MemoryServer, Reply, serve

SETTINGS = b'{"kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"1"},"unknown":{}}'


def status(code: int, reason: str, message: str = "no", **details: object) -> bytes:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return json.dumps(body | ({"details": details} if details else {})).encode()


def answering(code: int = 200, body: bytes = SETTINGS, *headers: tuple[str, str]) -> Handler:
    async def handle(asked: Asked, reply: Reply) -> None:
        await reply.send(code, body, headers)

    return handle


def in_turn(*handlers: Handler) -> Handler:
    """Answer the first request by the first one, and so on; the last one stays."""
    left = list(handlers)

    async def handle(asked: Asked, reply: Reply) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, reply)

    return handle


@asynccontextmanager
async def asking(
    handler: Handler,
    config: ClientConfig | None = None,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[tuple[KubeClient, MemoryServer]]:
    async with serve(handler, tls) as server:
        config = config or ClientConfig(server="http://kube.example:8080", token="secret")
        async with open_client(config, network=server, offload=inline_offload, **options) as client:
            yield client, server
        assert server.open == 0, "the client left connections open"


async def get(client: KubeClient) -> ConfigMap:
    return await client.get(ConfigMap, "settings", namespace="default")


async def test_one_connection_serves_many_requests(autojump_clock: MockClock) -> None:
    async with asking(answering()) as (client, server):
        for _ in range(3):
            assert (await get(client)).data == {"a": "1"}
    first = server.asked[0]
    assert [asked.connection for asked in server.asked] == [1, 1, 1]
    assert (first.method, first.target) == ("GET", "/api/v1/namespaces/default/configmaps/settings")
    assert first.headers["authorization"] == "Bearer secret"
    assert first.headers["user-agent"].startswith("kubelet-trio/v")
    assert first.headers["accept"] == "application/json"


async def test_an_answer_may_be_compressed(autojump_clock: MockClock) -> None:
    handler = answering(200, gzip.compress(SETTINGS), ("Content-Encoding", "gzip"))
    async with asking(handler) as (client, server):
        assert (await get(client)).data == {"a": "1"}
    assert server.asked[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("kind", "content"), [(kind, kind.value) for kind in PatchKind], ids=lambda v: str(v)
)
async def test_a_patch_says_its_kind(
    kind: PatchKind, content: str, autojump_clock: MockClock
) -> None:
    async with asking(answering()) as (client, server):
        await client.patch(ConfigMap, "settings", {"data": None}, namespace="d", kind=kind)
    asked = server.asked[0]
    assert (asked.method, asked.headers["content-type"]) == ("PATCH", content)
    assert json.loads(asked.body) == {"data": None}


async def test_a_deletion_carries_its_options(autojump_clock: MockClock) -> None:
    async with asking(answering(200, status(200, ""))) as (client, server):
        await client.delete(Pod, "web", namespace="d", grace_period=0, uid="u1")
    asked = server.asked[0]
    assert (asked.method, asked.target) == ("DELETE", "/api/v1/namespaces/d/pods/web")
    assert json.loads(asked.body) == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u1"},
    }


@pytest.mark.parametrize(("code", "is_served"), [(200, True), (404, False)])
async def test_a_server_says_whether_it_has_a_version(
    code: int, is_served: bool, autojump_clock: MockClock
) -> None:
    async with asking(answering(code, status(code, ""))) as (client, server):
        assert await client.serves(ResourceSlice) is is_served
    assert (server.asked[0].method, server.asked[0].target) == ("GET", "/apis/resource.k8s.io/v1")


async def test_a_deletion_of_many_carries_its_selectors(autojump_clock: MockClock) -> None:
    async with asking(answering(200, b"{}")) as (client, server):
        await client.delete_collection(
            ResourceSlice, field_selector="spec.nodeName=n,spec.driver=d"
        )
    (asked,) = server.asked
    path, _, query = asked.target.partition("?")
    assert (asked.method, path) == ("DELETE", "/apis/resource.k8s.io/v1/resourceslices")
    assert parse_qs(query) == {"fieldSelector": ["spec.nodeName=n,spec.driver=d"]}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (410, "Expired", GoneError),
        (403, "Forbidden", KubeError),
        (422, "Invalid", KubeError),
    ],
)
async def test_a_refusal_is_what_the_status_says(
    code: int, reason: str, kind: type[KubeError], autojump_clock: MockClock
) -> None:
    causes = [{"reason": "Why", "field": "spec"}, {"message": "no reason"}]
    body = status(code, reason, "since", causes=causes)
    async with asking(answering(code, body)) as (client, _):
        with pytest.raises(kind) as refused:
            await get(client)
    found = refused.value
    assert (type(found), found.code, found.reason, found.message) == (kind, code, reason, "since")
    assert "Why" in found.causes


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (200, b"<html>welcome to the hotel</html>", "is no ConfigMap"),
        (200, SETTINGS[:-5], "is no ConfigMap"),
        (200, b"", "is no ConfigMap"),
        (200, b'{"metadata":{"name":5}}', "metadata.name"),
        (302, b"", "answered 302"),
        (418, b"short and stout", "short and stout"),
    ],
)
async def test_an_answer_that_is_no_api_servers(
    code: int, body: bytes, words: str, autojump_clock: MockClock
) -> None:
    async with asking(answering(code, body, ("Location", "http://other.example/"))) as (
        client,
        server,
    ):
        with pytest.raises(KubeUnavailableError, match=words):
            await get(client)
    assert len(server.asked) == 1
    assert server.hosts == [("kube.example", 8080)]


async def test_garbage_and_half_answers(autojump_clock: MockClock) -> None:
    async def garbage(asked: Asked, reply: Reply) -> None:
        await reply.raw(b"\x00\x01\x02 what is this\r\n\r\n")
        await reply.abort()

    async def half(asked: Asked, reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        await reply.abort()

    for handler in (garbage, half):
        async with asking(handler) as (client, server):
            with pytest.raises(KubeUnavailableError):
                await get(client)
        assert len(server.asked) == 3  # a read is repeated, and given up


async def test_a_read_is_repeated_when_its_connection_breaks(autojump_clock: MockClock) -> None:
    async def broken(asked: Asked, reply: Reply) -> None:
        await reply.abort()

    async with asking(in_turn(answering(), broken, answering())) as (client, server):
        await get(client)
        await get(client)
    assert [asked.connection for asked in server.asked] == [1, 1, 2]


async def test_a_write_is_not_repeated_when_its_connection_breaks(
    autojump_clock: MockClock,
) -> None:
    async def broken(asked: Asked, reply: Reply) -> None:
        await reply.abort()

    async with asking(broken) as (client, server):
        with pytest.raises(KubeUnavailableError):
            await client.create(ConfigMap(metadata=ObjectMeta(name="a")), namespace="d")
    assert len(server.asked) == 1


async def test_a_server_that_refuses_connections(autojump_clock: MockClock) -> None:
    async with asking(answering()) as (client, server):
        server.refusing = True
        with pytest.raises(KubeUnavailableError, match="connection refused"):
            await get(client)
        server.refusing = False
        await get(client)


async def test_a_server_that_accepts_and_never_answers(autojump_clock: MockClock) -> None:
    async def hang(asked: Asked, reply: Reply) -> None:
        await trio.sleep_forever()

    async with asking(in_turn(hang, answering()), request_timeout=10) as (client, server):
        with pytest.raises(KubeUnavailableError, match="no answer within 10 s"):
            await get(client)
        assert trio.current_time() == pytest.approx(10)
        await get(client)
        assert [asked.connection for asked in server.asked] == [1, 2]


async def test_a_body_that_drips_is_given_up(autojump_clock: MockClock) -> None:
    async def drip(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        while True:
            await reply.chunk(b" ")
            await trio.sleep(1)

    async with asking(drip, request_timeout=10) as (client, _):
        with pytest.raises(KubeUnavailableError, match="no answer within 10 s"):
            await get(client)
        assert trio.current_time() == pytest.approx(10)


async def test_retry_after_is_obeyed_for_writes_too(autojump_clock: MockClock) -> None:
    busy = answering(429, status(429, "TooManyRequests"), ("Retry-After", "7"))
    down = answering(503, status(503, "ServiceUnavailable"), ("Retry-After", "2"))
    async with asking(in_turn(busy, down, answering())) as (client, server):
        await client.create(ConfigMap(metadata=ObjectMeta(name="a")), namespace="d")
    assert len(server.asked) == 3
    assert trio.current_time() == pytest.approx(9)


async def test_the_patience_with_a_busy_server_ends(autojump_clock: MockClock) -> None:
    busy = answering(429, status(429, "TooManyRequests"), ("Retry-After", "1"))
    async with asking(busy) as (client, server):
        with pytest.raises(KubeError) as refused:
            await get(client)
    assert (refused.value.code, refused.value.retry_after) == (429, 1.0)
    assert len(server.asked) == 10


async def test_a_plain_503_is_the_callers(autojump_clock: MockClock) -> None:
    async with asking(answering(503, b"no endpoints")) as (client, server):
        with pytest.raises(KubeError) as refused:
            await get(client)
    assert (refused.value.code, refused.value.message) == (503, "no endpoints")
    assert len(server.asked) == 1


async def test_a_new_token_is_read_once_when_the_old_one_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    async def check(asked: Asked, reply: Reply) -> None:
        good = asked.headers["authorization"] == "Bearer new"
        await (answering() if good else answering(401, status(401, "Unauthorized")))(asked, reply)

    config = ClientConfig(server="http://kube.example", origin="kubeconfig", token_file=file)
    async with asking(check, config) as (client, server):
        with pytest.raises(KubeError) as refused:
            await get(client)
        assert refused.value.code == 401
        assert len(server.asked) == 2
        file.write_text("new\n")
        await get(client)
        await get(client)
    sent = [asked.headers["authorization"] for asked in server.asked]
    assert sent == ["Bearer old"] * 3 + ["Bearer new"] * 2


async def test_a_fixed_token_that_is_refused_is_not_tried_again(autojump_clock: MockClock) -> None:
    async with asking(answering(401, status(401, "Unauthorized"))) as (client, server):
        with pytest.raises(KubeError):
            await get(client)
    assert len(server.asked) == 1


async def test_the_rate_limit_delays(autojump_clock: MockClock) -> None:
    async with asking(answering(), qps=2, burst=3) as (client, server):
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(get, client)
        assert trio.current_time() == pytest.approx(3)
        other = client.sharing(qps=-1, burst=1)
        await get(other)
        assert trio.current_time() == pytest.approx(3)
    assert len(server.asked) == 10


async def test_every_attempt_is_told(autojump_clock: MockClock) -> None:
    told: list[RequestAttempt] = []

    async def broken(asked: Asked, reply: Reply) -> None:
        await trio.sleep(1)
        await reply.abort()

    handler = in_turn(broken, answering(), answering(404, status(404, "NotFound")))
    async with asking(handler, observe=told.append) as (client, _):
        await get(client)
        with pytest.raises(NotFoundError):
            await get(client)
    assert [(e.method, e.host, e.code) for e in told] == [
        ("GET", "kube.example:8080", "<error>"),
        ("GET", "kube.example:8080", "200"),
        ("GET", "kube.example:8080", "404"),
    ]
    assert told[0].seconds == pytest.approx(1)
    assert [e.is_retry for e in told] == [False, True, False]
    assert [e.sent for e in told] == [0, 0, 0]
    assert told[0].received is None
    assert all((e.received or 0) > 10 for e in told[1:])


async def watched(
    client: KubeClient, model: type[Any] = Pod, **options: Any
) -> list[WatchEvent[Any] | Bookmark]:
    async with client.watch(model, resource_version="5", **options) as events:
        return [event async for event in events]


def pod_event(kind: str, version: int) -> bytes:
    meta = {"name": "web", "namespace": "d", "resourceVersion": str(version)}
    spec = {"containers": [{"name": "main"}]}
    event = {"type": kind, "object": {"kind": "Pod", "metadata": meta, "spec": spec}}
    return json.dumps(event).encode() + b"\n"


BOOKMARK = (
    b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":'
    b'"9","creationTimestamp":null},"spec":{"containers":null},"status":{}}}\n'
)


async def test_a_watch_in_pieces(autojump_clock: MockClock) -> None:
    text = pod_event("ADDED", 6) + b"\n" + pod_event("MODIFIED", 7) + BOOKMARK

    async def pieces(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        for start in range(0, len(text), 7):
            await reply.chunk(text[start : start + 7])

    async with asking(pieces) as (client, server):
        found = await watched(client, field_selector="spec.nodeName=n1", timeout=300)
    assert [event.kind.value for event in found if isinstance(event, WatchEvent)] == [
        "ADDED",
        "MODIFIED",
    ]
    assert found[-1] == Bookmark("9")
    path, _, query = server.asked[0].target.partition("?")
    assert path == "/api/v1/pods"
    assert set(query.split("&")) == {
        "watch=true",
        "allowWatchBookmarks=true",
        "fieldSelector=spec.nodeName%3Dn1",
        "resourceVersion=5",
        "timeoutSeconds=300",
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"type":"ERROR","object":' + status(410, "Expired") + b"}\n", GoneError),
        (b'{"type":"ERROR","object":' + status(500, "InternalError") + b"}\n", KubeError),
        (b'{"type":"ERROR","object":{"kind":"Mystery"}}\n', KubeUnavailableError),
        (b'{"type":"SURPRISE","object":{}}\n', KubeUnavailableError),
        (b"not json\n", KubeUnavailableError),
        (pod_event("ADDED", 6)[:-20], KubeUnavailableError),
        (pod_event("ADDED", 6).replace(b'"main"', b"7"), KubeUnavailableError),
    ],
)
async def test_a_watch_that_goes_wrong(
    text: bytes, kind: type[Exception], autojump_clock: MockClock
) -> None:
    async def handle(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.chunk(text)

    async with asking(handle) as (client, _):
        with pytest.raises(kind):
            await watched(client)


async def test_a_watch_that_is_cut(autojump_clock: MockClock) -> None:
    async def cut(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.chunk(pod_event("ADDED", 6))
        await reply.abort()

    async with asking(cut) as (client, _):
        with pytest.raises(KubeUnavailableError, match="the watch broke"):
            await watched(client)


@pytest.mark.parametrize("code", [403, 410, 429])
async def test_a_watch_that_is_refused(code: int, autojump_clock: MockClock) -> None:
    async with asking(answering(code, status(code, "Refused"), ("Retry-After", "3"))) as (
        client,
        _,
    ):
        with pytest.raises(KubeError) as refused:
            await watched(client)
    assert (refused.value.code, refused.value.retry_after) == (code, 3.0)


async def test_a_watch_that_never_begins(autojump_clock: MockClock) -> None:
    async def hang(asked: Asked, reply: Reply) -> None:
        await trio.sleep_forever()

    async with asking(hang, request_timeout=10) as (client, _):
        with pytest.raises(KubeUnavailableError, match="no answer within 10 s"):
            await watched(client)


async def test_leaving_a_watch_closes_its_connection(autojump_clock: MockClock) -> None:
    async def endless(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        while True:
            await reply.chunk(pod_event("MODIFIED", 6))
            await trio.sleep(1)

    async with asking(endless) as (client, server):
        async with client.watch(Pod) as events:
            await anext(events)
            await anext(events)
            assert server.open == 1
        assert server.open == 0


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("seconds", [0.3 * step for step in range(1, 16)])
async def test_cancelling_anywhere_leaves_no_connection(
    seconds: float, http2: bool, authority: Authority, autojump_clock: MockClock
) -> None:
    """Each second something else is going on: two requests, then a watch."""

    async def slow(asked: Asked, reply: Reply) -> None:
        await trio.sleep(1)
        if "watch" not in asked.target:
            await reply.send(200, SETTINGS)
            return
        await reply.begin()
        while True:
            await reply.chunk(pod_event("MODIFIED", 6))
            await trio.sleep(1)

    config, _ = secured(authority)
    tls = server_context(authority, http2=http2)
    async with asking(slow, config, tls, http2=http2) as (client, server):
        with trio.move_on_after(seconds):
            await get(client)
            await get(client)
            async with client.watch(Pod) as events:
                async for _ in events:
                    pass
        # HTTP/2 takes some time to give up. What is left is the requests' idle connection.
        assert trio.current_time() <= seconds + 0.5 + 1e-6
        assert server.open <= 1
        await get(client)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_context(
    authority: Authority, *, clients: bool = False, http2: bool = False
) -> ssl.SSLContext:
    pair = authority.issue("server", "server", hosts=("kube.example", "inside.example"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
    return context


def secured(authority: Authority, **config: Any) -> tuple[ClientConfig, ssl.SSLContext]:
    config = {
        "server": "https://kube.example:6443",
        "ca": DataOrFile(file=authority.certificate),
        **config,
    }
    return ClientConfig(origin="kubeconfig", **config), server_context(authority)


async def test_tls_checks_the_server(authority: Authority, autojump_clock: MockClock) -> None:
    config, tls = secured(authority)
    async with asking(answering(), config, tls) as (client, _):
        await get(client)
    config, _ = secured(authority, server="https://elsewhere.example")
    async with asking(answering(), config, tls) as (client, server):
        with pytest.raises(KubeUnavailableError, match=r"elsewhere\.example"):
            await get(client)
        assert server.asked == []
    for told in (
        {"tls_server_name": "inside.example"},
        {"insecure_skip_tls_verify": True, "ca": DataOrFile()},
    ):
        config, _ = secured(authority, server="https://elsewhere.example", **told)
        async with asking(answering(), config, tls) as (client, _):
            await get(client)


async def test_http2_where_the_server_has_it(
    authority: Authority, autojump_clock: MockClock
) -> None:
    config, _ = secured(authority)
    tls = server_context(authority, http2=True)
    async with asking(answering(), config, tls) as (client, server):
        assert (await get(client)).data == {"a": "1"}
        await client.create(ConfigMap(metadata=ObjectMeta(name="a")), namespace="d")
    assert [(asked.http2, asked.connection) for asked in server.asked] == [(True, 1), (True, 1)]
    assert json.loads(server.asked[1].body)["metadata"] == {"name": "a"}


async def test_a_client_certificate_rotates_without_a_restart(
    authority: Authority, autojump_clock: MockClock
) -> None:
    pair = authority.issue("client", "first")
    config, _ = secured(
        authority, certificate=DataOrFile(file=pair.certificate), key=DataOrFile(file=pair.key)
    )
    tls = server_context(authority, clients=True)
    async with asking(answering(), config, tls) as (client, server):
        await get(client)
        second = authority.issue("next", "second")
        # The certificate comes first: for a while it does not fit the key.
        pair.certificate.write_bytes(second.certificate.read_bytes())
        await trio.sleep(60)
        await get(client)
        pair.key.write_bytes(second.key.read_bytes())
        await trio.sleep(60)
        await get(client)
    assert [asked.peer for asked in server.asked] == ["first", "first", "second"]


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_watch_ends_when_its_certificate_is_replaced(
    is_waiting: bool, authority: Authority, autojump_clock: MockClock
) -> None:
    async def handle(asked: Asked, reply: Reply) -> None:
        if "watch" not in asked.target:
            await reply.send(200, SETTINGS)
            return
        await reply.begin()
        await reply.chunk(BOOKMARK * 3)
        await trio.sleep_forever()

    async def renew() -> None:
        second = authority.issue("next", "second")
        pair.certificate.write_bytes(second.certificate.read_bytes())
        pair.key.write_bytes(second.key.read_bytes())
        await trio.sleep(60)
        await get(client)

    pair = authority.issue("client", "first")
    config, _ = secured(
        authority, certificate=DataOrFile(file=pair.certificate), key=DataOrFile(file=pair.key)
    )
    tls = server_context(authority, clients=True)
    async with asking(handle, config, tls) as (client, server), trio.open_nursery() as nursery:
        told = 0
        async with client.watch(Pod) as events:
            assert await anext(events) == Bookmark("9")
            if is_waiting:
                nursery.start_soon(renew)
            else:
                await renew()
            async for _ in events:
                told += 1
        assert told == (2 if is_waiting else 0)
        async with client.watch(Pod) as events:
            assert await anext(events) == Bookmark("9")
    assert [asked.peer for asked in server.asked] == ["first", "second", "second"]


async def test_a_client_certificate_may_be_inline(
    authority: Authority, autojump_clock: MockClock
) -> None:
    pair: Pair = authority.issue("client", "inline")
    config, _ = secured(
        authority,
        certificate=DataOrFile(data=pair.certificate.read_bytes()),
        key=DataOrFile(data=pair.key.read_bytes()),
    )
    async with asking(answering(), config, server_context(authority, clients=True)) as (c, server):
        await get(c)
    assert server.asked[0].peer == "inline"


async def test_a_proxy_is_told_what_it_needs(
    authority: Authority, autojump_clock: MockClock
) -> None:
    async def handle(asked: Asked, reply: Reply) -> None:
        if asked.method == "CONNECT":
            await reply.tunnel()
        elif "watch" in asked.target:
            await reply.begin()
            await reply.chunk(BOOKMARK)
        else:
            await reply.send(200, SETTINGS)

    config, tls = secured(authority, proxy_url="http://me:pass@proxy.example:3128", token="secret")
    async with asking(handle, config, tls) as (client, server):
        server.is_proxy = True
        await get(client)
        assert await watched(client) == [Bookmark("9")]
    assert server.hosts == [("proxy.example", 3128)] * 2
    tunnels = [asked for asked in server.asked if asked.method == "CONNECT"]
    assert [asked.target for asked in tunnels] == ["kube.example:6443"] * 2
    for asked in tunnels:
        assert asked.headers["proxy-authorization"] == "Basic bWU6cGFzcw=="
        assert "authorization" not in asked.headers
    assert [a.headers["authorization"] for a in server.asked if a not in tunnels] == [
        "Bearer secret"
    ] * 2


@pytest.mark.parametrize(
    ("field", "words"),
    [("certificate", "users[0].user.client-certificate"), ("ca", "clusters[0].cluster.ca")],
)
async def test_unreadable_files_are_named(
    field: str, words: str, authority: Authority, tmp_path: Path, autojump_clock: MockClock
) -> None:
    pair = authority.issue("client", "x")
    sources: dict[str, Any] = {
        "certificate": DataOrFile(file=pair.certificate), "key": DataOrFile(file=pair.key)
    }  # fmt: skip
    sources[field] = DataOrFile(file=tmp_path / "missing.pem", field=words)
    config, tls = secured(authority, **sources)
    async with asking(answering(), config, tls) as (client, _):
        with pytest.raises(KubeUnavailableError) as failed:
            await get(client)
    assert f"kubeconfig: {words}: {tmp_path}/missing.pem: No such file" in str(failed.value)


async def test_a_lease_has_six_digits_of_a_second(autojump_clock: MockClock) -> None:
    answer = b'{"kind":"Lease","spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}'
    async with asking(answering(200, answer)) as (client, server):
        lease = await client.get(Lease, "n1", namespace="kube-node-lease")
        await client.update(lease, namespace="kube-node-lease")
    assert json.loads(server.asked[1].body)["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"


def many(count: int) -> bytes:
    pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}
    return json.dumps({"metadata": {"resourceVersion": "7"}, "items": [pod] * count}).encode()


async def test_a_list(autojump_clock: MockClock) -> None:
    async with asking(answering(200, many(1000))) as (client, server):
        listing = await client.list(Pod, limit=500, resource_version="0")
    assert (len(listing.items), listing.resource_version) == (1000, "7")
    assert set(server.asked[0].target.partition("?")[2].split("&")) == {
        "limit=500",
        "resourceVersion=0",
    }
    async with asking(answering(200, b'{"metadata":{},"items":null}')) as (client, _):
        assert (await client.list(Pod)).items == ()


@pytest.mark.parametrize("spec", ['{"drivers": null}', '{"drivers": []}', "{}"])
def test_a_server_sends_no_drivers_as_null(spec: str) -> None:
    """Go's encoding of an empty list; seen on API servers of every version."""
    text = f'{{"kind": "CSINode", "metadata": {{"name": "n"}}, "spec": {spec}}}'
    for found in (decode(text.encode(), CSINode), from_json(json.loads(text), CSINode)):
        assert found.spec.drivers == []
    with pytest.raises(KubeUnavailableError):
        decode(b'{"spec": {"drivers": "none"}}', CSINode)
    with pytest.raises(KubeUnavailableError):
        decode(b"null", CSINode)

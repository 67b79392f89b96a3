from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import httpx2
import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import PodUid, inline_offload, pod_uid, spec
from kubelet_trio.objects import object_key
from kubelet_trio.sources import HttpSource, load_manifest
from kubelet_trio.sources.manifest.decode import MAX_MANIFEST_SIZE
from kubelet_trio.sources.manifest.static import seen_at
from tests.sources.make import FixedClock, container, encoded, manifest, names

URL = "http://user:word@manifests.example/pods?token=x"
SHOWN = "http://manifests.example/pods"

Handler = Callable[[httpx2.Request], httpx2.Response]


class Body(httpx2.AsyncByteStream):
    """A body in chunks, as from the network: `chunk` is sent `times` times."""

    def __init__(self, chunk: bytes, times: float = 1, pause: float = 0) -> None:
        self.chunk, self.left, self.pause, self.sent = chunk, times, pause, 0

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        await trio.sleep(self.pause)
        if self.left <= 0 or not self.chunk:
            raise StopAsyncIteration
        self.left -= 1
        self.sent += len(self.chunk)
        return self.chunk


class Server:
    """Answers with whatever `answer` is, and keeps the requests."""

    def __init__(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        self.requests: list[httpx2.Request] = []
        self.reply(body, status, **headers)

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.answer: Handler = lambda _: httpx2.Response(status, stream=Body(body), headers=headers)

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return self.answer(request)

    def source(
        self,
        *headers: tuple[str, str],
        clock: FixedClock | None = None,
        known: Iterable[PodUid] = (),
    ) -> HttpSource:
        return HttpSource(
            URL,
            "n",
            headers=headers,
            transport=httpx2.MockTransport(self.handle),
            offload=inline_offload,
            clock=clock or FixedClock(),
            known=known,
        )


async def take(source: HttpSource) -> list[str]:
    return names((await source.snapshots.wait_value()).pods)


def problems(source: HttpSource) -> list[str]:
    return [str(problem) for problem in source.problems.value]


async def test_pods_are_asked_for_every_interval_and_delivered_when_they_change(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server = Server(encoded(manifest("a")))
    source = server.source()
    await nursery.start(source.run)
    assert await take(source) == ["a-n"]
    server.reply(encoded(manifest("a"), manifest("b")))
    assert await take(source) == ["a-n", "b-n"]
    assert trio.current_time() == 20
    server.reply(encoded({"apiVersion": "v1", "kind": "PodList", "items": [manifest("c")]}))
    assert await take(source) == ["c-n"]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "body", [b"", b'{"apiVersion": "v1", "kind": "PodList", "items": []}'], ids=["empty", "list"]
)
async def test_an_empty_body_or_list_means_no_pods(
    autojump_clock: MockClock, nursery: trio.Nursery, body: bytes
) -> None:
    server = Server(body)
    source = server.source()
    await nursery.start(source.run)
    assert await take(source) == []
    server.reply(encoded(manifest("a")))
    assert await take(source) == ["a-n"]
    server.reply(body)
    assert await take(source) == []


async def test_headers_are_sent_each_as_often_as_given(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server = Server()
    source = server.source(("X-Node", "a"), ("X-Node", "b"), ("Authorization", "Bearer t"))
    await nursery.start(source.run)
    await take(source)
    headers = server.requests[0].headers
    assert headers.get_list("X-Node") == ["a", "b"]
    assert headers["Authorization"] == "Bearer t"
    assert headers["Accept-Encoding"] == "identity"


async def test_an_etag_is_sent_back_and_not_modified_changes_nothing(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server = Server(encoded(manifest("a")), etag='"1"')
    source = server.source()
    await nursery.start(source.run)
    assert await take(source) == ["a-n"]
    server.reply(b"", 304)
    await trio.sleep(60)
    assert "If-None-Match" not in server.requests[0].headers
    assert {r.headers["If-None-Match"] for r in server.requests[1:]} == {'"1"'}
    assert problems(source) == []
    server.reply(encoded(manifest("b")), etag='"2"')
    assert await take(source) == ["b-n"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(404, "answered 404 Not Found"), (500, "answered 500"), (304, "answered 304"), (204, "204")],
)
async def test_any_other_answer_keeps_the_pods_and_is_a_problem(
    autojump_clock: MockClock, nursery: trio.Nursery, status: int, reason: str
) -> None:
    server = Server(encoded(manifest("a")))
    source = server.source()
    await nursery.start(source.run)
    assert await take(source) == ["a-n"]
    server.reply(b"", status)
    await source.problems.wait_value(bool)
    assert reason in problems(source)[0]
    assert problems(source)[0].startswith(f"{SHOWN}: ")
    server.reply(encoded(manifest("a")))
    await source.problems.wait_value(lambda now: not now)
    assert source.delivered is not None
    assert names(source.delivered.pods) == ["a-n"]


async def test_a_url_that_does_not_answer_is_not_an_empty_one(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    server = Server()
    server.answer = refuse
    source = server.source()
    await nursery.start(source.run)
    await trio.sleep(100)
    assert source.delivered is None
    assert problems(source) == [f"{SHOWN}: connection refused"]
    server.reply(b"")
    assert await take(source) == []
    await source.problems.wait_value(lambda now: not now)


async def test_a_broken_body_keeps_the_pods_until_a_good_one_comes(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server = Server(encoded(manifest("a")))
    source = server.source()
    await nursery.start(source.run)
    assert await take(source) == ["a-n"]
    server.reply(encoded(manifest("b", hostname="_")), etag='"1"')
    await source.problems.wait_value(bool)
    server.reply(b"", 304)
    await trio.sleep(100)
    assert problems(source)[0].startswith(f"{SHOWN}:1:144: spec.hostname: Invalid value")
    server.reply(encoded(manifest("b")))
    assert await take(source) == ["b-n"]


async def test_an_endless_body_is_cut_off(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    server = Server()
    server.answer = lambda _: httpx2.Response(200, stream=Body(b"#", math.inf, pause=3))
    source = server.source()
    await nursery.start(source.run)
    await source.problems.wait_value(bool)
    assert trio.current_time() == 10
    assert problems(source) == [f"{SHOWN}: no complete answer within 10 s"]
    assert source.delivered is None


async def test_a_huge_body_is_cut_off(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    flood = Body(b"#" * 2**20, math.inf)
    server = Server()
    server.answer = lambda _: httpx2.Response(200, stream=flood)
    source = server.source()
    await nursery.start(source.run)
    await source.problems.wait_value(bool)
    assert problems(source) == [f"{SHOWN}: larger than 10 MiB"]
    assert flood.sent <= MAX_MANIFEST_SIZE + 2**20


async def test_a_pod_keeps_when_it_was_first_seen(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, clock = Server(encoded(manifest("a"))), FixedClock(1.0)
    source = server.source(clock=clock)
    await nursery.start(source.run)
    await take(source)
    clock.now = 9.0
    server.reply(encoded(manifest("a"), manifest("b")))
    first, second = (await source.snapshots.wait_value()).pods
    assert (seen_at(first)[17:19], seen_at(second)[17:19]) == ("01", "09")


async def test_a_restarted_task_knows_what_it_delivered(autojump_clock: MockClock) -> None:
    server = Server(encoded(manifest("a")))
    source = server.source()
    for _ in range(2):
        async with trio.open_nursery() as life:
            await life.start(source.run)
            await trio.sleep(1)
            life.cancel_scope.cancel()
    assert await take(source) == ["a-n"]
    with trio.move_on_after(5) as wait:
        await take(source)
    assert wait.cancelled_caught


async def test_a_real_server_is_asked_over_a_real_connection(nursery: trio.Nursery) -> None:
    body = encoded(manifest("a"))

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            await stream.send_all(head.encode() + body)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    port = listener.socket.getsockname()[1]
    source = HttpSource(f"http://127.0.0.1:{port}/pods", "n")
    await nursery.start(source.run)
    with trio.fail_after(10):
        assert await take(source) == ["a-n"]


async def test_objects_come_with_the_pods(autojump_clock: MockClock) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}
    source = Server(encoded(manifest("a"), config)).source()
    async with trio.open_nursery() as life:
        await life.start(source.run)
        snapshot = await source.snapshots.wait_value()
        life.cancel_scope.cancel()
    assert [tuple(object_key(each)) for each in snapshot.objects] == [("ConfigMap", "default", "c")]


def sized(cpu: str) -> bytes:
    return encoded(manifest("a", containers=[container(resources={"requests": {"cpu": cpu}})]))


async def test_a_pod_whose_amounts_change_keeps_its_uid_and_when_it_was_first_seen(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, clock = Server(sized("1")), FixedClock()
    source = server.source(clock=clock)
    await nursery.start(source.run)
    (first,) = (await source.snapshots.wait_value()).pods
    clock.now = 60.0
    server.reply(sized("2"))
    (second,) = (await source.snapshots.wait_value()).pods
    assert (pod_uid(second), seen_at(second)) == (pod_uid(first), seen_at(first))
    assert cpu_of(first) == {"cpu": "1"}
    assert cpu_of(second) == {"cpu": "2"}


def cpu_of(pod: Pod) -> object:
    resources = spec(pod).containers[0].resources
    return resources and resources.requests


async def test_a_pod_of_an_earlier_agent_keeps_its_uid_until_its_manifest_changes(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    # The rule of earlier agents, which had the amounts in the UID.
    found = load_manifest(sized("1"), URL, node_name="n", source="http", is_known=lambda _: True)
    earlier = pod_uid(found.pods[0])
    server = Server(sized("1"))
    source = server.source(known=[earlier])
    await nursery.start(source.run)
    uids = [pod_uid((await source.snapshots.wait_value()).pods[0])]
    for cpu in ("2", "1"):
        server.reply(sized(cpu))
        uids.append(pod_uid((await source.snapshots.wait_value()).pods[0]))
    assert uids[0] == earlier
    assert uids[1] == uids[2] != earlier

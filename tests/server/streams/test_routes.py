"""Exec, attach and port-forward: what the runtime is asked, and bytes both ways."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.cri import RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.model import ContainerState, PodUid
from kubelet_trio.server import (
    ApiOptions,
    ApiParts,
    HttpError,
    Request,
    kubelet_router,
    serve_connection,
)
from kubelet_trio.server.http.types import ClientPeer
from kubelet_trio.server.streams.proxy import forwarded_headers, pump_both
from kubelet_trio.server.streams.routes import forwarded_ports, stream_options
from kubelet_trio.testing import FakeRuntime, FaultKind, TrioClock
from tests.server.fake_view import make_pod
from tests.server.node_view import FakeKubeletApiView, running_pod

_LIMIT = 60.0  # seconds
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n"
Talk = Callable[[trio.SocketStream, bytes], Awaitable[None]]


async def read_head(stream: trio.abc.ReceiveStream) -> tuple[bytes, bytes]:
    """Return a head and what came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some()
        assert piece, data
        data += bytes(piece)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


class Streams:
    """A node's API over a memory stream, and the runtime's streaming server on loopback."""

    def __init__(self, talk: Talk, idle: float = 0.0) -> None:
        self.view = FakeKubeletApiView()
        self.heads: list[bytes] = []
        self._talk = talk
        parts = ApiParts(self.view, TrioClock(), {}, ApiOptions(streaming_idle_timeout=idle))
        self._router = kubelet_router(parts)

    @property
    def runtime(self) -> FakeRuntime:
        return self.view.fake_runtime

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            head, early = await read_head(stream)
            self.heads.append(head)
            await self._talk(stream, early)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[trio.abc.HalfCloseableStream]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        self.runtime.stream_url = f"http://127.0.0.1:{port}/exec/token?x=1"
        client, server = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, listeners)
            nursery.start_soon(
                lambda: serve_connection(server, self._router, peer=ClientPeer("192.0.2.7"))
            )
            with trio.fail_after(_LIMIT):
                yield client
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


def upgrade(path: str, protocol: str = "SPDY/3.1", method: str = "POST", more: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\n"
        f"Upgrade: {protocol}\r\nAuthorization: Bearer secret\r\n{more}\r\n"
    ).encode()


EXEC = "/exec/default/web-node1/web?command=ls&command=-l&input=1&output=1&error=1"


async def echo(stream: trio.SocketStream, early: bytes) -> None:
    await stream.send_all(_SWITCH + b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nhi:")
    await stream.send_all(early)
    async for piece in stream:
        await stream.send_all(piece)
    await stream.send_all(b":bye")


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([bytes(piece) async for piece in stream])


async def test_an_exec_goes_to_the_runtime_and_bytes_go_both_ways() -> None:
    streams = Streams(echo)
    async with streams.run() as client:
        await client.send_all(
            upgrade(EXEC, more="X-Stream-Protocol-Version: v4.channel.k8s.io\r\n") + b"early,"
        )
        head, rest = await read_head(client)
        await client.send_all(b"late")
        await client.send_eof()
        rest += await read_to_end(client)
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols")
    assert b"x-stream-protocol-version: v4.channel.k8s.io" in head.lower()
    assert rest == b"hi:early,late:bye"  # the half that was left open said all it had
    [asked] = streams.runtime.stream_requests
    assert asked == v1.ExecRequest(
        container_id="c1", cmd=["ls", "-l"], stdin=True, stdout=True, stderr=True
    )
    [passed_on] = streams.heads
    assert passed_on.startswith(b"POST /exec/token?x=1 HTTP/1.1")
    assert b"Upgrade: SPDY/3.1" in passed_on
    assert b"v4.channel.k8s.io" in passed_on
    assert b"X-Forwarded-For: 192.0.2.7" in passed_on
    assert b"secret" not in passed_on


async def test_much_comes_through_whole() -> None:
    much = bytes(range(256)) * 16 * 1024  # 4 MiB

    async def send_much(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(_SWITCH + b"\r\n" + much)

    streams = Streams(send_much)
    async with streams.run() as client:
        await client.send_all(upgrade(EXEC))
        _, rest = await read_head(client)
        rest += await read_to_end(client)
    assert hashlib.sha256(rest).digest() == hashlib.sha256(much).digest()


async def test_the_last_words_of_who_listens_no_more_arrive() -> None:
    """A command may end with input unread; how it ended is told after that."""
    client, near = memory_stream_pair()
    backend, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump_both, near, backend, 0.0)
        far.receive_stream.close()
        await client.send_all(b"more input")
        await wait_all_tasks_blocked()
        await far.send_all(b"it was enough")
        await far.send_eof()
        assert await client.receive_some(100) == b"it was enough"


async def test_a_websocket_goes_through_as_it_is() -> None:
    streams = Streams(echo)
    async with streams.run() as client:
        path = EXEC.replace("/exec/", "/attach/")
        more = "Sec-WebSocket-Key: k==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
        await client.send_all(upgrade(path, "websocket", "GET", more))
        head, _ = await read_head(client)
    assert head.startswith(b"HTTP/1.1 101")
    assert b"Sec-WebSocket-Key: k==" in streams.heads[0]
    [asked] = streams.runtime.stream_requests
    assert isinstance(asked, v1.AttachRequest)


async def test_who_goes_away_takes_the_runtimes_side_along() -> None:
    ended = trio.Event()

    async def wait_for_the_end(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(_SWITCH + b"\r\n")
        assert await stream.receive_some() == b""
        ended.set()

    async with Streams(wait_for_the_end).run() as client:
        await client.send_all(upgrade(EXEC))
        await read_head(client)
        await client.aclose()
        await ended.wait()


async def test_a_stream_that_idles_is_ended() -> None:
    async def say_nothing(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(_SWITCH + b"\r\n")
        await trio.sleep_forever()

    async with Streams(say_nothing, idle=0.05).run() as client:
        await client.send_all(upgrade(EXEC))
        _, rest = await read_head(client)
        assert rest + await read_to_end(client) == b""


async def test_what_the_runtimes_server_refuses_is_told() -> None:
    async def refuse(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone")

    async with Streams(refuse).run() as client:
        await client.send_all(upgrade(EXEC))
        head, rest = await read_head(client)
        assert head.startswith(b"HTTP/1.1 404")
        assert rest + await read_to_end(client) == b"gone"


async def test_a_runtimes_server_that_hangs_up_is_500() -> None:
    async def hang_up(stream: trio.SocketStream, _: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async with Streams(hang_up).run() as client:
        await client.send_all(upgrade(EXEC))
        head, _ = await read_head(client)
        assert head.startswith(b"HTTP/1.1 500")


async def test_a_runtimes_server_that_is_not_there_is_500() -> None:
    streams = Streams(echo)
    async with streams.run() as client:
        streams.runtime.stream_url = "http://127.0.0.1:1/exec/token"
        await client.send_all(upgrade(EXEC))
        head, rest = await read_head(client)
    assert head.startswith(b"HTTP/1.1 500")
    assert rest.startswith(b"dial tcp 127.0.0.1:1: ")


async def answer(
    view: FakeKubeletApiView, path: str, arguments: tuple[tuple[str, str], ...]
) -> HttpError:
    router = kubelet_router(ApiParts(view, TrioClock(), {}))
    with pytest.raises(HttpError) as caught:
        await router(Request("POST", path, arguments))
    return caught.value


OUTPUT = (("output", "1"),)


@pytest.mark.parametrize("verb", ["exec", "attach"])
@pytest.mark.parametrize(
    ("path", "arguments", "status", "told"),
    [
        ("none/web", OUTPUT, 404, "pod does not exist"),
        ("web-node1/web", (), 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("web-node1/web", (("tty", "1"), ("error", "1")), 400, "you must specify at least 1"),
        ("web-node1/other/web", OUTPUT, 500, "not found"),
        ("web-node1/none", OUTPUT, 500, "not found"),
        ("web-node1/web", OUTPUT, 501, "not supported by this container runtime"),
    ],
)
async def test_streams_that_cannot_be(
    autojump_clock: MockClock,
    verb: str,
    path: str,
    arguments: tuple[tuple[str, str], ...],
    status: int,
    told: str,
) -> None:
    refusal = await answer(FakeKubeletApiView(), f"/{verb}/default/{path}", arguments)
    assert refusal.status == status
    assert told in str(refusal)


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("none", 404, "pod does not exist"),
        ("web-node1/other", 404, "pod not found"),
        ("web-node1", 501, "PortForward is not supported by this container runtime"),
    ],
)
async def test_forwards_that_cannot_be(
    autojump_clock: MockClock, path: str, status: int, told: str
) -> None:
    refusal = await answer(FakeKubeletApiView(), f"/portForward/default/{path}", ())
    assert (refusal.status, told in str(refusal)) == (status, True)


async def test_a_pod_whose_sandbox_is_gone_cannot_be_forwarded_to(
    autojump_clock: MockClock,
) -> None:
    view = FakeKubeletApiView()
    view.seen["u1"] = running_pod(PodUid("u1"), ContainerState.EXITED)
    refusal = await answer(view, "/portForward/default/web-node1", ())
    assert (refusal.status, str(refusal)) == (500, 'pod not found ("web-node1_default")')


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeObjectNotFoundError("Exec", "no container", code="NotFound"), 404),
        (RuntimeCallError("Exec", "too many", code="ResourceExhausted"), 429),
        (RuntimeCallError("Exec", "broken", code="Unknown"), 500),
    ],
)
async def test_what_the_runtime_says_is_told(
    autojump_clock: MockClock, error: RuntimeCallError, status: int
) -> None:
    view = FakeKubeletApiView()
    view.fake_runtime.stream_url = "http://127.0.0.1:1/"
    view.fake_runtime.faults.add(FaultKind.ERROR, "Exec", error=error)
    refusal = await answer(view, "/exec/default/web-node1/web", OUTPUT)
    assert (refusal.status, str(refusal)) == (status, error.go_text)


async def test_without_an_upgrade_there_is_no_stream(autojump_clock: MockClock) -> None:
    view = FakeKubeletApiView()
    view.fake_runtime.stream_url = "http://127.0.0.1:1/"
    refusal = await answer(view, "/exec/default/web-node1/web", OUTPUT)
    assert (refusal.status, str(refusal)) == (500, "Upgrade request required")


async def test_attaching_takes_the_terminal_of_the_container(autojump_clock: MockClock) -> None:
    spec = {"nodeName": "n", "containers": [{"name": "web", "image": "i", "tty": True}]}
    view = FakeKubeletApiView(make_pod(spec=spec))
    view.fake_runtime.stream_url = "http://127.0.0.1:1/"
    await answer(view, "/attach/default/web-node1/web", (*OUTPUT, ("error", "1")))
    assert view.fake_runtime.stream_requests == [
        v1.AttachRequest(container_id="c1", tty=True, stdout=True)
    ]


def websocket(*ports: str, protocols: str = "v4.channel.k8s.io") -> Request:
    headers = {"upgrade": "websocket", "sec-websocket-protocol": protocols}
    return Request("GET", "/", tuple(("port", port) for port in ports), headers=headers)


@pytest.mark.parametrize(
    ("request_", "ports"),
    [
        (Request("POST", "/", headers={"upgrade": "SPDY/3.1"}), ()),
        (websocket("80"), (80,)),
        (websocket("80,81", "443"), (80, 81, 443)),
        (websocket(protocols="SPDY/3.1+portforward.k8s.io"), ()),
    ],
)
def test_the_ports_that_a_client_names(request_: Request, ports: tuple[int, ...]) -> None:
    assert forwarded_ports(request_) == ports


_PARSING = "strconv.ParseUint: parsing"


@pytest.mark.parametrize(
    ("ports", "told"),
    [
        ((), 'query parameter "port" is required'),
        (("",), 'query parameter "port" cannot be empty'),
        (("x",), f'unable to parse "x" as a port: {_PARSING} "x": invalid syntax'),
        (("80,",), f'unable to parse "80," as a port: {_PARSING} "": invalid syntax'),
        (("+80",), f'unable to parse "+80" as a port: {_PARSING} "+80": invalid syntax'),
        (("65536",), f'unable to parse "65536" as a port: {_PARSING} "65536": value out of range'),
        (("0",), 'port "0" must be > 0'),
    ],
)
def test_ports_that_are_none(ports: tuple[str, ...], told: str) -> None:
    with pytest.raises(HttpError) as caught:
        forwarded_ports(websocket(*ports))
    assert (caught.value.status, str(caught.value)) == (400, told)


@given(st.dictionaries(st.sampled_from(["input", "output", "error", "tty"]), st.text(max_size=2)))
def test_whatever_is_asked_for_a_terminal_has_one_output(query: dict[str, str]) -> None:
    if "1" not in (query.get("input"), query.get("output")) and (
        query.get("error") != "1" or query.get("tty") == "1"
    ):
        with pytest.raises(HttpError, match="at least 1 of"):
            stream_options(tuple(query.items()))
        return
    options = stream_options(tuple(query.items()))
    assert not (options.tty and options.stderr)
    assert options.stdin or options.stdout or options.stderr


def test_forwarding_is_noted_behind_what_was_noted_before() -> None:
    request = Request(
        "GET",
        "/",
        raw_headers=(("X-Forwarded-For", "a"), ("Host", "h"), ("Origin", "o")),
        peer=ClientPeer("b"),
    )
    assert forwarded_headers(request) == (("Origin", "o"), ("X-Forwarded-For", "a, b"))

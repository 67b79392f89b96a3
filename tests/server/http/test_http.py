"""HTTP with rude, slow and vanishing clients: raw bytes in, raw bytes out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import h11
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.abc import HalfCloseableStream
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.server import (
    Handler,
    HttpError,
    Limits,
    Request,
    Response,
    Router,
    Upgrade,
    open_tcp,
    serve_connection,
    serve_http,
)
from kubelet_trio.server.http.types import Gate, Send


async def echo(request: Request) -> Response:
    return Response(body=f"{request.method} {request.path} {request.body!r}".encode())


@asynccontextmanager
async def serving(
    handler: Handler = echo, limits: Limits | None = None, gate: Gate | None = None
) -> AsyncIterator[HalfCloseableStream]:
    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        serving_it = partial(serve_connection, gate=gate)
        nursery.start_soon(serving_it, server, handler, limits or Limits())
        yield client
        nursery.cancel_scope.cancel()


async def read_all(client: HalfCloseableStream) -> bytes:
    return b"".join([bytes(piece) async for piece in client])


async def read_answer(client: HalfCloseableStream) -> bytes:
    """Read until the server waits for more."""
    answer = bytearray()
    while True:
        with trio.move_on_after(0.01) as quiet:
            data = await client.receive_some()
        if quiet.cancelled_caught or not data:
            return bytes(answer)
        answer += data


async def test_a_request_is_answered(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(b"GET /a%20b?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await read_answer(client)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"GET /a b b''")


async def test_a_connection_serves_many_requests_and_pipelined_ones_in_order(
    autojump_clock: MockClock,
) -> None:
    async with serving() as client:
        for _ in range(2):
            await client.send_all(
                b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"
                b"POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
                b"GET /3 HTTP/1.1\r\nHost: h\r\n\r\n"
            )
            answer = await read_answer(client)
            assert answer.count(b"200 OK") == 3
            assert answer.index(b"/1") < answer.index(b"/2 b'abc'") < answer.index(b"/3")


async def test_a_request_may_come_byte_by_byte(autojump_clock: MockClock) -> None:
    async with serving() as client:
        for byte in b"GET / HTTP/1.1\r\nHost: h\r\n\r\n":
            await client.send_all(bytes([byte]))
            await trio.sleep(0.1)
        assert b"200 OK" in await read_answer(client)


async def test_a_head_that_drips_is_cut_off(autojump_clock: MockClock) -> None:
    async with serving(limits=Limits(head_seconds=10)) as client:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                for byte in b"GET / HTTP/1.1\r\n" + b"X-Slow: 1\r\n" * 100:
                    await client.send_all(bytes([byte]))
                    await trio.sleep(1)

            async def drip_until_cut_off() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await drip()

            nursery.start_soon(drip_until_cut_off)
            answer = await read_all(client)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - began < 15


async def test_a_body_that_never_comes_is_cut_off(autojump_clock: MockClock) -> None:
    async with serving(limits=Limits(body_seconds=30)) as client:
        await client.send_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab")
        assert (await read_all(client)).startswith(b"HTTP/1.1 408 ")
        assert 30 <= trio.current_time() < 32


async def test_a_client_that_idles_is_let_go_without_a_word(autojump_clock: MockClock) -> None:
    async with serving(limits=Limits(idle_seconds=90)) as client:
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await read_all(client)).count(b"HTTP/1.1") == 1
        assert 90 <= trio.current_time() < 92


async def test_a_head_that_is_too_long_is_431(autojump_clock: MockClock) -> None:
    async with serving(limits=Limits(head=1000)) as client:
        await client.send_all(b"GET / HTTP/1.1\r\nX: " + b"x" * 2000)
        answer = await read_all(client)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"Connection: close" in answer


async def test_a_body_that_is_too_long_is_413(autojump_clock: MockClock) -> None:
    async with serving(limits=Limits(body=10)) as client:
        await client.send_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n")
        await client.send_all(b"x" * 99)
        assert (await read_all(client)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nBad Header: 1\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_400_and_the_end(
    rubbish: bytes, autojump_clock: MockClock
) -> None:
    async with serving() as client:
        await client.send_all(rubbish)
        answer = await read_all(client)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_client_that_leaves_inside_a_request_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    for sent in (b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab"):
        client, server = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, server, echo)
            await client.send_all(sent)
            await client.aclose()


async def test_a_head_request_has_no_body(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await read_answer(client)
    assert b"Content-Length: 10\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_client_that_asks_to_go_on_is_told_to(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(
            b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert (await read_answer(client)).startswith(b"HTTP/1.1 100 ")
        await client.send_all(b"ok")
        assert b"b'ok'" in await read_answer(client)


async def test_an_http_error_is_its_status_and_message(autojump_clock: MockClock) -> None:
    async def refuse(_: Request) -> Response:
        raise HttpError(404, "no such thing")

    async with serving(refuse) as client:
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await read_answer(client)
        assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert answer.endswith(b"no such thing\n")
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"404" in await read_answer(client)


def streaming(pieces: int, pause: float = 1.0) -> Handler:
    async def stream(_: Request) -> Response:
        async def write(send: Send) -> None:
            for number in range(pieces):
                await send(f"piece {number}\n".encode())
                await trio.sleep(pause)

        return Response(stream=write)

    return stream


async def test_a_stream_comes_as_it_is_written(autojump_clock: MockClock) -> None:
    async with serving(streaming(3)) as client:
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        first = await read_answer(client)
        assert b"Transfer-Encoding: chunked" in first
        assert b"piece 0" in first
        assert b"piece 1" not in first
        await trio.sleep(5)
        assert (await read_answer(client)).endswith(b"0\r\n\r\n")


async def test_an_old_client_gets_a_stream_until_the_end_of_file(
    autojump_clock: MockClock,
) -> None:
    async with serving(streaming(2)) as client:
        await client.send_all(b"GET / HTTP/1.0\r\n\r\n")
        answer = await read_all(client)
    assert b"chunked" not in answer
    assert answer.endswith(b"piece 0\npiece 1\n")


async def test_a_stream_ends_when_its_client_goes_away(autojump_clock: MockClock) -> None:
    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, server, streaming(10**9, pause=3600))
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await read_answer(client)
        await client.aclose()
    assert trio.current_time() < 10


async def test_a_request_pipelined_behind_a_stream_is_served_after_it(
    autojump_clock: MockClock,
) -> None:
    async with serving(streaming(2)) as client:
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await trio.sleep(0.1)
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await read_all(client)).count(b"piece 1") == 2


async def test_a_client_that_does_not_read_is_given_up(autojump_clock: MockClock) -> None:
    client, server = memory_stream_pair()
    to_client = server.send_stream
    assert isinstance(to_client, trio.testing.MemorySendStream)

    async def stuck() -> None:
        await trio.sleep_forever()

    to_client.send_all_hook = stuck
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, server, echo, Limits(send_seconds=30))
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert trio.current_time() == 30


async def test_an_upgrade_hands_out_the_raw_connection(autojump_clock: MockClock) -> None:
    async def upgrade(_: Request) -> Response:
        async def talk(connection: Upgrade) -> None:
            stream, early = await connection.accept((("Upgrade", "raw"), ("Connection", "Upgrade")))
            await stream.send_all(b"early: " + early)
            await stream.send_all(b" later: " + await stream.receive_some())

        return Response(upgrade=talk)

    async with serving(upgrade) as client:
        await client.send_all(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: raw\r\nConnection: Upgrade\r\n\r\nhello"
        )
        answer = await read_answer(client)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert answer.endswith(b"early: hello")
        await client.send_all(b"bye")
        assert await read_all(client) == b" later: bye"


async def test_a_bug_in_a_handler_travels_to_the_supervisor(autojump_clock: MockClock) -> None:
    async def buggy(_: Request) -> Response:
        raise ZeroDivisionError

    client, server = memory_stream_pair()
    await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises(ZeroDivisionError):
        await serve_connection(server, buggy)


async def open_server(
    nursery: trio.Nursery, limits: Limits, gate: Gate | None = None, handler: Handler = echo
) -> Callable[[], Awaitable[trio.SocketStream]]:
    """Serve on loopback; return how to connect."""
    listeners = await open_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        await serve_http(handler, listeners, limits, gate=gate, task_status=task_status)

    await nursery.start(serve)
    return partial(trio.open_tcp_stream, "127.0.0.1", port)


async def has_ended(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def only_admin(request: Request) -> None:
    if request.headers.get("authorization") != "Bearer admin":
        raise HttpError(401, "Unauthorized")


GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
ADMIN = b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer admin\r\n\r\n"


async def everybody(_: Request) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("limits", "gate"),
    [
        (Limits(connections=3), None),
        (Limits(connections=3), everybody),
        (Limits(per_source=3), everybody),
    ],
)
async def test_the_longest_silent_connection_makes_room(limits: Limits, gate: Gate | None) -> None:
    async with trio.open_nursery() as nursery, AsyncExitStack() as streams:
        connect = await open_server(nursery, limits, gate)
        silent = []
        for number in range(4):
            stream = await streams.enter_async_context(await connect())
            await stream.send_all(b"GET / HT" if number % 2 else b"")
            silent.append(stream)
            await wait_all_tasks_blocked(0.01)
        with trio.fail_after(5):
            assert await has_ended(silent[0])
            for stream in silent[2:]:
                await stream.send_all(GET[8:] if stream is silent[3] else GET)
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def test_without_a_gate_one_address_may_have_all_connections() -> None:
    async with trio.open_nursery() as nursery, AsyncExitStack() as streams:
        connect = await open_server(nursery, Limits(per_source=3))
        kept = [await streams.enter_async_context(await connect()) for _ in range(10)]
        for stream in kept:
            await stream.send_all(GET)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def test_where_all_are_being_answered_one_more_is_refused() -> None:
    async with trio.open_nursery() as nursery, AsyncExitStack() as streams:
        connect = await open_server(
            nursery, Limits(connections=2), handler=streaming(10**6, pause=3600)
        )
        for _ in range(2):
            stream = await streams.enter_async_context(await connect())
            await stream.send_all(GET)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        extra = await streams.enter_async_context(await connect())
        with trio.fail_after(5):
            assert (await read_all(extra)).startswith(b"HTTP/1.1 503 ")
        nursery.cancel_scope.cancel()


async def test_whoever_passed_the_gate_is_not_counted_and_no_stranger_gets_it_closed() -> None:
    async with trio.open_nursery() as nursery, AsyncExitStack() as streams:
        connect = await open_server(nursery, Limits(connections=4, per_source=4), only_admin)
        known = [await streams.enter_async_context(await connect()) for _ in range(4)]
        for stream in known:
            await stream.send_all(ADMIN)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        strangers = [await streams.enter_async_context(await connect()) for _ in range(50)]
        await strangers[-1].send_all(GET)
        with trio.fail_after(5):
            assert (await strangers[-1].receive_some()).startswith(b"HTTP/1.1 401")
            assert await has_ended(strangers[0])
            for stream in known:
                await stream.send_all(ADMIN)
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def test_the_gate_decides_before_a_body_is_read(autojump_clock: MockClock) -> None:
    async with serving(gate=only_admin) as client:
        await client.send_all(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
        )
        answer = await read_answer(client)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"100 Continue" not in answer
    assert b"onnection: close" in answer


async def test_a_body_comes_after_the_gate(autojump_clock: MockClock) -> None:
    async with serving(gate=only_admin) as client:
        await client.send_all(
            b"POST / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer admin\r\n"
            b"Content-Length: 3\r\n\r\nabc"
        )
        assert b"POST / b'abc'" in await read_answer(client)


async def test_a_stranger_may_idle_for_less_time(autojump_clock: MockClock) -> None:
    for request, seconds in ((b"", 10), (GET, 10), (ADMIN, 90)):
        async with serving(gate=only_admin) as client:
            began = trio.current_time()
            if request:
                await client.send_all(request)
            await read_all(client)
            assert seconds <= trio.current_time() - began < seconds + 1


@pytest.mark.parametrize("count", [300, 5_000, 50_000])
async def test_too_many_headers_are_431(autojump_clock: MockClock, count: int) -> None:
    async with serving(limits=Limits(head=2**20)) as client:
        head = b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:\r\n" * count + b"\r\n"
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with suppress(trio.BrokenResourceError):
                    await client.send_all(head)

            nursery.start_soon(send)
            assert (await read_all(client)).startswith(b"HTTP/1.1 431 ")


async def test_too_many_arguments_are_400(autojump_clock: MockClock) -> None:
    async with serving() as client:
        await client.send_all(b"GET /?" + b"a&" * 10_001 + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await read_answer(client)).startswith(b"HTTP/1.1 400 ")


async def test_others_run_while_a_body_comes_in_chunks_of_a_byte() -> None:
    rounds = 0

    async def others() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    async with serving() as client, trio.open_nursery() as nursery:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        nursery.start_soon(others)
        await client.send_all(head + b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n")
        answer = b""
        while b"200 OK" not in answer:
            answer += await client.receive_some()
        nursery.cancel_scope.cancel()
    assert rounds > 5_000


async def test_a_status_that_http_does_not_know_is_passed_on(autojump_clock: MockClock) -> None:
    async def strange(_: Request) -> Response:
        raise HttpError(599, "strange")

    async with serving(strange) as client:
        await client.send_all(GET)
        assert (await read_answer(client)).startswith(b"HTTP/1.1 599 ")


async def test_cancelling_ends_every_connection_and_closes_the_listener() -> None:
    listeners = await open_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, streaming(10**6, pause=3600), listeners)
        client = await trio.open_tcp_stream("127.0.0.1", port)
        await client.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await client.receive_some()
        nursery.cancel_scope.cancel()
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream("127.0.0.1", port)
    await client.aclose()


@given(st.binary(max_size=200), st.integers(0, 200))
async def test_no_bytes_make_a_connection_fail(data: bytes, cut: int) -> None:
    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, server, echo, Limits(head=100))
        for piece in (data[:cut], data[cut:]):
            if piece:
                with trio.move_on_after(1):
                    try:
                        await client.send_all(piece)
                    except trio.BrokenResourceError:
                        break
        await client.aclose()


FRAGMENTS = (
    *(b"GET / HTTP/1.1\r\n", b"POST /a?b=%zz HTTP/1.1\r\n", b"PUT /\xff HTTP/1.0\r\n", b"GET\r\n"),
    *(b"HEAD /%00 HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"GET http://a/b HTTP/1.1\r\n"),
    *(b"Host: h\r\n", b"Host: h\r\nHost: i\r\n", b" folded: x\r\n", b"Bad Name: x\r\n", b"A:\r\n"),
    *(b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: x\r\n", b"\r\n", b"\n"),
    *(b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"ffffffffffffffffff\r\n", b"3;x=y\r\nabc", b"\0"),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14))
@settings(max_examples=200, deadline=None)
def test_whatever_is_put_together_is_answered_in_http(fragments: list[bytes]) -> None:
    asked = []

    async def note(request: Request) -> Response:
        asked.append(request)
        return await echo(request)

    async def main() -> bytes:
        async with serving(note, Limits(body=1000, head=4000)) as client:
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send_all(b"".join(fragments))
                await client.send_eof()
            return await read_all(client)

    told = trio.run(main, clock=MockClock(autojump_threshold=0))
    parser, answers = h11.Connection(h11.CLIENT), 0
    while told:
        method = asked[answers].method if answers < len(asked) else "GET"
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(told)
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            assert isinstance(event, (h11.InformationalResponse, h11.Response, h11.Data)), told
        told = parser.trailing_data[0]
        answers += 1
    # At most one more than what was understood: the refusal of what was not.
    assert len(asked) <= answers <= len(asked) + 1


async def test_routes_match_method_and_segments() -> None:
    router = Router()

    async def show(request: Request) -> Response:
        return Response(body=str(dict(request.params)).encode())

    router.add("GET", "/pods", show)
    router.add("GET", "/pods/{namespace}/{name}", show)
    assert (await router(Request("GET", "/pods/"))).body == b"{}"
    assert (await router(Request("HEAD", "/pods/a/b"))).body == b"{'namespace': 'a', 'name': 'b'}"
    for method, path, status in (
        ("POST", "/pods", 405),
        ("GET", "/pods/a", 404),
        ("GET", "/pods//b", 404),
        ("GET", "/", 404),
    ):
        with pytest.raises(HttpError) as caught:
            await router(Request(method, path))
        assert caught.value.status == status

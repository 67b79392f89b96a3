"""GETs of probes and hooks, on real sockets."""

from __future__ import annotations

import ssl
from pathlib import Path

import h11
import pytest
import trio
from lightkube.models.core_v1 import Container, ContainerPort, HTTPGetAction, HTTPHeader

from kubelet_trio.handlers import (
    BODY_LIMIT,
    BodyError,
    HandlerError,
    container_port,
    http_get,
    http_request,
)
from kubelet_trio.handlers.http import _encode
from kubelet_trio.handlers.http_action import HttpRequest
from tests.handlers.server import http, serving


def get(port: int, target: str = "/", scheme: str = "http") -> HttpRequest:
    return HttpRequest(scheme, "127.0.0.1", port, target)


def headers_of(head: str) -> dict[str, str]:
    lines = head.split("\r\n")[1:-2]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def test_a_get_says_who_asks_and_takes_anything() -> None:
    async with serving(http(200, b"ok")) as server:
        action = HTTPGetAction(port=server.port, path="/healthz?full=1", scheme="HTTP")
        request = http_request(action, Container(name="c"), "127.0.0.1", "probe")
        response = await http_get(request, 5)
    assert (response.status, response.body) == (200, b"ok")
    assert server.paths == ["/healthz?full=1"]
    assert headers_of(server.asked[0]) == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": "kube-probe/1.36",
        "accept": "*/*",
        "connection": "close",
    }


async def test_headers_of_the_manifest_win() -> None:
    given = [
        HTTPHeader("Host", "shop.example"),
        HTTPHeader("user-agent", "mine"),
        HTTPHeader("Accept", ""),  # none at all
        HTTPHeader("x-two", "a"),
        HTTPHeader("X-API-Key", "c"),  # spelled as Go spells it
        HTTPHeader("X-Two", "b"),
        HTTPHeader("Content-Length", "5"),  # the client's own to say
    ]
    async with serving(http(200)) as server:
        action = HTTPGetAction(port=server.port, path="health", httpHeaders=given)
        await http_get(http_request(action, Container(name="c"), "127.0.0.1", "probe"), 5)
    head = server.asked[0]
    assert headers_of(head)["host"] == "shop.example"
    assert headers_of(head)["user-agent"] == "mine"
    assert "accept" not in headers_of(head)
    assert "content-length" not in headers_of(head)
    assert head.count("X-Two: ") == 2
    assert "\r\nX-Api-Key: c\r\n" in head
    assert "\r\nUser-Agent: mine\r\n" in head
    assert server.paths == ["/health"]


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443), ("http", 8080)])
def test_the_host_header_names_every_port(scheme: str, port: int) -> None:
    head = _encode(h11.Connection(h11.CLIENT), get(port, scheme=scheme)).decode()
    assert headers_of(head)["host"] == f"127.0.0.1:{port}"


def test_a_redirect_decides_the_host_header_if_it_names_a_host() -> None:
    request = get(80)
    assert request.redirected("http://127.0.0.1/new").host_header == "127.0.0.1"
    assert request.redirected("http://127.0.0.1:80/new").host_header == "127.0.0.1:80"
    assert request.redirected("/new").host_header == ""


async def test_a_body_is_read_to_its_limit_only() -> None:
    async with serving(http(200, b"x" * 100_000)) as server:
        response = await http_get(get(server.port), 5)
    assert response.body == b"x" * BODY_LIMIT


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with serving(b"HTTP/1.0 200 OK\r\n\r\nto the end") as server:
        assert (await http_get(get(server.port), 5)).body == b"to the end"


async def test_redirects_to_the_same_host_are_followed() -> None:
    def answer(head: bytes) -> bytes:
        if b" /new" in head:
            return http(200, b"here")
        return http(302, b"", "Location: /new?a=b")

    async with serving(answer) as server:
        response = await http_get(get(server.port), 5)
    assert (response.status, response.body) == (200, b"here")
    assert server.paths == ["/", "/new?a=b"]


async def test_a_redirect_to_another_host_is_the_answer() -> None:
    async with serving(http(302, b"away", "Location: http://elsewhere.example/")) as server:
        response = await http_get(get(server.port), 5)
    assert (response.status, response.body) == (302, b"away")


async def test_ten_redirects_are_enough() -> None:
    async with serving(http(302, b"", "Location: /again")) as server:
        with pytest.raises(HandlerError, match="stopped after 10 redirects"):
            await http_get(get(server.port), 5)
    assert len(server.asked) == 10


async def test_a_refused_connection_is_said_as_go_says_it() -> None:
    async with serving(None) as server:
        port = server.port
    with pytest.raises(HandlerError) as caught:
        await http_get(get(port, "/x"), 5)
    assert str(caught.value) == (
        f'Get "http://127.0.0.1:{port}/x": dial tcp 127.0.0.1:{port}: connect: connection refused'
    )


async def test_a_server_that_says_nothing_times_out() -> None:
    async with serving(None) as server:
        with pytest.raises(HandlerError) as caught:
            await http_get(get(server.port), 0.05)
    assert str(caught.value) == (
        f'Get "http://127.0.0.1:{server.port}/": context deadline exceeded '
        "(Client.Timeout exceeded while awaiting headers)"
    )


async def test_an_answer_that_does_not_end_is_no_answer() -> None:
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
    async with serving(begun) as server:
        with pytest.raises(BodyError, match="unexpected EOF"):
            await http_get(get(server.port), 5)
    async with serving(begun, closes=False) as server:
        with pytest.raises(BodyError, match="while reading body"):
            await http_get(get(server.port), 0.05)


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH\r\n\r\n"])
async def test_what_is_no_http_is_a_failure(said: bytes) -> None:
    async with serving(said) as server:
        with pytest.raises(HandlerError, match=r"EOF|malformed"):
            await http_get(get(server.port), 5)


async def test_a_header_that_cannot_be_sent_is_a_failure() -> None:
    async with serving(http(200)) as server:
        request = HttpRequest("http", "127.0.0.1", server.port, "/", (("X", "a\r\nb: c"),))
        with pytest.raises(HandlerError, match="invalid header"):
            await http_get(request, 5)


@pytest.fixture
def certificate() -> ssl.SSLContext:
    """A self-signed certificate that was good for a day, once, and names another host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("other.pem"))
    return context


async def test_any_certificate_will_do(certificate: ssl.SSLContext) -> None:
    async with serving(http(200, b"secret"), tls=certificate) as server:
        response = await http_get(get(server.port, scheme="https"), 5)
    assert response.body == b"secret"


async def test_plain_http_where_tls_was_asked_for_is_told_apart() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    async def refuse(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(http(400, b"plain HTTP here"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, refuse, listeners)
        with pytest.raises(HandlerError) as caught:
            await http_get(get(port, scheme="https"), 5)
        nursery.cancel_scope.cancel()
    assert caught.value.is_plain_http
    assert str(caught.value).endswith("http: server gave HTTP response to HTTPS client")


PORTS = Container(name="c", ports=[ContainerPort(8080, name="web"), ContainerPort(9090)])


@pytest.mark.parametrize(("port", "number"), [("web", 8080), (81, 81), ("82", 82)])
def test_a_port_is_a_number_or_a_name(port: int | str, number: int) -> None:
    assert container_port(port, PORTS) == number


@pytest.mark.parametrize(
    ("port", "why"),
    [
        ("nobody", 'strconv.Atoi: parsing "nobody": invalid syntax'),
        (0, "invalid port number: 0"),
        ("70000", "invalid port number: 70000"),
    ],
)
def test_a_port_that_is_neither_is_an_error(port: int | str, why: str) -> None:
    with pytest.raises(HandlerError) as caught:
        container_port(port, PORTS)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/", "/"),
        ("", "/"),
        ("healthz", "/healthz"),
        ("/a b/ü?q=x y", "/a%20b/%C3%BC?q=x%20y"),
        ("/a%20b", "/a%20b"),
        ("/a[1]?b[2]", "/a[1]?b[2]"),
        # No URL: all of it is the path, as with Go.
        ("/100%?q#f", "/100%25%3Fq%23f"),
        ("/x#fragment", "/x"),
        ("http://evil.example/x", "/x"),  # the host is never taken from the path
    ],
)
def test_a_path_becomes_a_target(path: str, target: str) -> None:
    action = HTTPGetAction(port=80, path=path)
    assert http_request(action, Container(name="c"), "10.0.0.1", "probe").target == target


def test_an_ipv6_address_is_in_brackets_in_a_url() -> None:
    action = HTTPGetAction(port=80, path="/")
    request = http_request(action, Container(name="c"), "fd00::1", "lifecycle")
    assert request.url == "http://[fd00::1]:80/"
    assert ("User-Agent", "kube-lifecycle/1.36") in request.headers


def test_the_plain_version_of_a_request_keeps_no_authorization() -> None:
    request = HttpRequest("https", "a", 1, "/", (("Authorization", "x"), ("B", "c")))
    assert request.plain() == HttpRequest("http", "a", 1, "/", (("B", "c"),))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", "exceeded 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 101 + b"\r\n", "more than 100 headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 1000, "more than 100 headers"),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 6 + http(200), "too many 1xx informational responses"),
    ],
)
async def test_a_head_without_measure_is_refused(answer: bytes, why: str) -> None:
    async with serving(answer, closes=False) as server:
        with pytest.raises(HandlerError, match=why):
            await http_get(get(server.port), 5)


async def test_a_head_within_measure_is_taken() -> None:
    lines = "\r\n".join(["HTTP/1.1 200 OK", "Content-Length: 2", *["a: b"] * 99, "", ""])
    answer = b"HTTP/1.1 103 Early\r\n\r\n" * 5 + lines.encode() + b"\n\n"
    async with serving(answer) as server:
        response = await http_get(get(server.port), 5)
    assert (response.status, response.body) == (200, b"\n\n")

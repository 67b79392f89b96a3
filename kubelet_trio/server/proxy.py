"""A connection handed through: the client's upgrade goes to the runtime, then bytes both ways.

What travels is not looked at, so SPDY and WebSocket, with whatever version of the channel
protocol both sides agree on, work alike. Either side may end its direction; when the runtime
has ended its own, all is over, since nobody is left to read what a client still says.

Source: UpgradeAwareHandler in k8s.io/apimachinery/pkg/util/proxy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

import h11
import trio
from trio.abc import HalfCloseableStream, Stream

from kubelet_trio.model import get_logger, system_tls
from kubelet_trio.server.http import Headers, HttpError, Request, Upgrade
from kubelet_trio.server.identity import without_token

log = get_logger()

_DIAL_LIMIT = 30.0  # seconds until the runtime's server has taken the connection
_ANSWER_LIMIT = 30.0  # seconds until it has answered
_MOST_SHOWN = 1024  # characters of a URL in an error
_MOST_REFUSAL = 64 * 1024  # bytes of a refusal that are handed on
_PIECE = 256 * 1024
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "expect", "te", "trailer"})


def is_upgrade(request: Request) -> bool:
    """Whether a client asks to change the protocol."""
    wanted = request.headers.get("connection", "").lower()
    return "upgrade" in wanted and bool(request.headers.get("upgrade"))


def is_websocket(request: Request) -> bool:
    """Whether it is a WebSocket that the client asks for."""
    return request.headers.get("upgrade", "").lower() == "websocket"


async def proxy_upgrade(
    request: Request, url: str, connection: Upgrade, idle_timeout: float
) -> None:
    """Hand a client through to `url` until either side has had enough.

    `idle_timeout` is how many seconds may pass without a byte; 0 is no limit. Raises
    `HttpError` for a backend that cannot be reached or that refuses.
    """
    async with open_backend(url) as stream:
        backend = await ask_backend(request.method, handed_on(request), url, stream)
        client, early = await connection.accept(backend.headers)
        if early:
            await stream.send_all(early)
        if backend.early:
            await client.send_all(backend.early)
        await pump_both(client, stream, idle_timeout)


@dataclass(frozen=True, slots=True)
class Backend:
    """A runtime's streaming server that has switched protocols."""

    headers: Headers
    early: bytes  # what it has sent behind its 101


@asynccontextmanager
async def open_backend(url: str) -> AsyncIterator[Stream]:
    """Connect to where a URL points. Raises `HttpError` 500."""
    target = _place(url)
    secure = target.scheme == "https"
    host, port = target.hostname or "127.0.0.1", target.port or (443 if secure else 80)
    try:
        with trio.fail_after(_DIAL_LIMIT):
            plain = await trio.open_tcp_stream(host, port)
    except (OSError, UnicodeError, trio.TooSlowError) as exc:  # UnicodeError: no name in DNS
        log.warning("proxy.not_connected", backend=f"{host}:{port}", error=str(exc))
        raise _failed(f"dial tcp {host}:{port}: {exc or 'i/o timeout'}") from exc
    stream: Stream = plain
    if secure:
        stream = trio.SSLStream(plain, system_tls(), server_hostname=host)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def ask_backend(method: str, headers: Headers, url: str, stream: Stream) -> Backend:
    """Ask a backend to switch and return what it says. Raises `HttpError`."""
    wire = h11.Connection(h11.CLIENT)
    target = _place(url)
    try:
        head = h11.Request(
            method=method,
            target=f"{target.path or '/'}{f'?{target.query}' if target.query else ''}",
            headers=[("Host", target.netloc), *headers],
        )
    except (h11.LocalProtocolError, UnicodeEncodeError) as exc:
        raise _failed(f"the runtime's streaming server: {url[:_MOST_SHOWN]!r}: {exc}") from exc
    try:
        with trio.fail_after(_ANSWER_LIMIT):
            data = (wire.send(head) or b"") + (wire.send(h11.EndOfMessage()) or b"")
            await stream.send_all(data)
            return await _read_answer(wire, stream)
    except (trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError) as exc:
        raise _failed(f"the runtime's streaming server: {exc or type(exc).__name__}") from exc


def handed_on(request: Request) -> Headers:
    """Return the headers that the backend is to see: not those that prove who asks."""
    headers = []
    for name, value in request.raw_headers:
        kept = without_token(name, value)
        if kept and name.lower() not in _OWN_HEADERS:
            headers.append((name, kept))
    if request.peer.address:
        before = [value for name, value in headers if name.lower() == "x-forwarded-for"]
        headers = [(n, v) for n, v in headers if n.lower() != "x-forwarded-for"]
        headers.append(("X-Forwarded-For", ", ".join([*before, request.peer.address])))
    return tuple(headers)


def _place(url: str) -> SplitResult:
    """Take a runtime's URL apart. Raises `HttpError` 500 for what is none."""
    try:
        target = urlsplit(url)
        _ = target.port  # looked at only when it is asked for
    except ValueError as exc:
        text = f"the runtime's streaming server: {url[:_MOST_SHOWN]!r}: {exc}"
        raise _failed(text) from exc
    return target


async def _read_answer(wire: h11.Connection, stream: Stream) -> Backend:
    refusal: h11.Response | None = None
    body = bytearray()
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(bytes(await stream.receive_some(_PIECE)))
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                headers = event.headers.raw_items()
                named = tuple((k.decode("ascii"), v.decode("latin-1")) for k, v in headers)
                return Backend(named, wire.trailing_data[0])
        elif isinstance(event, h11.Response):
            refusal = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MOST_REFUSAL:
                break
        else:
            break
    if refusal is None:
        raise trio.BrokenResourceError("closed without an answer")
    raise HttpError(
        refusal.status_code if refusal.status_code >= HTTPStatus.BAD_REQUEST else 502,
        bytes(body).decode("utf-8", "replace"),
        end="",
    )


async def pump_both(client: HalfCloseableStream, backend: Stream, idle_timeout: float) -> None:
    """Pass bytes both ways until the backend has said its last, or nothing travels any more."""
    with trio.CancelScope() as scope:

        def note() -> None:
            if idle_timeout:
                scope.deadline = trio.current_time() + idle_timeout

        async def upstream() -> None:
            # A client that breaks off ends it all; a backend that does may have more to say.
            while data := await client.receive_some(_PIECE):
                note()
                try:
                    await backend.send_all(data)
                except trio.BrokenResourceError:
                    return  # nobody takes more of it; how it ended may still be on its way down
                note()
            if isinstance(backend, HalfCloseableStream):
                await backend.send_eof()
            else:
                scope.cancel()

        note()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upstream)
            await _pump(backend, client, note)
            nursery.cancel_scope.cancel()
    if scope.cancelled_caught and idle_timeout:
        log.info("proxy.idle", seconds=idle_timeout)


async def _pump(source: Stream, sink: Stream, note: Callable[[], None]) -> None:
    while data := await source.receive_some(_PIECE):
        note()
        await sink.send_all(data)
        note()


def _failed(message: str) -> HttpError:
    return HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, message)

"""Proxies an upgraded connection: the client's request to the runtime's server, then raw bytes.

The bytes are not parsed, so SPDY and WebSocket work with every version of the channel protocol
that both sides support. Each side may close its direction. The connection ends when the runtime
closes its own: nothing reads the client's input any more.

Source: UpgradeAwareHandler in k8s.io/apimachinery/pkg/util/proxy.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

import h11
import trio
from trio.abc import HalfCloseableStream, Stream

from kubelet_trio.model import get_logger, system_tls
from kubelet_trio.server.access.authentication import without_token
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.types import Headers, Request, Upgrade

log = get_logger()

_DIAL_LIMIT = 30.0  # seconds to connect to the runtime's server
_ANSWER_LIMIT = 30.0  # seconds for its answer
_MAX_SHOWN = 1024  # characters of a URL in an error
_MAX_REFUSAL = 64 * 1024  # bytes of a refusal that the client gets
_CHUNK = 256 * 1024
# Headers that describe the connection to the client, or a body that is not forwarded.
_NOT_FORWARDED = frozenset(
    {"host", "content-length", "transfer-encoding", "expect", "te", "trailer"}
)


def is_upgrade(request: Request) -> bool:
    """Return whether a client asks to switch protocols."""
    wanted = request.headers.get("connection", "").lower()
    return "upgrade" in wanted and bool(request.headers.get("upgrade"))


def is_websocket(request: Request) -> bool:
    """Return whether a client asks for a WebSocket."""
    return request.headers.get("upgrade", "").lower() == "websocket"


async def proxy_upgrade(
    request: Request, url: str, connection: Upgrade, idle_timeout: float
) -> None:
    """Connect a client with the server at `url` until one side ends the connection.

    `idle_timeout` is the time in seconds without a byte after which it ends; 0 is no limit.
    Raises `HttpError` if the backend cannot be reached or refuses.
    """
    async with open_backend(url) as stream:
        backend = await ask_backend(request.method, forwarded_headers(request), url, stream)
        # Only now: a refusal of the backend becomes an ordinary answer to the client.
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
    early: bytes  # bytes received after its 101


@asynccontextmanager
async def open_backend(url: str) -> AsyncIterator[Stream]:
    """Connect to the host of a URL. Raises `HttpError` 500."""
    target = _split_url(url)
    secure = target.scheme == "https"
    host, port = target.hostname or "127.0.0.1", target.port or (443 if secure else 80)
    try:
        with trio.fail_after(_DIAL_LIMIT):
            plain = await trio.open_tcp_stream(host, port)
    except (OSError, UnicodeError, trio.TooSlowError) as exc:  # UnicodeError: an invalid host name
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
    """Ask a backend to switch protocols. Raises `HttpError` if it does not."""
    wire = h11.Connection(h11.CLIENT)
    target = _split_url(url)
    try:
        head = h11.Request(
            method=method,
            target=f"{target.path or '/'}{f'?{target.query}' if target.query else ''}",
            headers=[("Host", target.netloc), *headers],
        )
    except (h11.LocalProtocolError, UnicodeEncodeError) as exc:
        raise _failed(f"the runtime's streaming server: {url[:_MAX_SHOWN]!r}: {exc}") from exc
    try:
        with trio.fail_after(_ANSWER_LIMIT):
            data = (wire.send(head) or b"") + (wire.send(h11.EndOfMessage()) or b"")
            await stream.send_all(data)
            return await _read_answer(wire, stream)
    except (trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError) as exc:
        raise _failed(f"the runtime's streaming server: {exc or type(exc).__name__}") from exc


def forwarded_headers(request: Request) -> Headers:
    """Return the headers for the backend: without credentials, with X-Forwarded-For."""
    headers = []
    for name, value in request.raw_headers:
        kept = without_token(name, value)
        if kept and name.lower() not in _NOT_FORWARDED:
            headers.append((name, kept))
    if request.peer.address:
        before = [value for name, value in headers if name.lower() == "x-forwarded-for"]
        headers = [(n, v) for n, v in headers if n.lower() != "x-forwarded-for"]
        headers.append(("X-Forwarded-For", ", ".join([*before, request.peer.address])))
    return tuple(headers)


def _split_url(url: str) -> SplitResult:
    """Return the parts of a runtime's URL. Raises `HttpError` 500 for an invalid one."""
    try:
        target = urlsplit(url)
        _ = target.port  # urlsplit checks the port only when it is read
    except ValueError as exc:
        text = f"the runtime's streaming server: {url[:_MAX_SHOWN]!r}: {exc}"
        raise _failed(text) from exc
    return target


async def _read_answer(wire: h11.Connection, stream: Stream) -> Backend:
    refusal: h11.Response | None = None
    body = bytearray()
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                headers = event.headers.raw_items()
                named = tuple((k.decode("ascii"), v.decode("latin-1")) for k, v in headers)
                return Backend(named, wire.trailing_data[0])
        elif isinstance(event, h11.Response):
            refusal = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_REFUSAL:
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


class Activity:
    """Cancels a scope `idle` seconds after the last byte, or up to a hundredth later; 0 is never.

    To move the deadline with each byte would cost a tenth of what copying it does.
    """

    def __init__(self, scope: trio.CancelScope, idle: float) -> None:
        self._scope, self._idle = scope, idle or math.inf
        self._step = min(1.0, self._idle / 100)
        self._next = -math.inf  # Trio time from which on a byte moves the deadline
        self.note()

    def note(self) -> None:
        """Note that a byte was sent or received."""
        if (now := trio.current_time()) >= self._next:
            self._next = now + self._step
            self._scope.deadline = self._next + self._idle


async def pump_both(client: HalfCloseableStream, backend: Stream, idle_timeout: float) -> None:
    """Copy bytes in both directions until the backend closes its side or the stream is idle."""
    with trio.CancelScope() as scope:
        note_activity = Activity(scope, idle_timeout).note

        async def upstream() -> None:
            # A broken client ends the connection. A backend that no longer reads may still have
            # output on the way: the exit status of the command.
            while data := await client.receive_some(_CHUNK):
                note_activity()
                try:
                    await backend.send_all(data)
                except trio.BrokenResourceError:
                    return
                note_activity()
            if isinstance(backend, HalfCloseableStream):
                await backend.send_eof()
            else:
                scope.cancel()  # trio.SSLStream cannot close one direction

        async with trio.open_nursery() as nursery:
            nursery.start_soon(upstream)
            await _pump(backend, client, note_activity)
            nursery.cancel_scope.cancel()
    if scope.cancelled_caught and idle_timeout:
        log.info("proxy.idle", seconds=idle_timeout)


async def _pump(source: Stream, sink: Stream, note_activity: Callable[[], None]) -> None:
    while data := await source.receive_some(_CHUNK):
        note_activity()
        await sink.send_all(data)
        note_activity()


def _failed(message: str) -> HttpError:
    return HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, message)

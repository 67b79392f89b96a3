"""HTTP/1.1 for the agent's own servers: h11 on trio streams, and nothing that blocks.

One task a connection, one request at a time on it (pipelined requests wait in the buffer).
A client can be slow, rude or gone: every wait for it has a deadline, every size a limit,
and what it does ends its own connection only.

- A request whose head is too long, too slow or malformed is answered with 4xx and the
  connection is closed; one whose client vanishes is dropped without a word.
- A handler returns a `Response`. With a `stream` the body is written by that function as
  it comes; it is cancelled as soon as the client goes away.
- A `Response` with `upgrade` hands out the raw connection, once that function accepts it.
- A handler that raises `HttpError` says what to answer. Anything else it raises is a bug
  and travels to the server's supervisor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import structlog
import trio
from trio.abc import HalfCloseableStream, Listener

from kubelet_trio.supervision import run_contained

log = structlog.get_logger()

Headers = tuple[tuple[str, str], ...]
Send = Callable[[bytes], Awaitable[None]]
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, as far as the connection itself tells.

    `certificate` is the client's, checked against the client CA, as `ssl` decodes it;
    `is_current` says whether the CA that it was checked against is still the one in use.
    """

    address: str = ""
    certificate: Mapping[str, Any] | None = None
    certificate_der: bytes = b""
    is_current: Callable[[], bool] = lambda: True


Secure = Callable[[trio.SocketStream], Awaitable[tuple[HalfCloseableStream, Peer]]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are in lower case, and `raw_headers` is all of them in order."""

    method: str
    path: str  # decoded
    arguments: tuple[tuple[str, str], ...] = ()  # of the query, in order
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    params: Mapping[str, str] = field(default_factory=dict)  # what the route's names matched
    raw_headers: Headers = ()
    target: str = ""  # the path with its query, as it was sent
    peer: Peer = Peer()

    @property
    def query(self) -> Mapping[str, str]:
        """The query with the last argument of each name."""
        return dict(self.arguments)


@dataclass(frozen=True, slots=True)
class Response:
    """One answer: a whole `body`, or a `stream` that writes it, or an `upgrade`."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()
    stream: Callable[[Send], Awaitable[None]] | None = None
    upgrade: Callable[[Upgrade], Awaitable[None]] | None = None


class Upgrade(Protocol):
    """A request to change the protocol, while nothing has been answered yet."""

    async def accept(self, headers: Headers) -> tuple[HalfCloseableStream, bytes]:
        """Answer 101; returns the connection and what the client has sent meanwhile.

        An `HttpError` raised before this is answered as any other.
        """
        ...


class HttpError(Exception):
    """An answer that is not a success; the message and `end` become the body."""

    def __init__(
        self, status: int, message: str, headers: Headers = (), *, end: str = "\n"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.end = end

    def response(self) -> Response:
        return Response(self.status, f"{self}{self.end}".encode(), headers=self.headers)


Handler = Callable[[Request], Awaitable[Response]]
# Is told of each request, and holds until it is answered in full.
Observe = Callable[[Request], AbstractContextManager[None]]


def observe_nothing(_: Request) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take. Sizes in bytes, times in seconds.

    The Go kubelet allows 1 MiB of headers, 90 s idle and 4 h for a response.
    """

    head: int = 64 * 1024
    body: int = 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 90.0
    send_seconds: float = 30.0  # for one piece of a body that is there in whole
    stream_send_seconds: float = 4 * 3600.0  # a reader of a stream may pause
    secure_seconds: float = 10.0  # for the TLS handshake
    connections: int = 128


async def serve_http(
    handler: Handler,
    listeners: Sequence[Listener[trio.SocketStream]],
    limits: Limits = Limits(),
    *,
    secure: Secure | None = None,
    observe: Observe = observe_nothing,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; the listeners are closed then.

    `secure` shakes hands with each client, in the task of its connection. A bug in a handler
    ends the connection that met it, and is logged; the others go on. `observe` sees requests
    that were understood, refused ones included.
    """
    open_now = 0

    async def serve_socket(stream: trio.SocketStream) -> None:
        peer = Peer(_address(stream))
        if secure is None:
            await serve_connection(stream, handler, limits, peer, observe)
            return
        async with stream:
            secured: HalfCloseableStream | None = None
            with trio.move_on_after(limits.secure_seconds), contextlib.suppress(*_GONE):
                secured, told = await secure(stream)
                peer = replace(told, address=peer.address)
            if secured is not None:
                await serve_connection(secured, handler, limits, peer, observe)

    async def serve_one(stream: trio.SocketStream) -> None:
        nonlocal open_now
        if open_now >= limits.connections:
            await _refuse(stream)
            return
        open_now += 1
        try:
            failure = await run_contained(serve_socket, stream)
            if failure is not None:
                log.error("http.connection_failed", exc_info=failure)
        finally:
            open_now -= 1

    async def accept(*, task_status: trio.TaskStatus[object]) -> None:
        await trio.serve_listeners(
            serve_one, list(listeners), handler_nursery=connections, task_status=task_status
        )

    async with trio.open_nursery() as connections:
        await connections.start(accept)
        task_status.started()


def _address(stream: trio.SocketStream) -> str:
    try:
        name = stream.socket.getpeername()
    except OSError:
        return ""  # it has gone already
    return str(name[0]) if isinstance(name, tuple) else ""


async def serve_connection(
    stream: HalfCloseableStream,
    handler: Handler,
    limits: Limits = Limits(),
    peer: Peer = Peer(),
    observe: Observe = observe_nothing,
) -> None:
    """Serve one client until it is done, gone, or has broken a limit."""
    async with stream:
        connection = _Connection(stream, limits, peer, observe)
        try:
            while await connection.serve_next(handler):
                pass
        except* _GONE:
            pass  # whoever went away cannot be told anything, and is no news


async def _refuse(stream: HalfCloseableStream) -> None:
    async with stream:
        with trio.move_on_after(1), contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\n"
                b"Connection: close\r\n\r\ntoo many connections"
            )


_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class _GoneError(Exception):
    """The client has closed its side, or has idled long enough: there is no next request."""


class _Connection:
    """One client: the h11 state machine and the stream that feeds it."""

    def __init__(
        self, stream: HalfCloseableStream, limits: Limits, peer: Peer, observe: Observe
    ) -> None:
        self._stream = stream
        self._observe = observe
        self._limits = limits
        self._peer = peer
        self._is_raw = False
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head)

    async def serve_next(self, handler: Handler) -> bool:
        """Serve one request and return whether another may follow."""
        method = ""
        try:
            head = await self._read_head()
            method = head.method.decode("ascii")
            if not self._peer.is_current():
                return False  # unanswered: clients send it again on a connection of their own
            request = _request(head, await self._read_body(), self._peer)
        except _GoneError:
            return False
        except HttpError as exc:
            await self._respond(exc.response(), with_body=method != "HEAD")
            return await self._next_cycle()
        with self._observe(request):
            if not await self._answer(handler, request):
                return False
        return await self._next_cycle()

    async def _answer(self, handler: Handler, request: Request) -> bool:
        """Answer one request; False where the connection was another protocol's after it."""
        try:
            response = await handler(request)
            if response.upgrade is not None:
                await response.upgrade(self)
                return False
        except HttpError as exc:
            if self._is_raw:
                raise
            response = exc.response()
        await self._respond(response, with_body=request.method != "HEAD")
        return True

    async def _read_head(self) -> h11.Request:
        if not self._h11.trailing_data[0]:
            with trio.move_on_after(self._limits.idle_seconds) as idle:
                await self._receive()
            if idle.cancelled_caught:
                raise _GoneError
        with trio.move_on_after(self._limits.head_seconds):
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                raise _GoneError
            return event
        raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "the head of the request took too long")

    async def _read_body(self) -> bytes:
        body = bytearray()
        with trio.move_on_after(self._limits.body_seconds):
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
                if len(body) > self._limits.body:
                    raise HttpError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body of the request is too large"
                    )
            return bytes(body)
        raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "the body of the request took too long")

    async def _next_event(self) -> h11.Event:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as exc:
                raise HttpError(exc.error_status_hint, f"bad request: {exc}") from exc
            if isinstance(event, h11.Event):
                return event
            await self._receive()

    async def _receive(self) -> None:
        self._h11.receive_data(bytes(await self._stream.receive_some(_CHUNK)))

    async def _respond(self, response: Response, *, with_body: bool) -> None:
        headers = [("Content-Type", response.content_type), *response.headers]
        if response.stream is None:
            headers.append(("Content-Length", str(len(response.body))))
        if self._h11.their_state is not h11.DONE:
            headers.append(("Connection", "close"))  # what it still sends is not a request
        phrase = HTTPStatus(response.status).phrase.encode()
        events: list[h11.Event] = [
            h11.Response(status_code=response.status, headers=headers, reason=phrase)
        ]
        if with_body and response.stream is not None:
            await self._send(events.pop())
            await self._stream_body(response.stream)
        elif with_body and response.body:
            events.append(h11.Data(data=response.body))
        await self._send(*events, h11.EndOfMessage())

    async def _stream_body(self, write: Callable[[Send], Awaitable[None]]) -> None:
        """Let `write` send the body; raises BrokenResourceError if the client went away."""
        pause = self._limits.stream_send_seconds

        async def send(data: bytes) -> None:
            if data:
                await self._send(h11.Data(data=data), seconds=pause)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_client)
            await write(send)
            nursery.cancel_scope.cancel()

    async def _watch_client(self) -> None:
        """Notice a client that goes away during a stream; keep what it pipelines, up to a limit."""
        while len(self._h11.trailing_data[0]) < self._limits.head:
            await self._receive()
            if self._h11.trailing_data[1]:
                raise trio.BrokenResourceError("the client went away")
        await trio.sleep_forever()

    async def accept(self, headers: Headers) -> tuple[HalfCloseableStream, bytes]:
        """See `Upgrade.accept`."""
        self._is_raw = True
        await self._send(
            h11.InformationalResponse(
                status_code=101, headers=list(headers), reason=b"Switching Protocols"
            )
        )
        return self._stream, self._h11.trailing_data[0]

    async def _send(self, *events: h11.Event, seconds: float | None = None) -> None:
        data = b"".join(self._h11.send(event) or b"" for event in events)
        with trio.move_on_after(seconds or self._limits.send_seconds):
            await self._stream.send_all(data)
            return
        raise trio.BrokenResourceError("the client does not read")

    async def _next_cycle(self) -> bool:
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            return True
        if self._h11.their_state is not h11.ERROR and not self._unread():
            return False
        # Closing with unread input resets the connection, and the answer is lost with it.
        with trio.move_on_after(1):
            await self._stream.send_eof()
            unread = 0
            while unread < _CHUNK and (data := await self._stream.receive_some(_CHUNK)):
                unread += len(data)
        return False

    def _unread(self) -> bool:
        """Whether the client has, or may have, more to say than was read of it."""
        return self._h11.their_state is h11.SEND_BODY or bool(self._h11.trailing_data[0])


def _request(head: h11.Request, body: bytes, peer: Peer) -> Request:
    text = head.target.decode("latin-1")
    try:
        target = urlsplit(text)
    except ValueError as exc:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"bad request: {exc}") from exc
    return Request(
        method=head.method.decode("ascii"),
        path=unquote(target.path),
        arguments=tuple(parse_qsl(target.query, keep_blank_values=True)),
        headers={k.decode("ascii"): v.decode("latin-1") for k, v in head.headers},
        body=body,
        raw_headers=tuple(
            (k.decode("ascii"), v.decode("latin-1")) for k, v in head.headers.raw_items()
        ),
        target=text,
        peer=peer,
    )

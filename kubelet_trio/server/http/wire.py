"""One HTTP/1.1 connection: h11 on a Trio stream.

Requests are answered one at a time; pipelined requests wait in the buffer. A client may be slow,
hostile or gone: every wait for it has a deadline and every size a limit, and its misbehaviour ends
only its own connection.

- The gate sees only the head. The body of a refused request is never read.
- A head that is too long, too slow or malformed is answered with 4xx and the connection is
  closed. A client that disconnects gets no answer.
- No number of headers, chunks or bytes may block the event loop: reads from strangers are
  small, and reading a body has a checkpoint at each chunk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio
from structlog.contextvars import unbind_contextvars
from trio.abc import HalfCloseableStream

from kubelet_trio.model import get_logger
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.seats import Seat
from kubelet_trio.server.http.traced import STATUS_CODE
from kubelet_trio.server.http.types import (
    DEFAULT_LIMITS,
    UNKNOWN_PEER,
    ClientPeer,
    Gate,
    Handler,
    Headers,
    Limits,
    Observe,
    Request,
    Response,
    Send,
    observe_nothing,
)
from kubelet_trio.tracing import current_span

log = get_logger()

_CHUNK = 64 * 1024
_STRANGERS_CHUNK = 8 * 1024
_BOUND = ("pod", "containerName")  # of a request's log lines: see `Router`
# How a client's disconnection shows up.
DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError)


async def serve_connection(
    stream: HalfCloseableStream,
    handler: Handler,
    limits: Limits = DEFAULT_LIMITS,
    peer: ClientPeer = UNKNOWN_PEER,
    observe: Observe = observe_nothing,
    *,
    gate: Gate | None = None,
    seat: Seat | None = None,
    within: Observe = observe_nothing,
) -> None:
    """Serve one client until it closes the connection, disconnects or breaks a limit."""
    async with stream:
        connection = _Connection(stream, limits, peer, observe, gate, seat or Seat(), within)
        try:
            while await connection.serve_next(handler):
                pass
        except* DISCONNECTED:
            pass  # an ordinary end: no answer can reach the client


class _NoRequestError(Exception):
    """The client closed its side or idled too long: there is no next request."""


class _Connection:
    """One client: an h11 state machine and its stream."""

    def __init__(
        self,
        stream: HalfCloseableStream,
        limits: Limits,
        peer: ClientPeer,
        observe: Observe,
        gate: Gate | None,
        seat: Seat,
        within: Observe,
    ) -> None:
        self._stream = stream
        self._observe = observe
        self._limits = limits
        self._peer = peer
        self._gate = gate
        self._seat = seat
        self._within = within
        self._is_upgraded = False
        self._status = 0  # of the answer in progress; 0: none yet
        self._lines = 0  # received since the last complete head
        max_head = limits.head if peer.certificate is None else limits.known_head
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head)

    async def serve_next(self, handler: Handler) -> bool:
        """Serve one request and return whether another may follow."""
        method = ""
        try:
            head = await self._read_head()
            method = head.method.decode("ascii")
            if not self._peer.is_current():
                return False  # not answered: clients repeat the request on a new connection
            # Inside the try: a malformed target is answered with 400 like a malformed head.
            request = _request(head, self._peer, self._limits)
        except _NoRequestError:
            return False
        except HttpError as exc:
            await self._respond(exc.response(), with_body=method != "HEAD")
            return await self._next_cycle()
        began, self._status = trio.current_time(), 0
        try:
            with self._observe(request):
                if not await self._answer(handler, request, has_body=_has_body(head)):
                    return False
        finally:
            # Without the query, which may hold commands and secrets.
            log.debug(
                "http.request",
                method=request.method,
                path=request.path,
                status=self._status,
                seconds=round(trio.current_time() - began, 6),
            )
            unbind_contextvars(*_BOUND)
        return await self._next_cycle()

    async def _answer(self, handler: Handler, request: Request, *, has_body: bool) -> bool:
        """Answer one request; return False if the connection was upgraded."""
        try:
            if not has_body:
                # h11 reports the end of an empty body as an event of its own; no bytes are read.
                await self._read_body()
            if self._gate is not None:
                await self._gate(request)
            # From here on the client is known; without a gate, only while it is being answered.
            passed = self._seat.passed(for_good=self._gate is not None)
            with passed, self._within(request):
                if has_body:
                    request = replace(request, body=await self._read_body())
                response = await handler(request)
                if response.upgrade is not None:
                    await response.upgrade(self)
                    return False
                await self._respond(response, with_body=request.method != "HEAD")
        except HttpError as exc:
            if self._is_upgraded:
                raise  # 101 has been sent: the client no longer expects an HTTP answer
            await self._respond(exc.response(), with_body=request.method != "HEAD")
        return True

    async def _read_head(self) -> h11.Request:
        limits = self._limits
        is_stranger = self._gate is not None and self._seat.is_stranger
        if not self._h11.trailing_data[0]:
            seconds = limits.stranger_idle_seconds if is_stranger else limits.idle_seconds
            with trio.move_on_after(seconds) as idle:
                await self._receive()
            if idle.cancelled_caught:
                raise _NoRequestError
        with trio.move_on_after(limits.head_seconds):
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                raise _NoRequestError
            self._lines = 0
            if len(event.headers) > limits.headers:
                raise _too_many_headers()
            return event
        raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "the head of the request took too long")

    async def _read_body(self) -> bytes:
        body = bytearray()
        with trio.move_on_after(self._limits.body_seconds):
            # RFC 9110, 10.1.1: curl sends a large body only after 100 Continue.
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            while isinstance(event := await self._next_event(), h11.Data):
                await trio.lowlevel.checkpoint()  # one read may hold thousands of 1-byte chunks
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
            if self._lines > self._limits.headers and self._h11.their_state is h11.IDLE:
                raise _too_many_headers()  # h11 limits the bytes of a head, not its lines
            await self._receive()

    async def _receive(self) -> None:
        max_bytes = _STRANGERS_CHUNK if self._seat.is_stranger else _CHUNK
        data = bytes(await self._stream.receive_some(max_bytes))
        self._lines += data.count(b"\n")
        self._h11.receive_data(data)

    async def _respond(self, response: Response, *, with_body: bool) -> None:
        self._status = response.status
        current_span().set(STATUS_CODE, response.status)
        headers = [("Content-Type", response.content_type), *response.headers]
        if response.stream is None:
            headers.append(("Content-Length", str(len(response.body))))
        if self._h11.their_state is not h11.DONE:
            headers.append(("Connection", "close"))  # the unread body cannot be skipped
        phrase = _PHRASES.get(response.status, b"")  # a runtime's status code may be unknown
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
        """Let `write` send the body; raises BrokenResourceError if the client disconnects."""
        limit = self._limits.stream_send_seconds

        async def send(data: bytes) -> None:
            if data:
                await self._send(h11.Data(data=data), seconds=limit)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_client)
            await write(send)
            nursery.cancel_scope.cancel()

    async def _watch_client(self) -> None:
        """Notice a disconnection during a stream; keep pipelined requests, up to a limit."""
        # Without reading, a client that disconnects from a quiet stream stays unnoticed.
        while len(self._h11.trailing_data[0]) < self._limits.head:
            await self._receive()
            if self._h11.trailing_data[1]:
                raise trio.BrokenResourceError("the client disconnected")
        await trio.sleep_forever()

    async def accept(self, headers: Headers) -> tuple[HalfCloseableStream, bytes]:
        """See `Upgrade.accept`."""
        self._is_upgraded, self._status = True, 101
        current_span().set(STATUS_CODE, HTTPStatus.SWITCHING_PROTOCOLS.value)
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
        # Closing a socket with unread input sends RST (RFC 9112, 9.6), and the client loses the
        # answer: read what it has already sent, for a short time.
        with trio.move_on_after(1):
            await self._stream.send_eof()
            unread = 0
            while unread < _CHUNK and (data := await self._stream.receive_some(_CHUNK)):
                unread += len(data)
        return False

    def _unread(self) -> bool:
        """Whether the client has sent, or may be sending, bytes that were not read."""
        return self._h11.their_state is h11.SEND_BODY or bool(self._h11.trailing_data[0])


_PHRASES = {int(status): status.phrase.encode() for status in HTTPStatus}


def _too_many_headers() -> HttpError:
    return HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request has too many headers")


def _has_body(head: h11.Request) -> bool:
    """Whether the head announces a body of at least one byte."""
    named = dict(head.headers)
    return b"transfer-encoding" in named or named.get(b"content-length", b"0").strip(b"0") != b""


def _request(head: h11.Request, peer: ClientPeer, limits: Limits) -> Request:
    text = head.target.decode("latin-1")
    try:
        target = urlsplit(text)
        arguments = parse_qsl(target.query, keep_blank_values=True, max_num_fields=limits.arguments)
    except ValueError as exc:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"bad request: {exc}") from exc
    return Request(
        method=head.method.decode("ascii"),
        path=unquote(target.path),
        arguments=tuple(arguments),
        headers={k.decode("ascii"): v.decode("latin-1") for k, v in head.headers},
        raw_headers=tuple(
            (k.decode("ascii"), v.decode("latin-1")) for k, v in head.headers.raw_items()
        ),
        target=text,
        peer=peer,
    )

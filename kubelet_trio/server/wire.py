"""One HTTP/1.1 connection: h11 on a trio stream, and nothing that blocks.

One request at a time (pipelined requests wait in the buffer). A client can be slow, rude or gone:
every wait for it has a deadline, every size a limit, and what it does ends its own connection only.

- The gate decides on the head alone. The body of a request that does not pass is never read.
- A request whose head is too long, too slow or malformed is answered with 4xx and the
  connection is closed; one whose client vanishes is dropped without a word.
- No number of headers, chunks or bytes keeps the loop from other tasks: reads of strangers are
  small, and between the pieces of a body others run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio
from trio.abc import HalfCloseableStream

from kubelet_trio.server.http import (
    DEFAULT_LIMITS,
    NOBODY,
    Gate,
    Handler,
    Headers,
    HttpError,
    Limits,
    Observe,
    Peer,
    Request,
    Response,
    Send,
    observe_nothing,
)
from kubelet_trio.server.seats import Seat

_CHUNK = 64 * 1024
_STRANGERS_CHUNK = 8 * 1024
GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


async def serve_connection(
    stream: HalfCloseableStream,
    handler: Handler,
    limits: Limits = DEFAULT_LIMITS,
    peer: Peer = NOBODY,
    observe: Observe = observe_nothing,
    *,
    gate: Gate | None = None,
    seat: Seat | None = None,
) -> None:
    """Serve one client until it is done, gone, or has broken a limit."""
    async with stream:
        connection = _Connection(stream, limits, peer, observe, gate, seat or Seat())
        try:
            while await connection.serve_next(handler):
                pass
        except* GONE:
            pass  # whoever went away cannot be told anything, and is no news


class _GoneError(Exception):
    """The client has closed its side, or has idled long enough: there is no next request."""


class _Connection:
    """One client: the h11 state machine and the stream that feeds it."""

    def __init__(
        self,
        stream: HalfCloseableStream,
        limits: Limits,
        peer: Peer,
        observe: Observe,
        gate: Gate | None,
        seat: Seat,
    ) -> None:
        self._stream = stream
        self._observe = observe
        self._limits = limits
        self._peer = peer
        self._gate = gate
        self._seat = seat
        self._is_raw = False
        self._lines = 0  # that have come since the last whole head
        most = limits.head if peer.certificate is None else limits.known_head
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=most)

    async def serve_next(self, handler: Handler) -> bool:
        """Serve one request and return whether another may follow."""
        method = ""
        try:
            head = await self._read_head()
            method = head.method.decode("ascii")
            if not self._peer.is_current():
                return False  # unanswered: clients send it again on a connection of their own
            request = _request(head, self._peer, self._limits)
        except _GoneError:
            return False
        except HttpError as exc:
            await self._respond(exc.response(), with_body=method != "HEAD")
            return await self._next_cycle()
        with self._observe(request):
            if not await self._answer(handler, request, has_body=_has_body(head)):
                return False
        return await self._next_cycle()

    async def _answer(self, handler: Handler, request: Request, *, has_body: bool) -> bool:
        """Answer one request; False where the connection was another protocol's after it."""
        try:
            if not has_body:
                await self._read_body()  # its end is part of the head
            if self._gate is not None:
                await self._gate(request)
            with self._seat.passed(for_good=self._gate is not None):
                if has_body:
                    request = replace(request, body=await self._read_body())
                response = await handler(request)
                if response.upgrade is not None:
                    await response.upgrade(self)
                    return False
                await self._respond(response, with_body=request.method != "HEAD")
        except HttpError as exc:
            if self._is_raw:
                raise
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
                raise _GoneError
        with trio.move_on_after(limits.head_seconds):
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                raise _GoneError
            self._lines = 0
            if len(event.headers) > limits.headers:
                raise _too_many_headers()
            return event
        raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "the head of the request took too long")

    async def _read_body(self) -> bytes:
        body = bytearray()
        with trio.move_on_after(self._limits.body_seconds):
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            while isinstance(event := await self._next_event(), h11.Data):
                await trio.lowlevel.checkpoint()  # chunks of a byte come by the thousand in a read
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
                raise _too_many_headers()  # h11 bounds their bytes alone
            await self._receive()

    async def _receive(self) -> None:
        most = _STRANGERS_CHUNK if self._seat.is_stranger else _CHUNK
        data = bytes(await self._stream.receive_some(most))
        self._lines += data.count(b"\n")
        self._h11.receive_data(data)

    async def _respond(self, response: Response, *, with_body: bool) -> None:
        headers = [("Content-Type", response.content_type), *response.headers]
        if response.stream is None:
            headers.append(("Content-Length", str(len(response.body))))
        if self._h11.their_state is not h11.DONE:
            headers.append(("Connection", "close"))  # what it still sends is not a request
        phrase = _PHRASES.get(response.status, b"")  # a runtime may answer with a number of its own
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


_PHRASES = {int(status): status.phrase.encode() for status in HTTPStatus}


def _too_many_headers() -> HttpError:
    return HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request has too many headers")


def _has_body(head: h11.Request) -> bool:
    """Whether a body is announced; one of no bytes is none."""
    named = dict(head.headers)
    return b"transfer-encoding" in named or named.get(b"content-length", b"0").strip(b"0") != b""


def _request(head: h11.Request, peer: Peer, limits: Limits) -> Request:
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

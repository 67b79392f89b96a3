"""An HTTP server in memory for what no well-behaved API server does.

HTTP/1.1 by h11 and HTTP/2 by h2, with or without TLS, on trio's memory streams: time is
virtual, and every connection is counted.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h11
import httpcore2
import trio
import trio.testing

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int  # 1 for the first
    http2: bool = False
    peer: str = ""  # the common name of the client's certificate


class Reply:
    """The way to answer one request."""

    async def send(self, code: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Answer completely."""
        raise NotImplementedError

    async def begin(self, headers: Headers = ()) -> None:
        """Begin a chunked answer of 200."""
        raise NotImplementedError

    async def chunk(self, data: bytes) -> None:
        """Send a part of it."""
        raise NotImplementedError

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        raise NotImplementedError

    async def abort(self) -> None:
        """Break the connection."""
        raise NotImplementedError

    async def tunnel(self) -> None:
        """Let a proxy's CONNECT through."""
        raise NotImplementedError


Handler = Callable[[Asked, Reply], Awaitable[None]]


@dataclass
class MemoryServer(httpcore2.AsyncNetworkBackend):
    """The server, and the network on which it is everybody."""

    nursery: trio.Nursery
    handler: Handler
    tls: ssl.SSLContext | None = None
    refusing: bool = False
    is_proxy: bool = False
    asked: list[Asked] = field(default_factory=list)
    hosts: list[tuple[str, int]] = field(default_factory=list)
    opened: int = 0
    open: int = 0  # connections that the client has not closed

    async def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        self.hosts.append((host, port))
        if self.refusing:
            raise httpcore2.ConnectError("connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self.opened += 1
        self.open += 1
        self.nursery.start_soon(self._serve, ours, self.opened)
        return MemoryStream(theirs, self)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def _serve(self, stream: trio.abc.Stream, number: int) -> None:
        try:
            if self.is_proxy:
                await _Http1(self, stream, number, "").run()
            else:
                await self.answer(stream, number)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.aclose_forcefully(stream)

    async def answer(self, stream: trio.abc.Stream, number: int) -> None:
        """Serve a connection, in TLS where that is so."""
        peer = ""
        if self.tls is not None:
            secured = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
            await secured.do_handshake()
            stream = secured
            certificate: Any = secured.getpeercert() or {}
            names = [value for part in certificate.get("subject", ()) for _, value in part]
            peer = names[-1] if names else ""
            if secured.selected_alpn_protocol() == "h2":
                await _Http2(self, stream, number, peer).run()
                return
        await _Http1(self, stream, number, peer).run()


class MemoryStream(httpcore2.AsyncNetworkStream):
    """The client's end."""

    def __init__(self, stream: trio.abc.Stream, server: MemoryServer) -> None:
        self._stream = stream
        self._server = server
        self._closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                return bytes(await self._stream.receive_some(max_bytes))
        except trio.TooSlowError as exc:
            raise httpcore2.ReadTimeout from exc
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore2.ReadError(str(exc)) from exc

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            await self._stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise httpcore2.WriteError(str(exc)) from exc

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.open -= 1
        await trio.aclose_forcefully(self._stream)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> MemoryStream:
        secured = trio.SSLStream(
            self._stream, ssl_context, server_hostname=server_hostname, https_compatible=True
        )
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                await secured.do_handshake()
        except trio.BrokenResourceError as exc:
            raise httpcore2.ConnectError(str(exc.__cause__ or exc)) from exc
        self._stream = secured
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._stream, trio.SSLStream):
            return self._stream._ssl_object
        return None


@contextlib.asynccontextmanager
async def serve(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[MemoryServer]:
    async with trio.open_nursery() as nursery:
        yield MemoryServer(nursery, handler, tls)
        nursery.cancel_scope.cancel()


class _Http1(Reply):
    def __init__(
        self, server: MemoryServer, stream: trio.abc.Stream, number: int, peer: str
    ) -> None:
        self._server = server
        self._stream = stream
        self._number = number
        self._peer = peer
        self._http = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        while True:
            event = await self._event()
            if not isinstance(event, h11.Request):
                return
            body = b""
            while isinstance(part := await self._event(), h11.Data):
                body += bytes(part.data)
            asked = Asked(
                event.method.decode(),
                event.target.decode(),
                {name.decode(): value.decode() for name, value in event.headers},
                body,
                self._number,
                peer=self._peer,
            )
            self._server.asked.append(asked)
            await self._server.handler(asked, self)
            if self._http.our_state is h11.SWITCHED_PROTOCOL:
                # A proxy's tunnel; behind it is this server again.
                await self._server.answer(self._stream, self._number)
                return
            if self._http.our_state is h11.SEND_BODY:
                await self._write(self._http.send(h11.EndOfMessage()))
            if self._http.our_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def tunnel(self) -> None:
        await self._write(self._http.send(h11.Response(status_code=200, headers=[])))

    async def send(self, code: int, body: bytes = b"", headers: Headers = ()) -> None:
        length = [("Content-Length", str(len(body)))]
        await self._write(
            self._http.send(h11.Response(status_code=code, headers=[*headers, *length]))
        )
        await self._write(self._http.send(h11.Data(data=body)))
        await self._write(self._http.send(h11.EndOfMessage()))

    async def begin(self, headers: Headers = ()) -> None:
        chunked = [("Transfer-Encoding", "chunked")]
        await self._write(
            self._http.send(h11.Response(status_code=200, headers=[*headers, *chunked]))
        )

    async def chunk(self, data: bytes) -> None:
        await self._write(self._http.send(h11.Data(data=data)))

    async def raw(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def abort(self) -> None:
        await trio.aclose_forcefully(self._stream)
        raise trio.BrokenResourceError

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self._stream.receive_some()))
        return event

    async def _write(self, data: bytes | None) -> None:
        if data:
            await self._stream.send_all(data)


class _Http2(Reply):
    """One request at a time, which is all that these tests ask."""

    def __init__(
        self, server: MemoryServer, stream: trio.abc.Stream, number: int, peer: str
    ) -> None:
        self._server = server
        self._stream = stream
        self._number = number
        self._peer = peer
        self._http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self._answering = 0

    async def run(self) -> None:
        self._http.initiate_connection()
        await self._flush()
        requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        while data := await self._stream.receive_some():
            for event in self._http.receive_data(bytes(data)):
                if isinstance(event, h2.events.RequestReceived):
                    headers: Any = event.headers
                    requests[event.stream_id or 0] = (dict(headers), bytearray())
                elif isinstance(event, h2.events.DataReceived):
                    requests[event.stream_id or 0][1].extend(event.data or b"")
                elif isinstance(event, h2.events.StreamEnded):
                    await self._flush()
                    await self._answer(event.stream_id or 0, *requests.pop(event.stream_id or 0))
            await self._flush()

    async def _answer(self, stream: int, headers: dict[str, str], body: bytearray) -> None:
        method, target = headers[":method"], headers[":path"]
        asked = Asked(method, target, headers, bytes(body), self._number, True, self._peer)
        self._server.asked.append(asked)
        self._answering = stream
        await self._server.handler(asked, self)

    async def send(self, code: int, body: bytes = b"", headers: Headers = ()) -> None:
        lowered = [(name.lower(), value) for name, value in headers]
        self._http.send_headers(self._answering, [(":status", str(code)), *lowered])
        self._http.send_data(self._answering, body, end_stream=True)
        await self._flush()

    async def _flush(self) -> None:
        if data := self._http.data_to_send():
            await self._stream.send_all(data)

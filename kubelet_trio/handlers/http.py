"""HTTP GET for probes and hooks: one connection, one answer, read no further than needed.

It uses a socket and `h11` instead of `httpx2`. With a probe per pod and second, probes are most of
the agent's work, and this takes a fourth of the CPU time (`python -m bench.probes`). Probes need
no proxy, pool or cookies, and do not verify certificates.

As upstream, ten redirects are followed, none of them to another host. Error texts are those of
Go's client.
"""

from __future__ import annotations

import functools
import re
import ssl
from dataclasses import dataclass, field

import h11
import trio

from kubelet_trio.handlers.errors import BodyError, HandlerError, errno_text
from kubelet_trio.handlers.http_action import HttpRequest
from kubelet_trio.handlers.sockets import Connection, Wire, connect

BODY_LIMIT = 10 * 1024  # bytes of an answer's body that are read, as upstream
# The answer is untrusted, and h11 parses a head without yielding: only small heads reach it.
_HEAD_LIMIT = 64 * 1024
_MAX_HEADERS = 100
_MAX_INFORMATIONAL = 5  # Go's net/http
_BLANK_LINE = re.compile(rb"\n\r?\n")
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MAX_REDIRECTS = 10
_AWAITING = "(Client.Timeout exceeded while awaiting headers)"
_READING = "(Client.Timeout or context cancellation while reading body)"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The last answer, which may be a redirect that was not followed.

    `body` is cut to `BODY_LIMIT`.
    """

    status: int
    body: bytes
    location: str = ""


@dataclass(slots=True)
class _Progress:
    """The progress of a request, for the text of a timeout."""

    request: HttpRequest
    is_connected: bool = False
    has_head: bool = False

    def timeout_error(self) -> HandlerError:
        if self.has_head:
            return BodyError(f"context deadline exceeded {_READING}")
        why = f"context deadline exceeded {_AWAITING}"
        if not self.is_connected:
            why = f"dial tcp {self.request.address}: i/o timeout {_AWAITING}"
        return HandlerError(f'Get "{self.request.url}": {why}')


@dataclass(slots=True)
class _Heads:
    """Splits received bytes into heads, and refuses heads that would take long to parse."""

    waiting: bytearray = field(default_factory=bytearray)
    searched: int = 0
    lines: int = 0
    informational: int = 0

    def cut(self) -> bytes:
        """Return the next complete head; b"" if there is none yet. Raises `HandlerError`."""
        found = _BLANK_LINE.search(self.waiting, max(0, self.searched - 2))
        end = len(self.waiting) if found is None else found.end()
        self.lines += self.waiting.count(b"\n", self.searched, end)
        self.searched = end
        if end > _HEAD_LIMIT:
            raise HandlerError(f"net/http: server response headers exceeded {_HEAD_LIMIT} bytes")
        if self.lines > _MAX_HEADERS + 2:  # plus the status line and the blank line
            raise HandlerError(f"server response has more than {_MAX_HEADERS} headers")
        if found is None:
            return b""
        head = bytes(self.waiting[:end])
        del self.waiting[:end]
        self.searched = self.lines = 0
        return head

    def count_informational(self) -> None:
        self.informational += 1
        if self.informational > _MAX_INFORMATIONAL:
            raise HandlerError("net/http: too many 1xx informational responses")


async def http_get(request: HttpRequest, within: float | None = None) -> HttpResponse:
    """Send a GET, follow redirects to the same host, and return the answer.

    `within` limits the whole request in seconds; None is no limit. Raises `HandlerError`, which is
    a `BodyError` if the answer was cut off in its body.
    """
    progress = _Progress(request)
    with trio.move_on_after(float("inf") if within is None else within):
        return await _follow(progress)
    raise progress.timeout_error()


async def _follow(progress: _Progress) -> HttpResponse:
    first = progress.request
    for _ in range(_MAX_REDIRECTS):
        try:
            response = await _exchange(progress)
            if response.status not in _REDIRECTS or not response.location:
                return response
            following = progress.request.redirected(response.location)
        except BodyError:
            raise
        except HandlerError as exc:
            text = f'Get "{progress.request.url}": {exc}'
            raise HandlerError(text, is_plain_http=exc.is_plain_http) from exc
        if following.host != first.host:
            return response
        progress.request, progress.is_connected, progress.has_head = following, False, False
    raise HandlerError(f'Get "{progress.request.url}": stopped after {_MAX_REDIRECTS} redirects')


async def _exchange(progress: _Progress) -> HttpResponse:
    request = progress.request
    connection = await connect(request.host, request.port)
    progress.is_connected = True
    try:
        if request.scheme == "https":
            return await _converse(await _tls(connection, request), progress)
        return await _converse(connection, progress)
    except (OSError, trio.BrokenResourceError) as exc:
        text = errno_text(exc) if isinstance(exc, OSError) else str(exc)
        kind = BodyError if progress.has_head else HandlerError
        raise kind(f"read tcp {request.address}: read: {text}") from exc
    finally:
        connection.reset()


async def _converse(peer: Connection | trio.SSLStream[Wire], progress: _Progress) -> HttpResponse:
    """Send the request and read the answer, its body up to `BODY_LIMIT`."""
    protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
    await peer.send_all(_encode(protocol, progress.request))
    heads, head, body = _Heads(), None, bytearray()
    while True:
        event = _next_event(protocol, progress)
        if event is h11.NEED_DATA and head is not None:
            protocol.receive_data(bytes(await peer.receive_some()))
        elif event is h11.NEED_DATA:
            protocol.receive_data(await _next_head(peer, heads))
        elif isinstance(event, h11.Response):
            head, progress.has_head = event, True
            if heads.waiting:  # the beginning of the body; b"" would mean the end
                protocol.receive_data(bytes(heads.waiting))
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:  # Switching Protocols: no further answer follows
                return _response(event, body)
            heads.count_informational()
        elif isinstance(event, h11.Data):
            body += event.data
        if head is not None and (
            len(body) >= BODY_LIMIT or isinstance(event, h11.EndOfMessage | h11.ConnectionClosed)
        ):
            return _response(head, body)


async def _next_head(peer: Connection | trio.SSLStream[Wire], heads: _Heads) -> bytes:
    while not (head := heads.cut()):
        data = await peer.receive_some()
        if not data:
            raise HandlerError("EOF")
        heads.waiting += data
    return head


def _next_event(protocol: h11.Connection, progress: _Progress) -> object:
    try:
        return protocol.next_event()
    except h11.RemoteProtocolError as exc:
        if progress.has_head:
            raise BodyError(f"unexpected EOF: {exc}") from exc
        text = f"net/http: HTTP/1.x transport connection broken: malformed HTTP response: {exc}"
        raise HandlerError(text) from exc


def _encode(protocol: h11.Connection, request: HttpRequest) -> bytes:
    # With the port even if it is the scheme's default: Go's client leaves the URL's host as it is,
    # and the Go kubelet's URLs always name the port.
    host = request.host_header or request.address
    try:
        head = h11.Request(
            method="GET",
            target=request.target,
            headers=[("Host", host), *request.headers, ("Connection", "close")],
        )
        return (protocol.send(head) or b"") + (protocol.send(h11.EndOfMessage()) or b"")
    except (h11.LocalProtocolError, UnicodeEncodeError) as exc:
        raise HandlerError(f"net/http: invalid header field: {exc}") from exc


def _response(head: h11.Response | h11.InformationalResponse, body: bytearray) -> HttpResponse:
    location = next((v for k, v in head.headers if k == b"location"), b"")
    return HttpResponse(
        head.status_code, bytes(body[:BODY_LIMIT]), location.decode("utf-8", "replace")
    )


async def _tls(connection: Connection, request: HttpRequest) -> trio.SSLStream[Wire]:
    # SNI is for names only: literal addresses are not permitted in it, RFC 6066, section 3.
    is_name = any(c.isalpha() for c in request.host) and ":" not in request.host
    stream = trio.SSLStream(
        Wire(connection),
        _context(),
        server_hostname=request.host if is_name else None,
        https_compatible=True,
    )
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as exc:
        # Go's TLS client recognizes a plain HTTP answer in the same way.
        if connection.first.startswith(b"HTTP/"):
            text = "http: server gave HTTP response to HTTPS client"
            raise HandlerError(text, is_plain_http=True) from exc
        raise HandlerError(f"tls: {exc.__cause__ or exc}") from exc
    return stream


@functools.cache
def _context() -> ssl.SSLContext:
    """Return a context that accepts any certificate, as the Go kubelet's probes do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # small keys and old hashes too
    return context

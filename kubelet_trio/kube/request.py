"""Requests to an API server: attempts, time limits, and what errors mean."""

from __future__ import annotations

import contextlib
import platform
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import httpcore2
import trio

from kubelet_trio.kube.codec import decode_status, error_from
from kubelet_trio.kube.connections import Connections, WatchConnection
from kubelet_trio.kube.errors import (
    CredentialsError,
    KubeError,
    KubeTimeoutError,
    KubeUnavailableError,
    error_of,
)
from kubelet_trio.kube.exchange import NETWORK_ERRORS, Answer, exchange, read_headers
from kubelet_trio.kube.limits import TokenBucket
from kubelet_trio.model import Backoff, get_logger
from kubelet_trio.tracing import Attributes, SpanKind, span, trace_headers

log = get_logger()

_CONNECT = 10.0  # seconds for the TCP connection, and again for TLS
_ATTEMPTS = 10  # of a request that the server asks to repeat: client-go's maxRetries
_BROKEN = 2  # times that a read is repeated at once after its connection broke
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between attempts
# How it looks if the server closed an idle connection just as it was used again.
_STALE = (httpcore2.ReadError, httpcore2.WriteError, httpcore2.RemoteProtocolError)
_PATH_SAFE = "/:@!$&'()*+,;=~"  # pchar of RFC 3986


@dataclass(frozen=True, slots=True)
class RequestAttempt:
    """One attempt of a request, for `rest_client_*` metrics; `code` is `<error>` if it failed."""

    method: str
    host: str
    code: str
    seconds: float  # to the last byte; of a watch to the response's head
    waited: float = 0.0  # seconds spent in the rate limiter
    sent: int | None = None  # bytes of the request's body; None: a watch
    received: int | None = None  # bytes of the answer's body; None: there was none, or a watch
    is_retry: bool = False  # an earlier attempt of the same request has failed


Observer = Callable[[RequestAttempt], None]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request. Query parameters without a value are left out."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = ""

    @property
    def shown(self) -> str:
        return f"{self.method} {self.path}"


class Sender:
    """Sends requests over some connections."""

    def __init__(self, connections: Connections, observe: Observer | None = None) -> None:
        self._connections = connections
        self._observe = observe
        config = connections.credentials.config
        self._server = urlsplit(config.server)
        self.host = self._server.netloc.rpartition("@")[2]
        self._server_name = config.tls_server_name
        self._compressed = not config.disable_compression
        self._agent = user_agent()

    async def send(self, request: ApiRequest, bucket: TokenBucket, limit: float) -> bytes:
        """Return the body of a successful answer.

        Raises:
            KubeError: the server refused.
            KubeUnavailableError: there was no usable answer.
        """
        broken = refused = attempts = 0
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        while True:
            waited = await bucket.take()
            is_retry = broken + refused + attempts > 0
            try:
                answer = await self._attempt(request, limit, waited, is_retry)
            except _STALE as exc:
                broken += 1
                # The server may have carried out a write: only its caller knows how to repeat it.
                if request.method != "GET" or broken > _BROKEN:
                    raise self._unavailable(request, exc) from exc
                continue
            except (*NETWORK_ERRORS, CredentialsError) as exc:
                raise self._unavailable(request, exc) from exc
            if 200 <= answer.code < 300:
                return answer.body
            # The credentials may have been rotated between two checks of their files.
            if answer.code == 401 and not refused:
                refused += 1
                if await self._reread():
                    continue
            error = self._refusal(request, answer)
            attempts += 1
            asked = _retry_after(answer.headers)
            again = answer.code == 429 or (answer.code >= 500 and asked is not None)
            if not again or attempts >= _ATTEMPTS:
                raise error
            await trio.sleep(_pause(asked, backoff.next_delay()))

    @contextlib.asynccontextmanager
    async def stream(
        self, request: ApiRequest, limit: float
    ) -> AsyncIterator[tuple[httpcore2.Response, WatchConnection]]:
        """Start a watch; yield the response, its body not yet read, and its connection.

        Raises:
            KubeError: the server refused.
            KubeUnavailableError: there was no usable answer within the limit.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                begun = await self._begin(request, limit, stack)
            except (*NETWORK_ERRORS, CredentialsError) as exc:
                raise self._unavailable(request, exc) from exc
            yield begun

    async def _begin(
        self, request: ApiRequest, limit: float, stack: contextlib.AsyncExitStack
    ) -> tuple[httpcore2.Response, WatchConnection]:
        refused = False
        while True:
            connection = await stack.enter_async_context(self._connections.watching())
            with self._timed(request, 0.0) as outcome, _limited(limit):
                response = await connection.pool.handle_async_request(self._built(request))
                outcome.code = str(response.status)
                stack.push_async_callback(_close, response)
                if response.status == 200:
                    return response, connection
                body = await response.aread()
            if response.status == 401 and not refused:
                refused = True
                if await self._reread():
                    continue
            raise self._refusal(request, Answer(response.status, read_headers(response), body))

    async def _attempt(
        self, request: ApiRequest, limit: float, waited: float, is_retry: bool
    ) -> Answer:
        async with self._connections.use() as shared:
            finished = False
            try:
                with self._timed(request, waited) as outcome:
                    outcome.sent, outcome.is_retry = len(request.body), is_retry
                    built = self._built(request)
                    answer = await exchange(shared.pool, built, limit, is_shared=shared.http2)
                    outcome.code, outcome.received = str(answer.code), len(answer.body)
                finished = True
            finally:
                if not finished:
                    # The connection may be broken, or in the middle of the abandoned answer.
                    self._connections.retire(shared)
            return answer

    def _built(self, request: ApiRequest) -> httpcore2.Request:
        # The caller limits the whole exchange; `connect` is for each address of a host name.
        extensions: dict[str, Any] = {"timeout": {"connect": _CONNECT}}
        if self._server_name:
            extensions["sni_hostname"] = self._server_name
        return httpcore2.Request(
            request.method,
            self._url(request),
            headers=self._headers(request),
            content=request.body or None,
            extensions=extensions,
        )

    def _url(self, request: ApiRequest) -> httpcore2.URL:
        server = self._server
        query = urlencode({key: value for key, value in request.query.items() if value})
        path = quote(request.path, safe=_PATH_SAFE)
        target = f"{server.path}{path}?{query}" if query else f"{server.path}{path}"
        try:
            host, port = (server.hostname or "").encode("idna"), server.port
            return httpcore2.URL(
                scheme=server.scheme.encode(), host=host, port=port, target=target.encode("ascii")
            )
        except ValueError as exc:  # a malformed host name, port or path (UnicodeError is one)
            raise httpcore2.LocalProtocolError(f"malformed URL: {exc}") from exc

    def _headers(self, request: ApiRequest) -> list[tuple[bytes | str, bytes | str]]:
        is_watch = "watch" in request.query
        headers: list[tuple[bytes | str, bytes | str]] = [
            ("Host", self.host),
            ("Accept", "application/json"),
            ("User-Agent", self._agent),
            # A compressor on the way could delay a watch's events.
            ("Accept-Encoding", "gzip" if self._compressed and not is_watch else "identity"),
            *self._connections.credentials.headers,
            *trace_headers(),
        ]
        if self._server.username and not any(name == "Authorization" for name, _ in headers):
            # As Go's net/http: the login in a URL counts if there are no other credentials.
            login = f"{unquote(self._server.username)}:{unquote(self._server.password or '')}"
            headers.append(("Authorization", f"Basic {b64encode(login.encode()).decode()}"))
        if request.content_type:
            headers.append(("Content-Type", request.content_type))
        if request.body:
            headers.append(("Content-Length", str(len(request.body))))
        return headers

    async def _reread(self) -> bool:
        """Read the credentials anew after a refusal; return False if they cannot change."""
        credentials = self._connections.credentials
        if credentials.is_fixed:
            return False
        try:
            await credentials.refresh(refused=True)
        except CredentialsError as exc:
            log.warning("kube.credentials", error=str(exc))
            return False
        return True

    @contextlib.contextmanager
    def _timed(self, request: ApiRequest, waited: float) -> Iterator[_Outcome]:
        outcome, began = _Outcome(), trio.current_time()
        about = self._server, request
        try:
            with span(f"HTTP {request.method}", about, _about_request, SpanKind.CLIENT) as opened:
                yield outcome
                opened.set("http.response.status_code", int(outcome.code))
                if int(outcome.code) >= 400:
                    opened.fail(outcome.code)
        finally:
            seconds = trio.current_time() - began
            log.debug(
                "kube.request",
                method=request.method,
                path=request.path,
                code=outcome.code,
                seconds=round(seconds, 6),
            )
            if self._observe is not None:
                self._observe(
                    RequestAttempt(
                        *(request.method, self.host, outcome.code, seconds, waited),
                        *(outcome.sent, outcome.received, outcome.is_retry),
                    )
                )

    def _refusal(self, request: ApiRequest, answer: Answer) -> KubeError | KubeUnavailableError:
        status, retry_after = decode_status(answer.body), _retry_after(answer.headers)
        if status is not None and status.code >= 400:
            return error_from(status, retry_after)
        text = answer.body[:200].decode(errors="replace").strip()
        if answer.code in _REASONS:  # proxies and the server's own filters answer in plain text
            message = text or f"{request.shown}: {answer.code}"
            return error_of(answer.code, _REASONS[answer.code], message, retry_after)
        return KubeUnavailableError(
            f"{self.host}: {request.shown}: answered {answer.code}, no API server's: {text!r}"
        )

    def _unavailable(self, request: ApiRequest, exc: Exception) -> KubeUnavailableError:
        text = str(exc) or type(exc).__name__
        is_late = isinstance(exc, httpcore2.ReadTimeout)
        error = KubeTimeoutError if is_late else KubeUnavailableError
        return error(f"{self.host}: {request.shown}: {text}")


def _about_request(about: tuple[SplitResult, ApiRequest]) -> Attributes:
    server, request = about
    query = urlencode({key: value for key, value in request.query.items() if value})
    return {
        "http.request.method": request.method,
        "server.address": server.hostname or "",
        "url.scheme": server.scheme,
        "url.path": request.path,
        "url.query": query,
    }


_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    410: "Gone",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class _Outcome:
    code: str = "<error>"
    sent: int | None = None
    received: int | None = None
    is_retry: bool = False


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as exc:
        raise httpcore2.ReadTimeout(f"no answer within {seconds:g} s") from exc


def _pause(asked: float | None, own: float) -> float:
    """Return the seconds to wait: what the server asks for, up to a limit, or else our own."""
    return min(own if asked is None else asked, _LONGEST_WAIT)


async def _close(response: httpcore2.Response) -> None:
    """Close a response; its connection too if the body was not read to its end."""
    with trio.move_on_after(5, shield=True):
        await response.aclose()


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`; API servers send no dates there."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def user_agent() -> str:
    """Return the agent's name for the server's logs."""
    from kubelet_trio import __version__

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"kubelet-trio/v{__version__} ({platform.system().lower()}/{machine})"

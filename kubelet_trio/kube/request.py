"""One request to an API server: attempts, time limits and what errors mean."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2
import trio

from kubelet_trio.kube.api import KubeError, KubeUnavailableError, error_of
from kubelet_trio.kube.codec import decode_status, error_from
from kubelet_trio.kube.connections import Connections, WatchConnection
from kubelet_trio.kube.exchange import Answer, exchange
from kubelet_trio.kube.exec_plugin import CredentialsError
from kubelet_trio.kube.limits import TokenBucket
from kubelet_trio.model import Backoff, get_logger

log = get_logger()

_CONNECT = 10.0  # seconds to a TCP connection and again to TLS
_ATTEMPTS = 10  # of a request that the server asks to repeat, as client-go
_BROKEN = 2  # times that a read is repeated at once after its connection broke
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between attempts
# When an idle connection was closed by the other side just as it was to be used again.
_STALE = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError, httpx2.CloseError)
# What the pool below httpx2 raises.
NETWORK_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One attempt, for `rest_client_*` metrics. `code` is `<error>` without an answer."""

    method: str
    host: str
    code: str
    seconds: float  # to the last byte; of a watch to its beginning
    waited: float = 0.0  # seconds for the rate limit


Observer = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. Query parameters without a value are left out."""

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
        self.host = urlsplit(config.server).netloc.rpartition("@")[2]
        self._server_name = config.tls_server_name
        self._compressed = not config.disable_compression
        self._agent = user_agent()
        self._server = config.server

    async def send(self, request: Request, bucket: TokenBucket, limit: float) -> bytes:
        """Return the body of a good answer.

        Raises:
            KubeError: the server refused.
            KubeUnavailableError: there was no usable answer.
        """
        broken = refused = attempts = 0
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        while True:
            waited = await bucket.take()
            try:
                answer = await self._attempt(request, limit, waited)
            except _STALE as exc:
                broken += 1
                if request.method != "GET" or broken > _BROKEN:
                    raise self._unavailable(request, exc) from exc
                continue
            except (httpx2.HTTPError, httpx2.InvalidURL, CredentialsError) as exc:
                raise self._unavailable(request, exc) from exc
            if 200 <= answer.code < 300:
                return answer.body
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
        self, request: Request, limit: float
    ) -> AsyncIterator[tuple[httpcore2.Response, WatchConnection]]:
        """Hold the answer to a watch, whose body is still to come, and its connection.

        Raises:
            KubeError: the server refused.
            KubeUnavailableError: there was no usable answer within the limit.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                begun = await self._begin(request, limit, stack)
            except (*NETWORK_ERRORS, httpx2.HTTPError, CredentialsError) as exc:
                raise self._unavailable(request, exc) from exc
            yield begun

    async def _begin(
        self, request: Request, limit: float, stack: contextlib.AsyncExitStack
    ) -> tuple[httpcore2.Response, WatchConnection]:
        refused = False
        while True:
            connection = await stack.enter_async_context(self._connections.watching())
            with self._timed(request, 0.0) as outcome, _limited(limit):
                built = self._built(request)
                response = await connection.pool.handle_async_request(
                    httpcore2.Request(
                        request.method,
                        str(built.url),
                        headers=built.headers.raw,
                        extensions=dict(built.extensions),
                    )
                )
                outcome.code = str(response.status)
                stack.push_async_callback(_close, response)
                if response.status == 200:
                    return response, connection
                body = await response.aread()
            if response.status == 401 and not refused:
                refused = True
                if await self._reread():
                    continue
            headers = httpx2.Headers(response.headers)
            raise self._refusal(request, Answer(response.status, headers, body))

    async def _attempt(self, request: Request, limit: float, waited: float) -> Answer:
        async with self._connections.use() as line:
            finished = False
            try:
                with self._timed(request, waited) as outcome:
                    built = self._built(request)
                    answer = await exchange(line.client, built, limit, is_shared=line.http2)
                    outcome.code = str(answer.code)
                finished = True
            finally:
                if not finished:
                    # What was given up may sit in the middle of a shared connection.
                    self._connections.retire(line)
            return answer

    def _built(self, request: Request) -> httpx2.Request:
        is_watch = "watch" in request.query
        headers = [
            ("Accept", "application/json"),
            ("User-Agent", self._agent),
            # A watch's lines must not wait in a compressor.
            ("Accept-Encoding", "gzip" if self._compressed and not is_watch else "identity"),
            *self._connections.credentials.headers,
        ]
        if request.content_type:
            headers.append(("Content-Type", request.content_type))
        # The whole of it is limited outside; connecting tries all addresses of a name.
        extensions: dict[str, Any] = {"timeout": {"connect": _CONNECT}}
        if self._server_name:
            extensions["sni_hostname"] = self._server_name
        return httpx2.Request(
            request.method,
            self._server + request.path,
            params={key: value for key, value in request.query.items() if value},
            content=request.body or None,
            headers=headers,
            extensions=extensions,
        )

    async def _reread(self) -> bool:
        """Read the credentials anew after a refusal; False if that cannot change a thing."""
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
    def _timed(self, request: Request, waited: float) -> Iterator[_Outcome]:
        outcome, began = _Outcome(), trio.current_time()
        try:
            yield outcome
        finally:
            if self._observe is not None:
                seconds = trio.current_time() - began
                self._observe(Exchange(request.method, self.host, outcome.code, seconds, waited))

    def _refusal(self, request: Request, answer: Answer) -> KubeError | KubeUnavailableError:
        status, retry_after = decode_status(answer.body), _retry_after(answer.headers)
        if status is not None and status.code >= 400:
            return error_from(status, retry_after)
        text = answer.body[:200].decode(errors="replace").strip()
        if answer.code in _PLAIN:  # what proxies and the server's own filters say in words
            message = text or f"{request.shown}: {answer.code}"
            return error_of(answer.code, _PLAIN[answer.code], message, retry_after)
        return KubeUnavailableError(
            f"{self.host}: {request.shown}: answered {answer.code}, no API server's: {text!r}"
        )

    def _unavailable(self, request: Request, exc: Exception) -> KubeUnavailableError:
        text = str(exc) or type(exc).__name__
        return KubeUnavailableError(f"{self.host}: {request.shown}: {text}")


_PLAIN = {
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


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as exc:
        raise httpx2.ReadTimeout(f"no answer within {seconds:g} s") from exc


def _pause(asked: float | None, own: float) -> float:
    """Return the seconds to wait: the server's word first, within reason."""
    return min(own if asked is None else asked, _LONGEST_WAIT)


async def _close(response: httpcore2.Response) -> None:
    """Give the connection back, or end it when the answer was not read to its end."""
    with trio.move_on_after(5, shield=True):
        await response.aclose()


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Return the seconds of `Retry-After`; API servers send no dates."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None


def user_agent() -> str:
    """Return the agent's name for the server's logs."""
    from kubelet_trio import __version__

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"kubelet-trio/v{__version__} ({platform.system().lower()}/{machine})"

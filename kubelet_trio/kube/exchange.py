"""One request and its answer, on a connection that a cancellation must not damage.

The library's HTTP/2 does not survive a cancellation at every point: bytes that it was about to
write are lost, and its counts of streams become wrong for all requests on the connection. So a
cancelled request on HTTP/2 gets a short time to complete.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import h2.exceptions
import httpcore2
import trio

_GRACE = 0.5  # seconds that an exchange on HTTP/2 has to complete after a cancellation
_CLOSE = 5.0  # seconds
_GZIP = zlib.MAX_WBITS | 16
# Raised by httpcore and h2 when their states became inconsistent all the same.
_BROKEN_STATES = (ValueError, LookupError, RuntimeError, h2.exceptions.H2Error)


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's complete answer. Header names are in lower case."""

    code: int
    headers: Mapping[str, str]
    body: bytes


async def exchange(
    pool: httpcore2.AsyncConnectionPool,
    request: httpcore2.Request,
    limit: float,
    *,
    is_shared: bool,
) -> Answer:
    """Return the answer to a request.

    Args:
        pool: where to send it.
        request: what to send.
        limit: seconds for the whole exchange.
        is_shared: whether other requests may use the same connection at the same time.

    Raises:
        httpcore2.NetworkError: the connection failed.
        httpcore2.ProtocolError: the server broke HTTP.
        httpcore2.ProxyError: the proxy refused.
        httpcore2.TimeoutException: there was no answer in time.
    """
    answer: Answer | None = None
    failure: Exception | None = None
    # Shielded, with a deadline that `_hasten` moves forward when the caller is cancelled.
    scope = trio.CancelScope(deadline=trio.current_time() + limit, shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hasten, scope, _GRACE if is_shared else 0.0)
        with scope:
            try:
                answer = await _send(pool, request)
            except NETWORK_ERRORS as exc:
                failure = exc
            except _BROKEN_STATES as exc:
                failure = httpcore2.RemoteProtocolError(f"{type(exc).__name__}: {exc}")
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if answer is None:
        await trio.lowlevel.checkpoint_if_cancelled()
        raise httpcore2.ReadTimeout(f"no answer within {limit:g} s")
    return answer


# What comes out of the library while it sends a request or reads the answer.
NETWORK_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
)


async def _hasten(scope: trio.CancelScope, grace: float) -> None:
    try:
        await trio.sleep_forever()
    finally:
        scope.deadline = min(scope.deadline, trio.current_time() + grace)


async def _send(pool: httpcore2.AsyncConnectionPool, request: httpcore2.Request) -> Answer:
    response = await pool.handle_async_request(request)
    try:
        body = await response.aread()
    finally:
        # Gives the connection back to the pool; shielded, or a cancellation would leak it.
        with trio.move_on_after(_CLOSE, shield=True):
            await response.aclose()
    headers = read_headers(response)
    return Answer(response.status, headers, _decoded(body, headers))


def read_headers(response: httpcore2.Response) -> dict[str, str]:
    """Return a response's headers by name; of repeated ones the last."""
    return {
        name.decode("ascii").lower(): value.decode("latin-1") for name, value in response.headers
    }


def _decoded(body: bytes, headers: Mapping[str, str]) -> bytes:
    if headers.get("content-encoding", "").lower() != "gzip":
        return body
    try:
        return zlib.decompress(body, _GZIP)
    except zlib.error as exc:
        raise httpcore2.RemoteProtocolError(f"malformed gzip: {exc}") from exc

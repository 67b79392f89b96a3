"""One request and its answer, on a connection that no cancellation may tear.

The library's HTTP/2 does not survive a cancellation at just any point: what it was about to
write is lost, and the counts of its streams go wrong for all who share the connection. So
who gives up on HTTP/2 lets the exchange come to its end, for a short time.
"""

from __future__ import annotations

from dataclasses import dataclass

import h2.exceptions
import httpx2
import trio

_GRACE = 0.5  # seconds that an exchange on HTTP/2 has after its caller gave up
_CLOSE = 5.0
# What the library's own states raise when they went wrong all the same.
_BROKEN_STATES = (ValueError, LookupError, RuntimeError, h2.exceptions.H2Error)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said, whole."""

    code: int
    headers: httpx2.Headers
    body: bytes


async def exchange(
    client: httpx2.AsyncClient, request: httpx2.Request, limit: float, *, is_shared: bool
) -> Answer:
    """Return the answer to a request.

    Args:
        limit: seconds for all of it.
        is_shared: whether others may use the same connection at the same time.

    Raises:
        httpx2.HTTPError: there was none.
    """
    answer: Answer | None = None
    failure: httpx2.HTTPError | None = None
    # Shielded with a deadline, which `_hasten` moves up when the caller is cancelled.
    scope = trio.CancelScope(deadline=trio.current_time() + limit, shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hasten, scope, _GRACE if is_shared else 0.0)
        with scope:
            try:
                answer = await _send(client, request)
            except httpx2.HTTPError as exc:
                failure = exc
            except _BROKEN_STATES as exc:
                failure = httpx2.RemoteProtocolError(f"{type(exc).__name__}: {exc}")
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if answer is None:
        await trio.lowlevel.checkpoint_if_cancelled()
        raise httpx2.ReadTimeout(f"no answer within {limit:g} s")
    return answer


async def _hasten(scope: trio.CancelScope, grace: float) -> None:
    try:
        await trio.sleep_forever()
    finally:
        scope.deadline = min(scope.deadline, trio.current_time() + grace)


async def _send(client: httpx2.AsyncClient, request: httpx2.Request) -> Answer:
    response = await client.send(request, stream=True)
    try:
        body = await response.aread()
    finally:
        with trio.move_on_after(_CLOSE, shield=True):
            await response.aclose()
    return Answer(response.status_code, response.headers, body)

"""The spans of requests to the kubelet API, as the Go kubelet's otelrestful names them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.types import Request
from kubelet_trio.tracing import server_span

STATUS_CODE = "http.response.status_code"


@contextmanager
def traced(request: Request) -> Iterator[None]:
    """Open the span of an authorized request; its route renames it (`Router`).

    Its parent is the caller's span. Strangers cannot choose to be traced: this is entered after
    the gate.
    """
    with server_span(f"HTTP {request.method} route not found", request.headers) as opened:
        opened.set("http.request.method", request.method)
        opened.set("url.path", request.path)
        opened.set("client.address", request.peer.address)
        opened.set("user_agent.original", request.headers.get("user-agent", ""))
        try:
            yield
        except HttpError as exc:
            opened.expect(exc)
            opened.set(STATUS_CODE, exc.status)
            if exc.status >= 500:  # the conventions of servers: 4xx is the client's failure
                opened.fail(str(exc))
            raise

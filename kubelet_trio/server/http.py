"""What handlers of the agent's own servers take and return.

- A handler returns a `Response`. With a `stream` the body is written by that function as
  it comes; it is cancelled as soon as the client goes away.
- A `Response` with `upgrade` hands out the raw connection, once that function accepts it.
- A handler that raises `HttpError` says what to answer. Anything else it raises is a bug
  and travels to the server's supervisor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from trio.abc import HalfCloseableStream

Headers = tuple[tuple[str, str], ...]
Send = Callable[[bytes], Awaitable[None]]


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


NOBODY = Peer()


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
    peer: Peer = NOBODY

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
# Lets a request pass by its head alone, or raises `HttpError`.
Gate = Callable[[Request], Awaitable[None]]
# Is told of each request, and holds until it is answered in full.
Observe = Callable[[Request], AbstractContextManager[None]]


def observe_nothing(_: Request) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take. Sizes in bytes, times in seconds.

    The Go kubelet allows 1 MiB of headers, 90 s idle and 4 h for a response, to everybody.
    """

    head: int = 64 * 1024
    known_head: int = 1024 * 1024  # of who showed a client certificate
    headers: int = 256
    arguments: int = 10_000  # of a query; a command to run is part of it
    body: int = 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 90.0
    stranger_idle_seconds: float = 10.0  # before a request has passed the gate
    send_seconds: float = 30.0  # for one piece of a body that is there in whole
    stream_send_seconds: float = 4 * 3600.0  # a reader of a stream may pause
    secure_seconds: float = 10.0  # for the TLS handshake
    connections: int = 1024  # of strangers; without a gate, of everybody
    per_source: int = 64  # of strangers of one address


DEFAULT_LIMITS = Limits()

"""Requests, responses and limits: what handlers of the agent's own servers take and return.

- A handler returns a `Response`. A `stream` function writes the body piece by piece and is
  cancelled as soon as the client disconnects.
- A `Response` with `upgrade` gives that function the raw connection, once it has accepted it.
- A handler raises `HttpError` to answer with an error. Any other exception is a bug and ends
  the connection (`http.serve`).
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
class ClientPeer:
    """The client of a connection: its address and its TLS client certificate.

    `certificate` is verified against the client CA, in the form of `ssl.getpeercert`.
    `is_current` returns whether the client CA that verified it is still the one in use.
    """

    address: str = ""
    certificate: Mapping[str, Any] | None = None
    certificate_der: bytes = b""
    is_current: Callable[[], bool] = lambda: True


_MAX_DIGITS = 19  # of a signed integer of 64 bits

UNKNOWN_PEER = ClientPeer()


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are in lower case; `raw_headers` has all headers in order."""

    method: str
    path: str  # decoded
    arguments: tuple[tuple[str, str], ...] = ()  # of the query, in order
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    params: Mapping[str, str] = field(default_factory=dict)  # `{name}` parts of the route
    raw_headers: Headers = ()
    target: str = ""  # path and query, not decoded
    peer: ClientPeer = UNKNOWN_PEER

    @property
    def query(self) -> Mapping[str, str]:
        """The query as a mapping; of repeated arguments the last one."""
        return dict(self.arguments)


@dataclass(frozen=True, slots=True)
class Response:
    """One answer: a complete `body`, a `stream` that writes the body, or an `upgrade`."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()
    stream: Callable[[Send], Awaitable[None]] | None = None
    upgrade: Callable[[Upgrade], Awaitable[None]] | None = None


class Upgrade(Protocol):
    """A request to switch protocols that has not been answered yet."""

    async def accept(self, headers: Headers) -> tuple[HalfCloseableStream, bytes]:
        """Answer 101 and return the connection, and the bytes already received on it.

        An `HttpError` raised before this call becomes an ordinary error response.
        """
        ...


Handler = Callable[[Request], Awaitable[Response]]
# Authenticates and authorizes a request before its body is read. Raises `HttpError`.
Gate = Callable[[Request], Awaitable[None]]
# Called for each request; the context lasts until the request is answered completely.
Observe = Callable[[Request], AbstractContextManager[None]]


def observe_nothing(_: Request) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients. Sizes in bytes, times in seconds.

    A connection is a stranger's until one of its requests has passed the gate (see `seats`).
    The Go kubelet allows every client 1 MiB of headers, 90 s idle and 4 h for a response.
    """

    head: int = 64 * 1024
    known_head: int = 1024 * 1024  # of clients with a client certificate
    headers: int = 256
    arguments: int = 10_000  # of a query; exec has one for each word of the command
    body: int = 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 90.0
    stranger_idle_seconds: float = 10.0
    send_seconds: float = 30.0  # for a complete body
    stream_send_seconds: float = 4 * 3600.0  # for one piece of a stream: its reader may pause
    secure_seconds: float = 10.0  # for the TLS handshake
    connections: int = 1024  # of strangers; without a gate, of all clients
    per_source: int = 64  # of strangers with the same address


DEFAULT_LIMITS = Limits()


def parse_decimal(text: str, bits: int = 64) -> int | None:
    """Return a signed integer as Go's ParseInt reads it; None if malformed or out of range."""
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    # `int` alone would also take underscores and the digits of other scripts.
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0") or "0"
    # `int` raises ValueError beyond 4,300 digits (sys.set_int_max_str_digits).
    if len(digits) > _MAX_DIGITS:
        return None
    number = int(f"{sign}{digits}")
    return number if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None

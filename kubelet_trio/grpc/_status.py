"""Status codes, cardinalities, and the errors of calls, with grpclib's names.

CODE_NAMES              the codes' names in Go, as in texts and labels of upstream's components
go_text                 a call's error as grpc-go prints it
GRPCError               a call ended with a status other than OK, or could not be made
StreamTerminatedError   the peer ended the call while we were still sending
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


class Status(enum.Enum):
    """The gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# codes.Code.String() of grpc-go.
CODE_NAMES = {
    status: "".join(part.capitalize() for part in status.name.split("_")) for status in Status
} | {Status.OK: "OK", Status.CANCELLED: "Canceled"}
_MOST_TEXT = 1024  # characters of a peer's error


class Cardinality(enum.Enum):
    """How many messages go each way. The value is `(client_streaming, server_streaming)`."""

    UNARY_UNARY = (False, False)
    UNARY_STREAM = (False, True)
    STREAM_UNARY = (True, False)
    STREAM_STREAM = (True, True)

    @property
    def client_streaming(self) -> bool:
        return self.value[0]

    @property
    def server_streaming(self) -> bool:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Handler:
    """One method of a service. `func` serves a call, given its `ServerStream`."""

    func: Callable[[Any], Awaitable[None]]
    cardinality: Cardinality
    request_type: type[Any]
    reply_type: type[Any]


class GRPCError(Exception):
    """A call's status other than OK.

    A server's handler raises it to end the call with that status. A client's call raises it for
    the peer's status and for its own failures (UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL, ...).
    `details` is the raw `grpc-status-details-bin`, if the peer sent one.
    """

    def __init__(
        self, status: Status, message: str | None = None, details: bytes | None = None
    ) -> None:
        super().__init__(status, message, details)
        self.status = status
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message or ''}"


def go_text(exc: GRPCError) -> str:
    """Return an error as grpc-go prints it; the peer's text is cut after 1024 characters."""
    return f"rpc error: code = {CODE_NAMES[exc.status]} desc = {(exc.message or '')[:_MOST_TEXT]}"


class StreamTerminatedError(Exception):
    """The peer has ended the call; receive to get its replies and its status."""


# Source: "HTTP to gRPC Status Code Mapping" (http-grpc-status-mapping.md) in grpc/grpc.
_HTTP_STATUS = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}

# RFC 9113's error codes of RST_STREAM, as PROTOCOL-HTTP2.md in grpc/grpc maps them.
_RESET_STATUS = {
    0x7: Status.UNAVAILABLE,  # REFUSED_STREAM
    0x8: Status.CANCELLED,  # CANCEL
    0xB: Status.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    0xC: Status.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}


def status_of_http(code: int) -> Status:
    """Return the status for an HTTP status without `grpc-status`."""
    return _HTTP_STATUS.get(code, Status.UNKNOWN)


def status_of_reset(code: int) -> Status:
    """Return the status for the error code of a RST_STREAM that ended a call."""
    return _RESET_STATUS.get(code, Status.INTERNAL)

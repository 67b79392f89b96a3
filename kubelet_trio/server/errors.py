"""The errors of the servers.

HttpError               what a handler raises to answer with an error status
UnauthorizedError       authentication failed
AccessError             authorization could not be decided
BusyError               too many reviews are in flight
LogUnavailableError     a container has no log to read
SocketInUseError        another agent runs on the same root directory
TlsError                the configured certificates cannot be served
"""

from __future__ import annotations

from kubelet_trio.server.http.types import Headers, Response


class HttpError(Exception):
    """An answer that is not a success; the message and `end` become the body.

    Go's `http.Error` ends the body with a newline; see `restful_error`.
    """

    def __init__(
        self, status: int, message: str, headers: Headers = (), *, end: str = "\n"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.end = end

    def response(self) -> Response:
        return Response(self.status, f"{self}{self.end}".encode(), headers=self.headers)


def restful_error(status: int, message: str, headers: Headers = ()) -> HttpError:
    """Return an `HttpError` whose body has no newline at the end, as go-restful writes it."""
    return HttpError(status, message, headers, end="")


class UnauthorizedError(Exception):
    """The client could not be authenticated; the message is for the log only.

    `is_busy`: too many reviews are in flight, so the client may retry later.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class AccessError(Exception):
    """Authorization could not be decided, so access is denied; the message is for the log only.

    `is_busy`: too many reviews are in flight, so the client may retry later.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class BusyError(Exception):
    """As many reviews are in flight as are allowed at one time."""


class LogUnavailableError(Exception):
    """There is no log to read; the message is the Go kubelet's."""


class SocketInUseError(Exception):
    """Another agent runs on the same root directory."""


class TlsError(Exception):
    """Certificates that cannot be served; the message names the file."""

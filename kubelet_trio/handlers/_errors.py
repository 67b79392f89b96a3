"""What a handler of a probe or a hook may raise.

HandlerError           it did not do what it was to do; the text is Go's
├── DialError          no connection
└── BodyError          an answer began and did not come to its end
"""

from __future__ import annotations


class HandlerError(Exception):
    """A handler failed. `is_plain_http`: a server asked for TLS spoke plain HTTP."""

    def __init__(self, message: str, *, is_plain_http: bool = False) -> None:
        super().__init__(message)
        self.is_plain_http = is_plain_http


class DialError(HandlerError):
    """No connection could be made: `dial tcp 10.0.0.1:80: connect: connection refused`."""


class BodyError(HandlerError):
    """The head of an answer came, the rest did not: nothing can be said of the container."""

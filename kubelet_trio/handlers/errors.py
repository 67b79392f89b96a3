"""The errors of probe and hook handlers; their texts are those of Go's libraries.

HandlerError           the handler failed
├── DialError          no connection
└── BodyError          the answer was cut off in its body
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
    """The answer's head arrived, its body did not in full: a probe has no finding."""

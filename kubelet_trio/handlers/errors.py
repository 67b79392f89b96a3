"""The errors of probe and hook handlers; their texts are those of Go's libraries.

HandlerError           the handler failed
├── DialError          no connection
└── BodyError          the answer was cut off in its body
"""

from __future__ import annotations

import json
import os


class HandlerError(Exception):
    """A handler failed. `is_plain_http`: a server asked for TLS spoke plain HTTP."""

    def __init__(self, message: str, *, is_plain_http: bool = False) -> None:
        super().__init__(message)
        self.is_plain_http = is_plain_http


class DialError(HandlerError):
    """No connection could be made: `dial tcp 10.0.0.1:80: connect: connection refused`."""


class BodyError(HandlerError):
    """The answer's head arrived, its body did not in full: a probe has no finding."""


# Texts in the format of Go's libraries: they appear in events, which users search for.


def errno_text(error: OSError) -> str:
    """Return an error as Go's syscall package prints it: `connection refused`."""
    if error.errno is None:
        return str(error)
    text = os.strerror(error.errno)
    return text[:1].lower() + text[1:]


def quoted(text: str) -> str:
    """Return a text as Go's `%q` prints it."""
    return json.dumps(text, ensure_ascii=False)


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

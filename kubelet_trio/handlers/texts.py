"""Errors in the words of Go's library: they end up in events, and people search for those."""

from __future__ import annotations

import json
import os


def errno_text(error: OSError) -> str:
    """Return an errno as Go's syscall package says it: `connection refused`."""
    if error.errno is None:
        return str(error)
    text = os.strerror(error.errno)
    return text[:1].lower() + text[1:]


def quoted(text: str) -> str:
    """Return a text as `%q` prints it."""
    return json.dumps(text, ensure_ascii=False)


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def seconds_text(seconds: int) -> str:
    """Return whole seconds as Go's Duration prints them: `5s`, `1m30s`, `1h0m0s`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"

"""Texts in the format of Go's libraries: they appear in events, which users search for."""

from __future__ import annotations

import json
import os


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

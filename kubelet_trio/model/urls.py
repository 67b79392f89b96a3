"""URLs as they may be shown."""

from __future__ import annotations


def without_user(url: str) -> str:
    """Return a URL without user and password."""
    scheme, slashes, rest = url.partition("//")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def without_secrets(url: str) -> str:
    """Return a URL as logs and pages may show it: without user, password and query."""
    return without_user(url).partition("?")[0].partition("#")[0]

"""Checks what a plugin says of itself: pure. A plugin is another program, perhaps a broken one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kubelet_trio.plugins.types import PluginOffer

MOST_SHOWN = 200  # characters of a plugin's text in an error
_MOST_VERSIONS = 64
_LONGEST = 253  # characters of a name or a version: a DNS subdomain has as many
_LONGEST_PATH = 107  # bytes of a Unix socket's path, without the NUL (unix(7))
# A driver's name, or a resource's such as `example.com/gpu`.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


def check_offer(
    kind: str, name: str, endpoint: str, versions: Sequence[str], socket: str
) -> PluginOffer:
    """Return what a plugin offers; without an endpoint it serves the registration socket.

    Raises ValueError.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST or _has_dots(name):
        raise ValueError(f"invalid plugin name {shown(name)}")
    if len(versions) > _MOST_VERSIONS:
        raise ValueError(f"{len(versions)} supported versions, more than {_MOST_VERSIONS}")
    for version in versions:
        if not version.isprintable() or len(version) > _LONGEST:
            raise ValueError(f"invalid supported version {shown(version)}")
    return PluginOffer(kind, name, check_endpoint(endpoint or socket), tuple(versions))


def check_endpoint(endpoint: str) -> str:
    """Return the path of an endpoint.

    As upstream it may be outside of the registry: drivers serve below `plugins`. Raises ValueError.
    """
    if not endpoint.startswith("/") or not endpoint.isprintable():
        raise ValueError(f"endpoint {shown(endpoint)} is not an absolute path")
    if len(endpoint.encode()) > _LONGEST_PATH:
        raise ValueError(
            f"endpoint {shown(endpoint)} is longer than {_LONGEST_PATH} bytes, "
            "the most that a Unix socket's path may have"
        )
    return endpoint


def shown(text: str) -> str:
    """Return a foreign text as it may be logged: quoted, and cut."""
    return repr(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")


def _has_dots(name: str) -> bool:
    """Whether a name used as a path would lead upwards, or have empty components."""
    return any(part in ("", ".", "..") for part in name.split("/"))

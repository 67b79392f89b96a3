"""The endpoint of `tracing`: what upstream accepts, and how it is dialed.

Source: validateEndpoint in k8s.io/component-base/tracing/api/v1/config.go, net/url's parse, and
gRPC's naming (doc/naming.md).
"""

from __future__ import annotations

import re
from functools import partial

import trio

from kubelet_trio.grpc import Dial

DEFAULT_ENDPOINT = "localhost:4317"  # the port that IANA has for OTLP
_PORT = 4317
_SCHEMES = ("dns", "unix", "unix-abstract")
_NAMING = "https://github.com/grpc/grpc/blob/master/doc/naming.md"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BAD_HOST = re.compile(r"[^!$&'()*+,;=:\[\]<>\"A-Za-z0-9\-._~%\x80-\U0010ffff]")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)


class EndpointError(ValueError):
    """No endpoint: `value` in full, and what is wrong with it, in upstream's words."""

    def __init__(self, value: str, problem: str) -> None:
        super().__init__(f"tracing.endpoint {value}: {problem}")
        self.value = value
        self.problem = problem


def check_endpoint(endpoint: str) -> tuple[str, str, str]:
    """Return scheme, host and path of an endpoint; without a scheme it is a name for DNS.

    Raises `EndpointError`, with the Go kubelet's text.
    """
    url = endpoint if "//" in endpoint else f"dns://{endpoint}"
    scheme, rest = _split(url)
    host, path = _host_and_path(url, rest)
    if scheme not in _SCHEMES:
        options = "none, dns, unix, or unix-abstract"
        problem = f"unsupported scheme: {scheme}.  Options are {options}.  See {_NAMING}"
        raise EndpointError(url, problem)
    return scheme, host, path


def target_of(endpoint: str) -> str | Dial:
    """Return what a `Channel` connects to. Raises `EndpointError`."""
    scheme, host, path = check_endpoint(endpoint)
    if scheme == "unix-abstract":
        return partial(trio.open_unix_socket, f"\0{host}{path}")
    if scheme == "unix":
        if not path.strip("/"):
            raise EndpointError(endpoint, "names no socket: unix:///path")
        return f"unix://{host}{path}" if not host else partial(trio.open_unix_socket, host + path)
    # dns://SERVER/HOST:PORT names a server of DNS, which the system's resolver is used instead of.
    name = path.lstrip("/") or host
    if not name:
        raise EndpointError(endpoint, "names no host")
    has_port = re.search(r":\d+$", name) and (name.count(":") == 1 or "]:" in name)
    return name if has_port else f"{name}:{_PORT}"


def _split(url: str) -> tuple[str, str]:
    """Return scheme and the rest, as net/url does. Raises `EndpointError`."""
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in url):
        raise _malformed(url, "net/url: invalid control character in URL")
    found = _SCHEME.fullmatch(url)
    if found is not None:
        return found[1].lower(), found[2]
    if url.startswith(":"):
        raise _malformed(url, "missing protocol scheme")
    first = url.partition("/")[0]
    if ":" in first:
        raise _malformed(url, "first path segment in URL cannot contain colon")
    return "", url


def _host_and_path(url: str, rest: str) -> tuple[str, str]:
    rest = rest.partition("#")[0].partition("?")[0]
    if not rest.startswith("//"):
        return "", rest
    host, slash, tail = rest[2:].partition("/")
    host = host.rpartition("@")[2]
    for text in (host, tail):
        if (bad := _BAD_ESCAPE.search(text)) is not None:
            raise _malformed(url, f'invalid URL escape "{bad[0]}"')
    # Of a host only the zone of an IPv6 address, and bytes beyond ASCII, may be escaped.
    if (escape := re.search(r"%(?![89A-Fa-f])..", host)) is not None and "[" not in host:
        raise _malformed(url, f'invalid URL escape "{escape[0]}"')
    if (found := _BAD_HOST.search(host)) is not None:
        raise _malformed(url, f'invalid character "{found[0]}" in host name')
    if host.startswith("[") and "]" not in host:
        raise _malformed(url, "missing ']' in host")
    port = host.rpartition("]")[2] if host.startswith("[") else _colon(host)
    if port and not re.fullmatch(r":\d*", port):
        raise _malformed(url, f'invalid port "{port}" after host')
    return host, slash + tail


def _colon(host: str) -> str:
    """Return what follows the last colon, with it; "" without one."""
    _, colon, port = host.rpartition(":")
    return colon + port if colon else ""


def _malformed(url: str, problem: str) -> EndpointError:
    quoted = url.encode("unicode_escape").decode() if "net/url" in problem else url
    return EndpointError(url, f'parse "{quoted}": {problem}')

"""Turns an `httpGet` of a manifest into a request: address, port by name, path, headers.

Source: pkg/probe/http/request.go and pkg/probe/util.go of Kubernetes 1.36.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, urljoin, urlsplit

from lightkube.models.core_v1 import Container, HTTPGetAction

from kubelet_trio.handlers.errors import HandlerError, join_host_port, quoted

VERSION = "1.36"  # of Kubernetes, in the User-Agent

# Headers that Go's client sets itself and ignores in a request.
_OWN_HEADERS = frozenset(("host", "content-length", "transfer-encoding", "trailer", "connection"))
_SAFE = "/%:@!$&'()*+,;=~-._[]"
_PLAIN = "/:@$&+,;=~-._"  # what Go leaves as it is in a path that is not escaped yet
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A GET. `target` is path and query; an empty `host_header` means the address."""

    scheme: str  # http or https
    host: str  # name or address, without brackets
    port: int
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    host_header: str = ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.target}"

    @property
    def address(self) -> str:
        return join_host_port(self.host, self.port)

    def plain(self) -> HttpRequest:
        """Return the request over plain HTTP, without the Authorization header."""
        kept = tuple(h for h in self.headers if h[0].lower() != "authorization")
        return replace(self, scheme="http", headers=kept)

    def redirected(self, location: str) -> HttpRequest:
        """Return the request that a Location asks for. Raises `HandlerError`."""
        try:
            url = urlsplit(urljoin(self.url, location))
            port = url.port
        except ValueError as exc:
            text = f"failed to parse Location header {quoted(location)}: {exc}"
            raise HandlerError(text) from exc
        if url.scheme not in _DEFAULT_PORTS:
            raise HandlerError(f"unsupported protocol scheme {quoted(url.scheme)}")
        return replace(
            self,
            scheme=url.scheme,
            host=url.hostname or "",
            port=port or _DEFAULT_PORTS[url.scheme],
            target=_target(url.path, url.query),
            # As Go's client: an absolute Location names the host as it is written there, a
            # relative one keeps the Host header.
            host_header=urlsplit(location).netloc.rpartition("@")[2] or self.host_header,
        )


def http_request(
    action: HTTPGetAction, container: Container, pod_ip: str, purpose: str
) -> HttpRequest:
    """Return the request of a probe (`purpose` "probe") or a hook ("lifecycle").

    Raises `HandlerError` for an unknown or invalid port.
    """
    given = {h.name.lower(): h.value for h in action.httpHeaders or ()}
    headers = [
        (_spelled(h.name), h.value)
        for h in action.httpHeaders or ()
        # An empty value for one of these means to send no such header.
        if h.name.lower() not in _OWN_HEADERS
        and (h.value or h.name.lower() not in ("user-agent", "accept"))
    ]
    if "user-agent" not in given:
        headers.append(("User-Agent", user_agent(purpose)))
    if "accept" not in given:
        headers.append(("Accept", "*/*"))
    return HttpRequest(
        scheme=(action.scheme or "HTTP").lower(),
        host=(action.host or pod_ip).removeprefix("[").removesuffix("]"),
        port=container_port(action.port, container),
        target=_path_target(action.path or "/"),
        headers=tuple(headers),
        host_header=next(
            (h.value for h in action.httpHeaders or () if h.name.lower() == "host"), ""
        ),
    )


def user_agent(purpose: str) -> str:
    """Return how a probe (`purpose` "probe") or a hook ("lifecycle") names itself to a server."""
    return f"kube-{purpose}/{VERSION}"


def _spelled(header: str) -> str:
    """Return a header's name as Go's client sends it: some servers compare it with the case."""
    return "-".join(part.capitalize() for part in header.split("-"))


def container_port(port: int | str, container: Container) -> int:
    """Return a port that is given by number or by the name of one of the container's ports.

    Raises `HandlerError`, with Go's text for a name that the container does not declare.
    """
    if isinstance(port, str):
        named = (p.containerPort for p in container.ports or () if p.name == port)
        number = next(named, None)
        if number is None:
            try:
                number = int(port)
            except ValueError:
                text = f"strconv.Atoi: parsing {quoted(port)}: invalid syntax"
                raise HandlerError(text) from None
        port = number
    if not 0 < port < 65536:
        raise HandlerError(f"invalid port number: {port}")
    return port


def _path_target(text: str) -> str:
    """Return the target of a manifest's path, which may have a query."""
    try:
        url = urlsplit(text)
    except ValueError:
        url = None
    if url is not None and not _BAD_ESCAPE.search(url.path):
        return _target(url.path, url.query)
    # As upstream: what does not parse as a URL is a path, all of it (formatURL).
    return quote(text if text.startswith("/") else f"/{text}", safe=_PLAIN)


def _target(path: str, query: str) -> str:
    encoded = quote(path if path.startswith("/") else f"/{path}", safe=_SAFE)
    return f"{encoded}?{quote(query, safe=_SAFE + '?[]')}" if query else encoded

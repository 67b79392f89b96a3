"""Routes: a method and a path pattern lead to a handler.

`{name}` matches one segment, `{name...}` at the end all that are left. The first route that
matches the path and the method wins; a path that only other methods have is 405, one that
nobody has is 404.

Who may is decided by the first segments of a path (`access`), so here it has one spelling: a
slash more at its end changes nothing, one more anywhere else makes it another path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kubelet_trio.server.http import Handler, HttpError, Request, Response


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a method on a path, e.g. `/pods/{namespace}/{name}`; GET serves HEAD too."""

    method: str
    pattern: str
    handler: Handler

    def match(self, path: str) -> Mapping[str, str] | None:
        """Return what the names of the pattern stand for; None where the path is another."""
        if not path.startswith("/"):
            return None
        return _match(_segments(self.pattern), _segments(path))


class Router:
    """A `Handler` made of routes."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Add a route; those before it go first."""
        self.routes.append(Route(method, pattern, handler))

    def paths(self) -> list[str]:
        """Return the first segments of all routes."""
        return sorted({f"/{_segments(route.pattern)[0]}" for route in self.routes})

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a request and its parameters. Raises `HttpError` 404 or 405."""
        method = "GET" if method == "HEAD" else method
        allowed = set()
        for route in self.routes:
            if (params := route.match(path)) is None:
                continue
            if route.method == method:
                return route, params
            allowed.add(route.method)
        if allowed:
            raise HttpError(405, "method not allowed", (("Allow", ", ".join(sorted(allowed))),))
        raise HttpError(404, "404 page not found")

    async def __call__(self, request: Request) -> Response:
        """Answer by the route that matches. Raises `HttpError` 404 or 405."""
        route, params = self.find(request.method, request.path)
        return await route.handler(replace(request, params=params))


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.removeprefix("/").rstrip("/").split("/"))


def _match(pattern: tuple[str, ...], segments: tuple[str, ...]) -> Mapping[str, str] | None:
    params = {}
    if pattern[-1].endswith("...}"):
        kept = len(pattern) - 1
        params[pattern[-1][1:-4]] = "/".join(segments[kept:])
        pattern, segments = pattern[:kept], segments[:kept]
    if len(pattern) != len(segments):
        return None
    for wanted, segment in zip(pattern, segments, strict=True):
        if wanted.startswith("{") and segment:
            params[wanted[1:-1]] = segment
        elif wanted != segment:
            return None
    return params

"""Routes: a method and a path pattern lead to a handler.

`{name}` matches one segment, `{name...}` at the end all that are left. The first route that
matches the path and the method wins; a path that only other methods have is 405, one that
nobody has is 404.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kubelet_trio.server.http import Handler, HttpError, Request, Response


class Router:
    """A `Handler` made of routes."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, tuple[str, ...], Handler]] = []

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Route `method` on `pattern`, e.g. `/pods/{namespace}/{name}`; GET serves HEAD too."""
        self._routes.append((method, _segments(pattern), handler))

    def paths(self) -> list[str]:
        """Return the first segments of all routes."""
        return sorted({f"/{pattern[0]}" for _, pattern, _ in self._routes})

    async def __call__(self, request: Request) -> Response:
        """Answer by the route that matches. Raises `HttpError` 404 or 405."""
        method = "GET" if request.method == "HEAD" else request.method
        segments = _segments(request.path)
        allowed = set()
        for wanted, pattern, handler in self._routes:
            params = _match(pattern, segments)
            if params is None:
                continue
            if wanted == method:
                return await handler(replace(request, params=params))
            allowed.add(wanted)
        if allowed:
            raise HttpError(405, "method not allowed", (("Allow", ", ".join(sorted(allowed))),))
        raise HttpError(404, "404 page not found")


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.strip("/").split("/"))


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

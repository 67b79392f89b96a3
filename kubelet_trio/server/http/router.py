"""Routes: a method and a path pattern lead to a handler.

`{name}` matches one segment, `{name...}` at the end all remaining segments. The first route that
matches the path and the method wins. A path that only has routes for other methods is 405, a path
without any route 404.

Authorization is decided by the first segments of a path (`access.authorization`), so a path has
only one spelling here: an extra slash at its end is ignored, anywhere else it makes a different
path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from structlog.contextvars import bind_contextvars

from kubelet_trio.server.errors import HttpError, restful_error
from kubelet_trio.server.http.types import Handler, Request, Response
from kubelet_trio.tracing import current_span


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of a method on a path such as `/pods/{namespace}/{name}`; GET serves HEAD too."""

    method: str
    pattern: str
    handler: Handler
    segments: tuple[str, ...] = field(init=False)  # of the pattern

    def __post_init__(self) -> None:
        # The dataclass is frozen; every request compares these with its own.
        object.__setattr__(self, "segments", _split(self.pattern))

    def match(self, segments: tuple[str, ...]) -> Mapping[str, str] | None:
        """Return the values of the pattern's names; None if the path does not match."""
        return _match(self.segments, segments)


class Router:
    """A `Handler` that passes each request to the handler of its route."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Add a route; routes added before it take precedence."""
        self.routes.append(Route(method, pattern, handler))

    def paths(self) -> list[str]:
        """Return the first segments of all routes."""
        return sorted({f"/{route.segments[0]}" for route in self.routes})

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a request and its parameters. Raises `HttpError` 404 or 405."""
        # RFC 9110, 9.3.2: HEAD is GET without the body, which `wire` leaves out.
        method = "GET" if method == "HEAD" else method
        if not path.startswith("/"):
            raise _not_found()  # `*` of OPTIONS, or an absolute URL without a path
        segments = _split(path)
        allowed = set()
        for route in self.routes:
            if (params := route.match(segments)) is None:
                continue
            if route.method == method:
                return route, params
            allowed.add(route.method)
        if allowed:
            allow = (("Allow", ", ".join(sorted(allowed))),)
            raise restful_error(405, "405: Method Not Allowed", allow)
        raise _not_found()

    async def __call__(self, request: Request) -> Response:
        """Answer with the handler of the matching route. Raises `HttpError` 404 or 405."""
        route, params = self.find(request.method, request.path)
        opened = current_span()
        opened.rename(route.pattern)
        opened.set("http.route", route.pattern)
        # Ends with the request (`wire`), which may go on as a stream long after this returns.
        bind_contextvars(**_named(params))
        return await route.handler(replace(request, params=params))


def _named(params: Mapping[str, str]) -> dict[str, str]:
    """Return what names the pod and container of a path in log lines."""
    named = {}
    if "namespace" in params and (name := params.get("pod") or params.get("name")):
        named["pod"] = f"{params['namespace']}/{name}"
    if "container" in params:
        named["containerName"] = params["container"]
    return named


def _not_found() -> HttpError:
    return HttpError(404, "404 page not found")


def _split(path: str) -> tuple[str, ...]:
    """Return the segments of a path; a slash at its end is ignored."""
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

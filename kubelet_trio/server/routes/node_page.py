"""The node page: `/ui/`, one HTML page with its modules, and the JSON that it shows.

    GET /ui                                   redirects to /ui/
    GET /ui/                                  the page
    GET /ui/{file}                            its scripts and styles
    GET /ui/data                              the node, its pods, events, tree and statistics
    GET /ui/history[?pod=UID]                 what they used in the last hour
    GET /ui/pods/{namespace}/{name}[?format=yaml]  one pod; see `page_details`
    GET /ui/logs/{namespace}/{pod}/{container}  the log; see `logs.container` for its query

All of it is read-only; `page_actions` has what the agent's owner may do. Values that may be secrets
are left out: see `page_details`. Links are relative, so that the page works behind `kubectl proxy`
too. The page loads nothing from other hosts, and a Content-Security-Policy forbids it.

The page's own port has no authentication. It listens on the loopback address only, and
`loopback_only` refuses a `Host` that is not a loopback name: otherwise any web page could let its
own name resolve to 127.0.0.1 and read the agent's answers (DNS rebinding).
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from lightkube.models.core_v1 import ContainerState, ContainerStatus, Event, Pod, PodStatus

from kubelet_trio import __version__
from kubelet_trio.model import Offload, PodUid, Purpose, metadata, pod_uid, thread_offload
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Handler, Headers, Request, Response
from kubelet_trio.server.logs.container import answer_logs
from kubelet_trio.server.lookup import known_pod
from kubelet_trio.server.routes.page_details import amounts, manifest, pod_details
from kubelet_trio.server.view import AgentView

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_FILES = frozenset(
    (
        *("base.css", "list.css", "drawer.css", "logs.css"),
        *("page.js", "dom.js", "plots.js", "usage.js", "node.js", "list.js"),
        *("drawer.js", "details.js", "logs.js"),
        *("session.js", "terminal.js", "terminal.css", "vt.js", "keys.js"),
    )
)
_JSON = "application/json"
_DIRECTORY = Path(__file__).with_name("ui")
_EVENTS = 200  # the newest; the control socket has all of them
PAGE_HEADERS: Headers = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),  # as frame-ancestors, for old browsers
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

# The JSON of `/stats/summary`, and the time in Unix seconds.
Summary = Callable[[], Awaitable[bytes]]
# The JSON of the last hour: of the pod with a UID, or for "" of the node and all pods.
HistoryPage = Callable[[str], Awaitable[bytes]]
Now = Callable[[], float]


def node_page_router(
    view: AgentView,
    summary: Summary,
    history: HistoryPage,
    now: Now,
    cores: int,
    offload: Offload = thread_offload.of(Purpose.LOGS),
    *,
    actions: Router | None = None,
    reasons: Callable[[PodUid], Sequence[str]] = lambda _uid: (),
) -> Router:
    """Return the page's routes, without any access check.

    `cores` are the machine's CPUs. `actions` are the routes of `page_actions`, which check who
    asks; None: the page is read-only. `reasons` returns the agent's own sentences on why a
    pod is not ready; without any the page takes those of its status.
    """
    router = Router()
    if actions is not None:
        router.routes += actions.routes

    async def page(request: Request) -> Response:
        if not request.path.endswith("/"):
            # Relative: behind `kubectl proxy` the path has a prefix.
            return Response(HTTPStatus.FOUND, headers=(("Location", "ui/"), *PAGE_HEADERS))
        return await page_file("page.html", offload)

    async def file(request: Request) -> Response:
        name = request.params["file"]
        if name not in _FILES:
            raise HttpError(HTTPStatus.NOT_FOUND, "404 page not found")
        return await page_file(name, offload)

    async def data(_: Request) -> Response:
        told = page_data(view, await summary(), now(), cores)
        return page_answer(msgspec.json.encode({**told, "actions": actions is not None}))

    async def past(request: Request) -> Response:
        return page_answer(await history(request.query.get("pod", "")))

    async def pod(request: Request) -> Response:
        found = known_pod(view, request.params["namespace"], request.params["name"])
        if request.query.get("format") == "yaml":
            text = await offload(manifest, found)
            return page_answer(text.encode(), "text/plain; charset=utf-8")
        details = pod_details(found, view.status().pulls, now(), reasons(pod_uid(found)))
        return page_answer(msgspec.json.encode(details))

    async def logs(request: Request) -> Response:
        answer = await answer_logs(view, request, offload)
        return replace(answer, headers=(*answer.headers, *PAGE_HEADERS))

    router.add("GET", "/ui/", page)
    router.add("GET", "/ui/data", data)
    router.add("GET", "/ui/history", past)
    router.add("GET", "/ui/pods/{namespace}/{name}", pod)
    router.add("GET", "/ui/{file}", file)
    router.add("GET", "/ui/logs/{namespace}/{pod}/{container}", logs)
    return router


async def page_file(name: str, offload: Offload) -> Response:
    """Return a file of the package's pages."""
    content = await offload((_DIRECTORY / name).read_bytes)
    return page_answer(content, _TYPES[name.rpartition(".")[2]])


def page_answer(body: bytes, content_type: str = _JSON) -> Response:
    """Return an answer with the headers that keep a page from loading or running anything else."""
    return Response(body=body, content_type=content_type, headers=PAGE_HEADERS)


def loopback_only(handler: Handler) -> Handler:
    """Return a handler that refuses every `Host` that is not a loopback name.

    The port in it is ignored: `ssh -L` may forward a different one.
    """

    async def handle(request: Request) -> Response:
        if not is_loopback_host(request.headers.get("host", "")):
            raise HttpError(
                HTTPStatus.FORBIDDEN,
                "this page is served to localhost, 127.0.0.1 and [::1] alone",
            )
        return await handler(request)

    return handle


def is_loopback_host(host: str) -> bool:
    """Return whether a `Host` header, with or without a port, is a loopback name."""
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):  # no port, or within an IPv6 address
        return host.lower() in _LOOPBACK
    return name.lower() in _LOOPBACK and port.isascii() and port.isdigit()


def page_data(view: AgentView, summary: bytes, now: float, cores: int) -> dict[str, Any]:
    """Return the data of the page. Times are RFC 3339, except `now` (Unix seconds)."""
    status = view.status()
    return {
        "version": __version__,
        "now": now,
        "node": {
            "name": status.node_name,
            "rootDir": status.root_dir,
            "page": next((p.address for p in status.ports if p.name == "ui" and not p.problem), ""),
            "cores": cores,
            "startedAt": status.started_at,
            "runtime": status.runtime,
            "checks": status.checks,
            "sources": status.sources,
            "notes": status.notes,
        },
        "pods": sorted(map(_pod, view.pods.value.values()), key=_order),
        "events": [_event(event) for event in islice(reversed(view.events.events(0)), _EVENTS)],
        "tree": view.tree(),
        "stats": msgspec.Raw(summary),
    }


def _order(pod: dict[str, Any]) -> tuple[str, str, str]:
    return pod["namespace"], pod["name"], pod["uid"]


def _seen(status: PodStatus | None) -> datetime.datetime | None:
    """Return when a pod was first seen: a static one has no creation time."""
    if status is None:
        return None
    scheduled = (c for c in status.conditions or () if c.type == "PodScheduled")
    # Its start time is of the agent that runs.
    return next((c.lastTransitionTime for c in scheduled), None) or status.startTime


def _pod(pod: Pod) -> dict[str, Any]:
    meta, status = metadata(pod), pod.status
    ready = (c.status for c in (status.conditions if status else None) or () if c.type == "Ready")
    return {
        "uid": pod_uid(pod),
        "namespace": meta.namespace or "",
        "name": meta.name or "",
        "isEnding": meta.deletionTimestamp is not None,
        "phase": (status.phase if status else None) or "Pending",
        "reason": (status.reason if status else None) or "",
        "message": (status.message if status else None) or "",
        "ip": (status.podIP if status else None) or "",
        "createdAt": meta.creationTimestamp or _seen(status),
        "startedAt": status.startTime if status else None,
        "endsAt": meta.deletionTimestamp,
        **amounts(pod),
        "isReady": next(ready, "") == "True",
        "containers": list(_containers(pod)),
    }


def _containers(pod: Pod) -> Iterator[dict[str, Any]]:
    status = pod.status
    if status is None:
        return
    for kind, statuses in (
        ("init", status.initContainerStatuses),
        ("main", status.containerStatuses),
        ("ephemeral", status.ephemeralContainerStatuses),
    ):
        for container in statuses or ():
            yield _container(kind, container)


def _container(kind: str, status: ContainerStatus) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": status.name,
        "image": status.image,
        "isReady": status.ready,
        "restarts": status.restartCount,
        "state": _state(status.state) or {"state": "waiting"},
        "last": _state(status.lastState),
    }


def _state(state: ContainerState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    if state.running is not None:
        return {"state": "running", "since": state.running.startedAt}
    if (ended := state.terminated) is not None:
        return {
            "state": "terminated",
            "since": ended.finishedAt,
            "reason": ended.reason or "",
            "message": ended.message or "",
            "exitCode": ended.exitCode,
        }
    if (waiting := state.waiting) is not None:
        return {
            "state": "waiting",
            "reason": waiting.reason or "",
            "message": waiting.message or "",
        }
    return None


def _event(event: Event) -> dict[str, Any]:
    involved = event.involvedObject
    return {
        "time": event.lastTimestamp,
        "type": event.type or "",
        "reason": event.reason or "",
        "message": event.message or "",
        "count": event.count or 1,
        "object": "/".join(p for p in (involved.kind, involved.namespace, involved.name) if p),
    }

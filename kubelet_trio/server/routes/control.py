"""The control socket: the API of the commands `kubelet-trio pods`, `logs`, `tree` and others.

HTTP on `<root-dir>/kubelet-trio.sock`, mode 0600: only root (or the agent's own user) can open
it, so there is no further authentication. Answers are JSON. A watch is one JSON object a line:
the current objects, a BOOKMARK, then changes. A watcher that reads slowly misses intermediate
states, but never the last one.

    GET /pods[?watch=1][&namespace=]              PodList, or watch events
    GET /pods/{namespace}/{name}                  Pod; the name with or without -<node>
    GET /why/{namespace}/{name}                   why a pod is as it is: `pods.PodWhy`
    GET /events[?watch=1][&namespace=&kind=&name=]  EventList, or watch events
    GET /tree[?format=text]                       the live supervision tree
    GET /status                                   AgentStatus
    GET /version
    GET /agent-log[?level=&lines=]                the latest entries of the agent's log, as text
    GET /profile/{name}[?seconds=&debug=]         a profile; see `debug.process`
    GET /logs/{namespace}/{pod}/{container}       the log; see `logs.container` for its query
    GET /stats                                    `/stats/summary` of CPU and memory alone
    GET /volumes                                  the volumes on disk, published and staged
    GET /topology                                 the machine, and who holds what of it
    GET /history[?pod=UID]                        the last hour, from the first such request on
    GET /node                                     the node object, requests of pods, thresholds
    GET /images                                   the images of the runtime
    GET /ui/...                                   the node page, as in `routes.node_page`
    GET /exec/{namespace}/{pod}/{container}       a command; as in the kubelet API
    POST /restart/{namespace}/{pod}[?container=]  restart containers in place; 409 says why not
    POST /plan[?manifests=1]                      what the edit in the body would do; 409, 422
    POST /debug/{namespace}/{pod}                 add the ephemeral container in the body; 409, 422
    POST /record                                  write what the flight recorder has noted; 409: off
    POST /login                                   a one-time login for the node page's actions
    GET /attach/{namespace}/{pod}/{container}     a container's own streams; likewise
    GET /portforward/{namespace}/{pod}            connections into a pod; likewise
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import Event, Pod

from kubelet_trio import __version__
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import KUBERNETES_VERSION, PodUid, metadata, pod_uid
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Handler, Request, Response, Send
from kubelet_trio.server.logs.container import answer_logs
from kubelet_trio.server.lookup import known_pod
from kubelet_trio.server.view import AgentView, KubeletApiView
from kubelet_trio.supervision import render_tree

SOCKET_NAME = "kubelet-trio.sock"
LOCK_NAME = "kubelet-trio.lock"
_JSON = "application/json"
Restart = Callable[[PodUid, str], Sequence[str]]
WHY_PATH = "/why/{namespace}/{name}"
Why = Callable[[PodUid], object]  # JSON as it stands
Plan = Callable[[bytes, bool], Awaitable[object]]  # JSON as it stands
Debug = Callable[[PodUid, bytes], str]
_SYNCED = b'{"type":"BOOKMARK"}\n'  # in a watch: all current objects have been sent


def control_router(view: AgentView) -> Router:
    """Return the routes of the control socket that only read the view."""
    router = Router()
    routes: Mapping[str, Callable[[AgentView, Request], Response]] = {
        "/pods": _pods,
        "/pods/{namespace}/{name}": _pod,
        "/events": _events,
        "/tree": _tree,
        "/status": _status,
        "/version": _version,
    }
    for pattern, answer in routes.items():
        router.add("GET", pattern, _handler(view, answer))

    async def logs(request: Request) -> Response:
        return await answer_logs(view, request)

    router.add("GET", "/logs/{namespace}/{pod}/{container}", logs)
    _add_process(router)
    return router


def _add_process(router: Router) -> None:
    """Add /agent-log and /profile; their module is loaded by the first request."""

    async def agent_log(request: Request) -> Response:
        from kubelet_trio.server.debug.process import log_page

        return log_page(request)

    async def profile(request: Request) -> Response:
        from kubelet_trio.server.debug.process import Profiles

        return await Profiles()(request)

    router.add("GET", "/agent-log", agent_log)
    router.add("GET", "/profile/{name}", profile)


def why_handler(view: AgentView, why: Why) -> Handler:
    """Return the handler of `/why/{namespace}/{name}`, for whoever may read pods.

    `why` returns the answer; None if the pod has just gone.
    """

    async def handle(request: Request) -> Response:
        pod = known_pod(view, request.params["namespace"], request.params["name"])
        found = why(pod_uid(pod))
        if found is None:
            raise HttpError(404, f'pods "{request.params["name"]}" not found')
        return _json(found)

    return handle


def add_why(router: Router, view: AgentView, why: Why) -> None:
    """Add /why."""
    router.add("GET", WHY_PATH, why_handler(view, why))


def add_stats(router: Router, summary: Callable[[], Awaitable[bytes]]) -> None:
    """Add /stats; `summary` returns its JSON."""

    async def stats(_: Request) -> Response:
        return Response(body=await summary(), content_type=_JSON)

    router.add("GET", "/stats", stats)


def add_volumes(router: Router, page: Callable[[], Awaitable[bytes]]) -> None:
    """Add /volumes; `page` returns its JSON."""

    async def volumes(_: Request) -> Response:
        return Response(body=await page(), content_type=_JSON)

    router.add("GET", "/volumes", volumes)


def add_topology(router: Router, page: Callable[[], Awaitable[bytes]]) -> None:
    """Add /topology; `page` returns its JSON."""

    async def topology(_: Request) -> Response:
        return Response(body=await page(), content_type=_JSON)

    router.add("GET", "/topology", topology)


def add_history(router: Router, page: Callable[[str], Awaitable[bytes]]) -> None:
    """Add /history; `page` returns its JSON for a pod's UID, or for "" the node's."""

    async def history(request: Request) -> Response:
        return Response(body=await page(request.query.get("pod", "")), content_type=_JSON)

    router.add("GET", "/history", history)


def add_node(router: Router, page: Callable[[], Awaitable[bytes]]) -> None:
    """Add /node; `page` returns its JSON."""

    async def node(_: Request) -> Response:
        return Response(body=await page(), content_type=_JSON)

    router.add("GET", "/node", node)


def add_images(router: Router, view: KubeletApiView) -> None:
    """Add /images: `items`, each with id, tags, digests, size in bytes and whether it is pinned."""

    async def images(_: Request) -> Response:
        try:
            found = await view.runtime.list_images()
        except RuntimeCallError as exc:
            raise HttpError(503, f"the container runtime cannot list its images: {exc}") from exc
        shown = [
            {
                "id": image.id,
                "tags": image.repo_tags,
                "digests": image.repo_digests,
                "size": image.size,
                "pinned": image.pinned,
            }
            for image in found
        ]
        return _json({"items": shown})

    router.add("GET", "/images", images)


def add_page(router: Router, make: Callable[[], Handler]) -> None:
    """Add /ui; `make` returns the page's routes, at the first request."""
    made: list[Handler] = []

    async def page(request: Request) -> Response:
        if not made:
            made.append(make())
        return await made[0](request)

    router.add("GET", "/ui/{path...}", page)


def add_exec(router: Router, view: KubeletApiView) -> None:
    """Add /exec, /attach and /portforward: the streams of containers and pods."""

    async def execute(request: Request) -> Response:
        from kubelet_trio.server.streams.routes import answer_exec  # loaded with the first request

        return await answer_exec(view, request, 0.0)

    async def attach(request: Request) -> Response:
        from kubelet_trio.server.streams.routes import answer_attach  # likewise

        return await answer_attach(view, request, 0.0)

    async def forward(request: Request) -> Response:
        from kubelet_trio.server.streams.routes import answer_port_forward  # likewise

        return await answer_port_forward(view, request, 0.0)

    router.add("GET", "/exec/{namespace}/{pod}/{container}", execute)
    router.add("GET", "/attach/{namespace}/{pod}/{container}", attach)
    router.add("GET", "/portforward/{namespace}/{pod}", forward)


def add_restart(router: Router, view: AgentView, restart: Restart) -> None:
    """Add /restart; `restart` returns the containers' names, or raises ValueError with a reason."""

    async def handle(request: Request) -> Response:
        return await answer_restart(view, restart, request)

    router.add("POST", "/restart/{namespace}/{pod}", handle)


def add_debug(router: Router, view: AgentView, debug: Debug) -> None:
    """Add /debug; `debug` returns the container's name.

    It raises ValueError with the reason of a refusal, or ManifestError.
    """

    async def handle(request: Request) -> Response:
        from kubelet_trio.sources import ManifestError  # loaded with the first request

        pod = known_pod(view, request.params["namespace"], request.params["pod"])
        try:
            name = debug(pod_uid(pod), request.body)
        except ManifestError as exc:
            raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from exc
        except ValueError as exc:
            raise HttpError(HTTPStatus.CONFLICT, str(exc)) from exc
        return _json({"container": name})

    router.add("POST", "/debug/{namespace}/{pod}", handle)


def add_plan(router: Router, plan: Plan) -> None:
    """Add /plan; `plan` takes the JSON of an edit and returns what it would do.

    It raises ManifestError, or ValueError with the reason why nothing can be edited.
    """

    async def handle(request: Request) -> Response:
        from kubelet_trio.sources import ManifestError  # loaded with the first request

        try:
            return _json(await plan(request.body, request.query.get("manifests") == "1"))
        except ManifestError as exc:
            raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from exc
        except ValueError as exc:
            raise HttpError(HTTPStatus.CONFLICT, str(exc)) from exc

    router.add("POST", "/plan", handle)


def add_record(router: Router, flush: Callable[[], Awaitable[object]]) -> None:
    """Add /record; `flush` returns the state of the flight recorder.

    It raises ValueError if there is none, TimeoutError if the disk does not answer.
    """

    async def handle(_: Request) -> Response:
        try:
            return _json(await flush())
        except ValueError as exc:
            raise HttpError(HTTPStatus.CONFLICT, str(exc)) from exc
        except TimeoutError as exc:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, str(exc)) from exc

    router.add("POST", "/record", handle)


async def answer_restart(view: AgentView, restart: Restart, request: Request) -> Response:
    """Restart containers, and answer with their names. Raises `HttpError` 404 or 409."""
    await trio.lowlevel.checkpoint()
    pod = known_pod(view, request.params["namespace"], request.params["pod"])
    try:
        names = restart(pod_uid(pod), request.query.get("container", ""))
    except ValueError as exc:
        raise HttpError(HTTPStatus.CONFLICT, str(exc)) from exc
    return _json({"containers": list(names)})


def add_login(router: Router, new_login: Callable[[], str] | None) -> None:
    """Add /login; `new_login` returns a token for the page, None: the page has no actions."""

    async def login(_: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"token": new_login() if new_login is not None else ""})

    router.add("POST", "/login", login)


def _handler(view: AgentView, answer: Callable[[AgentView, Request], Response]) -> Handler:
    async def handle(request: Request) -> Response:
        return answer(view, request)

    return handle


def _pods(view: AgentView, request: Request) -> Response:
    namespace = request.query.get("namespace", "")
    if _wants_watch(request):
        return Response(content_type=_JSON, stream=lambda send: _watch_pods(view, namespace, send))
    return _list("PodList", _chosen(view.pods.value, namespace).values())


def _pod(view: AgentView, request: Request) -> Response:
    return _json(known_pod(view, request.params["namespace"], request.params["name"]))


def _events(view: AgentView, request: Request) -> Response:
    chosen = {key: request.query.get(key, "") for key in ("kind", "namespace", "name")}
    if _wants_watch(request):
        return Response(content_type=_JSON, stream=lambda send: _watch_events(view, chosen, send))
    return _list("EventList", view.events.events(0, **chosen))


def _tree(view: AgentView, request: Request) -> Response:
    tree = view.tree()
    if request.query.get("format") == "text":
        return Response(body=f"{render_tree(tree)}\n".encode())
    return _json(tree)


def _status(view: AgentView, _: Request) -> Response:
    return _json(view.status())


def _version(_: AgentView, __: Request) -> Response:
    return _json({"version": __version__, "kubernetes": KUBERNETES_VERSION})


async def _watch_pods(view: AgentView, namespace: str, send: Send) -> None:
    seen: Mapping[PodUid, Pod] | None = None
    async with aclosing(view.pods.eventual_values()) as snapshots:
        async for snapshot in snapshots:
            now = _chosen(snapshot, namespace)
            lines = _pod_changes(seen or {}, now)
            if seen is None:
                lines.append(_SYNCED)
            seen = now
            await send(b"".join(lines))


def _pod_changes(before: Mapping[PodUid, Pod], now: Mapping[PodUid, Pod]) -> list[bytes]:
    lines = [_change("DELETED", pod) for uid, pod in before.items() if uid not in now]
    for uid, pod in now.items():
        if uid not in before:
            lines.append(_change("ADDED", pod))
        # Published pods are replaced, never changed in place: identity shows a change.
        elif pod is not before[uid]:
            lines.append(_change("MODIFIED", pod))
    return lines


async def _watch_events(view: AgentView, chosen: Mapping[str, str], send: Send) -> None:
    seen = -1
    async with aclosing(view.events.version.eventual_values()) as versions:
        async for version in versions:
            lines = [
                _change("MODIFIED" if (event.count or 0) > 1 else "ADDED", event)
                for event in view.events.events(seen, **chosen)
            ]
            if seen < 0:
                lines.append(_SYNCED)
            seen = version
            await send(b"".join(lines))


def _chosen(pods: Mapping[PodUid, Pod], namespace: str) -> Mapping[PodUid, Pod]:
    if not namespace:
        return pods
    return {uid: pod for uid, pod in pods.items() if metadata(pod).namespace == namespace}


def _wants_watch(request: Request) -> bool:
    return request.query.get("watch", "") in ("1", "true")


def _change(kind: str, thing: Pod | Event) -> bytes:
    return msgspec.json.encode({"type": kind, "object": thing}) + b"\n"


def _list(kind: str, items: Iterable[Pod | Event]) -> Response:
    return _json({"apiVersion": "v1", "kind": kind, "metadata": {}, "items": list(items)})


def _json(thing: Any) -> Response:
    return Response(body=msgspec.json.encode(thing) + b"\n", content_type=_JSON)

"""The routes of the kubelet API: which paths there are on which port.

The read-only port has what the Go kubelet serves there without asking who it is: health, pods,
statistics and metrics. The HTTPS port has all, behind a `Guard`. What another room has to tell
(statistics, metrics) is plugged in as handlers by path.

Source: NewServer and the Install functions of pkg/kubelet/server/server.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import RuntimePod, WallClock
from kubelet_trio.server.container_logs import answer_container_logs
from kubelet_trio.server.health import Check, add_healthz
from kubelet_trio.server.http import Handler, HttpError, Request, Response
from kubelet_trio.server.router import Router
from kubelet_trio.server.view import NodeView

_JSON = "application/json"
_DEBUGGING = ("run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs")


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """What the configuration says of the routes, under its names."""

    enable_debugging_handlers: bool = True
    enable_profiling_handler: bool = True
    enable_debug_flags_handler: bool = True
    enable_system_log_handler: bool = True
    enable_system_log_query: bool = False
    streaming_idle_timeout: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the API shows: the agent, and what other rooms have to tell."""

    view: NodeView
    clock: WallClock
    checks: Mapping[str, Check]
    options: ApiOptions = ApiOptions()
    configz: bytes = b"{}"  # KubeletConfiguration as JSON
    plugged: Mapping[str, Handler] = field(default_factory=dict)  # GET and POST, by path


def kubelet_router(parts: ApiParts, *, read_only: bool = False) -> Router:
    """Return the routes; what stands before them decides who may use them."""
    router = Router()
    add_healthz(router, parts.checks)
    router.add("GET", "/pods", _plain(partial(_pods, parts.view)))
    for path, handler in parts.plugged.items():
        router.add("GET", path, handler)
        if path.startswith("/stats"):
            router.add("POST", path, handler)
    if read_only or not parts.options.enable_debugging_handlers:
        _add_disabled(router)
    else:
        _add_debugging(router, parts)
    return router


def _add_disabled(router: Router) -> None:
    async def refuse(_: Request) -> Response:
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "Debug endpoints are disabled.")

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        for name in _DEBUGGING:
            router.add(method, f"/{name}/{{rest...}}", refuse)
        router.add(method, "/debug/pprof/{rest...}", refuse)


def _add_debugging(router: Router, parts: ApiParts) -> None:
    view = parts.view

    async def container_logs(request: Request) -> Response:
        return await answer_container_logs(view, parts.clock.time(), request)

    router.add("GET", "/containerLogs/{namespace}/{pod}/{container}", container_logs)
    router.add("GET", "/runningpods", _plain(partial(_running_pods, view)))
    router.add("GET", "/configz", _plain(lambda _: _json_bytes(_configz(parts.configz))))


def _plain(answer: Callable[[Request], Response]) -> Handler:
    async def handle(request: Request) -> Response:
        return answer(request)

    return handle


def _pods(view: NodeView, _: Request) -> Response:
    return _pod_list(
        msgspec.structs.replace(pod, apiVersion=None, kind=None) for pod in view.pods.value.values()
    )


def _running_pods(view: NodeView, _: Request) -> Response:
    return _pod_list(_shown(pod) for pod in view.running_pods())


def _shown(pod: RuntimePod) -> dict[str, Any]:
    """Return a pod as far as the runtime alone knows it, as Go's Pod.ToAPIPod."""
    return {
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "creationTimestamp": None,
        },
        "spec": {
            "containers": [
                {"name": container.name, "image": container.image, "resources": {}}
                for container in pod.running()
            ]
            or None
        },
        "status": {},
    }


def _pod_list(items: Iterable[Pod | dict[str, Any]]) -> Response:
    """Return a PodList in Go's words, which say null where there is no pod."""
    found = list(items) or None
    body: dict[str, Any] = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found}
    return _json_bytes(msgspec.json.encode(body))


def _configz(configuration: bytes) -> bytes:
    return b'{"kubeletconfig":' + configuration + b"}"


def _json_bytes(body: bytes) -> Response:
    return Response(body=body, content_type=_JSON)

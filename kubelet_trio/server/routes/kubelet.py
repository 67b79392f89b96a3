"""The routes of the kubelet API, and the metrics of its requests.

The read-only port serves health, pods, statistics and metrics without authentication, as the Go
kubelet does. The HTTPS port has all routes, behind a `Guard`. Statistics and metrics come from
other packages as handlers by path.

Source: NewServer, the Install functions and ServeHTTP of pkg/kubelet/server/server.go, and
pkg/kubelet/server/metrics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    KUBERNETES_VERSION,
    Meter,
    RuntimePod,
    WallClock,
    get_logger,
    set_verbosity,
)
from kubelet_trio.server.debug.process import Profiles, log_page, tasks_page
from kubelet_trio.server.debug.zpages import flagz, statusz
from kubelet_trio.server.errors import HttpError, restful_error
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Handler, Observe, Request, Response, parse_decimal
from kubelet_trio.server.logs.container import answer_container_logs
from kubelet_trio.server.logs.node_query import answer_log_query
from kubelet_trio.server.logs.system import SYSTEM_LOGS, answer_system_logs
from kubelet_trio.server.routes.commands import answer_checkpoint, answer_run
from kubelet_trio.server.routes.health import Check, add_healthz
from kubelet_trio.server.streams.routes import add_streams
from kubelet_trio.server.view import ApiOptions, KubeletApiView

log = get_logger()

_JSON = "application/json"
_DEBUGGING = (
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "runningpods",
    "logs",
    "debug/pprof",
    "debug/tasks",
    "debug/log",
)


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the routes serve."""

    view: KubeletApiView
    clock: WallClock
    checks: Mapping[str, Check]
    options: ApiOptions = field(default_factory=ApiOptions)
    configz: bytes = b"{}"  # KubeletConfiguration as JSON
    flags: Mapping[str, str] = field(default_factory=dict)  # of the command line
    log_dirs: tuple[Path, ...] = (SYSTEM_LOGS,)  # the first is served, links may lead to the rest
    plugged: Mapping[str, Handler] = field(default_factory=dict)  # GET and POST, by path
    meter: Meter = field(default_factory=Meter)  # of health checks and streaming requests


def kubelet_router(parts: ApiParts, *, read_only: bool = False) -> Router:
    """Return the routes; a `Guard` before them does authentication and authorization."""
    router = Router()
    add_healthz(router, parts.checks, parts.meter)
    router.add("GET", "/pods", _plain(partial(_pods, parts.view)))
    for path, handler in parts.plugged.items():
        router.add("GET", path, handler)
        # Upstream registers /stats/summary for POST as well.
        if path.startswith("/stats"):
            router.add("POST", path, handler)
    if read_only or not parts.options.enable_debugging_handlers:
        _add_disabled(router)
    else:
        _add_debugging(router, parts)
    return router


def _add_disabled(router: Router) -> None:
    for name in _DEBUGGING:
        _add_refusal(router, f"/{name}/{{rest...}}", "Debug endpoints are disabled.")


def _add_debugging(router: Router, parts: ApiParts) -> None:
    view = parts.view

    async def container_logs(request: Request) -> Response:
        split = parts.options.split_log_streams
        now = parts.clock.time()
        return await answer_container_logs(view, now, request, split_streams=split)

    async def run(request: Request) -> Response:
        return await answer_run(view, request)

    async def checkpoint(request: Request) -> Response:
        return await answer_checkpoint(view, parts.clock.time(), request)

    router.add("GET", "/containerLogs/{namespace}/{pod}/{container}", container_logs)
    router.add("POST", "/run/{namespace}/{pod}/{container}", run)
    router.add("POST", "/run/{namespace}/{pod}/{uid}/{container}", run)
    if parts.options.checkpoints:
        router.add("POST", "/checkpoint/{namespace}/{pod}/{container}", checkpoint)
    add_streams(router, view, parts.options.streaming_idle_timeout, parts.meter)
    _add_system_logs(router, parts)
    _add_process(router, parts)
    router.add("GET", "/runningpods", _plain(partial(_running_pods, view)))
    router.add("GET", "/configz", _plain(lambda _: _json_bytes(_configz(parts.configz))))


def _add_system_logs(router: Router, parts: ApiParts) -> None:
    async def logs(request: Request) -> Response:
        if parts.options.enable_system_log_query:
            return await answer_log_query(request, parts.log_dirs)
        return await answer_system_logs(request, parts.log_dirs)

    if parts.options.enable_system_log_handler:
        router.add("GET", "/logs/{path...}", logs)
    else:
        _add_refusal(router, "/logs/{path...}", "logs endpoint is disabled.")


def _add_process(router: Router, parts: ApiParts) -> None:
    """Add the routes for the agent's own process."""
    options, view = parts.options, parts.view
    if options.enable_profiling_handler:
        router.add("GET", "/debug/pprof/{name...}", Profiles())
        router.add("GET", "/debug/tasks", _plain(tasks_page))
    else:
        for pattern in ("/debug/pprof/{name...}", "/debug/tasks"):
            _add_refusal(router, pattern, "profiling endpoint is disabled.")
    router.add("GET", "/debug/log", _plain(log_page))
    if options.enable_debug_flags_handler:
        router.add("PUT", "/debug/flags/v", _set_verbosity)
        for method in ("GET", "POST", "PATCH", "DELETE"):
            router.add(method, "/debug/flags/v", _refuse_flag)
    else:
        _add_refusal(router, "/debug/flags/v", "flags endpoint is disabled.")

    def flags(request: Request) -> Response:
        return flagz(request.headers.get("accept"), parts.flags)

    def status(request: Request) -> Response:
        accept = request.headers.get("accept")
        started_at, now = view.status().started_at, parts.clock.time()
        return statusz(accept, started_at, now, KUBERNETES_VERSION, router.paths())

    router.add("GET", "/flagz", _plain(flags))
    router.add("GET", "/statusz", _plain(status))


def _add_refusal(router: Router, pattern: str, message: str) -> None:
    async def refuse(_: Request) -> Response:
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, message)

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        router.add(method, pattern, refuse)


async def _set_verbosity(request: Request) -> Response:
    """Set the log verbosity to the body's number. Raises `HttpError` 400 in klog's words."""
    text = request.body.decode("utf-8", "replace")
    level = parse_decimal(text, bits=32)
    if level is None:
        digits = text[1:] if text[:1] in ("+", "-") else text
        is_number = digits.isascii() and digits.isdigit()
        problem = "value out of range" if is_number else "invalid syntax"
        error = f"strconv.ParseInt: parsing {json.dumps(text)}: {problem}"
        message = f"failed set klog.logging.verbosity {text}: {error}"
        raise restful_error(HTTPStatus.BAD_REQUEST, message)
    set_verbosity(level)
    log.info("log.verbosity", verbosity=level, client=request.peer.address)
    return Response(body=f"successfully set klog.logging.verbosity to {text}".encode())


async def _refuse_flag(_: Request) -> Response:
    raise restful_error(HTTPStatus.NOT_ACCEPTABLE, "unsupported http method")


def _plain(answer: Callable[[Request], Response]) -> Handler:
    async def handle(request: Request) -> Response:
        return answer(request)

    return handle


def _pods(view: KubeletApiView, _: Request) -> Response:
    return _pod_list(view.pods.value.values())


def _running_pods(view: KubeletApiView, _: Request) -> Response:
    return _pod_list(_from_runtime(pod) for pod in view.running_pods())


def _from_runtime(pod: RuntimePod) -> dict[str, Any]:
    """Return a pod with what the runtime knows of it, as Go's Pod.ToAPIPod."""
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
    """Return a PodList as Go encodes it: `items` is null if there is no pod."""
    found = list(items) or None
    body: dict[str, Any] = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found}
    return _json_bytes(msgspec.json.encode(body))


def _configz(configuration: bytes) -> bytes:
    return b'{"kubeletconfig":' + configuration + b"}"


def _json_bytes(body: bytes) -> Response:
    return Response(body=body, content_type=_JSON)


_METHODS = frozenset(("OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"))
_PATHS = frozenset(
    (
        *("attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz"),
        *("logs", "pods", "portForward", "run", "runningpods", "stats", "statusz", "ui", "why"),
        *("metrics", "metrics/cadvisor", "metrics/probes", "metrics/resource", "metrics/slis"),
    )
)
# "portforward" is upstream's spelling. The path is "portForward", so port-forwards do not count
# as long-running upstream either.
_LONG_RUNNING = frozenset(("exec", "attach", "portforward", "debug"))


def measured(meter: Meter, server_type: str) -> Observe:
    """Return an observer that counts and times requests.

    `server_type` is `readwrite` or `readonly`.
    """

    @contextmanager
    def observe(request: Request) -> Iterator[None]:
        root = _root(request.path)
        # Unknown paths and methods are `other`: a client must not be able to create series.
        labels = (
            "true" if root in _LONG_RUNNING else "false",
            request.method if request.method in _METHODS else "other",
            root if root in _PATHS else "other",
            server_type,
        )
        began = trio.current_time()
        meter.count("kubelet_http_requests_total", labels)
        meter.change("kubelet_http_inflight_requests", 1, labels)
        try:
            yield
        finally:
            meter.change("kubelet_http_inflight_requests", -1, labels)
            took = trio.current_time() - began
            meter.observe("kubelet_http_requests_duration_seconds", took, labels)

    return observe


def _root(path: str) -> str:
    parts = path.removeprefix("/").split("/", 2)
    return "/".join(parts[:2]) if parts[0] == "metrics" else parts[0]

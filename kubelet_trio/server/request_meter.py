"""Requests counted and timed, under the Go kubelet's names.

Source: ServeHTTP of pkg/kubelet/server/server.go and pkg/kubelet/server/metrics. What is not a
path or method of the API is `other`: who asks must not be able to make up series.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.model import Meter
from kubelet_trio.server.http import Observe, Request

_METHODS = frozenset(("OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"))
_PATHS = frozenset(
    (
        *("attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz"),
        *("logs", "pods", "portForward", "run", "runningpods", "stats", "statusz", "ui"),
        *("metrics", "metrics/cadvisor", "metrics/probes", "metrics/resource", "metrics/slis"),
    )
)
# Upstream spells it as nobody asks for it, so port-forwards are not among them there, either.
_LONG_RUNNING = frozenset(("exec", "attach", "portforward", "debug"))


def measured(meter: Meter, server_type: str) -> Observe:
    """Return what tells `meter` of each request; `server_type` is readwrite or readonly."""

    @contextmanager
    def observe(request: Request) -> Iterator[None]:
        root = _root(request.path)
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

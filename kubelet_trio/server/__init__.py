"""Servers of the agent: the HTTP core, health, and the control socket."""

from kubelet_trio.server.control import LOCK_NAME, SOCKET_NAME, control_router
from kubelet_trio.server.health import Check, health_router, is_healthy
from kubelet_trio.server.http import (
    Handler,
    HttpError,
    Limits,
    Request,
    Response,
    serve_connection,
    serve_http,
)
from kubelet_trio.server.listeners import SocketInUseError, open_tcp, open_unix, root_lock
from kubelet_trio.server.router import Router
from kubelet_trio.server.view import (
    AgentStatus,
    AgentView,
    RuntimeInfo,
    SourceInfo,
    SourceProblem,
)

__all__ = [
    "LOCK_NAME",
    "SOCKET_NAME",
    "AgentStatus",
    "AgentView",
    "Check",
    "Handler",
    "HttpError",
    "Limits",
    "Request",
    "Response",
    "Router",
    "RuntimeInfo",
    "SocketInUseError",
    "SourceInfo",
    "SourceProblem",
    "control_router",
    "health_router",
    "is_healthy",
    "open_tcp",
    "open_unix",
    "root_lock",
    "serve_connection",
    "serve_http",
]

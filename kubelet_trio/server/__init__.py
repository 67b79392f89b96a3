"""Servers of the agent: the HTTP core, health, and the control socket."""

from kubelet_trio.server.access import AccessReviews, Authorizer, Guard, allow_all
from kubelet_trio.server.control import LOCK_NAME, SOCKET_NAME, control_router
from kubelet_trio.server.health import Check, health_router, is_healthy
from kubelet_trio.server.http import (
    Handler,
    HttpError,
    Limits,
    Request,
    Response,
    Upgrade,
    serve_connection,
    serve_http,
)
from kubelet_trio.server.identity import NodeAuthenticator, Reviewer, TokenReviews
from kubelet_trio.server.kubelet_api import ApiOptions, ApiParts, kubelet_router
from kubelet_trio.server.listeners import SocketInUseError, open_tcp, open_unix, root_lock
from kubelet_trio.server.router import Router
from kubelet_trio.server.selfsigned import ensure_self_signed
from kubelet_trio.server.system_logs import SYSTEM_LOGS
from kubelet_trio.server.tls import ServerTls, TlsError, TlsSettings
from kubelet_trio.server.view import (
    AgentStatus,
    AgentView,
    NodeView,
    RuntimeInfo,
    SourceInfo,
    SourceProblem,
)

__all__ = [
    "LOCK_NAME",
    "SOCKET_NAME",
    "SYSTEM_LOGS",
    "AccessReviews",
    "AgentStatus",
    "AgentView",
    "ApiOptions",
    "ApiParts",
    "Authorizer",
    "Check",
    "Guard",
    "Handler",
    "HttpError",
    "Limits",
    "NodeAuthenticator",
    "NodeView",
    "Request",
    "Response",
    "Reviewer",
    "Router",
    "RuntimeInfo",
    "ServerTls",
    "SocketInUseError",
    "SourceInfo",
    "SourceProblem",
    "TlsError",
    "TlsSettings",
    "TokenReviews",
    "Upgrade",
    "allow_all",
    "control_router",
    "ensure_self_signed",
    "health_router",
    "is_healthy",
    "kubelet_router",
    "open_tcp",
    "open_unix",
    "root_lock",
    "serve_connection",
    "serve_http",
]

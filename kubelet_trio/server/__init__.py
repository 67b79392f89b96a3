"""Servers of the agent: the HTTP core, health, and the control socket."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kubelet_trio.server.control import LOCK_NAME, SOCKET_NAME, add_exec, add_stats, control_router
from kubelet_trio.server.health import Check, health_router, is_healthy
from kubelet_trio.server.http import (
    Handler,
    HttpError,
    Limits,
    Request,
    Response,
    Upgrade,
)
from kubelet_trio.server.listeners import SocketInUseError, open_tcp, open_unix, root_lock
from kubelet_trio.server.options import ApiOptions
from kubelet_trio.server.ports import SERVING, Port, Ports
from kubelet_trio.server.router import Router
from kubelet_trio.server.serve import serve_http
from kubelet_trio.server.view import (
    AgentStatus,
    AgentView,
    NodeView,
    PortInfo,
    ProblemInfo,
    RuntimeInfo,
    SourceInfo,
)
from kubelet_trio.server.wire import serve_connection

if TYPE_CHECKING:
    from kubelet_trio.server.access import AccessReviews, Authorizer, Guard, allow_all
    from kubelet_trio.server.identity import NodeAuthenticator, Reviewer, TokenReviews
    from kubelet_trio.server.kubelet_api import ApiParts, kubelet_router
    from kubelet_trio.server.node_page import loopback_only, node_page_router
    from kubelet_trio.server.request_meter import measured
    from kubelet_trio.server.selfsigned import ensure_self_signed
    from kubelet_trio.server.system_logs import SYSTEM_LOGS
    from kubelet_trio.server.tls import ServerTls, TlsError, TlsSettings

__all__ = [
    "LOCK_NAME",
    "SERVING",
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
    "Port",
    "PortInfo",
    "Ports",
    "ProblemInfo",
    "Request",
    "Response",
    "Reviewer",
    "Router",
    "RuntimeInfo",
    "ServerTls",
    "SocketInUseError",
    "SourceInfo",
    "TlsError",
    "TlsSettings",
    "TokenReviews",
    "Upgrade",
    "add_exec",
    "add_stats",
    "allow_all",
    "control_router",
    "ensure_self_signed",
    "health_router",
    "is_healthy",
    "kubelet_router",
    "loopback_only",
    "measured",
    "node_page_router",
    "open_tcp",
    "open_unix",
    "root_lock",
    "serve_connection",
    "serve_http",
]

# The kubelet API and the node page, loaded where they are served: most nodes on their own do not.
_DEFERRED = {
    "AccessReviews": "access",
    "ApiParts": "kubelet_api",
    "Authorizer": "access",
    "Guard": "access",
    "NodeAuthenticator": "identity",
    "Reviewer": "identity",
    "SYSTEM_LOGS": "system_logs",
    "ServerTls": "tls",
    "TlsError": "tls",
    "TlsSettings": "tls",
    "TokenReviews": "identity",
    "allow_all": "access",
    "ensure_self_signed": "selfsigned",
    "kubelet_router": "kubelet_api",
    "loopback_only": "node_page",
    "measured": "request_meter",
    "node_page_router": "node_page",
}


def __getattr__(name: str) -> object:
    if name not in _DEFERRED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"kubelet_trio.server.{_DEFERRED[name]}")
    return getattr(module, name)

"""The servers of the agent: health, the control socket, the kubelet API, the node page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.server.errors import HttpError, SocketInUseError, TlsError
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.serve import serve_http
from kubelet_trio.server.http.types import Handler, Limits, Request, Response, Send, Upgrade
from kubelet_trio.server.http.wire import serve_connection
from kubelet_trio.server.ports import SERVING, Port, Ports
from kubelet_trio.server.routes.control import (
    LOCK_NAME,
    SOCKET_NAME,
    WHY_PATH,
    add_debug,
    add_exec,
    add_history,
    add_images,
    add_login,
    add_node,
    add_page,
    add_plan,
    add_record,
    add_restart,
    add_stats,
    add_topology,
    add_volumes,
    add_why,
    control_router,
    why_handler,
)
from kubelet_trio.server.routes.health import Check, health_router, is_healthy
from kubelet_trio.server.sockets import find_holder, open_tcp, open_unix, peer_name, root_lock
from kubelet_trio.server.view import (
    AgentStatus,
    AgentView,
    ApiOptions,
    KubeletApiView,
    PortInfo,
    ProblemInfo,
    PullInfo,
    RuntimeInfo,
    SourceInfo,
)

if TYPE_CHECKING:
    from kubelet_trio.server.access.authentication import NodeAuthenticator, TokenReviews
    from kubelet_trio.server.access.authorization import AccessReviews, Authorizer, Guard, allow_all
    from kubelet_trio.server.access.page_sessions import PageSessions
    from kubelet_trio.server.http.traced import traced
    from kubelet_trio.server.logs.system import SYSTEM_LOGS
    from kubelet_trio.server.pods_api import PodWatches, pods_api_server
    from kubelet_trio.server.routes.fleet_page import failed_node, fleet_node, fleet_router
    from kubelet_trio.server.routes.kubelet import ApiParts, kubelet_router, measured
    from kubelet_trio.server.routes.node_page import (
        is_loopback_host,
        loopback_only,
        node_page_router,
    )
    from kubelet_trio.server.routes.page_actions import page_actions_router
    from kubelet_trio.server.tls.self_signed import ensure_self_signed
    from kubelet_trio.server.tls.serving import ServerTls, TlsSettings

# Loaded where the kubelet API, the node page or the Pods API is served: most standalone nodes serve
# none of them.
_DEFERRED = {
    "AccessReviews": "access.authorization",
    "ApiParts": "routes.kubelet",
    "Authorizer": "access.authorization",
    "Guard": "access.authorization",
    "NodeAuthenticator": "access.authentication",
    "PageSessions": "access.page_sessions",
    "PodWatches": "pods_api",
    "SYSTEM_LOGS": "logs.system",
    "ServerTls": "tls.serving",
    "TlsSettings": "tls.serving",
    "TokenReviews": "access.authentication",
    "allow_all": "access.authorization",
    "ensure_self_signed": "tls.self_signed",
    "kubelet_router": "routes.kubelet",
    "failed_node": "routes.fleet_page",
    "fleet_node": "routes.fleet_page",
    "fleet_router": "routes.fleet_page",
    "is_loopback_host": "routes.node_page",
    "loopback_only": "routes.node_page",
    "measured": "routes.kubelet",
    "traced": "http.traced",
    "node_page_router": "routes.node_page",
    "page_actions_router": "routes.page_actions",
    "pods_api_server": "pods_api",
}

__all__ = [
    "LOCK_NAME",
    "SERVING",
    "SOCKET_NAME",
    "SYSTEM_LOGS",
    "WHY_PATH",
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
    "KubeletApiView",
    "Limits",
    "NodeAuthenticator",
    "PageSessions",
    "PodWatches",
    "Port",
    "PortInfo",
    "Ports",
    "ProblemInfo",
    "PullInfo",
    "Request",
    "Response",
    "Router",
    "RuntimeInfo",
    "Send",
    "ServerTls",
    "SocketInUseError",
    "SourceInfo",
    "TlsError",
    "TlsSettings",
    "TokenReviews",
    "Upgrade",
    "add_debug",
    "add_exec",
    "add_history",
    "add_images",
    "add_login",
    "add_node",
    "add_page",
    "add_plan",
    "add_record",
    "add_restart",
    "add_stats",
    "add_topology",
    "add_volumes",
    "add_why",
    "allow_all",
    "control_router",
    "ensure_self_signed",
    "failed_node",
    "find_holder",
    "fleet_node",
    "fleet_router",
    "health_router",
    "is_healthy",
    "is_loopback_host",
    "kubelet_router",
    "loopback_only",
    "measured",
    "node_page_router",
    "open_tcp",
    "open_unix",
    "page_actions_router",
    "peer_name",
    "pods_api_server",
    "root_lock",
    "serve_connection",
    "serve_http",
    "traced",
    "why_handler",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)

"""What probes and lifecycle hooks share: connections, HTTP GET, ports by name."""

from kubelet_trio.handlers.errors import BodyError, DialError, HandlerError, join_host_port, quoted
from kubelet_trio.handlers.http import BODY_LIMIT, http_get
from kubelet_trio.handlers.http_action import container_port, http_request, user_agent
from kubelet_trio.handlers.sockets import Connection, Wire, connect

__all__ = [
    "BODY_LIMIT",
    "BodyError",
    "Connection",
    "DialError",
    "HandlerError",
    "Wire",
    "connect",
    "container_port",
    "http_get",
    "http_request",
    "join_host_port",
    "quoted",
    "user_agent",
]

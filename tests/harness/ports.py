"""Ports of the loopback address, and an address of this machine beside it."""

from __future__ import annotations

import socket

from kubelet_trio.node import host_ips


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def host_ip() -> str:
    """Return an address that a node of a cluster may have: of the default route."""
    return host_ips()[0]

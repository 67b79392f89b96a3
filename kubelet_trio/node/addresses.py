"""The node's own addresses, which pods' statuses show as hostIPs.

In the Go kubelet's order: `--node-ip`, a node name that is an address, the addresses of the name in
DNS (only those of this machine), the source address of the default route.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import trio

from kubelet_trio.model import get_logger, is_ip

log = get_logger()

# Addresses reserved for documentation (RFC 5737, RFC 3849). Connecting a datagram socket only looks
# up the route; no packet is sent.
_PROBES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_ONLY_A_FAMILY = ("0.0.0.0", "::")  # `--node-ip` that names only an IP family
_LOOK_UP_LIMIT = 2.0  # seconds; without a limit a hanging resolver delays the start


def host_ips(node_ip: str = "", name: str = "", looked_up: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the node's IPs, primary first: one, or the two that `--node-ip` names.

    A machine without any address gets the loopback address.

    Args:
        node_ip: `--node-ip`: one address, a comma-separated dual-stack pair, or the family of
            the first (`0.0.0.0`, `::`).
        name: the node's.
        looked_up: the addresses of the name in DNS.

    Raises:
        ValueError: an item of `node_ip` is not an IP address.
    """
    if node_ip and node_ip not in _ONLY_A_FAMILY:
        return tuple(str(ipaddress.ip_address(part.strip())) for part in node_ip.split(","))
    if is_ip(name):
        return (name,)
    found = list(looked_up) or _route_ips()
    family = 6 if node_ip == "::" else 4
    preferred = [ip for ip in found if ipaddress.ip_address(ip).version == family]
    # One, not one for each family: only an explicit `--node-ip` gives two (NodeAddress in
    # setters.go).
    return tuple([*preferred, *found][:1]) or ("127.0.0.1",)


async def look_up(name: str, node_ip: str, *, only_if_needed: bool) -> tuple[str, ...]:
    """Return this machine's addresses that a node's name resolves to; none after 2 s.

    Args:
        name: the node's.
        node_ip: `--node-ip`; an address there makes the lookup unnecessary.
        only_if_needed: do not ask DNS if there is a default route.
    """
    if (node_ip and node_ip not in _ONLY_A_FAMILY) or is_ip(name):
        return ()
    if only_if_needed and _route_ips():
        return ()
    with trio.move_on_after(_LOOK_UP_LIMIT):
        # A hanging resolver keeps the thread; a limiter of its own, so that no other call waits.
        return await trio.to_thread.run_sync(
            _look_up, name, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
    log.warning("node.name_not_looked_up", name=name, seconds=_LOOK_UP_LIMIT)
    return ()


def _look_up(name: str) -> tuple[str, ...]:
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(ip for info in infos if is_own(ip := str(info[4][0])))


def is_own(address: str) -> bool:
    """Return whether other machines can reach this one at an address."""
    return own_problem(address) is None


def own_problem(address: str) -> str | None:
    """Return why other machines cannot reach this one at an address, in upstream's words, or None.

    Source: validateNodeIP in kubelet_node_status.go.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "nodeIP must be a valid IP address"
    refused = (
        (ip.is_loopback, "nodeIP can't be loopback address"),
        (ip.is_multicast, "nodeIP can't be a multicast address"),
        (ip.is_link_local, "nodeIP can't be a link-local unicast address"),
        (ip.is_unspecified, "nodeIP can't be an all zeros address"),
    )
    for is_so, problem in refused:
        if is_so:
            return problem
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    try:
        # bind(2) fails with EADDRNOTAVAIL for an address that no interface has.
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return f'node IP: "{address}" not found in the host\'s network interfaces'
    return None


def _route_ips() -> list[str]:
    return [ip for family, probe in _PROBES if (ip := _source_address(family, probe))]


def _source_address(family: socket.AddressFamily, towards: str) -> str:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return ""  # no route in this family
    return "" if ipaddress.ip_address(address).is_link_local else address

"""The node's own addresses: what statuses show as hostIPs."""

from __future__ import annotations

import ipaddress
import socket

# Documentation ranges (RFC 5737, RFC 3849): a route is looked up, nothing is ever sent.
_PROBES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def host_ips(node_ip: str = "") -> tuple[str, ...]:
    """Return the node's IPs, primary first, at most one a family.

    `node_ip` is `--node-ip`: one address or a dual-stack pair, comma-separated. Without it
    these are the source addresses of the default routes; a machine without one answers for
    itself on loopback.

    Raises:
        ValueError: for something that is not an IP address, with its text.
    """
    if node_ip and node_ip not in ("0.0.0.0", "::"):  # a family, not an address
        return tuple(str(ipaddress.ip_address(part.strip())) for part in node_ip.split(","))
    found = [ip for family, probe in _PROBES if (ip := _source_address(family, probe))]
    if node_ip == "::":
        found.reverse()
    return tuple(found) or ("127.0.0.1",)


def _source_address(family: socket.AddressFamily, towards: str) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return ""  # no route in this family
        address = str(probe.getsockname()[0])
    return "" if ipaddress.ip_address(address).is_link_local else address

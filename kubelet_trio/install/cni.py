"""The pod network of a machine that has none: a bridge with addresses of its own."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable

CONFLIST = "/etc/cni/net.d/10-kubelet-trio.conflist"
NETWORK = "kubelet-trio"
BRIDGE = "kt0"
# Where host-local keeps the addresses that it has given away (its default).
LEASES = f"/var/lib/cni/networks/{NETWORK}"


class PodCidrError(ValueError):
    """The range of pod addresses cannot be used; the message says why."""


def parse_pod_cidr(text: str, routes: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the networks in `CIDR[,CIDR]`, at most one of each family.

    Raises `PodCidrError`, also if a network overlaps one of the machine's own.
    """
    found: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for part in text.split(","):
        try:
            network = ipaddress.ip_network(part.strip())
        except ValueError as exc:
            raise PodCidrError(f"--pod-cidr: {exc}") from None
        if network.num_addresses < 8:
            raise PodCidrError(f"--pod-cidr: {network} has no room for pods")
        found.append(network)
    if len({network.version for network in found}) != len(found):
        raise PodCidrError("--pod-cidr: at most one IPv4 and one IPv6 network")
    for route in routes:
        taken = ipaddress.ip_network(route)
        for network in found:
            if network.version == taken.version and network.overlaps(taken):
                raise PodCidrError(
                    f"--pod-cidr: {network} overlaps {taken}, a network of this machine: "
                    "choose another one, such as --pod-cidr 172.30.0.0/16"
                )
    return tuple(map(str, found))


def conflist(networks: Iterable[str], plugins: frozenset[str]) -> str:
    """Return the configuration of a bridge network with these address ranges.

    hostPorts and the firewall's rules are left out where their plugin is not installed.
    """
    ranges = [[{"subnet": network}] for network in networks]
    routes = [{"dst": "::/0" if ":" in subnet[0]["subnet"] else "0.0.0.0/0"} for subnet in ranges]
    chain: list[dict[str, object]] = [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,  # a pod reaches itself by its hostPort
            "promiscMode": False,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
        }
    ]
    if "portmap" in plugins:
        chain.append({"type": "portmap", "capabilities": {"portMappings": True}, "snat": True})
    if "firewall" in plugins:
        chain.append({"type": "firewall"})
    # 0.4.0: every version of plugins and runtimes in use knows it.
    network = {"cniVersion": "0.4.0", "name": NETWORK, "plugins": chain}
    return json.dumps(network, indent=2) + "\n"


def parse_routes(table: str) -> tuple[str, ...]:
    """Return the networks in /proc/net/route, without the default route and our own bridge."""
    found = []
    for line in table.splitlines()[1:]:
        row = line.split()
        if len(row) < 8 or row[0] == BRIDGE:
            continue
        try:
            # Little-endian words, as the kernel prints them on the usual machines.
            address = ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(row[1]), "little"))
            mask = ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(row[7]), "little"))
            if int(mask):
                found.append(str(ipaddress.IPv4Network(f"{address}/{mask}", strict=False)))
        except ValueError:
            continue
    return tuple(found)

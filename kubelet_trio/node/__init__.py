"""The node itself: its addresses, its object at an API server, its heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.node.addresses import host_ips, look_up, own_problem
from kubelet_trio.node.capacity import (
    DEFAULT_EVICTION_HARD,
    Machine,
    NodeCapacity,
    ReservationError,
    Reservations,
    node_capacity,
    parse_cpus,
    parse_reservation,
    read_machine,
    threshold_amount,
    with_reserved_cpus,
)
from kubelet_trio.node.pod_cidr import PodCidr
from kubelet_trio.node.types import NodeIdentity, NodeResources, NodeView, Pressure, resources_of

if TYPE_CHECKING:
    from kubelet_trio.node.heartbeat import HeartbeatPeriods, NodeHeartbeat
    from kubelet_trio.node.lease import NodeLease
    from kubelet_trio.node.machine import go_arch, system_info
    from kubelet_trio.node.object import DEFAULT_TTL, object_ttl
    from kubelet_trio.node.readiness import RuntimeWatch
    from kubelet_trio.node.registration import NodeObject, Registration

# What only a node of a cluster needs is loaded by those who have one.
_DEFERRED = {
    "DEFAULT_TTL": "object",
    "HeartbeatPeriods": "heartbeat",
    "NodeHeartbeat": "heartbeat",
    "NodeLease": "lease",
    "NodeObject": "registration",
    "Registration": "registration",
    "RuntimeWatch": "readiness",
    "go_arch": "machine",
    "object_ttl": "object",
    "system_info": "machine",
}

__all__ = [
    "DEFAULT_EVICTION_HARD",
    "DEFAULT_TTL",
    "HeartbeatPeriods",
    "Machine",
    "NodeCapacity",
    "NodeHeartbeat",
    "NodeIdentity",
    "NodeLease",
    "NodeObject",
    "NodeResources",
    "NodeView",
    "PodCidr",
    "Pressure",
    "Registration",
    "ReservationError",
    "Reservations",
    "RuntimeWatch",
    "go_arch",
    "host_ips",
    "look_up",
    "node_capacity",
    "object_ttl",
    "own_problem",
    "parse_cpus",
    "parse_reservation",
    "read_machine",
    "resources_of",
    "system_info",
    "threshold_amount",
    "with_reserved_cpus",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)

"""The node itself: its addresses, its object at an API server, its heartbeat."""

from kubelet_trio.node.addresses import host_ips
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
from kubelet_trio.node.types import NodeIdentity, NodeResources, NodeView, Pressure, resources_of

__all__ = [
    "DEFAULT_EVICTION_HARD",
    "Machine",
    "NodeCapacity",
    "NodeIdentity",
    "NodeResources",
    "NodeView",
    "Pressure",
    "ReservationError",
    "Reservations",
    "host_ips",
    "node_capacity",
    "parse_cpus",
    "parse_reservation",
    "read_machine",
    "resources_of",
    "threshold_amount",
    "with_reserved_cpus",
]

"""The node itself, as seen from inside."""

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

__all__ = [
    "DEFAULT_EVICTION_HARD",
    "Machine",
    "NodeCapacity",
    "ReservationError",
    "Reservations",
    "host_ips",
    "node_capacity",
    "parse_cpus",
    "parse_reservation",
    "read_machine",
    "threshold_amount",
    "with_reserved_cpus",
]

"""The node: its addresses, capacity, object at the API server, heartbeat and lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.node.addresses import host_ips, look_up, own_problem
from kubelet_trio.node.capacity import (
    NodeCapacity,
    ReservationError,
    Reservations,
    node_capacity,
    parse_reservation,
    percent_of,
    reserved_amounts,
    with_reserved_cpus,
)
from kubelet_trio.node.errors import CsiNodeError
from kubelet_trio.node.machine import Machine, go_arch, read_machine, system_info
from kubelet_trio.node.pod_cidr import PodCidr
from kubelet_trio.node.types import NodeIdentity, NodeResources, NodeView, Pressure, resources_of

if TYPE_CHECKING:
    from kubelet_trio.node.certificates import (
        ClientCertificate,
        ServingCertificate,
        ServingFiles,
        awaited_certificate,
        serving_store,
    )
    from kubelet_trio.node.csi_limits import CsiLimits
    from kubelet_trio.node.csi_node import CsiNodeObject
    from kubelet_trio.node.csi_object import DriverFacts
    from kubelet_trio.node.follower import NodeFollower
    from kubelet_trio.node.heartbeat import HeartbeatPeriods, NodeHeartbeat
    from kubelet_trio.node.lease import NodeLease
    from kubelet_trio.node.object import initial_node, object_ttl
    from kubelet_trio.node.observer import NodeObserver
    from kubelet_trio.node.registration import NodeObject, Registration
    from kubelet_trio.node.startup import NodeStartup
    from kubelet_trio.node.status import node_status
    from kubelet_trio.node.volumes_in_use import ReportedVolumes

# Loaded only on nodes of a cluster.
_DEFERRED = {
    "ClientCertificate": "certificates",
    "CsiLimits": "csi_limits",
    "CsiNodeObject": "csi_node",
    "DriverFacts": "csi_object",
    "ServingCertificate": "certificates",
    "ServingFiles": "certificates",
    "awaited_certificate": "certificates",
    "serving_store": "certificates",
    "NodeFollower": "follower",
    "NodeObserver": "observer",
    "HeartbeatPeriods": "heartbeat",
    "NodeHeartbeat": "heartbeat",
    "NodeLease": "lease",
    "initial_node": "object",
    "node_status": "status",
    "NodeObject": "registration",
    "NodeStartup": "startup",
    "Registration": "registration",
    "ReportedVolumes": "volumes_in_use",
    "object_ttl": "object",
}

__all__ = [
    "ClientCertificate",
    "CsiLimits",
    "CsiNodeError",
    "CsiNodeObject",
    "DriverFacts",
    "HeartbeatPeriods",
    "Machine",
    "NodeCapacity",
    "NodeFollower",
    "NodeHeartbeat",
    "NodeIdentity",
    "NodeLease",
    "NodeObject",
    "NodeObserver",
    "NodeResources",
    "NodeStartup",
    "NodeView",
    "PodCidr",
    "Pressure",
    "Registration",
    "ReportedVolumes",
    "ReservationError",
    "Reservations",
    "ServingCertificate",
    "ServingFiles",
    "awaited_certificate",
    "go_arch",
    "host_ips",
    "initial_node",
    "look_up",
    "node_capacity",
    "node_status",
    "object_ttl",
    "own_problem",
    "parse_reservation",
    "percent_of",
    "read_machine",
    "reserved_amounts",
    "resources_of",
    "serving_store",
    "system_info",
    "with_reserved_cpus",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)

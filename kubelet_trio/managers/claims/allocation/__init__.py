"""Allocates devices to resource claims on one node, without a scheduler. Pure.

Semantics: KEP-4381, KEP-4816, KEP-4815, KEP-5055 and dynamic-resource-allocation/structured.
"""

from kubelet_trio.managers.claims.allocation.devices import AllocationError, DeviceId
from kubelet_trio.managers.claims.allocation.pools import NodeFacts, Pool, gather_pools
from kubelet_trio.managers.claims.allocation.result import held_devices
from kubelet_trio.managers.claims.allocation.search import MAX_STEPS, allocate
from kubelet_trio.managers.claims.allocation.selectors import Selectors

__all__ = [
    "MAX_STEPS",
    "AllocationError",
    "DeviceId",
    "NodeFacts",
    "Pool",
    "Selectors",
    "allocate",
    "gather_pools",
    "held_devices",
]

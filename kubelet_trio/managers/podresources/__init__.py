"""The pod resources API: which CPUs, memory and devices the containers of this node hold.

Source: KEP-606, KEP-2403, KEP-3695 and pkg/kubelet/apis/podresources. The service, with gRPC and
its messages, is loaded with the first client's connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.managers.podresources.types import (
    NOTHING,
    ClaimDevice,
    ClaimUse,
    DeviceUse,
    MemoryUse,
    ResourcesView,
    ResourceUse,
)

if TYPE_CHECKING:
    from kubelet_trio.managers.podresources.claims import claim_uses
    from kubelet_trio.managers.podresources.holdings import for_containers, held_by
    from kubelet_trio.managers.podresources.service import pod_resources_server

# `holdings` loads all managers: only where there are some.
_DEFERRED = {
    "claim_uses": "claims",
    "for_containers": "holdings",
    "held_by": "holdings",
    "pod_resources_server": "service",
}

__all__ = [
    "NOTHING",
    "ClaimDevice",
    "ClaimUse",
    "DeviceUse",
    "MemoryUse",
    "ResourceUse",
    "ResourcesView",
    "claim_uses",
    "for_containers",
    "held_by",
    "pod_resources_server",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)

"""Which CPUs, memory and devices each container gets, and which NUMA nodes they are on.

Decisions are pure: each manager's rules are functions of its immutable state (`Manager`), and the
topology manager merges their hints. `node` holds the states of this node's managers. Sources:
KEP-3570, KEP-1769, KEP-693 and pkg/kubelet/cm.
"""

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.managers.loading import load_claims, load_managers
from kubelet_trio.managers.settings import (
    ManagerSettings,
    TopologyOptions,
)
from kubelet_trio.managers.shares import (
    NO_SHARE,
    CheckpointError,
    ClaimError,
    ClaimHealth,
    ContainerShare,
    DeviceHealth,
    DeviceMount,
    DeviceNode,
    DeviceOptions,
    DevicePluginError,
    ManagerStateError,
    PlacementError,
    with_cdi,
)
from kubelet_trio.managers.types import (
    ANYWHERE,
    Cpu,
    Hint,
    Hints,
    Machine,
    Manager,
    NumaNode,
    Refusal,
    mask_of,
    nodes_of,
)

if TYPE_CHECKING:
    from kubelet_trio.managers.claims import (
        Claim,
        ClaimKey,
        ClaimSource,
        DraDrivers,
        ResourceClaims,
        SliceCleaner,
        SliceRemovalError,
    )
    from kubelet_trio.managers.node import (
        CheckpointKeeper,
        CpusetReconciler,
        DeviceManagers,
        LoadedManagers,
        ResourceManagers,
        machine_holdings,
    )
    from kubelet_trio.managers.podresources import (
        NOTHING,
        ClaimUse,
        ResourcesView,
        ResourceUse,
        claim_uses,
        for_containers,
        held_by,
        pod_resources_server,
    )
    from kubelet_trio.managers.topology import (
        ContainerHoldings,
        MachineDevice,
        MachineHoldings,
        MemoryHolding,
        TopologyError,
        draw_machine,
        read_machine,
        read_topology_page,
        topology_page,
    )

# Loaded when they are first used.
_DEFERRED = {
    "Claim": "claims",
    "ClaimKey": "claims",
    "ClaimSource": "claims",
    "DraDrivers": "claims",
    "ResourceClaims": "claims",
    "SliceCleaner": "claims",
    "SliceRemovalError": "claims",
    "CheckpointKeeper": "node",
    "CpusetReconciler": "node",
    "DeviceManagers": "node",
    "LoadedManagers": "node",
    "ResourceManagers": "node",
    "machine_holdings": "node",
    "NOTHING": "podresources",
    "ClaimUse": "podresources",
    "ResourceUse": "podresources",
    "ResourcesView": "podresources",
    "claim_uses": "podresources",
    "for_containers": "podresources",
    "held_by": "podresources",
    "pod_resources_server": "podresources",
    "ContainerHoldings": "topology",
    "MachineDevice": "topology",
    "MachineHoldings": "topology",
    "MemoryHolding": "topology",
    "TopologyError": "topology",
    "draw_machine": "topology",
    "read_machine": "topology",
    "read_topology_page": "topology",
    "topology_page": "topology",
}

__all__ = [
    "ANYWHERE",
    "NOTHING",
    "NO_SHARE",
    "CheckpointError",
    "CheckpointKeeper",
    "Claim",
    "ClaimError",
    "ClaimHealth",
    "ClaimKey",
    "ClaimSource",
    "ClaimUse",
    "ContainerHoldings",
    "ContainerShare",
    "Cpu",
    "CpusetReconciler",
    "DeviceHealth",
    "DeviceManagers",
    "DeviceMount",
    "DeviceNode",
    "DeviceOptions",
    "DevicePluginError",
    "DraDrivers",
    "Hint",
    "Hints",
    "LoadedManagers",
    "Machine",
    "MachineDevice",
    "MachineHoldings",
    "Manager",
    "ManagerSettings",
    "ManagerStateError",
    "MemoryHolding",
    "NumaNode",
    "PlacementError",
    "Refusal",
    "ResourceClaims",
    "ResourceManagers",
    "ResourceUse",
    "ResourcesView",
    "SliceCleaner",
    "SliceRemovalError",
    "TopologyError",
    "TopologyOptions",
    "claim_uses",
    "draw_machine",
    "for_containers",
    "held_by",
    "load_claims",
    "load_managers",
    "machine_holdings",
    "mask_of",
    "nodes_of",
    "pod_resources_server",
    "read_machine",
    "read_topology_page",
    "topology_page",
    "with_cdi",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)

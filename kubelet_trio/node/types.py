"""The inputs of the node's status: the configured identity and the observed view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import (
    ContainerImage,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeSystemInfo,
    Taint,
)

from kubelet_trio.model import canonical_quantity, to_milli, to_units
from kubelet_trio.node.capacity import HUGEPAGES, NodeCapacity


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The configuration of the node's object; constant while the agent runs."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)  # --node-labels
    taints: tuple[Taint, ...] = ()  # --register-with-taints
    unschedulable: bool = False  # --register-schedulable=false
    register: bool = True
    provider_id: str = ""
    external_cloud: bool = False  # --cloud-provider=external: the provider sets the addresses
    node_ips: tuple[str, ...] = ()  # of --node-ip; empty if they were detected
    has_node_ip: bool = False  # whether --node-ip is set, be it to a family (0.0.0.0, ::)
    attach_detach: bool = True  # enableControllerAttachDetach
    keep_terminated_volumes: bool = False
    port: int = 10250  # of the kubelet API; 0: not served
    max_images: int = 50  # -1: all
    local_storage: bool = True  # localStorageCapacityIsolation
    get_on_exists_only: bool = False  # the gate KubeletRegistrationGetOnExistsOnly
    gates_off: frozenset[str] = frozenset()  # what they stand for is not declared
    os: str = "linux"
    arch: str = "amd64"  # as Go names it


@dataclass(frozen=True, slots=True)
class NodeResources:
    """Quantities in the API's form, by resource name."""

    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pressure:
    """The resources under pressure, as the eviction manager reports them."""

    memory: bool = False
    disk: bool = False
    pid: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """The observed state of the node: the input of `node_status`, with the previous status."""

    now: float  # Unix seconds
    host_ips: tuple[str, ...]
    resources: NodeResources
    info: NodeSystemInfo
    address_problem: str | None = None  # of `--node-ip`; the addresses then do not change
    not_ready: tuple[str, ...] = ()  # the reasons, in upstream's words
    pressure: Pressure = Pressure()
    images: tuple[ContainerImage, ...] | None = None  # largest first; None: not listed yet
    handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: NodeFeatures | None = None
    declared: tuple[str, ...] = ()  # `declaredFeatures`, sorted
    volumes_in_use: tuple[str, ...] | None = None  # sorted; None: as in the last status


def resources_of(capacity: NodeCapacity) -> NodeResources:
    """Return a node's resources in the API's form."""
    return NodeResources(_quantities(capacity.capacity), _quantities(capacity.allocatable))


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: _quantity(name, nano) for name, nano in amounts.items()}


def _quantity(name: str, nano: int) -> str:
    if name == "cpu":
        return canonical_quantity(f"{to_milli(nano)}m")
    units = to_units(nano)
    # As in Go, an amount of bytes has a binary suffix if it is a multiple of one.
    is_bytes = name == "memory" or name.startswith(HUGEPAGES) or name == "ephemeral-storage"
    whole = is_bytes and units and units % 1024 == 0
    return canonical_quantity(f"{units // 1024}Ki" if whole else units)

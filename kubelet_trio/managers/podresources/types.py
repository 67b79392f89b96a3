"""What the pod resources API shows: the pods of a node, and what each container holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory or huge pages of one size, on one group of NUMA nodes.

    Attributes:
        kind: `memory` or `hugepages-<size>`.
        size: bytes.
        nodes: the NUMA nodes of the group, ascending.
    """

    kind: str
    size: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device.

    Attributes:
        resource: its extended resource, such as `example.com/disk`.
        id: the plugin's name for it.
        nodes: its NUMA nodes, ascending; None: its plugin does not report any.
    """

    resource: str
    id: str
    nodes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device that a claim allocated (ClaimResource)."""

    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """The devices of one resource claim that a container uses."""

    name: str
    namespace: str
    devices: tuple[ClaimDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """What one container holds exclusively, or what a node may hand out.

    Attributes:
        cpus: exclusive CPUs, ascending. A container of the shared pool has none.
        memory: what the memory manager's policy Static has pinned.
        devices: of device plugins, by resource and ID.
        claims: of dynamic resources; of containers only.
    """

    cpus: tuple[int, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    claims: tuple[ClaimUse, ...] = ()


NOTHING = ResourceUse()


class ResourcesView(Protocol):
    """The node that the service shows. No method blocks."""

    def pods(self, *, active_only: bool) -> Iterable[Pod]:
        """Return the pods that sources want on this node.

        `active_only` leaves out those that have ended (filterOutInactivePods in pkg/kubelet).
        """
        ...

    def active_pod(self, namespace: str, name: str) -> Pod | None:
        """Return one pod of `pods(active_only=True)`; None if there is none of this name."""
        ...

    def container_use(self, uid: PodUid, container: str) -> ResourceUse:
        """Return what a container holds now; `NOTHING` for one that is not known."""
        ...

    def allocatable(self) -> ResourceUse:
        """Return what containers could get on an empty node.

        All CPUs that are not reserved, all memory that is not, and all healthy devices; () from a
        manager with the policy none.
        """
        ...

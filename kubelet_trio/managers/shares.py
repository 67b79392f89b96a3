"""What a container has of CPUs, memory nodes and devices, and what admission says of a pod.

Importing this loads no manager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kubelet_trio.managers.types import Refusal


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file of the host in a container; `permissions` are letters of `rwm`."""

    host_path: str
    container_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class DeviceMount:
    """A file or directory of the host in a container."""

    host_path: str
    container_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the devices of a container need in its config.

    Attributes:
        env: variables by name.
        devices: the device files.
        mounts: the mounts.
        annotations: of the container at the runtime.
        cdi: fully qualified names of CDI devices, `vendor.com/class=name`.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of a container's devices of one resource, for `allocatedResourcesStatus`.

    Attributes:
        resource: its name.
        devices: whether each is healthy, by ID.
    """

    resource: str
    devices: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class ClaimHealth:
    """The health of a container's devices of one claim, for `allocatedResourcesStatus`.

    Attributes:
        resource: `claim:<the pod's name for it>`, and `/<request>` if the container asks for one.
        devices: `Healthy`, `Unhealthy` or `Unknown`, and a message, "" for none, of each by its ID.
    """

    resource: str
    devices: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ContainerShare:
    """What the managers put into the config of a container.

    Attributes:
        cpuset_cpus: the CPUs it may use, as `0-3,8`; "": all, no manager has a say.
        cpuset_mems: the NUMA nodes of its memory, as `0,1`; "": all.
        no_quota: whether it has CPUs of its own and therefore no CFS quota (the gate
            DisableCPUQuotaWithExclusiveCPUs).
        devices: what its devices need in the config; None: it has none.
    """

    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    no_quota: bool = False
    devices: DeviceOptions | None = None


NO_SHARE = ContainerShare()


def with_cdi(share: ContainerShare, names: Collection[str]) -> ContainerShare:
    """Return the share with further CDI devices, before its own: GetResources in pkg/kubelet/cm."""
    if not names:
        return share
    devices = share.devices or DeviceOptions()
    return replace(
        share, devices=replace(devices, cdi=tuple(dict.fromkeys((*names, *devices.cdi))))
    )


class ManagerStateError(ValueError):
    """The managers cannot start; the message names the file or setting, and says what to do."""


class CheckpointError(Exception):
    """The disk does not take the managers' state. Retried; the pod has to wait."""


class PlacementError(Exception):
    """An admitted pod cannot get what was reserved for it: it is rejected."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.reason}: {refusal.message}")
        self.refusal = refusal


class DevicePluginError(Exception):
    """A device plugin fails, lies, or does not answer. The text names its resource."""


class ClaimError(Exception):
    """A claim cannot be prepared or given back now. Retried; the text is for the pod's event."""

"""Resource claims on this node: what is prepared for which pods, and the seam to the drivers.

Sources: KEP-4381, KEP-3063 and pkg/kubelet/cm/dra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kubelet_trio.managers.shares import ClaimError
from kubelet_trio.model import PodUid

if TYPE_CHECKING:
    # Its types are many: they are loaded with the first claim.
    from lightkube.models.resource_v1 import ResourceClaim

__all__ = [
    "Claim",
    "ClaimDevice",
    "ClaimDriver",
    "ClaimDrivers",
    "ClaimError",
    "ClaimKey",
    "ClaimRef",
    "ClaimSource",
    "DeviceHealths",
]


class ClaimKey(NamedTuple):
    """The name of a ResourceClaim, in its namespace."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as a driver is asked for it."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> ClaimKey:
        return ClaimKey(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A device that a driver has prepared for a claim.

    Attributes:
        pool: of the device's ResourceSlice.
        device: its name in the pool.
        requests: the names of the claim's requests that it satisfies, as `request` or
            `request/subrequest`; empty: all of them.
        cdi_ids: the CDI devices that make it usable in a container, `vendor.com/class=name`.
        share_id: which share of a device that several claims consume (KEP-5075); "": all of it.
    """

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that pods of this node use.

    Attributes:
        ref: the claim.
        pods: the pods that use it and have not given it back.
        drivers: the prepared devices by driver; every driver of the allocation is there.
        is_prepared: whether all drivers have prepared it since this agent began. The checkpoint
            does not say: after a restart a new sandbox has its claims prepared again.
    """

    ref: ClaimRef
    pods: frozenset[PodUid] = frozenset()
    drivers: Mapping[str, tuple[ClaimDevice, ...]] = field(default_factory=dict)
    is_prepared: bool = False


class ClaimDriver(Protocol):
    """A DRA driver's plugin on this node, connected."""

    async def prepare(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[ClaimDevice, ...] | str]:
        """Prepare claims (NodePrepareResources), once or again.

        Returns for each claim's UID its devices, or the driver's error for this claim. What the
        driver leaves out is not there.

        Raises:
            ClaimError: the call failed as a whole, or took too long.
        """
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Undo the preparation of claims (NodeUnprepareResources), once or again.

        Returns for each claim's UID the driver's error; "": done. What the driver leaves out is not
        there.

        Raises:
            ClaimError: the call failed as a whole, or took too long.
        """
        ...


class ClaimDrivers(Protocol):
    """The drivers that are registered."""

    def find(self, driver: str) -> ClaimDriver:
        """Return a driver. Raises `ClaimError` if it is not registered."""
        ...


class DeviceHealths(Protocol):
    """What drivers say of their devices' health (NodeWatchResources, KEP-4680)."""

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return `Healthy`, `Unhealthy` or `Unknown`, and the driver's message ("": none)."""
        ...


class ClaimSource(Protocol):
    """Where the ResourceClaim objects are: the API server, or the node itself."""

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim as it is now.

        Raises:
            ClaimError: there is none of this name, or it cannot be read now.
        """
        ...

"""The calls of a DRA driver as plain values: for the rules and for any transport.

Source of the fields: k8s.io/kubelet/pkg/apis/dra and dra-health.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"
WATCH = "NodeWatchResources"

PLUGIN_TYPE = "DRAPlugin"  # of the plugins_registry
# Services, as a driver announces them.
V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"
HEALTH_V1, HEALTH_V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"

HEALTHY, UNHEALTHY, UNKNOWN = "Healthy", "Unhealthy", "Unknown"
HEALTH_NUMBERS = {UNKNOWN: 0, HEALTHY: 1, UNHEALTHY: 2}  # of the API's enum


@dataclass(frozen=True, slots=True)
class AskedClaim:
    """A claim of a call."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DraCall:
    """One call that reached a driver; `service` is the one that it used."""

    method: str
    service: str
    claims: tuple[AskedClaim, ...] = ()

    @property
    def uids(self) -> tuple[str, ...]:
        """The claims' UIDs, in the call's order."""
        return tuple(claim.uid for claim in self.claims)

    def __str__(self) -> str:
        return f"{self.service}/{self.method}({', '.join(self.uids)})"


@dataclass(frozen=True, slots=True)
class FakeClaimDevice:
    """A device as a driver prepares it for a claim.

    Attributes:
        name: of the device, in its pool.
        pool: of the device's ResourceSlice; "": the driver's own.
        requests: the names of the claim's requests that it is for; empty: all.
        cdi_ids: None: the driver makes one of the claim and the device.
        share_id: v1 only; "": none.
    """

    name: str
    pool: str = ""
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] | None = None
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class FakeDeviceHealth:
    """What a driver says of a device's health; `timeout` in seconds, 0: not said."""

    name: str
    status: str = HEALTHY
    message: str = ""
    timeout: int = 0
    pool: str = ""  # "": the driver's own


def dra_call(method: str, service: str, request: Any) -> DraCall:
    """Read a request of any protobuf library."""
    if method == WATCH:
        return DraCall(method, service)
    claims = tuple(AskedClaim(c.namespace, c.name, c.uid) for c in request.claims)
    return DraCall(method, service, claims)

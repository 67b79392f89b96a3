"""Which claims a pod uses, whether it may, and which devices of them each container gets.

Admin access (`adminAccess` of a request) needs nothing here: the API server decides who may ask for
it, and the driver what it means.

Sources: k8s.io/dynamic-resource-allocation/resourceclaim, GetResources in pkg/kubelet/cm/dra, and
KEP-4816 (prioritized lists), KEP-5004 (extended resources).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lightkube.models.core_v1 import Container, Pod, PodResourceClaim

from kubelet_trio.managers.claims.types import (
    Claim,
    ClaimDevice,
    ClaimError,
    ClaimKey,
    ClaimRef,
    DeviceHealths,
)
from kubelet_trio.managers.shares import ClaimHealth
from kubelet_trio.model import is_claimable, metadata, parse_quantity, pod_key, pod_uid, spec

if TYPE_CHECKING:
    from lightkube.models.resource_v1 import ResourceClaim


class PodClaim(NamedTuple):
    """A claim that a pod uses.

    Attributes:
        name: the pod's name for it, in `spec.resourceClaims`; "" for the claim of its extended
            resources.
        key: the ResourceClaim.
        is_own: whether it was made for the pod from a template, and has to belong to it.
    """

    name: str
    key: ClaimKey
    is_own: bool


class Asked(NamedTuple):
    """What a container uses of a claim: a request of it, "": all of it."""

    claim: PodClaim
    request: str


def pod_claims(pod: Pod, *, extended: bool = True) -> tuple[PodClaim, ...]:
    """Return the claims that a pod uses, in the order of its spec.

    Args:
        pod: the pod, with the status that the API server has.
        extended: whether extended resources may come from claims (the gate DRAExtendedResource).

    Raises:
        ClaimError: a claim has not been made yet, or the spec does not name it.
    """
    found = [_pod_claim(pod, claim) for claim in spec(pod).resourceClaims or ()]
    if extended:
        found.append(_extended_claim(pod))
    return tuple(claim for claim in found if claim is not None)


def _pod_claim(pod: Pod, claim: PodResourceClaim) -> PodClaim | None:
    """Return a claim; None if the template needs none for this pod. Raises `ClaimError`."""
    key = pod_key(pod)
    if claim.resourceClaimName is not None:
        return PodClaim(claim.name, ClaimKey(key.namespace, claim.resourceClaimName), is_own=False)
    if claim.resourceClaimTemplateName is None:
        raise ClaimError(
            f'pod "{key}", spec.resourceClaim "{claim.name}": none of the supported fields are set'
        )
    for made in (pod.status.resourceClaimStatuses if pod.status is not None else None) or ():
        if made.name == claim.name:
            if made.resourceClaimName is None:
                return None
            name = ClaimKey(key.namespace, made.resourceClaimName)
            return PodClaim(claim.name, name, is_own=True)
    raise ClaimError(f'pod "{key}": ResourceClaim not created yet')


def _extended_claim(pod: Pod) -> PodClaim | None:
    status = pod.status.extendedResourceClaimStatus if pod.status is not None else None
    if status is None:
        return None
    key = ClaimKey(pod_key(pod).namespace, status.resourceClaimName)
    return PodClaim("", key, is_own=False)


def check_claim(pod: Pod, used: PodClaim, claim: ResourceClaim) -> Claim:
    """Return a claim with its drivers, which a pod may use.

    Raises:
        ClaimError: it is another pod's, is not reserved for the pod, or not allocated.
    """
    found, name = claim.metadata, used.key.name
    assert found is not None  # of an object of the API
    if used.is_own and not _is_owner(pod, claim):
        raise ClaimError(
            f"ResourceClaim {found.namespace}/{found.name} was not created for Pod {pod_key(pod)} "
            "(Pod is not owner)"
        )
    reserved = (claim.status.reservedFor if claim.status is not None else None) or ()
    if all(user.uid != pod_uid(pod) for user in reserved):
        raise ClaimError(
            f"pod {metadata(pod).name} ({pod_uid(pod)}) is not allowed to use ResourceClaim {name} "
            f"({found.uid})"
        )
    ref = ClaimRef(used.key.namespace, name, found.uid or "")
    drivers = allocated_drivers(claim)
    if drivers is None:
        raise ClaimError(f"ResourceClaim {name}: not allocated")
    return Claim(ref, drivers=dict.fromkeys(drivers, ()))


def _is_owner(pod: Pod, claim: ResourceClaim) -> bool:
    found = claim.metadata
    if found is None or found.namespace != pod_key(pod).namespace:
        return False
    # IsControlledBy: the first controller counts.
    controllers = (ref.uid for ref in found.ownerReferences or () if ref.controller)
    return next(controllers, None) == pod_uid(pod)


def allocated_drivers(claim: ResourceClaim) -> tuple[str, ...] | None:
    """Return the drivers of a claim's devices, sorted; None if it is not allocated."""
    allocation = claim.status.allocation if claim.status is not None else None
    if allocation is None:
        return None
    results = allocation.devices.results if allocation.devices is not None else None
    return tuple(sorted({result.driver for result in results or ()}))


def allocated_devices(claim: ResourceClaim) -> tuple[str, ...]:
    """Return a claim's devices as `driver/pool/device`, sorted."""
    allocation = claim.status.allocation if claim.status is not None else None
    devices = allocation.devices if allocation is not None else None
    results = (devices.results if devices is not None else None) or ()
    return tuple(sorted(f"{each.driver}/{each.pool}/{each.device}" for each in results))


def asked_by(pod: Pod, container: Container, *, extended: bool = True) -> Iterator[Asked]:
    """Yield what a container of any kind uses of the pod's claims.

    Raises `ClaimError` as `pod_claims` does.
    """
    asked = (container.resources.claims if container.resources is not None else None) or ()
    for claim in pod_claims(pod, extended=False) if asked else ():
        for each in asked:
            if each.name == claim.name:
                yield Asked(claim, each.request or "")
    if extended:
        yield from _asked_extended(pod, container)


def _asked_extended(pod: Pod, container: Container) -> Iterator[Asked]:
    claim = _extended_claim(pod)
    if claim is None or pod.status is None or pod.status.extendedResourceClaimStatus is None:
        return
    requests = (container.resources.requests if container.resources is not None else None) or {}
    for mapping in pod.status.extendedResourceClaimStatus.requestMappings:
        amount = requests.get(mapping.resourceName)
        if (
            mapping.containerName == container.name
            and amount is not None
            and parse_quantity(amount) != 0
            and is_claimable(mapping.resourceName)
        ):
            yield Asked(claim, mapping.requestName)


def devices_for(claim: Claim, request: str) -> Iterator[tuple[str, ClaimDevice]]:
    """Yield the driver and each prepared device of a claim that serve a request, "": all."""
    for driver, devices in sorted(claim.drivers.items()):
        for device in devices:
            if not request or not device.requests or _serves(device.requests, request):
                yield driver, device


def _serves(names: tuple[str, ...], request: str) -> bool:
    # Of a request with alternatives, `request/subrequest`, either side may name the request alone:
    # upstream's library for drivers leaves the alternative out, and a pod need not know it.
    return any(
        name == request or name.startswith(f"{request}/") or request.startswith(f"{name}/")
        for name in names
    )


def cdi_ids(
    claims: Mapping[ClaimKey, Claim], pod: Pod, container: Container, *, extended: bool = True
) -> tuple[str, ...]:
    """Return the CDI devices that a container gets, each once.

    Raises:
        ClaimError: a claim is not known: it was not prepared.
    """
    found: dict[str, None] = {}
    for used, request in asked_by(pod, container, extended=extended):
        claim = claims.get(used.key)
        if claim is None:
            raise ClaimError(
                f"internal error: unable to get claim info for ResourceClaim {used.key.name} "
                f"in namespace {used.key.namespace}"
            )
        for _, device in devices_for(claim, request):
            found.update(dict.fromkeys(device.cdi_ids))
    return tuple(found)


def claim_health(
    claims: Mapping[ClaimKey, Claim],
    pod: Pod,
    container: Container,
    healths: DeviceHealths,
    *,
    messages: bool = True,
) -> tuple[ClaimHealth, ...]:
    """Return the health of a container's devices, for each claim or request that it names.

    Of devices with the same first CDI name, the first is shown, as upstream. `messages` says
    whether messages are wanted (ResourceHealthStatusMessage). Raises `ClaimError` as `pod_claims`
    does.
    """
    found = []
    # Devices of extended resources: KEP-5004 leaves their health to a later release.
    for used, request in asked_by(pod, container, extended=False):
        claim = claims.get(used.key)
        if claim is None:
            continue
        name = f"claim:{used.name}/{request}" if request else f"claim:{used.name}"
        devices: dict[str, tuple[str, str]] = {}
        for driver, device in devices_for(claim, request):
            health, message = healths.health(driver, device.pool, device.device)
            plain = f"{driver}/{device.pool}/{device.device}"
            shown = next(iter(device.cdi_ids), plain)
            devices.setdefault(shown, (health, message if messages else ""))
        if devices:
            found.append(ClaimHealth(name, devices))
    return tuple(found)

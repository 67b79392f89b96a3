"""Pods that use claims, and the claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import (
    Container,
    ContainerExtendedResourceRequest,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from lightkube.models.core_v1 import ResourceClaim as ContainerClaim
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.resource_v1 import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
)

GPUS, NICS = "gpu.example.com", "nic.example.com"


def using(name: str, *claims: str, kind: str = "") -> Container:
    """Return a container that uses claims of its pod, each `claim` or `claim:request`."""
    asked = [
        ContainerClaim(name=claim.partition(":")[0], request=claim.partition(":")[2] or None)
        for claim in claims
    ]
    return Container(
        name=name,
        restartPolicy="Always" if kind == "sidecar" else None,
        resources=ResourceRequirements(claims=asked or None),
    )


def pod_using(
    *claims: str,
    uid: str = "p1",
    containers: Iterable[Container] = (),
    made: Mapping[str, str | None] | None = None,
    extended: PodExtendedResourceClaimStatus | None = None,
) -> Pod:
    """Return a pod that uses claims.

    Args:
        claims: each `name=claim`; `name=` comes from a template.
        uid: its UID, and its name.
        containers: those besides `main`, which uses all of its claims.
        made: the claims that were made from templates, by the pod's name for it.
        extended: the claim of its extended resources.
    """
    named = [claim.partition("=") for claim in claims]
    main = using("main", *(name for name, _, _ in named))
    statuses = [PodResourceClaimStatus(name, claim) for name, claim in (made or {}).items()]
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="ns", uid=uid),
        spec=PodSpec(
            containers=[main, *containers],
            resourceClaims=[
                PodResourceClaim(
                    name=name,
                    resourceClaimName=claim or None,
                    resourceClaimTemplateName=None if claim else "template",
                )
                for name, _, claim in named
            ]
            or None,
        ),
        status=PodStatus(
            resourceClaimStatuses=statuses or None, extendedResourceClaimStatus=extended
        ),
    )


def extended_by(claim: str, **requests: str) -> PodExtendedResourceClaimStatus:
    """Return a status in which `claim` gives containers devices; `container=resource request`."""
    mappings = [
        ContainerExtendedResourceRequest(
            containerName=name, resourceName=each.split()[0], requestName=each.split()[1]
        )
        for name, each in requests.items()
    ]
    return PodExtendedResourceClaimStatus(requestMappings=mappings, resourceClaimName=claim)


def claim_object(
    name: str,
    *drivers: str,
    uid: str = "",
    users: Iterable[str] = ("p1",),
    owner: str = "",
    is_allocated: bool = True,
) -> ResourceClaim:
    """Return a claim with a device of each driver, reserved for pods by their UIDs."""
    results = [
        DeviceRequestAllocationResult(device="d0", driver=driver, pool="pool", request="r0")
        for driver in drivers
    ]
    owners = [OwnerReference("v1", "Pod", owner, owner, controller=True)] if owner else None
    return ResourceClaim(
        spec=ResourceClaimSpec(),
        metadata=ObjectMeta(
            name=name, namespace="ns", uid=uid or f"uid-{name}", ownerReferences=owners
        ),
        status=ResourceClaimStatus(
            reservedFor=[ResourceClaimConsumerReference(u, "pods", u) for u in users],
            allocation=(
                AllocationResult(devices=DeviceAllocationResult(results=results))
                if is_allocated
                else None
            ),
        ),
    )

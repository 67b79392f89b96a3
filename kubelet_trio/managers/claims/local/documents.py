"""Which claims pods use, and the claims that documents make. Pure.

A claim of a template has a name that follows from its pod's UID: the pod's status can name it
before it exists, and again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from lightkube.models.core_v1 import Pod, PodResourceClaim, PodResourceClaimStatus, PodStatus
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.resource_v1 import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

from kubelet_trio.managers.claims.types import ClaimError, ClaimKey
from kubelet_trio.model import blake2b, pod_key, pod_uid, spec

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"  # annotation: PodResourceClaimAnnotation
_LONGEST = 253 - 12  # characters of a name, without what makes it unique


@dataclass(frozen=True, slots=True)
class ClaimDocuments:
    """The documents beside the pods' manifests that claims need."""

    claims: Mapping[ClaimKey, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[ClaimKey, ResourceClaimTemplate] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    slices: tuple[ResourceSlice, ...] = ()


class Use(NamedTuple):
    """A claim that a pod uses.

    Attributes:
        name: the pod's own name for it.
        key: the claim.
        template: that it is made from; None: it is a document.
    """

    name: str
    key: ClaimKey
    template: ClaimKey | None


def claim_documents(objects: Iterable[object]) -> ClaimDocuments:
    """Sort documents by their kinds; others are left out."""
    claims: dict[ClaimKey, ResourceClaim] = {}
    templates: dict[ClaimKey, ResourceClaimTemplate] = {}
    classes: dict[str, DeviceClass] = {}
    slices: list[ResourceSlice] = []
    for value in objects:
        if isinstance(value, ResourceClaim):
            claims[_key(value.metadata)] = value
        elif isinstance(value, ResourceClaimTemplate):
            templates[_key(value.metadata)] = value
        elif isinstance(value, DeviceClass):
            classes[_key(value.metadata).name] = value
        elif isinstance(value, ResourceSlice):
            slices.append(value)
    return ClaimDocuments(claims, templates, classes, tuple(slices))


def _key(meta: ObjectMeta | None) -> ClaimKey:
    meta = meta or ObjectMeta()
    return ClaimKey(meta.namespace or "default", meta.name or "")


def uses(pod: Pod) -> Iterator[Use]:
    """Yield the claims that a pod uses, in the order of its spec."""
    key = pod_key(pod)
    for claim in spec(pod).resourceClaims or ():
        if claim.resourceClaimName:
            yield Use(claim.name, ClaimKey(key.namespace, claim.resourceClaimName), None)
        elif claim.resourceClaimTemplateName:
            template = ClaimKey(key.namespace, claim.resourceClaimTemplateName)
            yield Use(claim.name, ClaimKey(key.namespace, made_name(pod, claim)), template)


def made_name(pod: Pod, claim: PodResourceClaim) -> str:
    """Return the name of the claim that is made of a template for a pod."""
    unique = blake2b(f"{pod_uid(pod)}/{claim.name}".encode(), digest_size=4).hexdigest()
    # Cut at the end of a label's characters: a name must not end in a dot before the dash.
    return f"{pod_key(pod).name}-{claim.name}"[:_LONGEST].rstrip(".-") + f"-{unique}"


def with_claim_statuses(pod: Pod) -> Pod:
    """Return a static pod with the names of the claims that are made of templates for it."""
    made = [
        PodResourceClaimStatus(name=use.name, resourceClaimName=use.key.name)
        for use in uses(pod)
        if use.template is not None
    ]
    if not made:
        return pod
    status = msgspec.structs.replace(pod.status or PodStatus(), resourceClaimStatuses=made)
    return msgspec.structs.replace(pod, status=status)


def make_claim(use: Use, pod: Pod, documents: ClaimDocuments) -> ResourceClaim:
    """Return a claim as its document or its template makes it, without UID and status.

    Raises ClaimError: there is no such document.
    """
    if use.template is None:
        found = documents.claims.get(use.key)
        if found is None:
            raise ClaimError(
                f"ResourceClaim {use.key.name}: no document of this name in namespace "
                f"{use.key.namespace}"
            )
        meta = found.metadata or ObjectMeta()
        made = ObjectMeta(
            name=use.key.name,
            namespace=use.key.namespace,
            labels=meta.labels,
            annotations=meta.annotations,
        )
        return ResourceClaim(metadata=made, spec=found.spec)
    template = documents.templates.get(use.template)
    if template is None:
        raise ClaimError(
            f"ResourceClaim {use.key.name}: no document of ResourceClaimTemplate "
            f"{use.template.name} in namespace {use.template.namespace}"
        )
    inner = template.spec.metadata if template.spec is not None else None
    made = ObjectMeta(
        name=use.key.name,
        namespace=use.key.namespace,
        labels=inner.labels if inner is not None else None,
        annotations={
            **((inner.annotations if inner is not None else None) or {}),
            POD_CLAIM: use.name,
        },
        ownerReferences=[
            OwnerReference(
                apiVersion="v1",
                kind="Pod",
                name=pod_key(pod).name,
                uid=pod_uid(pod),
                controller=True,
                blockOwnerDeletion=True,
            )
        ],
    )
    body = template.spec.spec if template.spec is not None else None
    return ResourceClaim(metadata=made, spec=body)

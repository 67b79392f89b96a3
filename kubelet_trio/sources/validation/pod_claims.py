"""Validates a pod's claims of devices, and what its containers use of them."""

from __future__ import annotations

from collections.abc import Collection

from lightkube.models.core_v1 import Container, PodSpec

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors


def validate(errors: FieldErrors, spec: PodSpec) -> None:
    """Add the errors of `spec.resourceClaims` and of `resources.claims` of the containers."""
    names: set[str] = set()
    for index, claim in enumerate(spec.resourceClaims or ()):
        path = f"spec.resourceClaims[{index}]"
        errors.need(f"{path}.name", claim.name, syntax.dns_label)
        if claim.name in names:
            errors.duplicate(f"{path}.name", claim.name)
        names.add(claim.name)
        given = {
            "resourceClaimName": claim.resourceClaimName,
            "resourceClaimTemplateName": claim.resourceClaimTemplateName,
        }
        if sum(value is not None for value in given.values()) != 1:
            errors.invalid(path, claim.name, f"must specify one of: `{'`, `'.join(given)}`")
        for field, value in given.items():
            if value is not None:
                errors.need(f"{path}.{field}", value, syntax.dns_subdomain)
    for field in ("initContainers", "containers"):
        for index, container in enumerate(getattr(spec, field) or ()):
            _used(errors, container, names, f"spec.{field}[{index}].resources.claims")


def _used(errors: FieldErrors, container: Container, names: Collection[str], path: str) -> None:
    seen: set[tuple[str, str]] = set()
    for index, claim in enumerate((container.resources and container.resources.claims) or ()):
        if not claim.name:
            errors.required(f"{path}[{index}].name")
        elif claim.name not in names:
            errors.not_found(f"{path}[{index}].name", claim.name)
        elif (claim.name, claim.request or "") in seen:
            errors.duplicate(f"{path}[{index}]", claim.name)
        seen.add((claim.name, claim.request or ""))

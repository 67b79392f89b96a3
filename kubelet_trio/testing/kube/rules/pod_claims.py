"""Rules of the claims of a pod: in its spec, in those of its containers, and in its status.

Source: validatePodResourceClaims and validateResourceClaimNames in pkg/apis/core/validation.
"""

from __future__ import annotations

from kubelet_trio.testing.kube.rules.formats import dns_label, subdomain
from kubelet_trio.testing.kube.rules.problems import Problems
from kubelet_trio.testing.kube.store import Json

_LISTS = ("initContainers", "containers", "ephemeralContainers")


def check_pod_claims(problems: Problems, spec: Json) -> None:
    """Check `spec.resourceClaims`, and what containers name of it."""
    names = list[str]()
    for at, claim in enumerate(spec.get("resourceClaims") or ()):
        path, name = f"spec.resourceClaims[{at}]", claim.get("name") or ""
        if not name:
            problems.required(f"{path}.name")
        elif name in names:
            problems.duplicate(f"{path}.name", name)
        for text in dns_label(name) if name and name not in names else ():
            problems.invalid(f"{path}.name", name, text)
        names += [name] if name else []
        _check_source(problems, path, claim)
    for field in _LISTS:
        for at, container in enumerate(spec.get(field) or ()):
            claims = (container.get("resources") or {}).get("claims") or []
            _check_names(problems, f"spec.{field}[{at}].resources.claims", claims, names)


def check_claim_statuses(problems: Problems, status: Json, spec: Json) -> None:
    """Check which claims a pod's status names, those of its extended resources too."""
    known = [claim.get("name") for claim in spec.get("resourceClaims") or ()]
    seen = list[str]()
    for at, told in enumerate(status.get("resourceClaimStatuses") or ()):
        path, name = f"status.resourceClaimStatuses[{at}].name", told.get("name") or ""
        if name not in known:
            text = "must match the name of an entry in `spec.resourceClaims`"
            problems.invalid(path, name, text)
        if name in seen:
            problems.duplicate(path, name)
        seen.append(name)
        for text in subdomain(told["resourceClaimName"]) if told.get("resourceClaimName") else ():
            problems.invalid(path, told["resourceClaimName"], text)
    if (extended := status.get("extendedResourceClaimStatus")) is not None:
        _check_extended(problems, extended, spec)


def _check_source(problems: Problems, path: str, claim: Json) -> None:
    fields = ("resourceClaimName", "resourceClaimTemplateName")
    given = [field for field in fields if claim.get(field) is not None]
    if len(given) > 1:
        text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        problems.invalid(path, claim, text)
    elif not given:
        text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        problems.invalid(path, claim, text)
    for field in given:
        for text in subdomain(claim[field]):
            problems.invalid(f"{path}.{field}", claim[field], text)


def _check_names(problems: Problems, path: str, claims: list[Json], known: list[str]) -> None:
    # A claim may be named for several of its requests, or once for all of them.
    seen = set[tuple[str, str]]()
    for at, claim in enumerate(claims):
        name, request = claim.get("name") or "", claim.get("request") or ""
        if not name:
            problems.required(f"{path}[{at}].name")
            continue
        if (name, request) in seen or (name, "") in seen:
            problems.duplicate(f"{path}[{at}]", name)
        seen.add((name, request))
        if name not in known:
            listed = f": {', '.join(sorted(known))}" if known else " which is empty"
            text = f"must be one of the names in pod.spec.resourceClaims{listed}"
            problems.not_found(f"{path}[{at}]", name, text)
        for text in dns_label(request) if request else ():
            problems.invalid(f"{path}[{at}].request", request, text)


def _check_extended(problems: Problems, extended: Json, spec: Json) -> None:
    path = "status.extendedResourceClaimStatus"
    for text in subdomain(extended.get("resourceClaimName") or ""):
        problems.invalid(f"{path}.resourceClaimName", extended.get("resourceClaimName"), text)
    containers = {c.get("name"): c for f in _LISTS[:2] for c in spec.get(f) or ()}
    mappings = extended.get("requestMappings") or []
    if not mappings:
        problems.required(f"{path}.requestMappings")
    for at, mapping in enumerate(mappings):
        where, name = f"{path}.requestMappings[{at}]", mapping.get("containerName") or ""
        if name not in containers:
            text = (
                "must match the name of an entry in spec.initContainers.name or "
                "spec.containers.name"
            )
            problems.invalid(f"{where}.containerName", name, text)
            continue
        asked = (containers[name].get("resources") or {}).get("requests") or {}
        if (resource := mapping.get("resourceName") or "") not in asked:
            text = (
                "must match the extended resource of an entry in spec.initContainers.resources or "
                "spec.containers.resources"
            )
            problems.invalid(f"{where}.resourceName", resource, text)
        if not mapping.get("requestName"):
            problems.required(f"{where}.requestName")

"""Refuses pod fields that this agent does not support yet, or that static pods may not use.

A refused field is better than one that is accepted and ignored. Each table lists fields and
the reason; a new feature deletes its lines. Fields that are not listed work, or do not concern
the node (scheduling). Manifests are refused when they are read, API pods by admission.

Paths start at the Pod: `[]` is every item of a list, `<c>` each of the three container lists.
An absent or null field requests nothing; `inert` lists other values that request nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.sources.errors import FieldError

_EMPTY: tuple[Any, ...] = ({}, [], "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a field is refused, and which of its values are allowed."""

    why: str
    inert: tuple[Any, ...] = ()

    def refuses(self, value: Any) -> bool:
        return value not in self.inert


def _not_yet(what: str, *inert: Any) -> Refusal:
    return Refusal(f"{what} not supported by this agent yet", inert)


def _api(resource: str, *inert: Any) -> Refusal:
    # The Go kubelet's words (PreventStaticPodAPIReferences), which people search for.
    return Refusal(f"static pods may not reference {resource}", inert)


_TCP_HOOK = "lifecycle hooks cannot be TCP connections: use exec, httpGet or sleep"
_SECCOMP = Refusal("no kubelet obeys it since Kubernetes 1.27: use securityContext.seccompProfile")
_RESOURCES = Refusal(
    "resources other than cpu, memory, huge pages and ephemeral-storage have a domain: "
    "example.com/name"
)
_POD_RESOURCES = Refusal("a pod as a whole is given cpu, memory and huge pages alone")
_USER = _not_yet("owners of single files are")


def _gone(version: str, instead: str = "the CSI driver of the storage") -> Refusal:
    # The versions are those of the API server's warnings (pkg/api/pod/warnings.go).
    return Refusal(
        f"no kubelet mounts volumes of this type since Kubernetes {version}: use {instead}"
    )


_CLONE = "an emptyDir and an init container that clones into it"

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = (*_PROBES, "lifecycle.postStart", "lifecycle.preStop")


def _of_handlers(
    field: str, refusal: Refusal, handlers: tuple[str, ...] = _HANDLERS
) -> dict[str, Refusal]:
    return {f"spec.<c>[].{handler}.{field}": refusal for handler in handlers}


NOT_YET: Mapping[str, Refusal] = {
    **_of_handlers("httpGet.protocol", _not_yet("protocols other than HTTP/1.1 are")),
    **_of_handlers("grpc.mode", _not_yet("gRPC probes over TLS are", "Plaintext"), _PROBES),
    "spec.<c>[].volumeMounts[].bindMountOptions": _not_yet("bind mount options are", *_EMPTY),
    "spec.evictionResponders": _not_yet("eviction responders are", *_EMPTY),
    "spec.resources.claims": _not_yet("resource claims are", *_EMPTY),
    "spec.schedulingGroup": _not_yet("scheduling groups are", *_EMPTY),
    "spec.volumes[].emptyDir.mode": _not_yet("the mode of emptyDir volumes is"),
    "spec.volumes[].configMap.defaultUser": _USER,
    "spec.volumes[].configMap.items[].user": _USER,
    "spec.volumes[].downwardAPI.defaultUser": _USER,
    "spec.volumes[].downwardAPI.items[].user": _USER,
    "spec.volumes[].projected.defaultUser": _USER,
    "spec.volumes[].projected.sources[].clusterTrustBundle.user": _USER,
    "spec.volumes[].projected.sources[].podCertificate.user": _USER,
    "spec.volumes[].projected.sources[].configMap.items[].user": _USER,
    "spec.volumes[].projected.sources[].downwardAPI.items[].user": _USER,
    "spec.volumes[].projected.sources[].secret.items[].user": _USER,
    "spec.volumes[].secret.defaultUser": _USER,
    "spec.volumes[].secret.items[].user": _USER,
    "spec.volumes[].cephfs": _gone("1.31"),
    "spec.volumes[].flocker": _gone("1.25"),
    # Off by default since 1.33, and locked since 1.36 (KEP-5040).
    "spec.volumes[].gitRepo": _gone("1.36", _CLONE),
    "spec.volumes[].glusterfs": _gone("1.26"),
    "spec.volumes[].photonPersistentDisk": _gone("1.16", "volumes of another type"),
    "spec.volumes[].quobyte": _gone("1.25"),
    "spec.volumes[].rbd": _gone("1.31"),
    "spec.volumes[].scaleIO": _gone("1.22"),
    "spec.volumes[].storageos": _gone("1.25"),
}

# The API accepts these; no kubelet supports them (pkg/kubelet/lifecycle/handlers.go).
NEVER: Mapping[str, Refusal] = {
    "spec.<c>[].lifecycle.postStart.tcpSocket": Refusal(_TCP_HOOK),
    "spec.<c>[].lifecycle.preStop.tcpSocket": Refusal(_TCP_HOOK),
}

# Things that only an API server has. These entries stay.
STATIC_POD: Mapping[str, Refusal] = {
    "metadata.deletionTimestamp": Refusal("a manifest cannot ask for its pod's deletion"),
    "metadata.deletionGracePeriodSeconds": Refusal("a manifest cannot ask for deletion"),
    "spec.ephemeralContainers": Refusal("Forbidden: cannot be set on create", ([],)),
    "spec.imagePullSecrets": _api("secrets", []),
    "spec.readinessGates": Refusal("no component sets conditions of a static pod", _EMPTY),
    "spec.resourceClaims": _api("resourceclaims", []),
    "spec.<c>[].resources.claims": _api("resourceclaims", *_EMPTY),
    "spec.schedulingGates": Refusal(
        "Forbidden: a pod that has its node cannot wait for one", ([],)
    ),
    "spec.serviceAccount": _api("serviceaccounts", ""),
    "spec.serviceAccountName": _api("serviceaccounts", ""),
    "spec.volumes[].ephemeral": _api("persistentvolumeclaims"),
    "spec.volumes[].projected.sources[].clusterTrustBundle": _api("clustertrustbundles"),
    "spec.volumes[].projected.sources[].podCertificate": _api("podcertificaterequests"),
    "spec.volumes[].projected.sources[].serviceAccountToken": _api("serviceaccounts"),
}

# Refused in pods of an API server while the gate is off; manifests may not use them anyway.
_NO_CLAIMS: Mapping[str, Refusal] = {
    "spec.resourceClaims": Refusal("the feature gate DynamicResourceAllocation is off", ([],)),
}
CLUSTER_POD: Mapping[str, Refusal] = NOT_YET

_RESOURCE_NAMES = frozenset(("cpu", "memory"))
_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")

# Annotations that predate the fields of the same meaning, and the mirror pod's mark.
_ANNOTATIONS: Mapping[str, Refusal] = {
    "container.seccomp.security.alpha.kubernetes.io/": _SECCOMP,
    "seccomp.security.alpha.kubernetes.io/": _SECCOMP,
    "kubernetes.io/config.mirror": Refusal("Forbidden: only the agent marks mirror pods"),
}


def check_support(document: dict[str, Any]) -> list[FieldError]:
    """Return every use of a refused field in a document from `check_pod`."""
    errors = []
    for pattern, refusal in [*STATIC_POD.items(), *NEVER.items(), *NOT_YET.items()]:
        for path, value in _find(document, pattern):
            if refusal.refuses(value):
                errors.append(FieldError(path, refusal.why))
    return errors + list(_resource_errors(document)) + list(_annotation_errors(document))


def check_ephemeral_support(document: dict[str, Any], index: int) -> list[FieldError]:
    """Return every use of a refused field in an ephemeral container, the `index`-th of its pod."""
    inside: dict[str, Any] = {"spec": {"ephemeralContainers": [{}] * index + [document]}}
    return [
        FieldError(path, refusal.why)
        for pattern, refusal in NOT_YET.items()
        for path, value in _find(inside, pattern)
        if refusal.refuses(value)
    ]


def check_cluster_pod(pod: Pod, *, claims: bool = True) -> list[FieldError]:
    """Return every use of a field that this node refuses in a pod of an API server.

    `claims` says whether it may use resource claims (the gate DynamicResourceAllocation).
    """
    refused = CLUSTER_POD if claims else {**CLUSTER_POD, **_NO_CLAIMS}
    # Resources that the node does not offer are left to the scheduler, as in the Go kubelet.
    document = msgspec.to_builtins(pod)
    return [
        FieldError(path, refusal.why)
        for pattern, refusal in refused.items()
        for path, value in _find(document, pattern)
        if refusal.refuses(value)
    ]


def _resource_errors(document: dict[str, Any]) -> Iterator[FieldError]:
    for list_name in ("limits", "requests"):
        for path, amounts in _find(document, f"spec.<c>[].resources.{list_name}"):
            known = (*_RESOURCE_NAMES, "ephemeral-storage")
            yield from _unknown(amounts, path, known, _RESOURCES, extended=True)
        for path, amounts in _find(document, f"spec.resources.{list_name}"):
            yield from _unknown(amounts, path, _RESOURCE_NAMES, _POD_RESOURCES)


def _unknown(
    amounts: Any, path: str, known: Collection[str], refusal: Refusal, *, extended: bool = False
) -> Iterator[FieldError]:
    for name in amounts if isinstance(amounts, dict) else ():
        if extended and "/" in name:
            continue  # of a device plugin, or of nobody: validated with the others
        if name not in known and not name.startswith("hugepages-"):
            yield FieldError(f"{path}[{name}]", refusal.why)


def _annotation_errors(document: dict[str, Any]) -> Iterator[FieldError]:
    for path, marks in _find(document, "metadata.annotations"):
        for key in marks if isinstance(marks, dict) else ():
            for prefix, refusal in _ANNOTATIONS.items():
                if key.startswith(prefix):
                    yield FieldError(f"{path}[{key}]", refusal.why)


def _find(document: dict[str, Any], pattern: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything in the document that matches the pattern."""
    patterns = (
        [pattern.replace("<c>", name) for name in _CONTAINER_LISTS]
        if "<c>" in pattern
        else [pattern]
    )
    for each in patterns:
        yield from _descend(document, each.split("."), "")


def _descend(value: Any, steps: list[str], path: str) -> Iterator[tuple[str, Any]]:
    if not steps:
        if value is not None:
            yield path, value
        return
    if not isinstance(value, dict):
        return
    name = steps[0].removesuffix("[]")
    where = f"{path}.{name}" if path else name
    inner = value.get(name)
    if not steps[0].endswith("[]"):
        yield from _descend(inner, steps[1:], where)
        return
    for index, item in enumerate(inner if isinstance(inner, list) else ()):
        yield from _descend(item, steps[1:], f"{where}[{index}]")

"""The validation of API server 1.36 for objects that a node writes.

    wire         errors of the decoder: times, quantities, integers too large (400, or 422)
    meta         names, labels, annotations, owners of every kind
    node, pod    these kinds
    resources    requests and limits in the spec of a pod
    resize       what the subresource `resize` of a pod may change
    others       kinds with few rules
    claims       ResourceClaim, ResourceClaimTemplate, DeviceClass; claim_status: a claim's status
    slices       ResourceSlice
    pod_claims   the claims of a pod

`tests/testing/test_kube_rules.py` compares them with responses of a real 1.36.2 server. Pod specs
are not validated at creation, because nodes do not write them, but for their claims; resources are
when they change. The rules of resource.k8s.io are from upstream's source, not from a record.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubelet_trio.kube import Resource
from kubelet_trio.testing.kube.rules.claim_status import (
    check_admin,
    check_claim_status,
    prepare_claim_status,
)
from kubelet_trio.testing.kube.rules.claims import (
    check_claim,
    check_class,
    check_same_spec,
    check_template,
    default_claim,
)
from kubelet_trio.testing.kube.rules.meta import check_changeable, check_meta, check_name
from kubelet_trio.testing.kube.rules.node import check_changed_node, check_new_node, default_node
from kubelet_trio.testing.kube.rules.others import (
    check_binding,
    check_changed_csi_node,
    check_changed_request,
    check_csi_node,
    check_event,
    check_eviction,
    check_lease,
    check_request,
    check_token_request,
    check_volume_attachment,
    default_attachment,
    default_csi_driver,
    default_csi_node,
)
from kubelet_trio.testing.kube.rules.pod import (
    check_changed_pod,
    check_new_pod,
    check_status,
    default_status,
)
from kubelet_trio.testing.kube.rules.problems import Problems, invalid
from kubelet_trio.testing.kube.rules.resize import check_resize
from kubelet_trio.testing.kube.rules.slices import check_changed_slice, check_slice
from kubelet_trio.testing.kube.rules.wire import check_body, check_patched, go_value
from kubelet_trio.testing.kube.store import Json

__all__ = [
    "Problems",
    "check_admin",
    "check_changed",
    "check_name",
    "check_new",
    "check_posted",
    "check_result",
    "check_sent",
    "default",
    "go_value",
    "invalid",
    "prepare_claim_status",
]

_RESOURCE = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
_MODULES = {
    "CSINode": "storage_v1",
    "CertificateSigningRequest": "certificates_v1",
    "Event": "core_v1",
    "Lease": "coordination_v1",
    "Node": "core_v1",
    "Pod": "core_v1",
    **dict.fromkeys(_RESOURCE, "resource_v1"),
}
_NEW: dict[str, Callable[[Problems, Json], None]] = {
    "CSINode": check_csi_node,
    "CertificateSigningRequest": check_request,
    "DeviceClass": check_class,
    "Event": check_event,
    "Lease": check_lease,
    "Node": check_new_node,
    "Pod": check_new_pod,
    "ResourceClaim": check_claim,
    "ResourceClaimTemplate": check_template,
    "ResourceSlice": check_slice,
    "VolumeAttachment": check_volume_attachment,
}
_CHANGED: dict[str, Callable[[Problems, Json, Json], None]] = {
    "CSINode": check_changed_csi_node,
    "CertificateSigningRequest": check_changed_request,
    "DeviceClass": lambda problems, _old, new: check_class(problems, new),
    "Lease": lambda problems, _old, new: check_lease(problems, new),
    "Node": check_changed_node,
    "Pod": check_changed_pod,
    "ResourceClaim": check_same_spec,
    "ResourceClaimTemplate": check_same_spec,
    "ResourceSlice": check_changed_slice,
}
_BELOW: dict[tuple[str, str], Callable[[Problems, Json, Json], None]] = {
    ("Pod", "resize"): check_resize,
    ("Pod", "status"): check_status,
    ("ResourceClaim", "status"): check_claim_status,
}
_POSTED: dict[tuple[str, str], Callable[[Problems, Json], None]] = {
    ("Pod", "binding"): check_binding,
    ("Pod", "eviction"): check_eviction,
    ("ServiceAccount", "token"): check_token_request,
}


def check_sent(route: Resource, body: Mapping[str, Any]) -> None:
    """Raise `KubeError` if the server cannot decode a complete object."""
    if (model := _model(route.kind)) is not None:
        check_body(model, body, route.version)


def check_result(
    route: Resource, result: Mapping[str, Any], patch: Mapping[str, Any] | Sequence[Any]
) -> None:
    """Raise `KubeError` if the server cannot decode the result of a patch."""
    if (model := _model(route.kind)) is not None:
        check_patched(model, result, patch)


def default(route: Resource, obj: Json) -> None:
    """Make redundant fields agree, as the server's conversion does."""
    if route.kind == "Node":
        default_node(obj)
    elif route.kind == "Pod":
        default_status(obj.setdefault("status", {}))
    elif route.kind == "CSINode":
        default_csi_node(obj)
    elif route.kind == "CSIDriver":
        default_csi_driver(obj)
    elif route.kind == "VolumeAttachment":
        default_attachment(obj)
    elif route.kind == "ResourceClaim":
        default_claim(obj.get("spec") or {})
    elif route.kind == "ResourceClaimTemplate":
        default_claim((obj.get("spec") or {}).get("spec") or {})


def check_new(route: Resource, obj: Json) -> None:
    """Raise `KubeError` if a new object breaks a rule."""
    problems = Problems()
    check_meta(problems, route, obj["metadata"])
    if (check := _NEW.get(route.kind)) is not None:
        check(problems, obj)
    problems.raise_for(route, obj["metadata"]["name"])


def check_changed(route: Resource, old: Json, new: Json, subresource: str) -> None:
    """Raise `KubeError` if a change breaks a rule."""
    problems = Problems()
    # Events: as in `check_meta`, upstream skips their metadata.
    if route.kind != "Event":
        check_changeable(problems, new["metadata"])
    if (check := _CHANGED.get(route.kind)) is not None:
        check(problems, old, new)
    if (below := _BELOW.get((route.kind, subresource))) is not None:
        below(problems, old, new)
    problems.raise_for(route, new["metadata"]["name"])


def check_posted(route: Resource, subresource: str, name: str, body: Json) -> None:
    """Raise `KubeError` if an object posted to a subresource breaks a rule."""
    problems = Problems()
    if (check := _POSTED.get((route.kind, subresource))) is not None:
        check(problems, body)
    problems.raise_for(route, name)


def _model(kind: str) -> type | None:
    # On demand: only a few of lightkube's large modules are needed.
    module = _MODULES.get(kind)
    if module is None:
        return None
    found: type = getattr(importlib.import_module(f"lightkube.models.{module}"), kind)
    return found

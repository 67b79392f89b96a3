"""Rules of the subresource `resize` of pods: which changes of resources are valid.

Source: ValidatePodResize in pkg/apis/core/validation of 1.36, with that version's default gates
(pod-level resources and init containers may be resized). `testing.kube.resize` has reset all but
resources and resize policies before. In short:

    allowed    cpu and memory of requests and limits, of containers, init containers, and the pod;
               to add one; a lower memory limit (the node refuses one that is below the usage)
    refused    to remove a request or limit, another QoS class, other resources, a resize policy,
               static and Windows pods, pods on a node that does not report `resources`
    not asked  whether the pod has ended, or is being deleted
"""

from __future__ import annotations

from typing import Any

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_qos
from kubelet_trio.kube import from_json
from kubelet_trio.testing.kube.references import MIRROR
from kubelet_trio.testing.kube.rules.problems import Problems
from kubelet_trio.testing.kube.rules.resources import check_resources
from kubelet_trio.testing.kube.store import Json

_NO_PATH = "[]"  # how Go shows the empty field path
_RESIZABLE = ("cpu", "memory")
_ONLY = "only cpu and memory resources"
LISTS = ("containers", "initContainers")


def check_resize(problems: Problems, old: Json, new: Json) -> None:
    """Check a resized pod against its previous state."""
    was, now = old["spec"], new["spec"]
    if MIRROR in (old["metadata"].get("annotations") or {}):
        problems.forbidden(_NO_PATH, "static pods cannot be resized")
        return
    if (was.get("os") or {}).get("name") == "windows":
        problems.forbidden(_NO_PATH, "windows pods cannot be resized")
        return
    check_resources(problems, now)
    _check_pod(problems, old, new)
    has_own = _has_resources(was) or _has_resources(now)
    if has_own:
        _check_own(problems, was.get("resources"), now.get("resources"))
    if (old.get("status") or {}).get("nodeAllocatableResourceClaimStatuses"):
        text = "pods with node allocatable resource claims cannot be resized"
        problems.forbidden("spec", text)
    if not _check_order(problems, was, now):
        return
    _check_containers(problems, was, now)
    # An empty struct is not the same as none.
    differs = (was.get("resources") is None) != (now.get("resources") is None)
    if differs and not has_own and not problems.found:
        problems.forbidden("spec", f"{_ONLY} are mutable")


def _check_pod(problems: Problems, old: Json, new: Json) -> None:
    status = old.get("status") or {}
    # Upstream shows the class that the pod has, not the one that it would get.
    qos = status.get("qosClass") or pod_qos(from_json(old, Pod))
    if qos != pod_qos(from_json(new, Pod)):
        text = "Pod QOS Class may not change as a result of resizing"
        problems.invalid("spec", status.get("qosClass") or "", text)
    running = [
        container
        for container in status.get("containerStatuses") or ()
        if (container.get("state") or {}).get("running") is not None
    ]
    # isPodResizeRequestSupported asks the first one.
    if running and running[0].get("resources") is None:
        problems.forbidden("spec", "Pod running on node without support for resize")


def _check_own(problems: Problems, was: Json | None, now: Json | None) -> None:
    """Check a change of `spec.resources`."""
    if was is not None and now is None:
        problems.forbidden("spec.resources", "pod-level resources cannot be removed")
        return
    for field in ("requests", "limits"):
        if _removes(was, now, field):
            text = f"pod-level resource {field} cannot be removed"
            problems.forbidden(f"spec.resources.{field}", text)
    if _fixed(was) != _fixed(now):
        problems.forbidden("spec", f"{_ONLY} are mutable at pod-level")


def _check_order(problems: Problems, was: Json, now: Json) -> bool:
    """Check that all containers are still there; return whether they are."""
    is_same = True
    for field in LISTS:
        before, after = was.get(field) or [], now.get(field) or []
        if len(before) != len(after):
            problems.forbidden(f"spec.{field}", f"{field} may not be added or removed on resize")
            is_same = False
            continue
        for at, (one, other) in enumerate(zip(before, after, strict=True)):
            if one["name"] != other.get("name"):
                text = f"{field} may not be renamed or reordered on resize"
                problems.forbidden(f"spec.{field}[{at}].name", text)
                is_same = False
    return is_same


def _check_containers(problems: Problems, was: Json, now: Json) -> None:
    pairs = {
        field: list(enumerate(zip(was.get(field) or (), now.get(field) or (), strict=True)))
        for field in LISTS
    }
    # Upstream's order of errors: removals first, of init containers first.
    for field in reversed(LISTS):
        for at, (before, after) in pairs[field]:
            for part in ("requests", "limits"):
                if _removes(before.get("resources"), after.get("resources"), part):
                    path = f"spec.{field}[{at}].resources.{part}"
                    problems.forbidden(path, f"resource {part} cannot be removed")
    for _, (before, after) in pairs["containers"]:
        if not _may_become(before, after):
            problems.forbidden("spec", f"{_ONLY} are mutable")
    for at, (before, after) in pairs["initContainers"]:
        path = f"spec.initContainers[{at}]"
        if not _may_become(before, after):
            problems.forbidden(path, f"{_ONLY} for init or sidecar containers are mutable")
        policies = {policy.get("restartPolicy") for policy in after.get("resizePolicy") or ()}
        is_sidecar = after.get("restartPolicy") == "Always"
        if before != after and not is_sidecar and "RestartContainer" in policies:
            text = (
                "non-sidecar init containers with a resize policy of RestartContainer cannot be "
                "resized"
            )
            problems.forbidden(path, text)


def _may_become(before: Json, after: Json) -> bool:
    """Return whether two states of a container differ in cpu and memory alone."""
    # dropCPUMemoryResourcesFromContainer forgets the claims of the new state: a container that
    # has claims cannot be resized at all.
    was, now = before.get("resources") or {}, after.get("resources") or {}
    if was.get("claims") or _fixed({**now, "claims": None}) != _fixed(was):
        return False
    return (before.get("resizePolicy") or []) == (after.get("resizePolicy") or [])


def _fixed(resources: Json | None) -> dict[str, Any]:
    """Return what a resize may not change in a `ResourceRequirements`."""
    resources = resources or {}
    return {
        "claims": resources.get("claims") or [],
        **{
            field: {k: v for k, v in (resources.get(field) or {}).items() if k not in _RESIZABLE}
            for field in ("requests", "limits")
        },
    }


def _removes(was: Json | None, now: Json | None, field: str) -> bool:
    return bool(((was or {}).get(field) or {}).keys() - ((now or {}).get(field) or {}).keys())


def _has_resources(spec: Json) -> bool:
    own = spec.get("resources") or {}
    return bool(own.get("requests") or own.get("limits"))

"""Changes the CPU and memory of an embedded pod, and reads how far that has come: pure.

The program's change is merged into the pod's spec, which is then read like any other pod, so that
the rules for pods hold for it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus, ResourceRequirements

from kubelet_trio.containers import RESIZABLE, differs, pod_qos
from kubelet_trio.embed.client_models import from_client_model, is_client_model
from kubelet_trio.embed.intake import ORIGIN, read_pod
from kubelet_trio.model import metadata, pod_containers, spec
from kubelet_trio.sources import FieldError, ManifestError

# A mapping such as {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}, a lightkube
# ResourceRequirements, or a V1ResourceRequirements of the Python client.
ResourcesLike: TypeAlias = ResourceRequirements | Mapping[str, Mapping[str, Any]] | Any

_LISTS = ("requests", "limits")
_CONTAINER = re.compile(r"spec\.(containers|initContainers)\[(\d+)\]")


def resized_pod(
    pod: Pod, containers: Mapping[str, ResourcesLike], own: ResourcesLike | None = None
) -> Pod:
    """Return the pod with new amounts, as its next generation; amounts not given stay.

    Args:
        pod: a desired pod of the source `embedded`.
        containers: by the name of a container or init container.
        own: for `spec.resources`.

    Raises:
        ManifestError: with all errors, each with the field and the name of the container.
        TypeError: a value is of a type that no resources can be read from.
    """
    given = {name: _as_dict(value) for name, value in containers.items()}
    whole = None if own is None else _as_dict(own)
    if errors := list(_given_errors(pod, given, whole)):
        raise ManifestError(ORIGIN, errors)
    document = msgspec.to_builtins(pod)
    document.pop("status", None)
    body = document["spec"]
    for each in (*body["containers"], *(body.get("initContainers") or ())):
        if each["name"] in given:
            each["resources"] = _merged(each.get("resources"), given[each["name"]])
    if whole is not None:
        body["resources"] = _merged(body.get("resources"), whole)
    try:
        read, _ = read_pod(document, node_name=spec(pod).nodeName or "", instance="")
    except ManifestError as exc:
        raise ManifestError(ORIGIN, [_by_name(error, pod) for error in exc.errors]) from exc
    before, after = pod_qos(pod), pod_qos(read)
    if before != after:
        why = f"Forbidden: the QoS class would change from {before} to {after}"
        raise ManifestError(ORIGIN, [FieldError("spec", why)])
    return with_spec_of(pod, read)


def with_spec_of(before: Pod, pod: Pod) -> Pod:
    """Return `before` with the spec of `pod` as its next generation, or itself if none is needed.

    The status shows by its `observedGeneration` that the kubelet has taken the new spec.
    """
    if not differs(before, pod):
        return before
    meta = metadata(before)
    # The first generation at an API server is 1.
    meta = msgspec.structs.replace(meta, generation=(meta.generation or 1) + 1)
    return msgspec.structs.replace(before, spec=pod.spec, metadata=meta)


def is_resized(pod: Pod, wanted: Pod) -> bool:
    """Return whether a shown pod has the resources of a desired one, allocated and actuated."""
    return _is_observed(pod, wanted) and not why_not_resized(pod) and not differs(pod, wanted)


def why_infeasible(pod: Pod, wanted: Pod) -> str:
    """Return why the node can never grant the resources of a desired pod; "" if it may."""
    found = _condition(pod, "PodResizePending")
    if found is None or found.reason != "Infeasible" or not _is_observed(pod, wanted):
        return ""
    is_newer = (found.observedGeneration or 0) >= (metadata(wanted).generation or 0)
    return found.message or "Infeasible" if is_newer else ""


def why_not_resized(pod: Pod) -> str:
    """Return what a resize of a shown pod waits for; "" if none is in progress."""
    found = (_condition(pod, "PodResizePending"), _condition(pod, "PodResizeInProgress"))
    return "; ".join(
        ": ".join(part for part in (c.reason or "InProgress", c.message) if part)
        for c in found
        if c is not None
    )


def is_replaced(pod: Pod, wanted: Pod) -> bool:
    """Return whether a shown pod is of a later generation than a desired one."""
    return (metadata(pod).generation or 0) > (metadata(wanted).generation or 0)


def _is_observed(pod: Pod, wanted: Pod) -> bool:
    """Return whether the status of a shown pod is that of a desired one or of a later one."""
    status = pod.status or PodStatus()
    return (status.observedGeneration or 0) >= (metadata(wanted).generation or 0)


def _condition(pod: Pod, kind: str) -> PodCondition | None:
    conditions = (pod.status.conditions if pod.status is not None else None) or ()
    return next((c for c in conditions if c.type == kind and c.status == "True"), None)


def _as_dict(given: ResourcesLike) -> dict[str, Any]:
    if is_client_model(given):
        given = from_client_model(given)
    elif isinstance(given, ResourceRequirements):
        given = msgspec.to_builtins(given)
    if not isinstance(given, Mapping):
        raise TypeError(
            f"resize: {type(given).__name__} is no resources: expected a mapping such as "
            '{"limits": {"cpu": "2"}}'
        )
    return {field: value for field, value in given.items() if value is not None}


def _merged(before: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    merged = dict(before or {})
    for field, value in given.items():
        is_list = isinstance(value, Mapping)
        # Anything else is left to the checks of pods.
        merged[field] = {**(merged.get(field) or {}), **value} if is_list else value
    return merged


def _given_errors(
    pod: Pod, containers: Mapping[str, dict[str, Any]], own: dict[str, Any] | None
) -> Iterator[FieldError]:
    """Yield what only a resize forbids."""
    known = [c.spec.name for c in pod_containers(pod)]
    for name, resources in containers.items():
        if name in known:
            yield from _forbidden(resources, f"spec.containers[{name}].resources")
        else:
            why = f"Not found: the pod has: {', '.join(known)}"
            yield FieldError(f"spec.containers[{name}]", why)
    if own is not None and spec(pod).resources is None:
        yield FieldError("spec.resources", "Forbidden: the pod has no resources of its own")
    elif own is not None:
        yield from _forbidden(own, "spec.resources")


def _forbidden(resources: dict[str, Any], path: str) -> Iterator[FieldError]:
    for which in _LISTS:
        amounts = resources.get(which)
        for name, quantity in amounts.items() if isinstance(amounts, Mapping) else ():
            if name not in RESIZABLE:
                why = "Forbidden: only cpu and memory can be resized"
                yield FieldError(f"{path}.{which}[{name}]", why)
            elif quantity is None:
                why = "Forbidden: a resize cannot remove an amount"
                yield FieldError(f"{path}.{which}[{name}]", why)


def _by_name(error: FieldError, pod: Pod) -> FieldError:
    """Return an error with the name of its container in place of the number."""

    def name(match: re.Match[str]) -> str:
        containers = getattr(spec(pod), match[1])
        return f"spec.{match[1]}[{containers[int(match[2])].name}]"

    return FieldError(_CONTAINER.sub(name, error.field), error.message)

"""What events and metrics say of a resize (KEP-1287). Pure.

Upstream: pkg/kubelet/events/resize.go, and recordContainerResizeOperations of kubelet.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.containers import container_amounts
from kubelet_trio.model import EventType, canonical_quantity, spec
from kubelet_trio.pods.types import PendingResize

_INFEASIBLE: Final = "Infeasible"
# Go's encoding/json escapes these in strings.
_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


class ResizeEvent(NamedTuple):
    """An event about the pod, as `EventSink.emit` takes it."""

    type: EventType
    reason: str
    message: str


class ResizeOperation(NamedTuple):
    """The labels of `kubelet_container_requested_resizes_total`."""

    resource: str  # cpu, memory
    requirement: str  # requests, limits
    operation: str  # add, remove, increase, decrease


def resize_started(pod: Pod, generation: int | None) -> ResizeEvent:
    """Return the event for a resize that was allocated; `pod` has the new resources."""
    return ResizeEvent("Normal", "ResizeStarted", _message("started", pod, generation))


def resize_completed(pod: Pod, generation: int | None) -> ResizeEvent:
    """Return the event for a resize that was actuated; `generation` is that of the resize."""
    return ResizeEvent("Normal", "ResizeCompleted", _message("completed", pod, generation))


def resize_failed(pod: Pod, generation: int | None, error: str) -> ResizeEvent:
    """Return the event for a failed attempt; `generation` is that of the resize."""
    return ResizeEvent("Warning", "ResizeError", _message("error", pod, generation, error))


def resize_refused(desired: Pod, pending: PendingResize) -> ResizeEvent:
    """Return the event for a resize that cannot be allocated, or not yet."""
    # Upstream's text has the admission's own reason: `Pod resize OutOfcpu`.
    is_final = pending.reason == _INFEASIBLE
    why = pending.reason if is_final else pending.detail or pending.reason
    message = _message(why, desired, pending.generation, pending.message)
    return ResizeEvent("Warning", f"Resize{pending.reason}", message)


def resize_operations(before: Pod, after: Pod) -> list[ResizeOperation]:
    """Return what an update of a pod requests of each of its containers. Raises ValueError."""
    earlier = {c.name: c for c in _containers(before)}
    return [
        operation
        for container in _containers(after)
        if container.name in earlier
        for operation in _operations(earlier[container.name], container)
    ]


def _containers(pod: Pod) -> Iterator[Container]:
    yield from spec(pod).initContainers or ()
    yield from spec(pod).containers or ()


def _operations(before: Container, after: Container) -> Iterator[ResizeOperation]:
    for resource in ("memory", "cpu"):
        for requirement in ("requests", "limits"):
            old = container_amounts(before, requirement).get(resource, 0)
            new = container_amounts(after, requirement).get(resource, 0)
            if old == new:
                continue
            if not new or not old:
                operation = "add" if new else "remove"
            else:
                operation = "increase" if new > old else "decrease"
            yield ResizeOperation(resource, requirement, operation)


def _message(what: str, pod: Pod, generation: int | None, error: str = "") -> str:
    """Return upstream's text: programs read the JSON in it, so even its order is kept."""
    body = spec(pod)
    summary: dict[str, Any] = {
        "initContainers": _summaries(body.initContainers or ()),
        "containers": _summaries(body.containers or ()),
    }
    summary = {name: containers for name, containers in summary.items() if containers}
    summary["generation"] = generation or 0
    if error:
        summary["error"] = error
    text = json.dumps(summary, ensure_ascii=False, separators=(",", ":"))
    return f"Pod resize {what}: {text.translate(_GO_ESCAPES)}"


def _summaries(containers: Iterable[Container]) -> list[dict[str, Any]]:
    return [{"name": c.name, "resources": _summary(c.resources)} for c in containers]


def _summary(resources: ResourceRequirements | None) -> dict[str, Any]:
    if resources is None:
        return {}
    summary: dict[str, Any] = {
        "limits": _quantities(resources.limits or {}),
        "requests": _quantities(resources.requests or {}),
        "claims": [
            {"name": c.name} | ({"request": c.request} if c.request else {})
            for c in resources.claims or ()
        ],
    }
    return {name: value for name, value in summary.items() if value}


def _quantities(amounts: Mapping[str, object]) -> dict[str, str]:
    return {name: canonical_quantity(amounts[name]) for name in sorted(amounts)}

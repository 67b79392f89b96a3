"""The resources of a pod that may change while it runs: desired, allocated, and the larger of both.

Only CPU and memory may change: requests and limits of containers and init containers, and those of
the pod (`spec.resources`). All else of a pod, huge pages and other resources included, is as its
source says. Source: KEP-1287, KEP-5419; IsResizableContainer and UpdatePodFromAllocation of
pkg/kubelet/allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightkube.models.core_v1 import Container, Pod, ResourceRequirements
from msgspec.structs import replace

from kubelet_trio.containers.resources.amounts import RESIZABLE, amounts, pod_requests
from kubelet_trio.model import spec

_List = Mapping[str, object] | None
_Merge = Callable[[_List, _List], dict[str, object] | None]


def with_allocated(pod: Pod, allocated: Pod) -> Pod:
    """Return `pod` with the CPU and memory of `allocated`; `pod` itself if they are the same.

    A container that `allocated` does not have keeps its own.
    """
    return _merged(pod, allocated, _take)


def with_resources(pod: Pod, resources: Mapping[str, ResourceRequirements]) -> Pod:
    """Return a pod whose containers and init containers have these resources, by name."""

    def of(container: Container) -> Container:
        given = resources.get(container.name)
        return container if given is None else replace(container, resources=given)

    body = spec(pod)
    inits = body.initContainers
    new = replace(
        body,
        containers=[of(c) for c in body.containers],
        initContainers=[of(c) for c in inits] if inits is not None else None,
    )
    return replace(pod, spec=new)


def with_larger(pod: Pod, other: Pod) -> Pod:
    """Return `pod` with the larger CPU and memory of two states of one pod. Raises ValueError."""
    return _merged(pod, other, _larger)


def differs(pod: Pod, other: Pod) -> bool:
    """Whether two states of one pod differ in CPU or memory. Raises ValueError."""
    if pod is other:
        return False
    mine, others = spec(pod), spec(other)
    if not _same(mine.resources, others.resources):
        return True
    found = {c.name: c.resources for c in _containers(other)}
    return any(c.name in found and not _same(c.resources, found[c.name]) for c in _containers(pod))


def same_resources(first: ResourceRequirements | None, second: ResourceRequirements | None) -> bool:
    """Whether two sets of resources have the same CPU and memory. Raises ValueError."""
    return _same(first, second)


def effective_resources(pod: Pod, container: Container) -> ResourceRequirements:
    """Return a container's CPU and memory as its cgroup gets them.

    A container without a limit of its own has that of the pod (KEP-2837). Raises ValueError.
    """
    own, level = container.resources or ResourceRequirements(), spec(pod).resources
    limits = dict(_only_resizable(own.limits))
    for name, quantity in _only_resizable(level.limits if level is not None else None).items():
        if not amounts(limits).get(name):
            limits[name] = quantity
    return ResourceRequirements(
        requests=_only_resizable(own.requests) or None, limits=limits or None
    )


def increases_requests(allocated: Pod, desired: Pod) -> bool:
    """Whether a resize asks for more CPU or memory than the pod has. Raises ValueError."""
    before, after = pod_requests(allocated), pod_requests(desired)
    return any(after.get(name, 0) > before.get(name, 0) for name in RESIZABLE)


def _containers(pod: Pod) -> list[Container]:
    body = spec(pod)
    return [*(body.initContainers or ()), *(body.containers or ())]


def _same(first: ResourceRequirements | None, second: ResourceRequirements | None) -> bool:
    if first is second or first == second:
        return True
    mine, others = first or ResourceRequirements(), second or ResourceRequirements()
    return all(
        _resizable(getattr(mine, which)) == _resizable(getattr(others, which))
        for which in ("requests", "limits")
    )


def _resizable(resources: _List) -> dict[str, int]:
    # An amount of zero is the same as none (computePodResizeAction of pkg/kubelet/kuberuntime).
    return {n: a for n, a in amounts(_only_resizable(resources)).items() if a}


def _only_resizable(resources: _List) -> dict[str, object]:
    return {n: q for n, q in (resources or {}).items() if n in RESIZABLE}


def _merged(pod: Pod, other: Pod, merge: _Merge) -> Pod:
    body, found = spec(pod), {c.name: c.resources for c in _containers(other)}

    def of(container: Container) -> Container:
        if container.name not in found:
            return container
        mine = container.resources
        taken = _of_both(mine, found[container.name], merge)
        return container if taken == mine else replace(container, resources=taken)

    new = replace(
        body,
        containers=[of(c) for c in body.containers or ()],
        initContainers=[of(c) for c in body.initContainers]
        if body.initContainers is not None
        else None,
        resources=_of_both(body.resources, spec(other).resources, merge),
    )
    return pod if new == body else replace(pod, spec=new)


def _of_both(
    mine: ResourceRequirements | None, other: ResourceRequirements | None, merge: _Merge
) -> ResourceRequirements | None:
    if mine is None and other is None:
        return None
    plain, given = mine or ResourceRequirements(), other or ResourceRequirements()
    taken = replace(
        plain,
        requests=merge(plain.requests, given.requests),
        limits=merge(plain.limits, given.limits),
    )
    # What stands there stays: None, or an empty object.
    if taken == plain:
        return mine
    # A pod with an empty object of its own would be BestEffort (ComputePodQOS), one without is not.
    return None if other is None and taken == ResourceRequirements() else taken


def _take(mine: _List, other: _List) -> dict[str, object] | None:
    kept = {n: q for n, q in (mine or {}).items() if n not in RESIZABLE}
    taken = _only_resizable(other)
    # In the order of `mine`, so that equal amounts give equal JSON.
    names = [*(mine or {}), *(other or {})]
    both = {**kept, **taken}
    return {n: both[n] for n in names if n in both} or None


def _larger(mine: _List, other: _List) -> dict[str, object] | None:
    merged = dict(mine or {})
    for name, quantity in (other or {}).items():
        if name in RESIZABLE and amounts({name: quantity})[name] > amounts(merged).get(name, 0):
            merged[name] = quantity
    return merged or None

"""Requests and limits of a whole pod: its cgroup, its QoS class and admission depend on them.

Containers that run at the same time add up, and the pod's highest sum counts: an init container
runs together with the sidecars before it, main containers with all sidecars. The pod's own
`spec.resources` replaces the sum; its runtime class' `spec.overhead` is added.

Amounts are integers in nano-units by resource name. Source: PodRequests and PodLimits of
k8s.io/component-helpers/resource, GetPodQOS of pkg/apis/core/v1/helper/qos.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.cgroups import QosClass, page_size_name
from kubelet_trio.model import ContainerKind, PodContainer, parse_quantity, quantity_like, to_units
from kubelet_trio.model import spec as pod_spec

HUGEPAGES = "hugepages-"
_QOS_RESOURCES = frozenset(("cpu", "memory"))
RESIZABLE = ("cpu", "memory")  # what a resize may change (KEP-1287)

Amounts = dict[str, int]  # resource name to nano-units
Which = Literal["requests", "limits"]


def amounts(resources: Mapping[str, object] | None) -> Amounts:
    """Return a resource list with its quantities in nano-units. Raises ValueError."""
    return {name: parse_quantity(value) for name, value in (resources or {}).items()}


def container_amounts(container: Container, which: Which) -> Amounts:
    """Return the requests or limits of one container. Raises ValueError."""
    return amounts(getattr(container.resources, which) if container.resources else None)


def resizable_amounts(pod: Pod) -> Iterator[tuple[str, Which, str, object]]:
    """Yield the amounts of a pod that a resize may change (KEP-1287): its CPU and memory.

    Each is (container, requests or limits, resource, quantity), in the order of these. The
    container of `spec.resources` is "".
    """
    own = pod_spec(pod)
    containers = (*(own.initContainers or ()), *(own.containers or ()))
    bodies = {"": own.resources, **{c.name: c.resources for c in containers}}
    lists: tuple[Which, Which] = ("limits", "requests")
    for name, resources in sorted(bodies.items(), key=lambda body: body[0]):
        for which in lists:
            for resource, quantity in sorted((getattr(resources, which, None) or {}).items()):
                if resource in RESIZABLE:
                    yield name, which, resource, quantity


def pod_requests(pod: Pod) -> Amounts:
    """Return the pod's requests, including its runtime class' overhead. Raises ValueError."""
    total = {**total_amounts(pod, "requests"), **pod_level(pod, "requests")}
    _add(total, amounts(pod_spec(pod).overhead))
    return total


def pod_limits(pod: Pod) -> Amounts:
    """Return the sum of the pod's limits. Raises ValueError.

    Overhead raises an existing limit and sets none. A container without a limit adds nothing: see
    `declares_limit`.
    """
    total = {**total_amounts(pod, "limits"), **pod_level(pod, "limits")}
    overhead = amounts(pod_spec(pod).overhead)
    _add(total, {n: amount for n, amount in overhead.items() if total.get(n)})
    return total


def declares_limit(pod: Pod, name: str) -> bool:
    """Return whether all containers that can use a resource limit it."""
    if pod_level(pod, "limits").get(name):
        return True
    main = pod_spec(pod).containers or ()
    return all(container_amounts(c, "limits").get(name) for c in main) and all(
        moment.get(name) for moment in _init_moments(pod, "limits")
    )


def pod_qos(pod: Pod) -> QosClass:
    """Return the QoS class, from `spec.resources` if set, else from init and main containers.

    Guaranteed: every container limits CPU and memory, with requests equal to the limits.
    BestEffort: no container requests or limits either. Raises ValueError.
    """
    requests: Amounts = {}
    limits: Amounts = {}
    guaranteed = True
    for body in _qos_bodies(pod):
        _add(requests, _qos_amounts(body.requests))
        body_limits = _qos_amounts(body.limits)
        _add(limits, body_limits)
        guaranteed = guaranteed and body_limits.keys() == _QOS_RESOURCES
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


def pod_level(pod: Pod, which: Which) -> Amounts:
    """Return the amounts of `spec.resources`, for resources that may be set on a pod (KEP-2837)."""
    own = pod_spec(pod).resources
    found = amounts(getattr(own, which)) if own is not None else {}
    return {n: a for n, a in found.items() if n in _QOS_RESOURCES or n.startswith(HUGEPAGES)}


def total_amounts(pod: Pod, which: Which) -> Amounts:
    """Return the highest sum over the containers that run at the same time."""
    total: Amounts = {}
    for container in pod_spec(pod).containers or ():
        _add(total, container_amounts(container, which))
    for init in pod_spec(pod).initContainers or ():
        if PodContainer(ContainerKind.INIT, init).is_sidecar:
            _add(total, container_amounts(init, which))
    for moment in _init_moments(pod, which):
        total = _max(total, moment)
    return total


def total_quantities(pod: Pod, which: Which) -> dict[str, str]:
    """Return `total_amounts` in the API server's spelling. Raises ValueError.

    A sum has the suffixes of the first container that has some of the resource, as in Quantity.Add.
    """
    like: dict[str, str] = {}
    for container in (*(pod_spec(pod).containers or ()), *(pod_spec(pod).initContainers or ())):
        for name, amount in container_amounts(container, which).items():
            if amount:
                like.setdefault(name, getattr(container.resources, which)[name])
    total = total_amounts(pod, which)
    return {name: quantity_like(amount, like.get(name, "0")) for name, amount in total.items()}


def hugepage_bytes(amounts: Mapping[str, int], sizes: Iterable[str]) -> dict[str, int]:
    """Return bytes by page size (2MB, 1GB), for every size of the node: 0 if none are requested.

    Raises ValueError for a resource name whose size does not parse.
    """
    wanted = dict.fromkeys(sizes, 0)
    for name, nano in amounts.items():
        if name.startswith(HUGEPAGES):
            size = page_size_name(to_units(parse_quantity(name.removeprefix(HUGEPAGES))))
            wanted[size] = to_units(nano)
    return wanted


def _init_moments(pod: Pod, which: Which) -> Iterator[Amounts]:
    """Yield, for each init container, its amounts plus those of the sidecars that run by then."""
    # KEP-753: sidecars keep running, so an init container adds to those started before it.
    sidecars: Amounts = {}
    for init in pod_spec(pod).initContainers or ():
        now = dict(sidecars)
        _add(now, container_amounts(init, which))
        if PodContainer(ContainerKind.INIT, init).is_sidecar:
            sidecars = now
        yield now


def _qos_bodies(pod: Pod) -> list[ResourceRequirements]:
    spec = pod_spec(pod)
    if spec.resources is not None:
        return [spec.resources]
    containers = (*(spec.containers or ()), *(spec.initContainers or ()))
    return [c.resources or ResourceRequirements() for c in containers]


def _qos_amounts(resources: Mapping[str, object] | None) -> Amounts:
    return {n: a for n, a in amounts(resources).items() if n in _QOS_RESOURCES and a > 0}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _max(left: Amounts, right: Amounts) -> Amounts:
    return {n: max(left.get(n, 0), right.get(n, 0)) for n in {**left, **right}}

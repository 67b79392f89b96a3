"""Compute what a status says of resources: what is allocated, and what is actuated. Pure.

A pod's spec has the allocated resources here. A resize in progress names the instances that still
have others (`PodResize`). Of a running container the runtime's own values come first, where it
reports them. Only CPU and memory can differ from what is allocated.

Upstream (1.36): convertContainerStatusResources and convertToAPIPodLevelResourcesStatus of
kubelet_pods.go, toKubeContainerResources of kuberuntime. For a pod upstream shows what it reads
from the pod's cgroup, in the kernel's units: 79m for 100m with cgroup v2, and no limit at all as
8 EiB with v1. Here it is what was applied to that cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightkube.models.core_v1 import Container, Pod, PodStatus, ResourceRequirements
from msgspec.structs import replace

from kubelet_trio.cgroups import (
    MIN_MILLI_CPU_LIMIT,
    MIN_SHARES,
    milli_cpu_to_shares,
    quota_to_milli_cpu,
    shares_to_milli_cpu,
)
from kubelet_trio.containers import (
    RESIZABLE,
    amounts,
    declares_limit,
    pod_limits,
    pod_requests,
    with_resources,
)
from kubelet_trio.model import (
    NANO,
    ContainerRecord,
    ContainerState,
    RuntimePod,
    parse_quantity,
    pod_containers,
    quantity_like,
    spec,
    to_milli,
    to_units,
)
from kubelet_trio.pods.types import PodResize

# Examples of how Go writes computed amounts: CPU as DecimalSI, memory as BinarySI.
_CPU, _BYTES = "1m", "1Ki"

_List = Mapping[str, object]


def container_resources(
    container: Container, record: ContainerRecord, resize: PodResize | None
) -> ResourceRequirements:
    """Return `resources` of a container's status: of a running one what it has now.

    Args:
        container: the container with the allocated resources.
        record: its newest instance.
        resize: the resize in progress.

    Raises ValueError for a quantity that does not parse.
    """
    allocated = container.resources or ResourceRequirements()
    if record.state is not ContainerState.RUNNING:
        return allocated  # what the next instance gets
    had = resize.actuated.get(record.id) if resize is not None else None
    limits = _with_resizable(allocated.limits, had.limits if had is not None else allocated.limits)
    requests = _with_resizable(
        allocated.requests, had.requests if had is not None else allocated.requests
    )
    found = record.resources
    if found is not None and limits is not None:
        limit = quota_to_milli_cpu(found.cpu_quota, found.cpu_period)
        _set_cpu(limits, limit, MIN_MILLI_CPU_LIMIT)
        if found.memory_limit > 0:
            limits["memory"] = quantity_like(found.memory_limit * NANO, _BYTES)
    if found is not None and requests is not None:
        _set_cpu(requests, shares_to_milli_cpu(found.cpu_shares), MIN_SHARES)
    return replace(allocated, limits=limits, requests=requests)


def with_pod_resources(
    status: PodStatus, pod: Pod, observed: RuntimePod, resize: PodResize | None
) -> PodStatus:
    """Return a status with the pod's own `resources` and `allocatedResources` (KEP-5419).

    All pods have them. `status` needs its phase. Raises ValueError for a quantity that does not
    parse.
    """
    requests = pod_requests(pod)
    allocated = _texts(pod, "requests", requests)
    if status.phase != "Running":
        limits = _texts(pod, "limits", pod_limits(pod))
        resources = ResourceRequirements(requests=allocated or None, limits=limits or None)
    elif resize is None:
        resources = _applied(pod, requests)
    else:
        actuated = _actuated(pod, observed, resize)
        resources = _applied(actuated, pod_requests(actuated))
    return replace(status, resources=resources, allocatedResources=allocated or None)


def _with_resizable(allocated: _List | None, had: _List | None) -> dict[str, object] | None:
    if allocated is None:
        return None
    fixed = {name: text for name, text in allocated.items() if name not in RESIZABLE}
    return fixed | {name: text for name, text in (had or {}).items() if name in RESIZABLE}


def _set_cpu(found: dict[str, object], milli: int, least: int) -> None:
    """Replace CPU by the runtime's value, 0 if that is unknown.

    The kernel knows no less than `least` milli-CPU: below it, the API's value says more.
    """
    if milli and max(milli, to_milli(parse_quantity(found.get("cpu", 0)))) > least:
        found["cpu"] = quantity_like(milli * NANO // 1000, _CPU)


def _applied(pod: Pod, wanted: Mapping[str, int]) -> ResourceRequirements:
    """Return what the cgroup of a running pod has, and the pod's own huge pages."""
    own = spec(pod).resources or ResourceRequirements()
    requests, limits = dict(own.requests or {}), dict(own.limits or {})
    shares = milli_cpu_to_shares(to_milli(wanted.get("cpu", 0)))
    _set_cpu(requests, shares_to_milli_cpu(shares), MIN_SHARES)
    if "memory" in wanted and "memory" not in requests:
        requests["memory"] = _texts(pod, "requests", {"memory": wanted["memory"]})["memory"]
    total = pod_limits(pod)
    if declares_limit(pod, "cpu"):
        _set_cpu(limits, to_milli(total["cpu"]), MIN_MILLI_CPU_LIMIT)
    if declares_limit(pod, "memory"):
        limits["memory"] = quantity_like(to_units(total["memory"]) * NANO, _BYTES)
    return ResourceRequirements(requests=requests or None, limits=limits or None)


def _actuated(pod: Pod, observed: RuntimePod, resize: PodResize) -> Pod:
    """Return a pod with the resources that its cgroup has while it is being resized."""
    latest = (observed.latest(container.spec.name) for container in pod_containers(pod))
    had = {r.name: resize.actuated[r.id] for r in latest if r and r.id in resize.actuated}
    sized = with_resources(pod, had)
    if resize.pod_level is None:
        return sized
    return replace(sized, spec=replace(spec(sized), resources=resize.pod_level))


def _texts(pod: Pod, which: str, total: Mapping[str, int]) -> dict[str, str]:
    """Return amounts as text, each with the suffixes of the first one that adds to it."""
    # As Quantity.Add of apimachinery: a sum keeps the format of its first part.
    examples: dict[str, object] = {}
    for part in _parts(pod, which):
        for name, nano in amounts(part).items():
            if nano:
                examples.setdefault(name, part[name])
    return {name: quantity_like(nano, examples.get(name, _CPU)) for name, nano in total.items()}


def _parts(pod: Pod, which: str) -> Iterator[_List]:
    body = spec(pod)
    containers = (*(body.containers or ()), *(body.initContainers or ()))
    for resources in (body.resources, *(c.resources for c in containers)):
        yield (getattr(resources, which) if resources is not None else None) or {}
    yield body.overhead or {}

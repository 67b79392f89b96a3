"""Find the resources of a running pod whose record is lost, from those of its containers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from lightkube.models.core_v1 import Pod, ResourceRequirements
from msgspec.structs import replace

from kubelet_trio.cgroups import quota_to_milli_cpu, shares_to_milli_cpu
from kubelet_trio.containers.node import NodeSettings, without_quota
from kubelet_trio.containers.resources.allocation import with_resources
from kubelet_trio.containers.resources.amounts import pod_qos
from kubelet_trio.containers.resources.container import container_resources
from kubelet_trio.model import ConfiguredResources, PodContainer, pod_containers

_Found = Mapping[str, ConfiguredResources]


def as_found(pod: Pod, node: NodeSettings, found: _Found, no_quota: Collection[str] = ()) -> Pod:
    """Return a pod with the CPU and memory that its containers have; `pod` itself if it has those.

    The manifest of a pod may be edited while no agent runs, and its record be lost. Its containers
    then have other resources than `pod`, which asks for a resize.

    Args:
        pod: the pod as its source wants it.
        node: the node's settings.
        found: what the runtime reports, by container.
        no_quota: containers that have CPUs of their own, and whose quota says nothing.

    Raises ValueError for a quantity that does not parse.
    """
    # A runtime does not know memory requests. A guess must not change the QoS class: the pod's
    # cgroup is in that of its class, which no resize changes (KEP-1287).
    for candidate in _candidates(pod, node, found, no_quota):
        if candidate is pod or pod_qos(candidate) == pod_qos(pod):
            return candidate
    return pod


def _candidates(
    pod: Pod, node: NodeSettings, found: _Found, no_quota: Collection[str]
) -> Iterator[Pod]:
    unlimited = without_quota(node)
    sizes = {
        name: resources
        for container in pod_containers(pod)
        if (name := container.spec.name) in found
        and (
            resources := _resources(
                pod, container, unlimited if name in no_quota else node, found[name]
            )
        )
        is not None
    }
    if not sizes:
        yield pod
        return
    yield with_resources(pod, sizes)
    yield with_resources(pod, {name: _equal(r) for name, r in sizes.items()})
    yield with_resources(pod, {n: _with_memory(r, None) for n, r in sizes.items()})


def _resources(
    pod: Pod, container: PodContainer, node: NodeSettings, found: ConfiguredResources
) -> ResourceRequirements | None:
    """Return the resources of a container as found; None if they are those that it is to have."""
    wanted = container_resources(pod, container, node)
    own = container.spec.resources or ResourceRequirements()
    requests, limits = dict(own.requests or {}), dict(own.limits or {})
    before = dict(requests), dict(limits)
    cpu = quota_to_milli_cpu(found.cpu_quota, found.cpu_period)
    if node.cpu_cfs_quota and cpu != quota_to_milli_cpu(wanted.cpu_quota, wanted.cpu_period):
        _set(limits, "cpu", f"{cpu}m" if cpu else None)
    if found.cpu_shares and found.cpu_shares != wanted.cpu_shares:
        _set(requests, "cpu", f"{shares_to_milli_cpu(found.cpu_shares)}m")
    memory = max(found.memory_limit, 0)  # -1: removed
    if memory != wanted.memory_limit_in_bytes:
        _set(limits, "memory", str(memory) if memory else None)
    if (requests, limits) == before:
        return None
    return replace(own, requests=requests or None, limits=limits or None)


def _equal(resources: ResourceRequirements) -> ResourceRequirements:
    """Return resources whose requests are their limits, as those of a Guaranteed pod."""
    # The request of CPU is the more precise one: the least quota stands for all below 10m.
    equal = dict(resources.limits or {})
    _set(equal, "cpu", (resources.requests or {}).get("cpu"))
    return replace(resources, requests=equal or None, limits=equal or None)


def _with_memory(resources: ResourceRequirements, request: object) -> ResourceRequirements:
    requests = dict(resources.requests or {})
    _set(requests, "memory", request)
    return replace(resources, requests=requests or None)


def _set(amounts: dict[str, object], name: str, quantity: object) -> None:
    """Set an amount, or remove it."""
    if quantity is None:
        amounts.pop(name, None)
    else:
        amounts[name] = quantity

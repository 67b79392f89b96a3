"""Which pods the managers of CPUs and of memory serve: Guaranteed ones, by their containers' sums.

Sources: GetPodQOS of pkg/apis/core/v1/helper/qos, IsPodLevelResourcesSet of component-helpers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import parse_quantity, spec

_QOS_RESOURCES = ("cpu", "memory")
_HUGEPAGES = "hugepages-"


@lru_cache(maxsize=4096)  # each admission asks again for all containers of a pod
def nano(quantity: object) -> int:
    """Return a quantity in nano-units. Raises ValueError."""
    return parse_quantity(quantity)


def amount(resources: Mapping[str, object] | None, name: str) -> int:
    """Return how much of a resource a list has, in nano-units; 0 for none. Raises ValueError."""
    quantity = (resources or {}).get(name)
    return 0 if quantity is None else nano(quantity)


def has_pod_level_resources(pod: Pod) -> bool:
    """Return whether `spec.resources` requests or limits something (KEP-2837).

    Without the gate PodLevelResourceManagers the managers leave such a pod alone.
    """
    own = spec(pod).resources
    if own is None:
        return False
    names = {*(own.requests or ()), *(own.limits or ())}
    return any(name in _QOS_RESOURCES or name.startswith(_HUGEPAGES) for name in names)


def is_guaranteed(pod: Pod) -> bool:
    """Return whether a pod without pod-level resources has the QoS class Guaranteed.

    Every container limits CPU and memory, and the requests add up to the limits. Raises ValueError.
    """
    body = spec(pod)
    if body.resources is not None:
        return False  # an empty object: BestEffort, whatever the containers have (ComputePodQOS)
    asked, limited = dict.fromkeys(_QOS_RESOURCES, 0), dict.fromkeys(_QOS_RESOURCES, 0)
    for container in (*(body.containers or ()), *(body.initContainers or ())):
        if container.resources is None:
            return False
        for name in _QOS_RESOURCES:
            limit = amount(container.resources.limits, name)
            if limit <= 0:
                return False
            limited[name] += limit
            asked[name] += max(amount(container.resources.requests, name), 0)
    return asked == limited

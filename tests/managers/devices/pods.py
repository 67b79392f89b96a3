"""Pods that ask for devices, and devices for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.managers.devices.types import HEALTHY, UNHEALTHY, Device, Listed

GPU = "example.com/gpu"


def asking(name: str, count: int = 1, resource: str = GPU, *, sidecar: bool = False) -> Container:
    """Return a container that asks for devices of one resource."""
    limits: Mapping[str, str] = {resource: str(count), "cpu": "1", "hugepages-2Mi": "2Mi"}
    return Container(
        name=name,
        image="x",
        restartPolicy="Always" if sidecar else None,
        resources=ResourceRequirements(limits=dict(limits), requests=dict(limits)),
    )


def pod_of(*main: Container, inits: Iterable[Container] = (), uid: str = "p") -> Pod:
    """Return a pod of these containers."""
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(containers=list(main), initContainers=list(inits) or None),
    )


def listed(*nodes: int | tuple[int, ...] | None, unhealthy: Iterable[str] = ()) -> Listed:
    """Return devices d0, d1, ... that are near to these NUMA nodes."""
    bad = frozenset(unhealthy)
    devices = {}
    for number, node in enumerate(nodes):
        name = f"d{number}"
        near = () if node is None else node if isinstance(node, tuple) else (node,)
        devices[name] = Device(name, UNHEALTHY if name in bad else HEALTHY, near)
    return Listed(devices)

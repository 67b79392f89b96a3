"""Turns what containers hold into messages of v1 and v1alpha1.

Source: server_v1.go and server_v1alpha1.go in pkg/kubelet/apis/podresources, and
containerDevicesFromResourceDeviceInstances and containerMemoryFromBlock in pkg/kubelet/cm. CPUs
and devices come in the order of their view, where upstream has them in random order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightkube.models.core_v1 import Pod

from kubelet_trio.managers.podresources.generated import v1, v1alpha1
from kubelet_trio.managers.podresources.types import ClaimUse, DeviceUse, MemoryUse, ResourceUse
from kubelet_trio.model import metadata, spec

# Names of containers, in the order of the reply, with what each holds.
Uses = tuple[tuple[str, ResourceUse], ...]


def shown_containers(pod: Pod) -> Iterator[str]:
    """Yield the names of the containers that v1 shows, in its order: sidecars, main containers.

    Other init containers are left out, as upstream: the main containers take over what they hold.
    """
    for container in spec(pod).initContainers or ():
        if container.restartPolicy == "Always":
            yield container.name
    yield from main_containers(pod)


def main_containers(pod: Pod) -> Iterator[str]:
    """Yield the names of the containers that v1alpha1 shows."""
    for container in spec(pod).containers or ():
        yield container.name


def pod_use(pod: Pod, uses: Uses) -> v1.PodResources:
    """Return what the containers of a pod hold."""
    return v1.PodResources(
        name=metadata(pod).name or "",
        namespace=metadata(pod).namespace or "",
        containers=[container_use(name, use) for name, use in uses],
    )


def container_use(name: str, use: ResourceUse) -> v1.ContainerResources:
    """Return what one container holds."""
    return v1.ContainerResources(
        name=name,
        devices=_devices(use.devices),
        cpu_ids=list(use.cpus),
        memory=_memory(use.memory),
        dynamic_resources=[_claim(claim) for claim in use.claims],
    )


def allocatable_use(use: ResourceUse) -> v1.AllocatableResourcesResponse:
    """Return what the node may hand out."""
    return v1.AllocatableResourcesResponse(
        devices=_devices(use.devices), cpu_ids=list(use.cpus), memory=_memory(use.memory)
    )


def alpha_pod_use(pod: Pod, uses: Uses) -> v1alpha1.PodResources:
    """Return the devices of a pod's containers."""
    return v1alpha1.PodResources(
        name=metadata(pod).name or "",
        namespace=metadata(pod).namespace or "",
        containers=[
            v1alpha1.ContainerResources(name=name, devices=_alpha_devices(use.devices))
            for name, use in uses
        ],
    )


def _devices(devices: Iterable[DeviceUse]) -> list[v1.ContainerDevices]:
    """Return one entry for each NUMA node of each device."""
    return [
        v1.ContainerDevices(
            resource_name=device.resource,
            device_ids=[device.id],
            topology=None if node is None else _topology((node,)),
        )
        for device in devices
        # Upstream leaves a device out whose plugin reports a topology without nodes.
        for node in device.nodes or (None,)
    ]


def _alpha_devices(devices: Iterable[DeviceUse]) -> list[v1alpha1.ContainerDevices]:
    return [
        v1alpha1.ContainerDevices(resource_name=entry.resource_name, device_ids=entry.device_ids)
        for entry in _devices(devices)
    ]


def _memory(blocks: Iterable[MemoryUse]) -> list[v1.ContainerMemory]:
    return [
        v1.ContainerMemory(memory_type=block.kind, size=block.size, topology=_topology(block.nodes))
        for block in blocks
    ]


def _topology(nodes: Iterable[int]) -> v1.TopologyInfo:
    return v1.TopologyInfo(nodes=[v1.NumaNode(id=node) for node in nodes])


def _claim(claim: ClaimUse) -> v1.DynamicResource:
    return v1.DynamicResource(
        claim_name=claim.name,
        claim_namespace=claim.namespace,
        claim_resources=[
            v1.ClaimResource(
                cdi_devices=[v1.CdiDevice(name=name) for name in device.cdi_devices],
                driver_name=device.driver,
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id,
            )
            for device in claim.devices
        ],
    )

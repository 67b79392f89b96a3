"""The family `kubelet_trio_container_device_info`: which container has which device.

The Go kubelet has no figures of accelerators: their exporters have them (KEP-1867), under the
device's name. With this family a query gives such figures the names of pod and container.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kubelet_trio.agent.node_sockets import AgentResources
from kubelet_trio.agent.parts import Parts
from kubelet_trio.managers import ResourceUse
from kubelet_trio.model import pod_key, pod_uid, spec

if TYPE_CHECKING:
    from kubelet_trio.stats import Sample

NAME = "kubelet_trio_container_device_info"


def device_info(parts: Parts) -> Iterator[Sample]:
    """Yield a sample for each device of an active pod's container, of plugins and of claims."""
    supplies = parts.supplies
    if supplies.managers is None and supplies.claims is None:
        return
    view = AgentResources(parts)
    for pod in view.pods(active_only=True):
        key, body = pod_key(pod), spec(pod)
        for container in (*(body.initContainers or ()), *body.containers):
            # One series a device: two claims or requests of a container can have the same one.
            use = view.container_use(pod_uid(pod), container.name)
            for device in dict.fromkeys(_devices(use)):
                yield NAME, (key.namespace, key.name, container.name, *device), 1


def _devices(use: ResourceUse) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield resource, device, driver, pool and claim; what a device does not have is empty."""
    for device in use.devices:
        yield device.resource, device.id, "", "", ""
    for claim in use.claims:
        for claimed in claim.devices:
            yield "", claimed.device, claimed.driver, claimed.pool, claim.name

"""Device plugins in an agent: the socket where they register, and their devices in its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from kubelet_trio.agent.checks import REGISTRATION_PORT
from kubelet_trio.model import ContainerState, PodUid, Purpose
from kubelet_trio.node import NodeResources
from kubelet_trio.server import SERVING, Ports
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

if TYPE_CHECKING:
    from kubelet_trio.agent.parts import RuntimeParts, Setup
    from kubelet_trio.managers import CheckpointKeeper, DeviceManagers, LoadedManagers

_DIRECTORY = "device-plugins"


def make_device_managers(
    setup: Setup, runtime: RuntimeParts, loaded: LoadedManagers, keeper: CheckpointKeeper
) -> DeviceManagers:
    """Build the managers of a node with device plugins."""
    from kubelet_trio.managers import DeviceManagers

    seams, links, cluster = setup.seams, setup.links, setup.cluster

    def was_admitted(uid: PodUid, container: str) -> bool:
        worker = links.workers.get(uid)
        if worker is not None and worker.is_admitted:
            return True
        observed = runtime.pleg.get(uid).latest(container)
        return observed is not None and observed.state is ContainerState.RUNNING

    return DeviceManagers(
        loaded,
        keeper,
        seams.meter,
        setup.settings.node.root_dir / _DIRECTORY,
        seams.offload_for(Purpose.PLUGINS),
        was_admitted=was_admitted,
        on_capacity=cluster.node_changed.ring if cluster is not None else lambda: None,
        on_health=links.changes.wake,
        shows_health=setup.settings.managers.device_health,
        open_plugin=seams.device_plugins,
        tap=setup.taps.device_plugins if setup.taps is not None else lambda opened: opened,
    )


def plugin_children(devices: DeviceManagers, ports: Ports) -> tuple[DynamicSupervisor, ChildSpec]:
    """Return the parts of `plugins` for device plugins."""
    socket = devices.socket
    port = ports.unix(REGISTRATION_PORT, "root_dir", socket.path)

    async def serve(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await port.listen(task_status.started, socket.prepare)
        await trio.serve_listeners(socket.serve, listeners)

    spec = ChildSpec("device-registration", serve, policy=SERVING, note=port.problem)
    return devices.plugins.registered, spec


def with_devices(
    resources: NodeResources, devices: DeviceManagers | None
) -> Callable[[], NodeResources]:
    """Return what tells the node's resources, with its devices as they are at the time.

    The resources of plugins that have not come back are there with 0: MachineInfo in
    pkg/kubelet/nodestatus.
    """
    if devices is None:
        return lambda: resources
    return partial(_with_devices, resources, devices)


def _with_devices(resources: NodeResources, devices: DeviceManagers) -> NodeResources:
    found = devices.capacity()
    removed = dict.fromkeys(found.removed, "0")
    return replace(
        resources,
        capacity={**resources.capacity, **removed, **_texts(found.capacity)},
        allocatable={**resources.allocatable, **removed, **_texts(found.allocatable)},
    )


def _texts(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: str(count) for name, count in counts.items()}

"""The holdings of a node with device plugins: reservations become devices by the plugins' answers.

Admission reserves devices and never waits. A plugin's calls may take minutes, so they are made in
the task of the pod that they are for: `settle` asks the plugins which devices they prefer, and lets
them allocate these, before the pod's first container; `prepare` lets them prepare the devices for
each start. A plugin that hangs holds up only its own pods.

`run_news` passes on what plugins list: to the checkpoint, the node's status and the pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.asking import asking_for
from kubelet_trio.managers.devices.calls import OpenDevicePlugin, as_it_is
from kubelet_trio.managers.devices.inventory import DeviceCapacity, Inventory
from kubelet_trio.managers.devices.plugins import DevicePlugins, Dial
from kubelet_trio.managers.devices.provider import DeviceProvider
from kubelet_trio.managers.devices.requests import container_limits
from kubelet_trio.managers.devices.rules import never, refusal
from kubelet_trio.managers.devices.socket import RegistrationSocket
from kubelet_trio.managers.devices.types import DeviceShare, DeviceState, Listed
from kubelet_trio.managers.node.checkpoints import CheckpointKeeper
from kubelet_trio.managers.node.holdings import LoadedManagers, ResourceManagers
from kubelet_trio.managers.shares import DeviceHealth, DevicePluginError, PlacementError
from kubelet_trio.managers.types import ANYWHERE, Refusal
from kubelet_trio.model import Meter, Offload, PodUid, get_logger, pod_containers, pod_uid

log = get_logger()

DEVICES = "devices"  # their name in `LoadedManagers.providers`
_DURATION = "kubelet_device_plugin_alloc_duration_seconds"


class DeviceManagers(ResourceManagers):
    """`ResourceManagers` with device plugins."""

    def __init__(
        self,
        loaded: LoadedManagers,
        keeper: CheckpointKeeper,
        meter: Meter,
        directory: Path,
        offload: Offload,
        *,
        was_admitted: Callable[[PodUid, str], bool] = never,
        on_capacity: Callable[[], None] = lambda: None,
        on_health: Callable[[PodUid], None] = lambda _uid: None,
        dial: Dial = trio.open_unix_socket,
        shows_health: bool = True,
        open_plugin: OpenDevicePlugin | None = None,
        tap: Callable[[OpenDevicePlugin], OpenDevicePlugin] = as_it_is,
    ) -> None:
        """Begin with what was loaded.

        Args:
            loaded: with what an earlier agent has left of devices.
            keeper: writes the states.
            meter: counts and measures.
            directory: of the plugins' sockets.
            offload: runs blocking access to it.
            was_admitted: as `DeviceRules` has it.
            on_capacity: called when the node's status has to change. Must not block.
            on_health: called with a pod whose devices' health has changed. Must not block.
            dial: connects to a plugin's socket.
            shows_health: whether statuses have the health of devices (ResourceHealthStatus).
            open_plugin: as `DevicePlugins` has it.
            tap: likewise.
        """
        assert loaded.devices is not None
        checkpoint = loaded.devices.checkpoint
        self._inventory = Inventory(loaded.machine.all_nodes, was_admitted)
        self._inventory.restore(checkpoint.registered)
        self._devices = DeviceProvider(self._inventory)
        devices: tuple[Any, Any] = self._devices, checkpoint.state
        written = loaded.written | {DEVICES}  # not before there is something to keep
        providers = {DEVICES: devices, **loaded.providers}
        super().__init__(replace(loaded, providers=providers, written=written), keeper, meter)
        self.plugins = DevicePlugins(self._inventory, meter, dial, open_plugin, tap)
        self.socket = RegistrationSocket(self.plugins, directory, offload)
        # Whether the resources of an earlier agent's plugins are known.
        self.is_restored = loaded.devices.exists
        self._meter = meter
        self._shows_health = shows_health
        self._on_capacity, self._on_health = on_capacity, on_health

    @property
    def devices(self) -> DeviceState:
        """Which container has which devices."""
        state: DeviceState = self.state(DEVICES)
        return state

    @property
    def listed(self) -> Mapping[str, Listed]:
        """The devices that there are, by resource."""
        return self._inventory.rules.listed

    def capacity(self) -> DeviceCapacity:
        """Return the devices of the node, for its status."""
        return self._inventory.capacity()

    @property
    def removed(self) -> frozenset[str]:
        """Resources that admission takes for exhausted: their plugins have gone, and no pod, whose
        container may still run, has any of them (UpdatePluginResources)."""
        state = self.devices
        return frozenset(r for r in self.capacity().removed if not state.is_shared(r))

    def device_health(self, uid: PodUid, container: str) -> tuple[DeviceHealth, ...]:
        """Return the health of a container's devices."""
        if not self._shows_health:
            return ()
        return self._devices.health(self.devices, uid, container)

    def is_settled(self, pod: Pod) -> bool:
        """Whether the plugins have allocated what a pod has, and all of it is on disk."""
        containers = self.devices.pods.get(pod_uid(pod), {}).values()
        is_placed = all(s.response is not None for shares in containers for s in shares.values())
        return is_placed and super().is_settled(pod)

    async def settle(self, pod: Pod) -> None:
        """Let the plugins allocate what is reserved for a pod; wait until it is on disk.

        Raises:
            CheckpointError: the disk does not take it now; call again later.
            PlacementError: a plugin fails or has too few devices left. The pod has nothing more.
        """
        for container in pod_containers(pod):
            try:
                await self._place(pod, container.spec)
            except DevicePluginError as exc:
                self.give_back(pod_uid(pod))
                raise PlacementError(refusal(str(exc))) from exc
        await super().settle(pod)

    def lost(self, pod: Pod) -> Refusal | None:
        """Return why a pod of which nothing runs cannot have the devices that it had before.

        Their plugin has not registered since the agent began: after a reboot, when they may be
        others. Source: devicesToAllocate in pkg/kubelet/cm/devicemanager/manager.go.
        """
        for shares in self.devices.pods.get(pod_uid(pod), {}).values():
            for resource in sorted(self._inventory.awaited & shares.keys()):
                return refusal(
                    f"no healthy devices present; cannot allocate unhealthy devices {resource}"
                )
        return None

    async def prepare(self, pod: Pod, container: Container) -> None:
        """Get a container's devices ready for a start.

        Raises:
            CheckpointError: the disk does not take what was allocated now.
            DevicePluginError: a plugin fails; the text goes into the container's status.
        """
        uid, rules = pod_uid(pod), self._inventory.rules
        wanted = [
            resource
            for resource, count in container_limits(container).items()
            if count and rules.knows(self.devices, resource)
        ]
        if not wanted:
            return
        if any(resource not in self.devices.shares(uid, container.name) for resource in wanted):
            # Its plugin had not registered when the pod was admitted, or a checkpoint was lost.
            anew = replace(rules, was_admitted=never)
            outcome = anew.allocate(self.devices, pod, container, ANYWHERE)
            if isinstance(outcome, Refusal):
                raise DevicePluginError(outcome.message)
            self.change(DEVICES, lambda _now: outcome)
        await self._place(pod, container)
        await super().settle(pod)
        with asking_for(uid, container.name):
            for resource in wanted:
                share = self.devices.shares(uid, container.name).get(resource)
                if share is not None:
                    await self._pre_start(resource, share)

    async def run_news(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Pass on what the plugins list, until cancelled."""
        task_status.started()
        self._inventory.start_grace(trio.current_time())
        changed, shown, written = self.plugins.changed, None, self._inventory.registered
        while True:
            changed.clear()
            self._inventory.expire(trio.current_time())
            registered, capacity = self._inventory.registered, self.capacity()
            if registered != written:
                written = registered
                self.keeper.put(self._devices.file, partial(self._devices.encode, self.devices))
            if capacity != shown:
                shown = capacity
                self._on_capacity()
            self._wake_affected()
            with trio.move_on_at(self._inventory.next_expiry):
                await changed.wait_ring()

    def _wake_affected(self) -> None:
        affected = self.plugins.take_affected()
        if not self._shows_health or not any(affected.values()):
            return
        pods = {
            uid
            for uid, _, resource, share in self.devices.each()
            if share.ids & affected.get(resource, frozenset())
        }
        for uid in sorted(pods):
            self._on_health(uid)

    async def _place(self, pod: Pod, container: Container) -> None:
        """Let the plugins allocate a container's reservations. Raises `DevicePluginError`."""
        uid = pod_uid(pod)
        with asking_for(uid, container.name):
            for resource, share in sorted(self.devices.shares(uid, container.name).items()):
                if share.response is None:
                    await self._allocate(pod, container, resource)

    async def _allocate(self, pod: Pod, container: Container, resource: str) -> None:
        """Choose devices with their plugin, and let it allocate them."""
        endpoint = self.plugins.endpoint(resource)
        if endpoint is None:
            raise DevicePluginError(f"endpoint {resource} has been stopped")
        uid, preferred = pod_uid(pod), frozenset[str]()
        if resource not in self.devices.shares(uid, container.name):
            return  # the pod was released during the call for another resource: it ends
        choice = self._inventory.rules.choose(self.devices, pod, container, resource)
        if not isinstance(choice, str) and choice.pool and endpoint.options.has_preference:
            count = len(choice.ids)
            available = sorted({*choice.fixed, *choice.pool})
            preferred = await endpoint.plugin.preferred(available, choice.fixed, count)
        share = self.devices.shares(uid, container.name).get(resource)
        if share is None:
            return  # the pod was released meanwhile: it ends
        # From the state of now: others may have reserved what the plugin prefers.
        choice = self._inventory.rules.choose(self.devices, pod, container, resource, preferred)
        if isinstance(choice, str):
            raise DevicePluginError(choice)
        reserve = partial(
            self._inventory.rules.reserve,
            uid=uid,
            container=container.name,
            resource=resource,
            choice=choice,
            affinity=share.affinity,
        )
        self.change(DEVICES, reserve)
        began = time.perf_counter()
        try:
            response = await endpoint.plugin.allocate(choice.ids)
        finally:
            self._meter.observe(_DURATION, time.perf_counter() - began, (resource,))
        reserved = self.devices.shares(uid, container.name).get(resource)
        if reserved is None:
            return
        done = DeviceShare(reserved.by_node, response)
        self.change(DEVICES, lambda now: now.with_share(uid, container.name, resource, done))
        self.await_kept(uid)

    async def _pre_start(self, resource: str, share: DeviceShare) -> None:
        endpoint = self.plugins.endpoint(resource)
        if endpoint is None and resource not in self._inventory.rules.listed:
            raise DevicePluginError(
                f"endpoint not found in cache for a registered resource: {resource}"
            )
        if not self.plugins.wants_pre_start(resource):
            return
        if endpoint is None:
            raise DevicePluginError(
                "device plugin PreStartContainer rpc failed with err: "
                f"endpoint {resource} has been stopped"
            )
        await endpoint.plugin.pre_start(sorted(share.ids))

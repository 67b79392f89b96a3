"""The device plugins of a node: registered, watched, called.

A plugin registers on the agent's socket, `device-plugins/kubelet.sock`, or puts a socket of its own
below `plugins_registry` (type `DevicePlugin`). Either way it has a task with a channel, which reads
its lists until it ends; that of the former is a child of `registered`, that of the latter belongs
to its socket's child of the registry. The plugin that has registered last for a resource is used,
and the task of the one before it ends.

A plugin that fails ends its own task only. Its devices are then unhealthy; it has to register
again, which one below `plugins_registry` is asked to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import trio

from kubelet_trio.managers.devices.calls import (
    DevicePluginCalls,
    OpenDevicePlugin,
    PluginOptions,
    as_it_is,
)
from kubelet_trio.managers.devices.inventory import MOST_RESOURCES, Inventory
from kubelet_trio.managers.devices.requests import is_extended_name
from kubelet_trio.managers.devices.types import Device
from kubelet_trio.managers.shares import DevicePluginError
from kubelet_trio.model import Bell, Meter, get_logger
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Restart

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

log = get_logger()

VERSION = "v1beta1"
_MOST_SHOWN = 200  # characters of what a plugin says of itself, in an error

Dial = Callable[[str], Awaitable[trio.abc.Stream]]


@dataclass(eq=False, slots=True)
class Endpoint:
    """A plugin that serves a resource now."""

    plugin: DevicePluginCalls
    options: PluginOptions
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


@dataclass(eq=False, slots=True)
class _Attempt:
    """A registration on the agent's socket, until the plugin is connected."""

    done: trio.Event = field(default_factory=trio.Event)
    problem: str = ""

    def started(self, _value: None = None) -> None:
        self.done.set()


class DevicePlugins:
    """The plugins of a node; the handler of plugins of the type `DevicePlugin`."""

    is_exclusive = True  # of two sockets with one resource, the newer one is used
    errors: tuple[type[Exception], ...] = (DevicePluginError, ValueError)  # of `run_plugin`

    def __init__(
        self,
        inventory: Inventory,
        meter: Meter | None = None,
        dial: Dial = trio.open_unix_socket,
        open_plugin: OpenDevicePlugin | None = None,
        tap: Callable[[OpenDevicePlugin], OpenDevicePlugin] = as_it_is,
    ) -> None:
        """Begin without plugins.

        Args:
            inventory: takes what the plugins list.
            meter: counts registrations, measures allocations.
            dial: connects to a plugin's socket.
            open_plugin: of a replay, which has no sockets; None: plugins are dialed.
            tap: returns what opens plugins, and takes notes of them.
        """
        self.inventory = inventory
        self.meter = meter or Meter()
        self.changed = Bell()  # rung when lists or plugins have changed
        self.registered = DynamicSupervisor("registered")
        self._dial = dial
        self._open = tap(open_plugin or self._dialed)
        self._endpoints: dict[str, Endpoint] = {}
        self._options: dict[str, PluginOptions] = {}  # of the last plugin of each resource
        self._attempts: dict[str, _Attempt] = {}  # the last of each resource
        self._counted: set[str] = set()  # resources with a counter of registrations
        self._count = 0
        self._affected: dict[str, set[str]] = {}

    def endpoint(self, resource: str) -> Endpoint | None:
        """Return the plugin of a resource; None if it has none now."""
        return self._endpoints.get(resource)

    def wants_pre_start(self, resource: str) -> bool:
        """Whether the plugin of a resource, or the last one, prepares devices for each start."""
        options = self._options.get(resource)
        return options is not None and options.pre_start

    def take_affected(self) -> Mapping[str, frozenset[str]]:
        """Return the devices, by resource, whose health has changed since the last call."""
        found = {name: frozenset(ids) for name, ids in self._affected.items()}
        self._affected.clear()
        return found

    # Plugins below `plugins_registry`

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Check what a plugin says of itself. Raises ValueError in upstream's words."""
        if VERSION not in versions:
            shown = " ".join(version[:_MOST_SHOWN] for version in versions[:10])
            raise ValueError(
                f"manager version, {VERSION}, is not among plugin supported versions [{shown}]"
            )
        if not is_extended_name(name):
            raise ValueError(f"invalid name of device plugin socket: {invalid_name(name)}")
        if not self._has_room(name):
            raise ValueError(f"the node has {MOST_RESOURCES} resources of device plugins already")

    async def run_plugin(
        self,
        name: str,
        endpoint: str,
        versions: Sequence[str],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep a plugin in use until it ends; ready once it has answered the first call.

        Raises ValueError as `validate`, or `DevicePluginError`.
        """
        self.validate(name, endpoint, versions)
        await self._run(name, endpoint, task_status)
        # Another one has replaced it, by the agent's socket. Taking the resource back at once would
        # make the two replace each other for ever.
        while (other := self._endpoints.get(name)) is not None:
            await other.ended.wait()
        raise DevicePluginError(f"the plugin that had replaced it for {name} has ended")

    # Plugins that call the agent

    def count_registration(self, resource: str) -> None:
        """Count a call. Upstream counts invalid names, too, and any number of them."""
        if resource in self._counted or len(self._counted) < MOST_RESOURCES:
            self._counted.add(resource)
            self.meter.count("kubelet_device_plugin_registration_total", (resource,))

    async def register(self, resource: str, socket: str) -> None:
        """Start to use a plugin; returns once it has answered the first call.

        Args:
            resource: what it serves; a valid name.
            socket: the path where it listens.

        Raises `DevicePluginError` if it cannot be connected, or has registered again meanwhile.
        """
        if not self._has_room(resource):
            text = f"the node has {MOST_RESOURCES} resources of device plugins already"
            raise DevicePluginError(text)
        former = self._attempts.get(resource)
        if former is not None and not former.done.is_set():
            former.problem = f"{resource} was registered again meanwhile"
            former.done.set()
        self._count += 1
        attempt = self._attempts[resource] = _Attempt()
        name = f"{resource}#{self._count}"
        run = partial(self._run_registered, resource, socket, attempt)
        # Temporary: a plugin whose connection has ended registers again by itself.
        self.registered.start_child(ChildSpec(name, run, Restart.TEMPORARY))
        try:
            await attempt.done.wait()
        finally:
            if not attempt.done.is_set() or attempt.problem:
                self.registered.stop_child(name)
            if self._attempts.get(resource) is attempt:
                del self._attempts[resource]
        if attempt.problem:
            raise DevicePluginError(attempt.problem)

    async def _run_registered(
        self,
        resource: str,
        socket: str,
        attempt: _Attempt,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        problem = ""
        try:
            await self._run(resource, socket, attempt)
        except* DevicePluginError as group:
            problem = _first_text(group)
        finally:
            if not attempt.done.is_set():
                attempt.problem = problem or "the agent is being stopped"
                attempt.done.set()
        if problem:
            log.warning("device.plugin_ended", resource=resource, socket=socket, error=problem)

    async def _run(
        self, resource: str, socket: str, task_status: trio.TaskStatus[None] | _Attempt
    ) -> None:
        """Connect to a plugin, and read its lists until it ends. Raises `DevicePluginError`."""
        with trio.CancelScope() as scope:
            async with self._open(resource, socket) as plugin:
                try:
                    options = await plugin.options()
                except DevicePluginError as exc:
                    raise DevicePluginError(f"failed to get device plugin options: {exc}") from exc
                mine = Endpoint(plugin, options, scope)
                self._use(resource, mine)
                log.info("device.plugin_registered", resource=resource, socket=socket)
                task_status.started()
                try:
                    await plugin.watch(partial(self._take, resource, mine))
                finally:
                    self._leave(resource, mine)

    def _dialed(self, resource: str, socket: str) -> AbstractAsyncContextManager[DevicePluginCalls]:
        # Not at the top: few nodes have plugins, and gRPC and the messages take memory.
        from kubelet_trio.managers.devices.plugin import open_plugin

        return open_plugin(resource, socket, self._dial)

    def _use(self, resource: str, mine: Endpoint) -> None:
        former = self._endpoints.get(resource)
        self._endpoints[resource] = mine
        self._options[resource] = mine.options
        self.inventory.register(resource)
        if former is not None:
            former.scope.cancel()
        self.changed.ring()

    async def _take(self, resource: str, mine: Endpoint, devices: Mapping[str, Device]) -> None:
        await trio.lowlevel.checkpoint()
        if self._endpoints.get(resource) is not mine:
            return  # a newer plugin has taken over, and this one is being cancelled
        affected = self.inventory.take(resource, devices)
        self._affected.setdefault(resource, set()).update(affected)
        self.changed.ring()

    def _leave(self, resource: str, mine: Endpoint) -> None:
        mine.ended.set()
        if self._endpoints.get(resource) is mine:
            del self._endpoints[resource]
            self.inventory.stop(resource, trio.current_time())
            self.changed.ring()
            log.info("device.plugin_gone", resource=resource)

    def _has_room(self, resource: str) -> bool:
        # The removed ones stay in the node's status: they need their place, too.
        listed = *self.inventory.rules.listed, *self.inventory.capacity().removed
        used = {*listed, *self._endpoints, *self._attempts}
        return resource in used or len(used) < MOST_RESOURCES


def invalid_name(resource: str) -> str:
    """Return upstream's text for a name that no plugin may have."""
    return f'the ResourceName "{resource[:_MOST_SHOWN]}" is invalid'


def _first_text(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return str(exc)

"""What the agent asks a device plugin, and the seam at which a recorder and a replay are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from kubelet_trio.managers.devices.types import Device


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """What a plugin wants to be asked: DevicePluginOptions."""

    pre_start: bool = False
    has_preference: bool = False


class DevicePluginCalls(Protocol):
    """A connected plugin; its methods raise `DevicePluginError`."""

    async def options(self) -> PluginOptions:
        """Return what the plugin wants to be asked: GetDevicePluginOptions."""
        ...

    async def watch(self, take: Callable[[Mapping[str, Device]], Awaitable[None]]) -> None:
        """Call `take` with each list of devices by ID; never returns: ListAndWatch."""
        ...

    async def preferred(
        self, available: Iterable[str], included: Iterable[str], count: int
    ) -> frozenset[str]:
        """Return the devices that the plugin prefers: GetPreferredAllocation."""
        ...

    async def allocate(self, ids: Iterable[str]) -> bytes:
        """Return the encoded ContainerAllocateResponse for these devices: Allocate."""
        ...

    async def pre_start(self, ids: Iterable[str]) -> None:
        """Let the plugin prepare devices before a container starts: PreStartContainer."""
        ...


# Connects to the plugin of a resource at a socket, and keeps the connection within the block.
OpenDevicePlugin = Callable[[str, str], AbstractAsyncContextManager[DevicePluginCalls]]


def as_it_is(open_plugin: OpenDevicePlugin) -> OpenDevicePlugin:
    """Return the same: nobody taps plugins."""
    return open_plugin

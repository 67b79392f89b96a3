"""The tap at device plugins: what they list and answer. Loaded with the first plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from kubelet_trio.managers import (
    Device,
    DevicePluginCalls,
    DevicePluginError,
    OpenDevicePlugin,
    PluginOptions,
    read_answer,
)
from kubelet_trio.recorder.asked import AskNotes
from kubelet_trio.recorder.bodies import Variables
from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.masks import mask_annotations
from kubelet_trio.recorder.offers import Offer
from kubelet_trio.recorder.recorder import Recorder

_ERRORS = (DevicePluginError,)


@asynccontextmanager
async def recorded_plugin(
    open_plugin: OpenDevicePlugin,
    resource: str,
    socket: str,
    recorder: Recorder,
    numbers: Iterator[int],
) -> AsyncIterator[DevicePluginCalls]:
    """Connect to a plugin, and note it; `numbers` are those of the agent."""
    key = f"device/{resource}/{next(numbers)}"
    async with open_plugin(resource, socket) as plugin:
        try:
            yield _RecordedPlugin(plugin, resource, key, recorder, AskNotes(recorder, numbers))
        finally:
            recorder.note(Kind.PLUGIN, key, None)


class _RecordedPlugin:
    """A `DevicePluginCalls` that notes."""

    def __init__(
        self,
        plugin: DevicePluginCalls,
        resource: str,
        key: str,
        recorder: Recorder,
        asks: AskNotes,
    ) -> None:
        self._plugin = plugin
        self._resource = resource
        self._key = key
        self._note = recorder.note
        self._variables = recorder.variables
        self._asks = asks

    async def options(self) -> PluginOptions:
        """Return what the plugin wants to be asked. Raises `DevicePluginError`."""
        found = await self._plugin.options()
        told = {"pre_start": found.pre_start, "has_preference": found.has_preference}
        self._note(Kind.PLUGIN, self._key, Offer({"options": told}))
        return found

    async def watch(self, take: Callable[[Mapping[str, Device]], Awaitable[None]]) -> None:
        """Call `take` with each list of devices. Raises `DevicePluginError`."""

        async def noted(devices: Mapping[str, Device]) -> None:
            self._note(Kind.PLUGIN, self._key, Offer(listed=devices, plain=_plain))
            await take(devices)

        await self._plugin.watch(noted)

    async def preferred(
        self, available: Iterable[str], included: Iterable[str], count: int
    ) -> frozenset[str]:
        """Return the devices that the plugin prefers. Raises `DevicePluginError`."""
        available, included = list(available), list(included)
        request = {"available": sorted(available), "included": sorted(included), "count": count}
        call = self._plugin.preferred(available, included, count)
        key = f"GetPreferredAllocation/{self._resource}"
        return await self._asks.noted(key, request, call, _ERRORS, sorted)

    async def allocate(self, ids: Iterable[str]) -> bytes:
        """Return the plugin's answer for these devices. Raises `DevicePluginError`."""
        ids = list(ids)
        call = self._plugin.allocate(ids)
        key, tell = f"Allocate/{self._resource}", partial(masked_answer, variables=self._variables)
        return await self._asks.noted(key, {"ids": sorted(ids)}, call, _ERRORS, tell)

    async def pre_start(self, ids: Iterable[str]) -> None:
        """Let the plugin prepare devices. Raises `DevicePluginError`."""
        ids = sorted(ids)
        call = self._plugin.pre_start(ids)
        key = f"PreStartContainer/{self._resource}"
        await self._asks.noted(key, {"ids": ids}, call, _ERRORS)


def _plain(device: Device) -> dict[str, Any]:
    return {"health": device.health, "nodes": list(device.nodes)}


def masked_answer(response: bytes, variables: Variables) -> dict[str, Any]:
    """Return a plugin's answer without secrets: of the environment no value, but its digest."""
    try:
        found: dict[str, Any] = msgspec.to_builtins(read_answer(response))
    except (ValueError, EOFError):
        return {}
    found["envs"] = variables.given(found.get("envs") or {})
    mask_annotations(found.get("annotations"))
    return found

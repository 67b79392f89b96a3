"""Device plugins in a replay: they register, list, answer and die as they did."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.managers import (
    AllocateAnswer,
    Device,
    DevicePluginCalls,
    DevicePluginError,
    DeviceShare,
    DeviceState,
    PluginOptions,
    encode_checkpoint,
    write_answer,
)
from kubelet_trio.model import PodUid
from kubelet_trio.recorder import Entry, Kind, read_body
from kubelet_trio.replay.asked import AskFailedError, Asks
from kubelet_trio.replay.grants import Grant
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.plugin_checks import DEVICES_FILE, DeviceFile, DeviceOffer
from kubelet_trio.replay.recorded import Life

_VERSION = "v1beta1"


@dataclass(slots=True, eq=False)
class _Plugin:
    """One recorded plugin, from its first answer to its end."""

    resource: str
    began: float
    options: PluginOptions
    lists: list[tuple[float, Mapping[str, Device]]] = field(default_factory=list)
    ended: float = math.inf


class ReplayPlugins:
    """The device plugins of one recorded life, whose entries have passed `checks`."""

    def __init__(self, life: Life, asks: Asks, journal: Journal) -> None:
        self._plugins = _read(life)
        self._asks = asks
        self._journal = journal
        self.is_there = bool(life.facts.get("device_plugins")) and not life.facts.get("only")

    @asynccontextmanager
    async def open(self, resource: str, socket: str) -> AsyncIterator[DevicePluginCalls]:
        """Connect to a plugin: `socket` is its key."""
        await trio.lowlevel.checkpoint()
        yield _ReplayedPlugin(self._plugins[socket], self._asks)

    async def run(self, agent: Agent) -> None:
        """Let the plugins come and go."""
        devices = agent.parts.supplies.devices
        if devices is None:
            return
        async with trio.open_nursery() as nursery:
            for key, plugin in self._plugins.items():
                await trio.sleep_until(plugin.began)
                run = partial(devices.plugins.run_plugin, plugin.resource, key, [_VERSION])
                nursery.start_soon(self._keep, plugin, run)

    async def _keep(self, plugin: _Plugin, run: Callable[[], Awaitable[None]]) -> None:
        self._journal.note("", "node", f"the plugin of {plugin.resource} is there")
        try:
            await run()
        except* (DevicePluginError, ValueError):
            # A newer one may have replaced it long before.
            if plugin.ended == trio.current_time():
                self._journal.note("", "node", f"the plugin of {plugin.resource} is gone")


class _ReplayedPlugin:
    """A `DevicePluginCalls` on what was recorded."""

    def __init__(self, plugin: _Plugin, asks: Asks) -> None:
        self._plugin = plugin
        self._asks = asks

    async def options(self) -> PluginOptions:
        await trio.lowlevel.checkpoint()
        return self._plugin.options

    async def watch(self, take: Callable[[Mapping[str, Device]], Awaitable[None]]) -> None:
        """Call `take` with each list at its time. Raises `DevicePluginError` at its end."""
        for at, devices in self._plugin.lists:
            await trio.sleep_until(at)
            await take(devices)
        if self._plugin.ended == math.inf:
            await trio.sleep_forever()
        await trio.sleep_until(self._plugin.ended)
        raise DevicePluginError(f"the recorded plugin of {self._plugin.resource} has ended")

    async def preferred(
        self, available: Iterable[str], included: Iterable[str], count: int
    ) -> frozenset[str]:
        """Return what the plugin preferred. Raises `DevicePluginError`."""
        request = {"available": sorted(available), "included": sorted(included), "count": count}
        ids: list[str] = await self._ask("GetPreferredAllocation", request)
        return frozenset(ids or ())

    async def allocate(self, ids: Iterable[str]) -> bytes:
        """Return what the plugin answered. Raises `DevicePluginError`."""
        found = await self._ask("Allocate", {"ids": sorted(ids)})
        return write_answer(msgspec.convert(found or {}, AllocateAnswer))

    async def pre_start(self, ids: Iterable[str]) -> None:
        """Let the plugin prepare devices. Raises `DevicePluginError`."""
        await self._ask("PreStartContainer", {"ids": sorted(ids)})

    async def _ask(self, method: str, request: Mapping[str, object]) -> Any:
        try:
            return await self._asks.ask(f"{method}/{self._plugin.resource}", request)
        except AskFailedError as exc:
            raise DevicePluginError(str(exc)) from exc


def _read(life: Life) -> dict[str, _Plugin]:
    """Return the plugins by key, in the order of their first answers."""
    found: dict[str, _Plugin] = {}
    for entry in (*life.snapshot, *life.news):
        if entry.kind is Kind.MARK and read_body(entry.body).get("what") == "stopped":
            break  # the agent leaves its plugins, not they it
        if entry.kind is Kind.PLUGIN and entry.key.startswith("device/"):
            _take(found, entry)
    return found


def _take(found: dict[str, _Plugin], entry: Entry) -> None:
    plugin = found.get(entry.key)
    if not entry.body:
        if plugin is not None:
            plugin.ended = entry.at
        return
    offer = msgspec.convert(read_body(entry.body), DeviceOffer)
    if plugin is None:
        told = offer.options
        options = PluginOptions(told.pre_start, told.has_preference) if told else PluginOptions()
        resource = entry.key.partition("/")[2].rpartition("/")[0]
        plugin = found[entry.key] = _Plugin(resource, entry.at, options)
    if offer.devices is not None or offer.gone:
        before = plugin.lists[-1][1] if plugin.lists else {}
        kept = {name: each for name, each in before.items() if name not in offer.gone}
        fresh = {
            name: Device(name, each.health, tuple(each.nodes))
            for name, each in (offer.devices or {}).items()
        }
        plugin.lists.append((entry.at, {**kept, **fresh}))


def device_checkpoint(body: bytes) -> bytes:
    """Return the checkpoint of devices that an entry tells, as an agent writes it."""
    data = msgspec.json.decode(body, type=DeviceFile).Data
    state = DeviceState()
    for held in data.PodDeviceEntries or ():
        by_node = {node: tuple(ids or ()) for node, ids in (held.DeviceIDs or {}).items()}
        share = DeviceShare(by_node, write_answer(held.AllocResp or AllocateAnswer()))
        uid = PodUid(held.PodUID)
        state = state.with_share(uid, held.ContainerName, held.ResourceName, share)
    registered = data.RegisteredDevices or {}
    return encode_checkpoint(state, {name: ids or [] for name, ids in registered.items()})


def allocated(life: Life, asks: Asks) -> Iterator[Grant]:
    """Yield what plugins have given to containers, before a life and in it."""
    for request, found in asks.answers("Allocate"):
        if found is not None:
            yield Grant(frozenset(request["ids"]), msgspec.convert(found, AllocateAnswer))
    for entry in (*life.snapshot, *life.news):
        if entry.kind is Kind.CHECKPOINT and entry.key == DEVICES_FILE:
            data = msgspec.json.decode(entry.body, type=DeviceFile).Data
            for held in data.PodDeviceEntries or ():
                if held.AllocResp is not None:
                    by_node = (held.DeviceIDs or {}).values()
                    yield Grant(frozenset(chain(*(ids or () for ids in by_node))), held.AllocResp)

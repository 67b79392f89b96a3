"""The devices of plugins in the object of a cluster's node."""

from __future__ import annotations

from pathlib import Path

import trio
from lightkube.models.core_v1 import Node
from trio.testing import MockClock

from kubelet_trio.managers import ManagerSettings, load_managers
from kubelet_trio.model import open_watcher
from kubelet_trio.testing.devices import FakeDevice, FakeDevicePlugin
from tests.agent.test_cluster import NAME, World
from tests.agent.test_device_plugins import GPU, plugged


def amounts(world: World) -> tuple[object, object]:
    """Return capacity and allocatable of the resource, as the API server has them."""
    node = world.kube.find(Node, NAME)
    assert node is not None
    assert node.status is not None
    return (node.status.capacity or {}).get(GPU), (node.status.allocatable or {}).get(GPU)


async def test_the_nodes_object_has_the_devices_while_their_plugin_serves_them(
    short_path: Path, autojump_clock: MockClock
) -> None:
    world = World(short_path)
    world.plugin_watcher = open_watcher
    root = short_path / "root"
    world.managers = lambda: load_managers(ManagerSettings(), root, device_plugins=True)
    bad = FakeDevice("bad", is_healthy=False)
    plugin = FakeDevicePlugin(GPU, ["a", "b", bad])
    async with plugged(world.host, plugin), world.running():
        await world.wait(lambda: amounts(world) == ("3", "2"))
        plugin.set_health("bad", is_healthy=True)
        await world.wait(lambda: amounts(world) == ("3", "3"))
        plugin.end_streams()
        await world.wait(lambda: amounts(world) == ("3", "0"))
        await trio.sleep(301)
        await world.wait(lambda: amounts(world) == ("0", "0"))


async def test_a_restarted_agent_reports_no_devices_until_the_plugin_is_back(
    short_path: Path, autojump_clock: MockClock
) -> None:
    world = World(short_path)
    world.plugin_watcher = open_watcher
    root = short_path / "root"
    world.managers = lambda: load_managers(ManagerSettings(), root, device_plugins=True)
    plugin = FakeDevicePlugin(GPU, ["a", "b"])
    async with plugged(world.host, plugin), world.running():
        await world.wait(lambda: amounts(world) == ("2", "2"))
    async with world.running():
        await world.wait(lambda: amounts(world) == ("0", "0"))
    async with plugged(world.host, plugin), world.running():
        await world.wait(lambda: amounts(world) == ("2", "2"))

"""The devices of plugins on a cluster's node."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Container, Node, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.managers import ManagerSettings, load_managers
from kubelet_trio.model import open_watcher
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.devices import FakeDevice, FakeDevicePlugin
from tests.agent.test_cluster import NAME, World
from tests.agent.test_device_plugins import GPU, eventually, plugged


@pytest.fixture
def world(short_path: Path) -> World:
    world, root = World(short_path), short_path / "root"
    world.plugin_watcher = open_watcher
    world.managers = lambda: load_managers(ManagerSettings(), root, device_plugins=True)
    return world


def amounts(world: World) -> tuple[object, object]:
    """Return capacity and allocatable of the resource, as the API server has them."""
    node = world.kube.find(Node, NAME)
    assert node is not None
    assert node.status is not None
    return (node.status.capacity or {}).get(GPU), (node.status.allocatable or {}).get(GPU)


async def test_the_nodes_object_has_the_devices_while_their_plugin_serves_them(
    world: World, autojump_clock: MockClock
) -> None:
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
    world: World, autojump_clock: MockClock
) -> None:
    plugin = FakeDevicePlugin(GPU, ["a", "b"])
    async with plugged(world.host, plugin), world.running():
        await world.wait(lambda: amounts(world) == ("2", "2"))
    async with world.running():
        await world.wait(lambda: amounts(world) == ("0", "0"))
    async with plugged(world.host, plugin), world.running():
        await world.wait(lambda: amounts(world) == ("2", "2"))


async def test_after_a_reboot_cut_off_a_pod_waits_for_its_plugin(
    world: World, autojump_clock: MockClock
) -> None:
    """With `--offline-pods`: who would replace it cannot be reached."""
    world.offline = world.host.base / "root" / "offline"
    limits = ResourceRequirements(limits={GPU: "1"}, requests={GPU: "1"})
    container = Container(name="web", image="web", imagePullPolicy="IfNotPresent", resources=limits)
    spec = PodSpec(containers=[container], nodeName=NAME)
    plugin = FakeDevicePlugin(GPU, ["a", "b"])
    async with plugged(world.host, plugin), world.running():
        await world.wait(lambda: amounts(world) == ("2", "2"))
        world.kube.add(Pod(metadata=ObjectMeta(name="web", namespace="default"), spec=spec))
        await world.wait(lambda: world.is_ready("web"))
        await trio.sleep(10)
    world.kube.go_down()
    world.host.runtime = FakeRuntime()
    async with world.running():
        await trio.sleep(900)  # longer than a resource is remembered whose plugin is gone
        assert not world.host.runtime.alive()
        async with plugged(world.host, plugin):
            await eventually(world.host.runtime.alive)
            world.kube.come_back()
            await trio.sleep(60)
            await world.wait(lambda: world.is_ready("web"))
    assert world.host.runtime.violations == []

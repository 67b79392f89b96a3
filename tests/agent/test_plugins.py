"""Plugins of a whole agent: a CSI driver registers by its socket, and pods use it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.model import open_watcher
from kubelet_trio.testing.csi import CsiDriverFacts, FakeCsiDriver
from tests.agent.node import Node, below, make_pod, ready
from tests.harness.csi_services import serving
from tests.plugins.fakes import FakePlugin

DRIVER = "fake.csi.example.org"


@pytest.fixture
def node(short_path: Path) -> Node:
    node = Node(short_path)
    node.plugin_watcher = open_watcher
    return node


async def eventually(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await trio.sleep(0.1)
    raise AssertionError("not within 100 s")


def sockets(agent: Agent) -> dict[str, str]:
    """Return the notes of the sockets in the tree."""
    tree = below(agent.tree(), "plugins", "sockets")
    return {child.name: child.note for child in tree.children}


async def test_a_plugin_without_a_handler_is_told_so(node: Node, autojump_clock: MockClock) -> None:
    path = node.base / "root" / "plugins_registry" / "disk-reg.sock"
    plugin = FakePlugin(path, type="OtherPlugin")
    async with node.running() as agent:
        async with plugin.serving():
            assert await plugin.wait_told() == (
                False,
                "RegisterPlugin error -- no handler registered for plugin type: "
                f"'OtherPlugin' at socket {path}",
            )
            assert list(sockets(agent)) == ["disk-reg.sock"]
            labels = f'socket_path="{path}",state="desired_state_of_world"'
            assert f"plugin_manager_total_plugins{{{labels}}} 1" in await agent.metrics.page()
        await eventually(lambda: not sockets(agent))


async def test_a_driver_is_known_while_its_socket_exists(
    node: Node, autojump_clock: MockClock
) -> None:
    driver = FakeCsiDriver(facts=CsiDriverFacts(name=DRIVER, node_id="n-7", endpoint=""))
    path = node.base / "root" / "plugins_registry" / "driver-reg.sock"
    async with node.running() as agent:
        drivers = agent.parts.supplies.csi.drivers
        async with serving(driver, path):
            await eventually(lambda: DRIVER in drivers.value)
            assert drivers.value[DRIVER].node_id == "n-7"
            await driver.registered.wait()
            assert driver.registrations == [""]
            registered = {"driver-reg.sock": f"CSIPlugin {DRIVER}: registered"}
            await eventually(lambda: sockets(agent) == registered)
            page = await agent.metrics.page()
            for state in ("actual", "desired"):
                labels = f'socket_path="{path}",state="{state}_state_of_world"'
                assert f"plugin_manager_total_plugins{{{labels}}} 1" in page
        await eventually(lambda: not sockets(agent))
        assert drivers.value == {}


async def test_the_next_agent_finds_the_driver_again(node: Node, autojump_clock: MockClock) -> None:
    driver = FakeCsiDriver(facts=CsiDriverFacts(name=DRIVER, endpoint=""))
    path = node.base / "root" / "plugins_registry" / "driver-reg.sock"
    path.parent.mkdir(parents=True)
    async with serving(driver, path):
        for _ in range(2):
            async with node.running() as agent:
                drivers = agent.parts.supplies.csi.drivers
                await eventually(lambda drivers=drivers: list(drivers.value) == [DRIVER])  # type: ignore[misc]
                await trio.sleep(1)
        assert driver.registrations == ["", ""]


async def test_an_agent_without_plugins_has_no_registry(
    node: Node, autojump_clock: MockClock
) -> None:
    node.plugin_watcher = None
    async with node.running() as agent:
        plugin = FakePlugin(node.base / "root" / "plugins_registry" / "disk.sock")
        async with plugin.serving():
            await trio.sleep(100)
            assert plugin.asked == 0
        assert "plugins" not in [child.name for child in agent.tree().children]


async def test_a_flood_of_bad_plugins_disturbs_no_pod(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        registry = node.base / "root" / "plugins_registry"
        for number in range(30):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(registry / f"{number}.sock"))
        await eventually(lambda: ready(node.status(pod)))
        await trio.sleep(60)
        assert len(sockets(agent)) == 30
        assert ready(node.status(pod))


async def test_a_pod_starts_as_soon_as_what_its_volume_waits_for_is_there(
    node: Node, autojump_clock: MockClock
) -> None:
    """First its driver, then the CSIDriver, each after half a minute of attempts."""
    body = """
- name: web
  image: web
  imagePullPolicy: IfNotPresent
  volumeMounts: [{name: v, mountPath: /data}]"""
    pod = make_pod(containers=body[1:], spec=[f"volumes: [{{name: v, csi: {{driver: {DRIVER}}}}}]"])
    driver = FakeCsiDriver(facts=CsiDriverFacts(name=DRIVER, endpoint=""))
    path = node.base / "root" / "plugins_registry" / "driver-reg.sock"

    def object_of(*modes: str) -> CSIDriver:
        fields = CSIDriverSpec(
            attachRequired=False, podInfoOnMount=True, volumeLifecycleModes=list(modes)
        )
        return CSIDriver(metadata=ObjectMeta(name=DRIVER), spec=fields)

    async with node.running(pod, objects=[object_of("Ephemeral")]) as agent:
        await trio.sleep(40)
        assert not ready(node.status(pod))
        async with serving(driver, path):
            await eventually(lambda: DRIVER in agent.parts.supplies.csi.drivers.value)
            await trio.sleep(1)
            assert ready(node.status(pod))

            node.feed.put(objects=[object_of("Persistent")])
            await eventually(lambda: not driver.rules.published())
            await trio.sleep(10)
            node.feed.put(pod, objects=[object_of("Persistent")])
            await trio.sleep(40)
            assert not driver.rules.published()
            node.feed.put(pod, objects=[object_of("Ephemeral")])
            await trio.sleep(1)
            assert ready(node.status(pod))
            node.feed.put()
            await eventually(lambda: not driver.rules.published())

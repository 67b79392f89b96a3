"""What the page of the machine says of those who hold devices."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from kubelet_trio.managers import ManagerSettings, machine_holdings
from kubelet_trio.managers.topology import ContainerHoldings, MachineDevice
from kubelet_trio.testing.devices import FakeDevice, FakeDevicePlugin
from tests.managers.devices.node import living, open_node
from tests.managers.devices.pods import GPU, asking, pod_of


async def test_the_machine_shows_all_devices_and_who_has_which(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    pod = pod_of(asking("c"))
    devices = [FakeDevice("a", nodes=(1,)), FakeDevice("b", is_healthy=False)]
    plugin = FakeDevicePlugin(GPU, devices)
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(pod)
        shown = machine_holdings(node.managers, ManagerSettings(), [pod])
    assert shown.devices == (
        MachineDevice(GPU, "a", 0b10),
        MachineDevice(GPU, "b", healthy=False),
    )
    assert shown.containers == (ContainerHoldings("default", "p", "c", devices={GPU: ("a",)}),)

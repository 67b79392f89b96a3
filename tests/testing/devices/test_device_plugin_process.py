"""The test plugins as processes: real device nodes, on our gRPC server and on grpcio."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from kubelet_trio.grpc import GRPCError, Server, Status, open_channel
from kubelet_trio.managers.devices.generated import v1beta1
from kubelet_trio.managers.devices.generated.v1beta1.client import DevicePluginStub
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.client import RegistrationStub
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.devices import DeviceFaultKind, FakeDevice, calls
from tests.harness.device_plugin import ANNOTATION, ENV, MOUNTED
from tests.harness.devices import DevicePlugin, PluginConfig
from tests.testing.devices.test_fake_device_plugin import Kubelet, Lists, allocate, prefer, watching

CONFIG = PluginConfig(devices=("a", "b", "c"), prefers=True, needs_pre_start=True)


class Node:
    """A kubelet's socket and a plugin's process."""

    def __init__(self, base: Path, config: PluginConfig) -> None:
        self.root, self.kubelet = base / "root", Kubelet()
        self.plugin = DevicePlugin(base / "plugin", self.root, config)
        (self.root / "device-plugins").mkdir(parents=True)

    @asynccontextmanager
    async def stub(self, lives: int = 1) -> AsyncIterator[DevicePluginStub]:
        """Be a kubelet that has taken a number of registrations, and call the plugin."""
        path = self.root / "device-plugins" / "kubelet.sock"
        async with trio.open_nursery() as nursery:
            await nursery.start(Server([self.kubelet]).serve, [open_unix(path)])
            while len(self.kubelet.requests) < lives:  # noqa: ASYNC110  # another process's doing
                await trio.sleep(0.01)
            endpoint = self.kubelet.requests[-1].endpoint
            async with open_channel(str(path.with_name(endpoint))) as channel:
                yield DevicePluginStub(channel)
            nursery.cancel_scope.cancel()


@pytest.fixture(params=[False, True], ids=["ours", "grpcio"])
def node(short_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    if os.geteuid():
        pytest.skip("device nodes need root")
    node = Node(short_path, replace(CONFIG, is_grpcio=request.param))
    with node.plugin:
        yield node


async def read(lists: Lists) -> dict[str, str] | None:
    with trio.fail_after(30):
        return await lists.take()


async def test_a_container_gets_nodes_that_are_there(node: Node) -> None:
    async with node.stub() as stub, watching(stub) as lists:
        assert await read(lists) == {"a": "Healthy", "b": "Healthy", "c": "Healthy"}
        assert await prefer(stub, 2, "a", "b", "c") == [["c", "b"]]
        (granted,) = await allocate(stub, "b", "c")
        await stub.pre_start_container(v1beta1.PreStartContainerRequest(devices_ids=["b", "c"]))
    assert granted.envs == {ENV: "b,c"}
    assert granted.annotations == {ANNOTATION: "b,c"}
    assert [mount.container_path for mount in granted.mounts] == [MOUNTED]
    assert [spec.container_path for spec in granted.devices] == ["/dev/test-b", "/dev/test-c"]
    for spec in granted.devices:
        found = Path(spec.host_path).stat()
        assert stat.S_ISCHR(found.st_mode)
        assert found.st_rdev == os.makedev(1, 3)
    (request,) = node.kubelet.requests
    assert request.options is not None
    assert request.options.pre_start_required
    node.plugin.check()


async def test_its_lists_follow_what_it_is_told(node: Node) -> None:
    async with node.stub() as stub, watching(stub) as lists:
        await read(lists)
        node.plugin.list_now(FakeDevice("a", is_healthy=False), "d")
        assert await read(lists) == {"a": "Unhealthy", "d": "Healthy"}
        node.plugin.end_streams()
        assert await read(lists) is None


async def test_a_breach_outlives_the_process(node: Node) -> None:
    async with node.stub() as stub, watching(stub) as lists:
        await read(lists)
        await allocate(stub, "a")
        with pytest.raises(GRPCError, match="another container"):
            await allocate(stub, "a")
    node.plugin.kill()
    node.plugin.list_first(["b"])
    node.plugin.start()
    async with node.stub(lives=2) as stub, watching(stub) as lists:
        assert await read(lists) == {"b": "Healthy"}
    with pytest.raises(AssertionError, match="another container"):
        node.plugin.check()
    assert node.plugin.state()["allocated"] == {"a": 1}


@pytest.mark.parametrize(
    ("kind", "is_allocated"),
    [(DeviceFaultKind.DIE_BEFORE, False), (DeviceFaultKind.DIE_AFTER, True)],
)
async def test_it_dies_in_a_call(node: Node, kind: DeviceFaultKind, is_allocated: bool) -> None:
    async with node.stub() as stub, watching(stub) as lists:
        await read(lists)
        node.plugin.fault(kind, calls.ALLOCATE)
        with pytest.raises(GRPCError) as caught:
            await allocate(stub, "a")
        assert caught.value.status is Status.UNAVAILABLE
    node.plugin.wait_dead()
    node.plugin.start()
    assert ("a" in node.plugin.state()["allocated"]) is is_allocated


async def test_a_call_that_its_caller_gives_up_ends(node: Node) -> None:
    async with node.stub() as stub, watching(stub) as lists:
        await read(lists)
        node.plugin.fault(DeviceFaultKind.HANG, calls.ALLOCATE)
        asked = v1beta1.ContainerAllocateRequest(devices_ids=["a"])
        with pytest.raises(GRPCError) as caught:
            await stub.allocate(v1beta1.AllocateRequest(container_requests=[asked]), timeout=0.2)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert len(await allocate(stub, "a")) == 1
    assert node.plugin.calls(calls.ALLOCATE) == [["a"], ["a"]]
    assert node.plugin.state()["allocated"] == {"a": 1}


async def test_it_registers_twice_when_it_is_told_to(node: Node) -> None:
    async with node.stub():
        node.plugin.wait_registered()
        command = trio.to_thread.run_sync
        await command(node.plugin.register_again)
    assert len(node.kubelet.requests) == 2
    assert node.plugin.state()["registrations"] == ["", ""]


@pytest.mark.parametrize("is_grpcio", [False, True], ids=["ours", "grpcio"])
async def test_a_registry_finds_it(short_path: Path, is_grpcio: bool) -> None:
    config = PluginConfig("example.org/found", in_registry=True, is_grpcio=is_grpcio)
    root = short_path / "root"
    with DevicePlugin(short_path / "plugin", root, config) as plugin:
        socket = root / "plugins_registry" / "example.org_found.sock"
        async with open_channel(str(socket)) as channel:
            info = await RegistrationStub(channel).get_info(registration.InfoRequest())
            status = registration.RegistrationStatus(plugin_registered=True)
            await RegistrationStub(channel).notify_registration_status(status)
            async with watching(DevicePluginStub(channel)) as lists:
                assert await read(lists) == {"a": "Healthy", "b": "Healthy"}
        assert (info.type, info.name) == ("DevicePlugin", "example.org/found")
        assert plugin.state()["registrations"] == [""]
    assert not socket.exists()

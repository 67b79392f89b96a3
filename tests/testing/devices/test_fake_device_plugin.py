"""The fake device plugin over real gRPC: answers, lists, registrations, faults, deaths."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.grpc import GRPCError, Server, Status, open_channel
from kubelet_trio.grpc._call import ClientStream
from kubelet_trio.managers.devices.generated import v1beta1
from kubelet_trio.managers.devices.generated.v1beta1.client import DevicePluginStub
from kubelet_trio.managers.devices.generated.v1beta1.server import RegistrationBase
from kubelet_trio.plugins.generated import pluginregistration as registration
from kubelet_trio.plugins.generated.pluginregistration.client import RegistrationStub
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.devices import (
    DeviceFaultKind,
    DeviceGrant,
    DeviceRules,
    FakeDevice,
    FakeDevicePlugin,
    GrantedMount,
    GrantedNode,
    calls,
)
from tests.harness.device_services import (
    device_plugin_server,
    register_plugin,
    run_device_plugin,
    serve_device_plugin,
)


@asynccontextmanager
async def calling(plugin: FakeDevicePlugin) -> AsyncIterator[DevicePluginStub]:
    """Call a plugin that lives for the block, over streams in memory."""
    async with trio.open_nursery() as nursery:
        await nursery.start(plugin.run)
        server = device_plugin_server(plugin)

        async def dial() -> trio.abc.Stream:
            near, far = memory_stream_pair()
            nursery.start_soon(server.serve_stream, far)
            return near

        async with open_channel(dial) as channel:
            yield DevicePluginStub(channel)
        nursery.cancel_scope.cancel()


async def allocate(stub: DevicePluginStub, *ids: str) -> list[v1beta1.ContainerAllocateResponse]:
    asked = v1beta1.ContainerAllocateRequest(devices_ids=list(ids))
    reply = await stub.allocate(v1beta1.AllocateRequest(container_requests=[asked]), timeout=5)
    return reply.container_responses


async def prefer(stub: DevicePluginStub, size: int, *available: str) -> list[list[str]]:
    asked = v1beta1.ContainerPreferredAllocationRequest(
        available_deviceIDs=list(available), allocation_size=size
    )
    request = v1beta1.PreferredAllocationRequest(container_requests=[asked])
    reply = await stub.get_preferred_allocation(request, timeout=5)
    return [answer.device_i_ds for answer in reply.container_responses]


class Lists:
    """A stream of ListAndWatch."""

    def __init__(self, stream: ClientStream[v1beta1.Empty, v1beta1.ListAndWatchResponse]) -> None:
        self._stream = stream

    async def take(self) -> dict[str, str] | None:
        """Return the next list, ID to health; None: the stream has ended."""
        message = await self._stream.recv_message()
        return None if message is None else {d.id: d.health for d in message.devices}


@asynccontextmanager
async def watching(stub: DevicePluginStub) -> AsyncIterator[Lists]:
    async with stub.list_and_watch.open() as stream:
        await stream.send_message(v1beta1.Empty(), end=True)
        yield Lists(stream)


class Kubelet(RegistrationBase):
    """Takes registrations of its version, as a kubelet does."""

    def __init__(self) -> None:
        self.requests: list[v1beta1.RegisterRequest] = []

    async def register(self, request: v1beta1.RegisterRequest) -> v1beta1.Empty:
        self.requests.append(request)
        if request.version != calls.VERSION:
            raise GRPCError(Status.UNKNOWN, f"unsupported version {request.version}")
        return v1beta1.Empty()


@asynccontextmanager
async def listening(kubelet: Kubelet, directory: Path) -> AsyncIterator[None]:
    """Serve a kubelet's socket; like a kubelet it removes the sockets of others first."""
    directory.mkdir(exist_ok=True)
    for old in directory.glob("*.sock"):
        old.unlink()
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([kubelet]).serve, [open_unix(directory / "kubelet.sock")])
        yield
        nursery.cancel_scope.cancel()


async def test_each_change_is_a_whole_new_list() -> None:
    plugin = FakeDevicePlugin(devices=["a", FakeDevice("b", is_healthy=False, nodes=(1, 2))])
    async with calling(plugin) as stub, watching(stub) as lists:
        assert await lists.take() == {"a": "Healthy", "b": "Unhealthy"}
        plugin.set_health("a", is_healthy=False)
        assert await lists.take() == {"a": "Unhealthy", "b": "Unhealthy"}
        plugin.set_health("a", "b", is_healthy=True)
        plugin.set_devices([*plugin.devices, "c"])
        assert await lists.take() == {"a": "Healthy", "b": "Healthy", "c": "Healthy"}
        assert plugin.devices[1].nodes == (1, 2)
        plugin.end_streams()
        assert await lists.take() is None
        async with watching(stub) as further:
            assert await further.take() == {"a": "Healthy", "b": "Healthy", "c": "Healthy"}


async def test_a_list_tells_the_numa_nodes_of_a_device() -> None:
    plugin = FakeDevicePlugin(devices=[FakeDevice("a", nodes=(0, 3)), "b"])
    async with calling(plugin) as stub, stub.list_and_watch.open() as stream:
        await stream.send_message(v1beta1.Empty(), end=True)
        message = await stream.recv_message()
        assert message is not None
        near, anywhere = message.devices
        assert near.topology is not None
        assert [node.id for node in near.topology.nodes] == [0, 3]
        assert anywhere.topology is None


async def test_a_grant_arrives_with_all_that_it_has() -> None:
    grant = DeviceGrant(
        {"A": "1"},
        (GrantedMount("/in", "/out", is_read_only=True),),
        (GrantedNode("/dev/in", "/dev/out", "rwm"),),
        {"note": "yes"},
        ("example.org/device=a",),
    )
    plugin = FakeDevicePlugin(devices=["a"], grant=lambda _ids: grant)
    async with calling(plugin) as stub, watching(stub) as lists:
        await lists.take()
        (granted,) = await allocate(stub, "a")
    assert (granted.envs, granted.annotations) == ({"A": "1"}, {"note": "yes"})
    (mount,), (node,), (cdi,) = granted.mounts, granted.devices, granted.cdi_devices
    assert (mount.container_path, mount.host_path, mount.read_only) == ("/in", "/out", True)
    assert (node.container_path, node.host_path) == ("/dev/in", "/dev/out")
    assert (node.permissions, cdi.name) == ("rwm", "example.org/device=a")
    plugin.rules.check()


async def test_the_options_and_the_preference_are_those_of_the_rules() -> None:
    plugin = FakeDevicePlugin(devices=["a", "b"], rules=DeviceRules(prefers=True))
    async with calling(plugin) as stub, watching(stub) as lists:
        options = await stub.get_device_plugin_options(v1beta1.Empty())
        assert options.get_preferred_allocation_available
        assert not options.pre_start_required
        await lists.take()
        assert await prefer(stub, 1, "b", "a") == [["a"]]


async def test_a_device_that_was_never_listed_is_refused() -> None:
    plugin = FakeDevicePlugin(devices=["a"])
    async with calling(plugin) as stub:
        with pytest.raises(GRPCError, match="does not list"):
            await allocate(stub, "a")
    with pytest.raises(AssertionError, match="does not list"):
        plugin.rules.check()


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        (DeviceFaultKind.NO_ANSWERS, []),
        (DeviceFaultKind.MORE_ANSWERS, [["a", "b"], ["one-too-many"]]),
        (DeviceFaultKind.OTHER_IDS, [["not-a", "not-b"]]),
        (DeviceFaultKind.FEWER_IDS, [["a"]]),
    ],
)
async def test_a_plugin_may_prefer_what_it_should_not(
    kind: DeviceFaultKind, answers: list[list[str]]
) -> None:
    plugin = FakeDevicePlugin(devices=["a", "b"], rules=DeviceRules(prefers=True))
    plugin.faults.add(kind, calls.PREFER)
    async with calling(plugin) as stub, watching(stub) as lists:
        await lists.take()
        assert await prefer(stub, 2, "a", "b") == answers
        assert await prefer(stub, 2, "a", "b") == [["a", "b"]]


@pytest.mark.parametrize(
    ("kind", "count"), [(DeviceFaultKind.NO_ANSWERS, 0), (DeviceFaultKind.MORE_ANSWERS, 2)]
)
async def test_a_plugin_may_answer_for_a_wrong_number_of_containers(
    kind: DeviceFaultKind, count: int
) -> None:
    plugin = FakeDevicePlugin(devices=["a"])
    plugin.faults.add(kind, calls.ALLOCATE, "a")
    async with calling(plugin) as stub, watching(stub) as lists:
        await lists.take()
        assert len(await allocate(stub, "a")) == count


@pytest.mark.parametrize("method", [calls.ALLOCATE, calls.PREFER, calls.WATCH])
async def test_a_huge_answer_is_more_than_a_caller_takes(method: str) -> None:
    plugin = FakeDevicePlugin(devices=["a"], rules=DeviceRules(prefers=True))
    async with calling(plugin) as stub, watching(stub) as lists:
        await lists.take()
        plugin.faults.add(DeviceFaultKind.HUGE, method)

        async def call() -> None:
            if method == calls.ALLOCATE:
                await allocate(stub, "a")
            elif method == calls.PREFER:
                await prefer(stub, 1, "a")
            else:
                async with watching(stub) as further:
                    await further.take()

        with pytest.raises(GRPCError) as caught:
            await call()
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


async def test_a_list_may_end_before_it_begins_or_have_devices_twice() -> None:
    plugin = FakeDevicePlugin(devices=["a"])
    plugin.faults.add(DeviceFaultKind.NO_ANSWERS, calls.WATCH)
    async with calling(plugin) as stub:
        async with watching(stub) as lists:
            assert await lists.take() is None
        plugin.faults.add(DeviceFaultKind.MORE_ANSWERS, calls.WATCH)
        async with watching(stub) as lists:
            assert await lists.take() == {"a": "Healthy"}
        assert [device.id for device in plugin.devices] == ["a", "a"]


async def test_a_call_that_hangs_lasts_until_the_fault_is_lifted(autojump_clock: MockClock) -> None:
    plugin = FakeDevicePlugin(devices=["a"], rules=DeviceRules(settle=math.inf))
    plugin.faults.add(DeviceFaultKind.HANG, calls.ALLOCATE, times=None)
    async with calling(plugin) as stub, watching(stub) as lists:
        await lists.take()
        with pytest.raises(GRPCError) as caught:
            await allocate(stub, "a")
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert not plugin.rules.allocated
        async with trio.open_nursery() as nursery:
            nursery.start_soon(allocate, stub, "a")
            await trio.sleep(1)
            plugin.faults.clear()
    assert plugin.rules.allocated == {"a": 1}


@pytest.mark.parametrize(
    ("kind", "is_allocated"),
    [(DeviceFaultKind.DIE_BEFORE, False), (DeviceFaultKind.DIE_AFTER, True)],
)
async def test_a_plugin_dies_in_a_call_and_lives_again(
    short_path: Path, kind: DeviceFaultKind, is_allocated: bool
) -> None:
    plugin = FakeDevicePlugin(devices=["a"])
    path = short_path / "plugin.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_device_plugin, plugin, [open_unix(path)])
        async with open_channel(str(path)) as channel:
            stub = DevicePluginStub(channel)
            async with watching(stub) as lists:
                await lists.take()
                plugin.faults.add(kind, calls.ALLOCATE)
                with pytest.raises(GRPCError) as caught:
                    await allocate(stub, "a")
                assert caught.value.status is Status.UNAVAILABLE
                with pytest.raises(GRPCError):
                    await lists.take()
        assert (plugin.rules.allocated == {"a": 1}) is is_allocated
    async with trio.open_nursery() as nursery:  # the first life has ended its nursery by itself
        plugin.set_devices(["b"])
        await nursery.start(serve_device_plugin, plugin, [open_unix(path)])
        async with open_channel(str(path)) as channel:
            async with watching(DevicePluginStub(channel)) as lists:
                assert await lists.take() == {"b": "Healthy"}
        nursery.cancel_scope.cancel()


async def test_it_registers_at_every_kubelet_that_comes(short_path: Path) -> None:
    plugin, kubelet = FakeDevicePlugin(devices=["a"], rules=DeviceRules(prefers=True)), Kubelet()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_device_plugin, plugin, short_path)
        for life in (1, 2, 3):
            async with listening(kubelet, short_path):
                await plugin.wait_registered(life)
                async with open_channel(str(short_path / "example.org_device.sock")) as channel:
                    async with watching(DevicePluginStub(channel)) as lists:
                        assert await lists.take() == {"a": "Healthy"}
        nursery.cancel_scope.cancel()
    first = kubelet.requests[0]
    assert (first.resource_name, first.version) == ("example.org/device", "v1beta1")
    assert first.endpoint == "example.org_device.sock"
    assert first.options is not None
    assert first.options.get_preferred_allocation_available


async def test_a_registration_may_be_repeated_or_wrong(short_path: Path) -> None:
    plugin, kubelet = FakeDevicePlugin(), Kubelet()
    socket = str(short_path / "kubelet.sock")
    async with listening(kubelet, short_path):
        await register_plugin(plugin, socket, "device.sock")
        await register_plugin(plugin, socket, "device.sock")
        with pytest.raises(GRPCError, match="unsupported version v1alpha"):
            await register_plugin(plugin, socket, "device.sock", version="v1alpha")
    assert plugin.registrations == ["", "", "unsupported version v1alpha"]
    assert len(kubelet.requests) == 3


async def test_a_registration_where_nobody_listens_fails(short_path: Path) -> None:
    plugin = FakeDevicePlugin()
    with pytest.raises(GRPCError):
        await register_plugin(plugin, str(short_path / "kubelet.sock"), "device.sock")
    assert len(plugin.registrations) == 1


async def test_it_answers_the_registry_of_plugins(short_path: Path) -> None:
    plugin = FakeDevicePlugin("example.org/gpu", versions=("v1beta1", "v1"))
    path = short_path / "plugin.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_device_plugin, plugin, [open_unix(path)])
        async with open_channel(str(path)) as channel:
            stub = RegistrationStub(channel)
            info = await stub.get_info(registration.InfoRequest())
            for error in ("", "no"):
                status = registration.RegistrationStatus(plugin_registered=not error, error=error)
                await stub.notify_registration_status(status)
        nursery.cancel_scope.cancel()
    assert (info.type, info.name) == ("DevicePlugin", "example.org/gpu")
    assert info.supported_versions == ["v1beta1", "v1"]
    assert plugin.registrations == ["", "no"]

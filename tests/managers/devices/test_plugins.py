"""Device plugins on a node, in virtual time: registration, lists, allocation, faults, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.managers import PlacementError
from kubelet_trio.managers.devices.inventory import GRACE, MOST_RESOURCES
from kubelet_trio.managers.devices.registration import LIMITS
from kubelet_trio.managers.devices.types import Device
from kubelet_trio.managers.shares import DeviceHealth, DeviceNode, DeviceOptions, DevicePluginError
from kubelet_trio.model import PodUid
from kubelet_trio.testing.devices import (
    DeviceFaultKind,
    DeviceGrant,
    DeviceRules,
    FakeDevice,
    FakeDevicePlugin,
    GrantedNode,
    calls,
)
from tests.harness.device_services import register_plugin
from tests.managers.devices.node import DeviceNode as Node
from tests.managers.devices.node import living, open_node
from tests.managers.devices.pods import GPU, asking, pod_of

UID = PodUid("p")
POD = pod_of(asking("c"))


def gpus(*devices: FakeDevice | str, rules: DeviceRules | None = None) -> FakeDevicePlugin:
    return FakeDevicePlugin(GPU, devices or ("a", "b"), rules)


async def refused(node: object, plugin: FakeDevicePlugin, **options: str) -> str:
    with pytest.raises(GRPCError) as failure:
        await node.register(plugin, **options)  # type: ignore[attr-defined]
    return failure.value.message or ""


async def test_a_plugins_devices_are_the_nodes_capacity(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus("a", "b", FakeDevice("bad", is_healthy=False))
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        assert node.managers.capacity().capacity == {GPU: 3}
        assert node.capacities[-1] == {GPU: 2}
        plugin.set_health("bad", is_healthy=True)
        await trio.sleep(1)
        assert node.capacities[-1] == {GPU: 3}
        counted = dict(node.meter.counters("kubelet_device_plugin_registration_total"))
        assert counted == {(GPU,): 1}


async def test_registrations_that_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_node(tmp_path) as node:
        old = FakeDevicePlugin(GPU, versions=["v1alpha1"])
        text = 'requested API version "v1alpha1" is not supported by kubelet. '
        assert await refused(node, old) == text + 'Supported version is ["v1beta1"]'
        native = FakeDevicePlugin("cpu")
        assert await refused(node, native) == 'the ResourceName "cpu" is invalid'
        outside = await refused(node, gpus(), name="../../../run/x.sock")
        assert "is not the name of a socket in" in outside
        assert not node.inventory.rules.listed


async def test_a_plugin_may_register_before_it_listens(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node, trio.open_nursery() as nursery:
        nursery.start_soon(register_plugin, plugin, node.agent, "late.sock")
        await trio.sleep(3)
        assert plugin.registrations == []
        node.served[str(node.directory / "late.sock")] = plugin
        await plugin.wait_registered()


async def test_a_plugin_that_never_listens_is_refused_after_ten_seconds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus()
    async with open_node(tmp_path) as node:
        attempt = node.plugins.register(GPU, "/nowhere")
        with pytest.raises(DevicePluginError, match="failed to get device plugin options"):
            await attempt
        assert trio.current_time() == pytest.approx(10, abs=0.5)
        assert plugin.rules.log == []


async def test_a_pod_gets_what_the_plugin_answers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = FakeDevicePlugin(
        GPU,
        ["a", "b"],
        grant=lambda ids: DeviceGrant(
            environment={"GPUS": ",".join(ids)},
            nodes=(GrantedNode("/dev/gpu", "/dev/zero", "rwm"),),
            annotations={"gpu": "yes"},
            cdi_devices=("example.com/gpu=a",),
        ),
    )
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(POD)
        plugin.rules.check()
        assert node.managers.share(UID, "c").devices == DeviceOptions(
            env={"GPUS": "a"},
            devices=(DeviceNode("/dev/zero", "/dev/gpu", "rwm"),),
            annotations={"gpu": "yes"},
            cdi=("example.com/gpu=a",),
        )
        assert node.managers.share(UID, "other").devices is None
    # A restarted agent has all of it from the checkpoint, and asks no plugin.
    async with open_node(tmp_path) as node:
        options = node.managers.share(UID, "c").devices
        assert options is not None
        assert options.env == {"GPUS": "a"}
    assert plugin.rules.allocated == {"a": 1}


async def test_the_plugins_preference_is_followed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = FakeDevicePlugin(
        GPU, ["a", "b", "c", "d"], DeviceRules(prefers=True), prefer=lambda _asked: ("d", "b")
    )
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(pod_of(asking("c", 2)))
        plugin.rules.check()
        assert node.ids("c", GPU) == ["b", "d"]
        (asked,) = (call.containers[0] for call in plugin.rules.log if call.method == calls.PREFER)
        assert (asked.available, asked.must_include, asked.size) == (("a", "b", "c", "d"), (), 2)


async def test_what_another_pod_has_reserved_is_not_taken_for_a_preference(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = FakeDevicePlugin(
        GPU, ["a", "b", "c"], DeviceRules(prefers=True), prefer=lambda _asked: ("c",)
    )
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        plugin.latency = 10
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.placed, pod_of(asking("c", 1)))
            await trio.sleep(1)  # the plugin thinks
            nursery.start_soon(node.placed, pod_of(asking("c", 2), uid="q"))
        plugin.rules.check()
        # q had reserved c, which the plugin prefers for p as well.
        assert node.ids("c", GPU) == ["a"]
        assert node.ids("c", GPU, "q") == ["b", "c"]


@pytest.mark.parametrize("kind", [DeviceFaultKind.OTHER_IDS, DeviceFaultKind.FEWER_IDS])
async def test_a_preference_for_nothing_that_exists_is_ignored(
    tmp_path: Path, autojump_clock: MockClock, kind: DeviceFaultKind
) -> None:
    plugin = gpus("a", "b", "c", rules=DeviceRules(prefers=True))
    plugin.faults.add(kind, calls.PREFER)
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(pod_of(asking("c", 2)))
        plugin.rules.check()
        assert node.ids("c", GPU) == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "method", "text"),
    [
        (DeviceFaultKind.HANG, calls.ALLOCATE, "did not answer Allocate within 120 s"),
        (DeviceFaultKind.NO_ANSWERS, calls.ALLOCATE, "no containers return in allocation response"),
        (DeviceFaultKind.MORE_ANSWERS, calls.ALLOCATE, "with 2 container responses"),
        (DeviceFaultKind.HUGE, calls.ALLOCATE, "code = ResourceExhausted"),
        (DeviceFaultKind.REFUSE, calls.ALLOCATE, "code = Unavailable desc = injected failure"),
        (
            DeviceFaultKind.REFUSE,
            calls.PREFER,
            "device plugin GetPreferredAllocation rpc failed with err: GetPreferredAllocation of "
            "device plugin example.com/gpu: rpc error: code = Unavailable",
        ),
        (DeviceFaultKind.HANG, calls.PREFER, "did not answer GetPreferredAllocation within 30 s"),
    ],
)
async def test_a_plugin_that_fails_is_named_and_its_pod_rejected(
    tmp_path: Path, autojump_clock: MockClock, kind: DeviceFaultKind, method: str, text: str
) -> None:
    plugin = gpus(rules=DeviceRules(prefers=True))
    plugin.faults.add(kind, method)
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        with pytest.raises(PlacementError) as failure:
            await node.placed(POD)
        refusal = failure.value.refusal
        assert refusal.reason == "UnexpectedAdmissionError"
        assert refusal.message.startswith("Allocate failed due to ")
        assert refusal.message.endswith(", which is unexpected")
        assert text in refusal.message
        assert GPU in refusal.message
        # All is given back, and the plugin goes on.
        assert node.managers.devices.pods == {}
        await node.placed(pod_of(asking("c", 2), uid="q"))


async def test_a_plugin_that_hangs_holds_up_only_its_own_pods(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    slow, other = gpus(), FakeDevicePlugin("example.com/nic", ["n"])
    slow.faults.add(DeviceFaultKind.HANG, calls.ALLOCATE)
    async with living(slow, other), open_node(tmp_path) as node:
        await node.register(slow)
        await node.register(other, "other.sock")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def hanging() -> None:
                with pytest.raises(PlacementError):
                    await node.placed(POD)

            nursery.start_soon(hanging)
            await node.placed(pod_of(asking("c", 1, "example.com/nic"), uid="q"))
            assert trio.current_time() - began < 1


@pytest.mark.parametrize("kind", [DeviceFaultKind.DIE_BEFORE, DeviceFaultKind.DIE_AFTER])
async def test_a_plugin_that_dies_while_it_allocates(
    tmp_path: Path, autojump_clock: MockClock, kind: DeviceFaultKind
) -> None:
    plugin = gpus()
    plugin.faults.add(kind, calls.ALLOCATE)
    async with open_node(tmp_path) as node, trio.open_nursery() as nursery:
        nursery.start_soon(plugin.run)
        await wait_all_tasks_blocked()
        await node.register(plugin)

        with pytest.raises(PlacementError) as failure:
            await node.placed(POD)
        assert GPU in str(failure.value)
        assert node.managers.devices.pods == {}


async def test_a_stopped_plugins_devices_cannot_be_allocated_and_go_after_five_minutes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        plugin.end_streams()
        await trio.sleep(1)
        stopped = trio.current_time()
        assert node.managers.capacity().capacity == {GPU: 2}
        assert node.allocatable == {GPU: 0}
        refusal = node.managers.admit(POD)
        assert refusal is not None
        assert "no healthy devices present" in refusal.message
        await trio.sleep(298)
        assert node.managers.capacity().removed == frozenset()
        await trio.sleep(2)
        assert node.managers.capacity().removed == {GPU}
        assert node.allocatable == {}
        assert trio.current_time() - stopped < 302
        # Back again.
        await node.register(plugin)
        assert node.allocatable == {GPU: 2}
        assert node.managers.capacity().removed == frozenset()


async def test_a_plugin_that_ends_before_its_first_list_has_a_resource_without_devices(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus("a")
    plugin.faults.add(DeviceFaultKind.REFUSE, calls.WATCH)
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await trio.sleep(1)
        # Nobody is told that the node has no such resource at all.
        assert node.managers.capacity().capacity == {GPU: 0}
        assert node.capacities[-1] == {GPU: 0}
        # It is not asked again: it has to register.
        await trio.sleep(60)
        assert [call.method for call in plugin.rules.log].count(calls.WATCH) == 1
        await trio.sleep(240)
        assert node.managers.capacity().removed == {GPU}
        await node.register(plugin)
        assert node.allocatable == {GPU: 1}
        assert node.managers.capacity().removed == frozenset()


async def test_a_plugin_that_registers_again_replaces_the_one_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    old, new = gpus("a"), gpus("b", "c")
    async with living(old, new), open_node(tmp_path) as node:
        await node.register(old, "old.sock")
        await node.register(new, "new.sock")
        assert node.allocatable == {GPU: 2}
        assert {GPU: 0} not in node.capacities  # nobody saw the resource go
        old.set_devices(["x"])
        await trio.sleep(1)
        assert node.allocatable == {GPU: 2}
        assert len(node.plugins.registered.names()) == 1


async def test_a_restarted_agent_shows_no_devices_until_the_plugin_is_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus("a", "b")
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(POD)
        await trio.sleep(1)
    async with living(plugin), open_node(tmp_path) as node:
        assert node.managers.capacity().capacity == {GPU: 0}
        # A pod that is new to it: its container does not run.
        refusal = node.managers.admit(POD)
        assert refusal is not None
        assert "no healthy devices present" in refusal.message
        # One that runs keeps its devices, whatever the plugin says.
        node.admitted.add(("p", "c"))
        assert node.managers.admit(POD) is None
        assert node.ids("c", GPU) == ["a"]
        await node.register(plugin)
        await node.placed(pod_of(asking("c"), uid="q"))
        assert node.ids("c", GPU, "q") == ["b"]
        plugin.rules.check()


async def test_a_restarted_agent_removes_a_resource_whose_plugin_does_not_come_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await trio.sleep(1)
    async with open_node(tmp_path) as node:
        await trio.sleep(301)
        assert node.managers.capacity().removed == {GPU}
    async with open_node(tmp_path) as node:
        assert node.managers.capacity().capacity == {}


async def test_pods_are_woken_when_the_health_of_their_devices_changes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus("a", "b")
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(POD)
        assert node.managers.device_health(UID, "c") == (DeviceHealth(GPU, {"a": True}),)
        node.woken.clear()
        plugin.set_health("b", is_healthy=False)
        await trio.sleep(1)
        assert node.woken == []
        plugin.set_health("a", is_healthy=False)
        await trio.sleep(1)
        assert node.woken == [UID]
        assert node.managers.device_health(UID, "c") == (DeviceHealth(GPU, {"a": False}),)
        assert node.managers.device_health(UID, "other") == ()
        assert node.ids("c", GPU) == ["a"]  # it keeps it


async def test_the_plugin_prepares_devices_for_each_start(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus(rules=DeviceRules(needs_pre_start=True))
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(POD)
        await node.managers.prepare(POD, asking("c"))
        await node.managers.prepare(POD, asking("c"))
        assert [call.method for call in plugin.rules.log][-2:] == [calls.PRE_START] * 2
        plugin.faults.add(DeviceFaultKind.HANG, calls.PRE_START)
        with pytest.raises(DevicePluginError, match="did not answer PreStartContainer within 30 s"):
            await node.managers.prepare(POD, asking("c"))
        plugin.end_streams()
        await trio.sleep(1)
        with pytest.raises(DevicePluginError, match="has been stopped"):
            await node.managers.prepare(POD, asking("c"))
        await trio.sleep(301)
        with pytest.raises(DevicePluginError, match="endpoint not found in cache"):
            await node.managers.prepare(POD, asking("c"))


async def test_a_container_without_its_share_is_allocated_one_before_it_starts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node:
        await node.placed(POD)  # the plugin has not registered yet
        assert node.ids("c", GPU) == []
        await node.register(plugin)
        await node.managers.prepare(POD, asking("c"))
        assert node.ids("c", GPU) == ["a"]
        assert plugin.rules.allocated == {"a": 1}


async def test_a_damaged_checkpoint_does_not_keep_the_agent_from_starting(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    (directory / "kubelet_internal_checkpoint").write_bytes(b"{")
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        await node.placed(POD)
    async with open_node(tmp_path) as node:
        assert node.ids("c", GPU) == ["a"]


@pytest.mark.parametrize("at", range(40))
async def test_a_placement_that_is_cancelled_is_finished_by_the_next(
    tmp_path: Path, autojump_clock: MockClock, at: int
) -> None:
    plugin = FakeDevicePlugin(GPU, ["a", "b"], DeviceRules(prefers=True), latency=4)
    async with living(plugin), open_node(tmp_path) as node:
        await node.register(plugin)
        with trio.move_on_after(at / 4):
            await node.placed(POD)
        await node.placed(POD)
        assert len(node.ids("c", GPU)) == 1
        plugin.rules.check()
        node.managers.give_back(UID)
        await node.placed(pod_of(asking("c", 2), uid="q"))


async def test_a_pod_that_is_released_while_a_plugin_allocates_asks_no_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    slow, other = gpus(), FakeDevicePlugin("example.com/nic", ["n"])
    both = asking("c")
    assert both.resources is not None
    both.resources.limits = {GPU: "1", "example.com/nic": "1"}
    async with living(slow, other), open_node(tmp_path) as node:
        await node.register(slow)
        await node.register(other, "other.sock")
        slow.latency = 10
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.placed, pod_of(both))
            await trio.sleep(5)
            node.managers.give_back(UID)  # as when a static pod's next version replaces it
        assert calls.ALLOCATE not in [call.method for call in other.rules.log]
        assert node.managers.devices.pods == {}


async def test_a_flood_of_registrations_is_refused_and_keeps_no_plugin_out_for_long(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    refused_with: list[Status] = []

    async def flood(node: Node, number: int) -> None:
        with pytest.raises(GRPCError) as failure:
            await register_plugin(FakeDevicePlugin(f"flood.io/r{number}"), node.agent, "nowhere")
        refused_with.append(failure.value.status)

    assert LIMITS.connections is not None
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node:
        async with trio.open_nursery() as nursery:
            for number in range(LIMITS.connections):
                nursery.start_soon(flood, node, number)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            await flood(node, 999)
            assert refused_with == [Status.UNAVAILABLE]
            assert trio.current_time() == began
        await node.register(plugin)
        assert node.allocatable == {GPU: 2}


async def test_the_resources_of_a_node_are_bounded_also_once_their_plugins_are_gone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plugin = gpus()
    async with living(plugin), open_node(tmp_path) as node:
        for number in range(MOST_RESOURCES):
            node.inventory.take(f"flood.io/r{number}", {"a": Device("a")})
            node.inventory.stop(f"flood.io/r{number}", trio.current_time())
        await trio.sleep(GRACE + 1)
        node.inventory.expire(trio.current_time())
        assert len(node.managers.capacity().removed) == MOST_RESOURCES
        with pytest.raises(GRPCError, match="256 resources"):
            await node.register(plugin)
        for number in range(2 * MOST_RESOURCES):
            node.plugins.count_registration(f"flood.io/r{number}")
        counted = dict(node.meter.counters("kubelet_device_plugin_registration_total"))
        assert len(counted) == MOST_RESOURCES

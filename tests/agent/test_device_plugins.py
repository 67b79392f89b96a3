"""Device plugins of a whole agent: a plugin registers, pods get its devices, agents come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import ContainerStatus, Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cri import v1
from kubelet_trio.managers import ManagerSettings, load_managers
from kubelet_trio.model import open_watcher, pod_uid, spec
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.devices import (
    DeviceFaultKind,
    DeviceGrant,
    DeviceRules,
    FakeDevicePlugin,
    GrantedMount,
    GrantedNode,
    calls,
)
from tests.agent.node import Node, below, from_api, make_pod, ready
from tests.harness.device_services import run_device_plugin, serve_device_plugin

GPU = "example.com/gpu"


@pytest.fixture
def node(short_path: Path) -> Node:
    node = Node(short_path)
    root = short_path / "root"
    node.plugin_watcher = open_watcher
    node.managers = lambda: load_managers(ManagerSettings(), root, device_plugins=True)
    return node


def gpu_pod(name: str = "web", count: int = 1, command: str = "") -> Pod:
    limits = f"resources: {{limits: {{{GPU}: {count}}}, requests: {{{GPU}: {count}}}}}"
    own = f"command: {command}, " if command else ""
    return make_pod(name, containers=f"- {{name: web, image: web, {own}{limits}}}")


def plugin_of(*devices: str, rules: DeviceRules | None = None) -> FakeDevicePlugin:
    def grant(ids: object) -> DeviceGrant:
        return DeviceGrant(
            environment={"GPUS": ",".join(sorted(ids)), "MODE": "plugin"},  # type: ignore[call-overload]
            nodes=(GrantedNode("/dev/gpu", "/dev/zero", "rw"),),
            mounts=(GrantedMount("/usr/lib/gpu", "/opt/gpu", is_read_only=True),),
            annotations={"gpu": "yes", "kubelet-trio/instance": "stolen"},
            cdi_devices=("example.com/gpu=a",),
        )

    return FakeDevicePlugin(GPU, devices or ("a", "b"), rules, grant=grant)


@asynccontextmanager
async def plugged(node: Node, plugin: FakeDevicePlugin) -> AsyncIterator[None]:
    """Run a well-behaved plugin beside the agents of a node."""
    directory = node.base / "root" / "device-plugins"
    directory.mkdir(parents=True, exist_ok=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_device_plugin, plugin, directory)
        yield
        nursery.cancel_scope.cancel()


async def eventually(is_so: Callable[[], object]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await trio.sleep(0.1)
    raise AssertionError("not within 100 s")


def sockets(agent: Agent) -> list[str]:
    return [child.note for child in below(agent.tree(), "plugins", "sockets").children]


def allocatable(agent: Agent) -> dict[str, int]:
    devices = agent.parts.supplies.devices
    assert devices is not None
    return dict(devices.capacity().allocatable)


def config(node: Node, pod: Pod) -> v1.ContainerConfig:
    """Return the config of a pod's running container."""
    (container,) = node.runtime.alive(pod_uid(pod))
    return container.config


def up(node: Node, pod: Pod) -> bool:
    return _known(node, pod) and ready(node.status(pod))


def failed(node: Node, pod: Pod) -> bool:
    return _known(node, pod) and node.status(pod).phase == "Failed"


def _known(node: Node, pod: Pod) -> bool:
    return node.agent is not None and pod_uid(pod) in node.agent.pods.value


def health(status: ContainerStatus) -> dict[str, str]:
    found = next(iter(status.allocatedResourcesStatus or ()))
    return {device.resourceID: device.health or "" for device in found.resources or ()}


async def test_a_container_gets_what_its_devices_need(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin = plugin_of(rules=DeviceRules(needs_pre_start=True))
    pod = gpu_pod(command="[sh, $(GPUS)]")
    async with plugged(node, plugin), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        node.feed.put(pod)
        await eventually(lambda: up(node, pod))
        made = config(node, pod)
        assert made.command == ["sh", "a"]
        assert {e.key: e.value for e in made.envs}.items() >= {("GPUS", b"a"), ("MODE", b"plugin")}
        assert made.devices == [
            v1.Device(container_path="/dev/gpu", host_path="/dev/zero", permissions="rw")
        ]
        mount = v1.Mount(container_path="/usr/lib/gpu", host_path="/opt/gpu", readonly=True)
        assert mount in made.mounts
        assert made.annotations["gpu"] == "yes"
        assert "kubelet-trio/instance" not in made.annotations
        assert made.CDI_devices == [v1.CdiDevice(name="example.com/gpu=a")]
        assert health(node.container(pod)) == {"a": "Healthy"}
        assert [call.method for call in plugin.rules.log][-2:] == [calls.ALLOCATE, calls.PRE_START]
        page = await agent.metrics.page()
        assert (
            'kubelet_trio_container_device_info{namespace="default",pod="web-node",container="web",'
            f'resource="{GPU}",device="a",driver="",pool="",claim=""}} 1\n'
        ) in page
        plugin.set_health("a", is_healthy=False)
        await eventually(lambda: health(node.container(pod)) == {"a": "Unhealthy"})
        assert up(node, pod)
        node.feed.put()
        await eventually(lambda: not node.runtime.alive(pod_uid(pod)))
        await trio.sleep(5)
        assert "container_device_info" not in await agent.metrics.page()
        plugin.rules.check()


async def test_a_pod_without_free_devices_is_rejected(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin, first, second = plugin_of(), gpu_pod("first", 2), gpu_pod("second")
    async with plugged(node, plugin), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        node.feed.put(first)
        await eventually(lambda: up(node, first))
        node.feed.put(first, second)
        await eventually(lambda: failed(node, second))
        assert node.status(second).reason == "UnexpectedAdmissionError"
        assert node.status(second).message == (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "example.com/gpu. Requested: 1, Available: 0, which is unexpected"
        )
        # Once the first has ended, another one gets them.
        third = gpu_pod("third", 2)
        node.feed.put(third)
        await eventually(lambda: not node.runtime.alive(pod_uid(first)))
        await trio.sleep(5)
        if failed(node, third):
            third = gpu_pod("fourth", 2)
            node.feed.put(third)
        await eventually(lambda: up(node, third))
        plugin.rules.check()


async def test_a_pod_whose_plugin_fails_is_rejected_and_gives_its_devices_back(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin, pod, other = plugin_of(), gpu_pod("web", 2), gpu_pod("other", 2)
    plugin.faults.add(DeviceFaultKind.HANG, calls.ALLOCATE)
    async with plugged(node, plugin), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        bystander = make_pod("bystander")
        node.feed.put(pod, bystander)
        await eventually(lambda: up(node, bystander))
        assert trio.current_time() < 60
        await trio.sleep(120)
        await eventually(lambda: failed(node, pod))
        assert "did not answer Allocate within 120 s" in (node.status(pod).message or "")
        assert not node.runtime.alive(pod_uid(pod))
        node.feed.put(bystander, other)
        await eventually(lambda: up(node, other))


async def test_containers_keep_their_devices_over_restarts_of_the_agent(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin, pod = plugin_of(), gpu_pod()
    async with plugged(node, plugin):
        async with node.running() as agent:
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            node.feed.put(pod)
            await eventually(lambda: up(node, pod))
        created = len(node.calls("CreateContainer"))
        async with node.running(pod) as agent:
            assert allocatable(agent) == {GPU: 0}  # until the plugin is back
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            await trio.sleep(60)
            assert up(node, pod)
            assert len(node.calls("CreateContainer")) == created
            assert plugin.rules.allocated == {"a": 1}
            # A new container of the pod gets the same device, and the plugin is not asked.
            (container,) = node.runtime.alive(pod_uid(pod))
            node.runtime.kill(container.id)
            await eventually(lambda: len(node.calls("CreateContainer")) == created + 1)
            assert plugin.rules.allocated == {"a": 1}
            other = gpu_pod("other")
            node.feed.put(pod, other)
            await eventually(lambda: up(node, other))
            assert plugin.rules.allocated == {"a": 1, "b": 1}
    plugin.rules.check()
    assert node.runtime.violations == []


async def _rebooted(node: Node, pod: Pod) -> None:
    """Let the pod run with its device, then end the agent and all that runs."""
    async with plugged(node, plugin_of()), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        node.feed.put(pod)
        await eventually(lambda: up(node, pod))
    for container in node.runtime.alive(pod_uid(pod)):
        node.runtime.kill(container.id)
    for sandbox in list(node.runtime.sandboxes.values()):
        node.runtime.node.remove_sandbox(sandbox)


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_a_pod_whose_plugin_is_not_back_after_a_reboot_is_rejected(
    node: Node, autojump_clock: MockClock, policy: str
) -> None:
    """As upstream: its devices may be others now, and its controller makes another pod."""
    pod = gpu_pod()
    once = msgspec.structs.replace(spec(pod), restartPolicy=policy)
    pod = from_api(msgspec.structs.replace(pod, spec=once))
    await _rebooted(node, pod)
    created = len(node.calls("CreateContainer"))
    async with node.running(pod):
        await eventually(lambda: failed(node, pod))
        status = node.status(pod)
        assert status.reason == "UnexpectedAdmissionError"
        assert status.message == (
            "Pod was rejected: Allocate failed due to no healthy devices present; "
            f"cannot allocate unhealthy devices {GPU}, which is unexpected"
        )
        assert len(node.calls("CreateContainer")) == created
    assert node.runtime.violations == []


async def test_a_static_pod_waits_after_a_reboot_for_its_plugin(
    node: Node, autojump_clock: MockClock
) -> None:
    """Nobody would make another one."""
    pod = gpu_pod()
    await _rebooted(node, pod)
    async with node.running(pod):
        await trio.sleep(900)  # longer than a resource is remembered whose plugin is gone
        assert not node.runtime.alive(pod_uid(pod))
        assert node.status(pod).phase == "Running"
        async with plugged(node, plugin_of()):
            await eventually(lambda: up(node, pod))
            assert {e.key: e.value for e in config(node, pod).envs}["GPUS"] == b"a"
    assert node.runtime.violations == []


async def test_a_node_taken_over_keeps_its_containers_before_the_plugin_is_back(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin, pod = plugin_of("a"), gpu_pod()
    async with plugged(node, plugin), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 1})
        node.feed.put(pod)
        await eventually(lambda: up(node, pod))
    # The records of this agent are gone: only the checkpoint, as the Go kubelet has it, is left.
    for record in (node.base / "root" / "pods").glob("*/*.json"):
        record.unlink()
    created = len(node.calls("CreateContainer"))
    async with node.running(pod):
        await trio.sleep(400)  # the plugin never comes back, and its resource is removed
        assert up(node, pod)
        assert len(node.calls("CreateContainer")) == created
        late = gpu_pod("late")
        node.feed.put(pod, late)
        await eventually(lambda: failed(node, late))


async def test_a_plugin_registers_through_the_plugins_registry(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin, pod = plugin_of(), gpu_pod()
    path = node.base / "root" / "plugins_registry" / "gpu.sock"
    path.parent.mkdir(parents=True)
    async with trio.open_nursery() as nursery, node.running() as agent:
        await nursery.start(serve_device_plugin, plugin, [open_unix(path)])
        await plugin.wait_registered()
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        await eventually(lambda: sockets(agent) == [f"DevicePlugin {GPU}: registered"])
        node.feed.put(pod)
        await eventually(lambda: up(node, pod))
        path.unlink()
        await eventually(lambda: allocatable(agent) == {GPU: 0})
        assert up(node, pod)
        nursery.cancel_scope.cancel()


async def test_a_plugin_is_shown_in_the_tree_and_the_metrics(
    node: Node, autojump_clock: MockClock
) -> None:
    plugin, pod = plugin_of(), gpu_pod()
    async with plugged(node, plugin), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        (child,) = below(agent.tree(), "plugins", "registered").children
        assert child.name == f"{GPU}#1"
        node.feed.put(pod)
        await eventually(lambda: up(node, pod))
        page = await agent.metrics.page()
        label = f'{{resource_name="{GPU}"}}'
        assert f"kubelet_device_plugin_registration_total{label} 1" in page
        assert f"kubelet_device_plugin_alloc_duration_seconds_count{label} 1" in page


async def test_what_earlier_agents_and_plugins_left_is_removed_at_the_start(
    node: Node, autojump_clock: MockClock
) -> None:
    """Plugins made with Kubernetes' stub do not register where a file DEPRECATION is."""
    directory = node.base / "root" / "device-plugins"
    directory.mkdir(parents=True)
    await open_unix(directory / "old.sock").aclose()
    (directory / "file").touch()
    (directory / "DEPRECATION").touch()
    async with node.running():
        await trio.sleep(1)
        names = {path.name for path in directory.iterdir()}
        assert names == {"kubelet.sock", "file"}


@pytest.mark.parametrize("method", [calls.ALLOCATE, calls.PRE_START])
async def test_a_pod_may_be_deleted_while_its_plugin_hangs(
    node: Node, autojump_clock: MockClock, method: str
) -> None:
    plugin, pod, other = (
        plugin_of(rules=DeviceRules(needs_pre_start=True)),
        gpu_pod(),
        gpu_pod("b", 2),
    )
    async with plugged(node, plugin), node.running() as agent:
        await eventually(lambda: allocatable(agent) == {GPU: 2})
        plugin.faults.add(DeviceFaultKind.HANG, method)
        node.feed.put(pod)
        await trio.sleep(10)
        assert not node.runtime.alive(pod_uid(pod))
        began = trio.current_time()
        node.feed.put(other)
        await eventually(lambda: pod_uid(pod) not in agent.parts.workers)
        assert trio.current_time() - began < 5
        await trio.sleep(60)
        if failed(node, other):  # it came before the first one had gone
            other = gpu_pod("c", 2)
            node.feed.put(other)
        await eventually(lambda: up(node, other))
        assert plugin.rules.allocated["b"] == 1
    plugin.rules.check()


@pytest.mark.parametrize("method", [calls.ALLOCATE, calls.PRE_START])
async def test_an_agent_stops_while_a_plugin_hangs(
    node: Node, autojump_clock: MockClock, method: str
) -> None:
    plugin, pod = plugin_of(rules=DeviceRules(needs_pre_start=True)), gpu_pod()
    async with plugged(node, plugin):
        async with node.running() as agent:
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            plugin.faults.add(DeviceFaultKind.HANG, method)
            node.feed.put(pod)
            await trio.sleep(10)
            assert not node.runtime.alive(pod_uid(pod))
            began = trio.current_time()
        assert trio.current_time() - began < 5
        async with node.running() as agent:
            await eventually(lambda: allocatable(agent) == {GPU: 2})
            node.feed.put(pod)
            await eventually(lambda: up(node, pod) or failed(node, pod))
            assert up(node, pod), node.status(pod).message
    plugin.rules.check()


async def test_health_tells_that_no_plugin_can_register(
    node: Node, autojump_clock: MockClock
) -> None:
    directory = node.base / "root" / "device-plugins"
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.touch()  # where the directory should be
    async with node.running() as agent:
        await trio.sleep(60)
        problem = agent.check_functions()["device-plugin"]() or ""
        assert problem.startswith("device registration error: device plugin registration gRPC")
        assert str(directory) in problem
        directory.unlink()
        await eventually(lambda: agent.check_functions()["device-plugin"]() is None)
        assert (directory / "kubelet.sock").is_socket()

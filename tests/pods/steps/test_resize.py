"""Resizes carried out by a whole agent, on fakes that keep the rules of runtime and kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import Pod
from msgspec.structs import replace
from trio.testing import MockClock

from kubelet_trio.cgroups import CgroupLimits, CgroupName, Written
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.model import ContainerId, PodUid, metadata, pod_uid, spec
from kubelet_trio.testing import Behaviour, FakeRuntime, FaultKind
from kubelet_trio.testing.objects import FakeContainer, FakeUsage
from tests.agent.node import Node, make_pod
from tests.pods.cgroups.test_node import FakeTree

MIB = 1 << 20
UID = PodUid("u1")


class Tree(FakeTree):
    """Cgroups that refuse to be below what is in them, and write down each change of a pod."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log
        self.refuses: dict[str, str] = {}  # by kind of change

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        kind = (
            "memory"
            if limits.memory is not None
            else "cpu"
            if limits.cpu_quota is not None
            else "shares"
        )
        if kind in self.refuses:
            return Written(failures=(self.refuses[kind],))
        amount = {"memory": limits.memory, "cpu": limits.cpu_quota, "shares": limits.cpu_shares}
        if "/pod" in path:
            self.log.append(f"pod {kind} {amount[kind]}")
        return await super().limit(path, limits)


class Runtime(FakeRuntime):
    """A runtime that writes down in which order containers are resized."""

    def __init__(self, log: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.log = log

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        await super().update_container_resources(container_id, resources)
        cpu, memory = resources.cpu_quota, resources.memory_limit_in_bytes
        assert not (cpu and memory), "one resource at a time"
        name = self.containers[container_id].name
        self.log.append(f"{name} memory {memory}" if memory else f"{name} cpu {cpu}")


class World:
    """A node with cgroups of pods, and what was changed on it."""

    def __init__(self, base: Path) -> None:
        self.node = Node(base)
        self.log: list[str] = []
        self.tree = Tree(self.log)
        self.runtime = Runtime(self.log, write_logs=True, status_lag=0.06)
        self.node.runtime = self.runtime
        self.node.cgroup_tree = lambda _driver: self.tree
        self.usage: dict[str, int] = {}
        self.runtime.usage = lambda one: FakeUsage(memory=self.usage.get(one.name, 0))

    def container(self, name: str) -> FakeContainer:
        """Return the running instance."""
        return next(c for c in self.runtime.alive(UID) if c.name == name)

    def has(self, name: str) -> tuple[int, int, int]:
        """Return shares, quota and memory limit of a container."""
        found = self.container(name).resources
        return found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes

    def limits(self, pod: Pod) -> tuple[int | None, int | None, int | None]:
        """Return the same of the pod's cgroup."""
        found = self.tree.there[cgroup(pod)]
        return found.cpu_shares, found.cpu_quota, found.memory

    def events(self, pod: Pod, reason: str) -> list[str]:
        assert self.node.agent is not None
        name = metadata(pod).name or ""
        found = self.node.agent.events.events(name=name)
        return [event.message or "" for event in found if event.reason == reason]

    def condition(self, pod: Pod) -> tuple[str, str] | None:
        """Return reason and message of PodResizeInProgress."""
        conditions = self.node.status(pod).conditions or ()
        found = [c for c in conditions if c.type == "PodResizeInProgress"]
        return (found[0].reason or "", found[0].message or "") if found else None


def cgroup(pod: Pod) -> CgroupName:
    return ("kubepods", "burstable", f"pod{pod_uid(pod)}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    assert made.runtime.violations == []


def sized(*amounts: str, policy: str = "Always", generation: int = 1, restart: str = "") -> Pod:
    """Return a pod of containers `a`, `b`, ...: `cpu/MiB` is request and half of the limit."""
    items = []
    for name, amount in zip("abcdef", amounts, strict=False):
        cpu, memory = (int(part) for part in amount.split("/"))
        rules = f", resizePolicy: [{{resourceName: {restart}, restartPolicy: RestartContainer}}]"
        items.append(
            f"- {{name: {name}, image: web, imagePullPolicy: IfNotPresent, resources: "
            f"{{requests: {{cpu: {cpu}m, memory: {memory}Mi}}, "
            f"limits: {{cpu: {2 * cpu}m, memory: {2 * memory}Mi}}}}{rules if restart else ''}}}"
        )
    made = make_pod("p", containers="\n".join(items), spec=[f"restartPolicy: {policy}"])
    return replace(made, metadata=replace(metadata(made), uid=UID, generation=generation))


async def resized(world: World, before: Pod, after: Pod) -> None:
    """Let the source deliver the pod with other resources, once it runs."""
    await trio.sleep(5)
    world.log.clear()
    world.node.feed.put(replace(after, metadata=replace(metadata(after), generation=2)))
    await trio.sleep(5)


async def test_a_pod_grows_before_its_containers_and_shrinks_after_them(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/10", "200/40"), sized("200/30", "100/10")
    async with world.node.running(before):
        await resized(world, before, after)
        assert world.log == [
            f"b memory {20 * MIB}",
            f"a memory {60 * MIB}",
            f"pod memory {80 * MIB}",
            "b cpu 20000",
            "a cpu 40000",
        ]
        assert world.has("a") == (204, 40_000, 60 * MIB)
        assert world.has("b") == (102, 20_000, 20 * MIB)
        assert world.limits(after) == (307, 60_000, 80 * MIB)
        world.log.clear()
        world.node.feed.put(sized("300/30", "300/30", generation=3))
        await trio.sleep(5)
        assert world.log == [
            f"pod memory {120 * MIB}",
            f"b memory {60 * MIB}",
            "pod cpu 120000",
            "pod shares 614",
            "a cpu 60000",
            "b cpu 60000",
        ]
        assert [s.restartCount for s in world.node.status(after).containerStatuses or ()] == [0, 0]
        assert len(world.events(after, "ResizeStarted")) == 2
        assert len(world.events(after, "ResizeCompleted")) == 2
        assert world.condition(after) is None
        sandbox = next(iter(world.runtime.sandboxes.values()))
        assert sandbox.resources.memory_limit_in_bytes == 120 * MIB
        assert (sandbox.resources.cpu_quota, sandbox.resources.cpu_shares) == (120_000, 614)


async def test_a_memory_limit_below_the_usage_is_refused_and_tried_again(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/40", "100/40"), sized("200/10", "100/40")
    world.usage["a"] = 30 * MIB
    world.tree.usage = 110 * MIB
    text = (
        "cannot decrease memory limits: "
        "[attempting to set pod memory limit (104857600) below current usage (115343360), "
        'attempting to set container "a" memory limit (20971520) below current usage (31457280)]'
    )
    async with world.node.running(before):
        await resized(world, before, after)
        assert world.log == []
        assert world.condition(after) == ("Error", text)
        (event,) = world.events(after, "ResizeError")
        assert text.replace('"', '\\"') in event
        await trio.sleep(60)
        assert len(world.events(after, "ResizeError")) == 1
        world.tree.usage = 50 * MIB
        await trio.sleep(20)
        assert world.condition(after) == (
            "Error",
            'cannot decrease memory limits: attempting to set container "a" memory limit '
            "(20971520) below current usage (31457280)",
        )
        world.usage["a"] = 5 * MIB
        await trio.sleep(20)
        assert world.condition(after) is None
        assert world.has("a") == (204, 40_000, 20 * MIB)
        assert world.limits(after) == (307, 60_000, 100 * MIB)


async def test_a_refused_resize_holds_up_nothing_else_and_no_start_is_above_the_pod(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/80", "100/10"), sized("100/40", "400/50")
    world.usage["a"] = 100 * MIB
    async with world.node.running(before):
        await resized(world, before, after)
        assert world.log == []
        assert world.limits(after) == (204, 40_000, 180 * MIB)
        old = world.container("b")
        world.runtime.kill(old.id, 1)
        await trio.sleep(5)
        # It starts with what is allocated; what of the pod's would be too low is raised before.
        assert world.log == ["pod cpu 100000", "pod shares 512"]
        assert world.has("b") == (409, 80_000, 100 * MIB)
        assert world.limits(after) == (512, 100_000, 180 * MIB)
        assert world.has("a") == (102, 20_000, 160 * MIB)
        assert (world.condition(after) or ("",))[0] == "Error"


async def test_a_container_does_not_start_above_a_pod_whose_limit_cannot_be_raised(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/10", "100/10"), sized("100/10", "100/50")
    world.tree.refuses["memory"] = "cannot write to memory.max: Device or resource busy"
    async with world.node.running(before):
        await trio.sleep(5)
        world.runtime.kill(world.container("b").id, 1)
        world.node.feed.put(after)
        await trio.sleep(8)
        waiting = world.node.container(after, "b").state
        assert waiting is not None
        assert waiting.waiting is not None
        assert waiting.waiting.reason == "CreateContainerError"
        error = "cannot change memory of the pod's cgroup: cannot write to memory.max: Device or "
        assert world.condition(after) == ("Error", f"{error}resource busy")
        world.tree.refuses.clear()
        await trio.sleep(30)
        assert world.has("b") == (102, 20_000, 100 * MIB)


@pytest.mark.parametrize("code", [0, 143])
async def test_a_container_restarts_for_a_resize_whatever_its_exit_code(
    world: World, autojump_clock: MockClock, code: int
) -> None:
    world.runtime.node.behave = lambda _config: Behaviour(stop_exit_code=code, stop_takes=1)
    before = sized("100/10", "100/10", policy="OnFailure", restart="cpu")
    after = sized("200/10", "100/20", policy="OnFailure", restart="cpu")
    async with world.node.running(before):
        await resized(world, before, after)
        counts = [s.restartCount for s in world.node.status(after).containerStatuses or ()]
        assert counts == [1, 0]
        assert world.events(after, "Killing") == ["Container a resize requires restart"]
        assert world.has("a") == (204, 40_000, 20 * MIB)
        assert world.has("b") == (102, 20_000, 40 * MIB)
        assert world.limits(after) == (307, 60_000, 60 * MIB)
        assert world.condition(after) is None


async def test_an_agent_that_is_killed_after_the_stop_still_starts_the_container(
    world: World, autojump_clock: MockClock
) -> None:
    world.runtime.node.behave = lambda _config: Behaviour(stop_exit_code=0, stop_takes=1)
    before = sized("100/10", "100/10", policy="OnFailure", restart="cpu")
    after = sized("200/10", "100/10", policy="OnFailure", restart="cpu")
    async with world.node.running(before):
        await trio.sleep(5)
        world.node.feed.put(after)
        await trio.sleep(0.5)
        assert world.node.calls("StopContainer") == ["StopContainer"]
    await trio.sleep(5)
    assert [c.name for c in world.runtime.alive(UID)] == ["b"]
    async with world.node.running(after):
        await trio.sleep(5)
        assert world.has("a") == (204, 40_000, 20 * MIB)
        counts = [s.restartCount for s in world.node.status(after).containerStatuses or ()]
        assert counts == [1, 0]
        await trio.sleep(60)
        assert len(world.node.calls("StopContainer")) == 1


async def test_a_killed_agents_resize_is_completed_by_the_next(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/10", "200/40"), sized("200/30", "100/10")
    world.runtime.latency["UpdateContainerResources"] = 1.0
    async with world.node.running(before):
        await trio.sleep(5)
        world.node.feed.put(after)
        await trio.sleep(1.6)
    assert world.log[0] == f"b memory {20 * MIB}"
    assert not any(change.startswith("pod") for change in world.log)
    async with world.node.running(after):
        await trio.sleep(20)
        assert world.has("a") == (204, 40_000, 60 * MIB)
        assert world.has("b") == (102, 20_000, 20 * MIB)
        assert world.limits(after) == (307, 60_000, 80 * MIB)
        assert world.condition(after) is None


async def test_what_the_runtime_refuses_is_named_and_tried_again(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/10", "100/10"), sized("200/10", "100/20")
    error = RuntimeCallError("UpdateContainerResources", "no such unit", code="Unknown")
    async with world.node.running(before):
        world.runtime.faults.add(FaultKind.ERROR, "UpdateContainerResources", "a", error=error)
        await resized(world, before, after)
        assert world.condition(after) == (
            "Error",
            'cannot change cpu of container "a" to limit 400m, request 200m: '
            "rpc error: code = Unknown desc = no such unit",
        )
        # What was done before stays done.
        assert world.has("b") == (102, 20_000, 40 * MIB)
        await trio.sleep(20)
        assert world.has("a") == (204, 40_000, 20 * MIB)
        assert world.condition(after) is None


async def test_a_reply_that_is_lost_leaves_nothing_undone(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/10"), sized("200/20")
    async with world.node.running(before):
        world.runtime.faults.add(FaultKind.LOST_REPLY, "UpdateContainerResources")
        await resized(world, before, after)
        # Taken back, while nobody knows whether the first change is in force.
        world.node.feed.put(sized("100/10", generation=3))
        await trio.sleep(30)
        assert world.has("a") == (102, 20_000, 20 * MIB)
        assert world.limits(after) == (102, 20_000, 20 * MIB)
        assert world.condition(after) is None


@pytest.mark.parametrize("failing", ["", "b"])
async def test_a_resize_is_complete_once_the_runtime_has_reported_it(
    world: World, autojump_clock: MockClock, failing: str
) -> None:
    before, after = sized("100/10", "100/10"), sized("100/20", "100/20")
    async with world.node.running(before):
        await trio.sleep(5)
        # The runtime goes away while containers change, or just after that.
        if failing:
            world.runtime.faults.add(FaultKind.ERROR, "UpdateContainerResources", failing)
        world.runtime.faults.add(FaultKind.ERROR, "ContainerStatus", times=2)
        world.node.feed.put(replace(after, metadata=replace(metadata(after), generation=2)))
        await trio.sleep(1)
        while world.condition(after) is not None:  # noqa: ASYNC110  # nobody announces it
            await trio.sleep(0.1)
        shown = [one.resources for one in world.node.status(after).containerStatuses or ()]
        assert shown == [container.resources for container in spec(after).containers]


async def test_a_runtime_may_refuse_the_pods_size_but_need_not_know_the_call(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/10"), sized("200/10")
    world.runtime.resizes_sandboxes = False
    async with world.node.running(before):
        await resized(world, before, after)
        assert world.limits(after) == (204, 40_000, 20 * MIB)
        world.runtime.resizes_sandboxes = True
        error = RuntimeCallError("UpdatePodSandboxResources", "a plugin says no", code="Unknown")
        world.runtime.faults.add(
            FaultKind.ERROR, "UpdatePodSandboxResources", error=error, times=None
        )
        world.node.feed.put(sized("300/10", generation=3))
        await trio.sleep(5)
        sandbox = next(iter(world.runtime.sandboxes))
        assert world.condition(after) == (
            "Error",
            "failed to notify runtime for UpdatePodSandboxResources (resource=cpu); resize "
            f'rejected: updatePodSandboxResources failed for sanboxID "{sandbox}": '
            "rpc error: code = Unknown desc = a plugin says no",
        )
        assert world.limits(after) == (204, 40_000, 20 * MIB)
        assert world.has("a") == (204, 40_000, 20 * MIB)


async def test_the_runtime_is_told_if_the_kernel_refuses_the_pods_size(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/20"), sized("100/10")
    async with world.node.running(before):
        await trio.sleep(5)
        world.tree.refuses["memory"] = "cannot write '20971520' to memory.max: Device busy"
        await resized(world, before, after)
        assert world.has("a")[2] == 20 * MIB
        sandbox = next(iter(world.runtime.sandboxes.values()))
        assert sandbox.resources.memory_limit_in_bytes == 40 * MIB
        world.tree.refuses.clear()
        await trio.sleep(20)
        assert sandbox.resources.memory_limit_in_bytes == 20 * MIB
        assert world.limits(after)[2] == 20 * MIB


async def test_a_sidecar_and_a_running_init_container_are_resized(
    world: World, autojump_clock: MockClock
) -> None:
    def made(cpu: int, generation: int) -> Pod:
        limits = f"{{requests: {{cpu: {cpu}m}}, limits: {{cpu: {2 * cpu}m}}}}"
        pod = make_pod(
            "p",
            spec=[
                "initContainers:",
                f"- {{name: s, image: web, restartPolicy: Always, resources: {limits}}}",
                f"- {{name: i, image: exit-0-after-60, resources: {limits}}}",
            ],
        )
        return replace(pod, metadata=replace(metadata(pod), uid=UID, generation=generation))

    async with world.node.running(made(100, 1)):
        await trio.sleep(5)
        world.node.feed.put(made(200, 2))
        await trio.sleep(5)
        assert world.has("s")[:2] == (204, 40_000)
        assert world.has("i")[:2] == (204, 40_000)
        assert world.condition(made(200, 2)) is None
        await trio.sleep(60)
        assert world.container("web").alive


async def test_without_cgroups_of_pods_containers_are_resized_all_the_same(
    world: World, autojump_clock: MockClock
) -> None:
    before, after = sized("100/20"), sized("200/10")
    world.node.cgroup_tree = None
    async with world.node.running(before):
        await resized(world, before, after)
        assert world.log == [f"a memory {20 * MIB}", "a cpu 40000"]
        assert world.node.calls("UpdatePodSandboxResources") == []
        assert world.condition(after) is None

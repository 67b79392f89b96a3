"""A node that runs short, on a whole agent in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.model import (
    Offload,
    Purpose,
    inline_offload,
    pod_uid,
)
from kubelet_trio.pressure import EvictionPolicy, FileSystems, Observation, parse_thresholds
from kubelet_trio.testing import FakeContainer
from kubelet_trio.testing.objects import FakeUsage
from tests.agent.node import Node, below, from_api, make_pod, ready
from tests.agent.test_api_pods import asked_to_go

MI = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")


class Machine:
    """Signals that a test writes."""

    def __init__(self) -> None:
        self.memory = 1000 * MI
        self.disk = 1000 * MI
        self.looks = 0

    def observe(self, places: FileSystems) -> Mapping[str, Observation]:
        self.looks += 1
        return {
            "memory.available": Observation(self.memory, 1000 * MI),
            "nodefs.available": Observation(self.disk, 1000 * MI),
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def machine(node: Node) -> Machine:
    machine = Machine()
    node.signals = machine
    return machine


def hungry(name: str, amount: int, *, request: str = "10Mi") -> Pod:
    return from_api(
        make_pod(
            name,
            containers=f"- {{name: web, image: 'use-{amount}', "
            f"resources: {{requests: {{memory: {request}}}}}}}",
        )
    )


def use(node: Node) -> None:
    """Let containers use as many MiB as their image says while they run."""

    def usage(container: FakeContainer) -> FakeUsage:
        return FakeUsage(memory=int(container.image.removeprefix("use-")) * MI)

    node.runtime.usage = usage


HARD = EvictionPolicy(parse_thresholds({"memory.available": "100Mi"}))


async def test_one_pod_goes_that_uses_most_beyond_its_request(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    use(node)
    small, large, asked = (
        hungry("small", 50),
        hungry("large", 300),
        hungry("asked", 400, request="500Mi"),
    )
    async with node.running(small, large, asked, eviction=HARD) as agent:
        await trio.sleep(15)
        machine.memory = 90 * MI
        await trio.sleep(0.1)
        with trio.fail_after(30):
            seen = await agent.pods.wait_value(
                lambda pods: pods[pod_uid(large)].status.phase == "Failed"
            )
        # Told with the phase, not after it: an API server would take it no more.
        told = seen[pod_uid(large)].status
        assert told is not None
        assert "DisruptionTarget" in [c.type for c in told.conditions or ()]
        machine.memory = 400 * MI
        await trio.sleep(60)
        status = node.status(large)
        assert status.reason == "Evicted"
        assert status.message == (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
            "Container web was using 300Mi, request is 10Mi, has larger consumption of memory. "
        )
        (event,) = [e for e in agent.events.events() if e.reason == "Evicted"]
        assert event.metadata is not None
        assert event.metadata.annotations == {
            "offending_containers": "web",
            "offending_containers_usage": "300Mi",
            "starved_resource": "memory",
        }
        assert "EvictionThresholdMet" in node.reasons()
        for other in (small, asked):
            assert ready(node.status(other))
        disruption = [c for c in status.conditions or () if c.type == "DisruptionTarget"]
        assert [c.reason for c in disruption] == ["TerminationByKubelet"]
        # It stays gone, and its condition is told for five minutes.
        assert not node.runtime.alive(pod_uid(large))
        assert agent.pressure.value.memory
        await trio.sleep(300)
        assert not agent.pressure.value.memory
    assert not node.runtime.violations


async def test_a_pod_that_is_being_deleted_goes_at_once_rather_than_another_one(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    """Terminating pods are active pods too (filterOutInactivePods): their grace is cut short."""
    use(node)
    small, large = (
        hungry("small", 50),
        from_api(
            make_pod(
                "large",
                containers="- {name: web, image: use-300, command: [slow-stop-900]}",
                spec=["terminationGracePeriodSeconds: 900"],
            )
        ),
    )
    async with node.running(small, large, eviction=HARD) as agent:
        await trio.sleep(15)
        node.feed.put(small, asked_to_go(large, 900))
        await trio.sleep(15)
        machine.memory = 90 * MI
        with trio.fail_after(30):
            await agent.pods.wait_value(lambda pods: pods[pod_uid(large)].status.phase == "Failed")
        machine.memory = 400 * MI
        await trio.sleep(60)
        status = node.status(large)
        assert status.reason == "Evicted"
        assert "DisruptionTarget" in [c.type for c in status.conditions or ()]
        assert ready(node.status(small))
        assert [e.reason for e in agent.events.events()].count("Evicted") == 1


async def test_a_pod_that_crashes_again_and_again_goes_for_the_files_that_it_keeps(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    """Nothing of it runs for most of the time; the Go kubelet has no stats of it then either."""
    use(node)
    full = from_api(
        make_pod(
            "full",
            containers="- {name: web, image: use-0, command: [exit-1], "
            "volumeMounts: [{name: data, mountPath: /d}]}",
            spec=["volumes: [{name: data, emptyDir: {}}]"],
        )
    )
    small = hungry("small", 50)
    policy = EvictionPolicy(parse_thresholds({"nodefs.available": "10%"}))
    async with node.running(small, full, eviction=policy):
        await trio.sleep(400)  # its back-off is minutes now
        (data,) = (node.base / "root/pods" / pod_uid(full) / "volumes").glob("*/data")
        file = data / "file"
        file.write_bytes(b"x" * 5 * MI)
        assert not node.runtime.alive(pod_uid(full))

        def observe(places: FileSystems) -> Mapping[str, Observation]:
            left = 50 if file.exists() else 900
            return {"nodefs.available": Observation(left * MI, 1000 * MI)}

        machine.observe = observe  # type: ignore[method-assign]
        await trio.sleep(60)
        assert node.status(full).reason == "Evicted"
        assert ready(node.status(small))


async def test_an_idle_node_reads_signals_and_asks_the_runtime_nothing(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    async with node.running(hungry("web", 1), eviction=HARD):
        await trio.sleep(600)
    assert 50 <= machine.looks <= 70
    assert not node.calls("ListContainerStats")
    assert len(node.calls("ImageFsInfo")) == 1


async def test_a_soft_threshold_waits_and_gives_the_pod_time(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    use(node)
    policy = EvictionPolicy(
        parse_thresholds({}, {"memory.available": "100Mi"}, {"memory.available": 60.0}),
        max_pod_grace=20,
    )
    pod = hungry("web", 300)
    async with node.running(pod, eviction=policy):
        await trio.sleep(15)
        machine.memory = 90 * MI
        await trio.sleep(50)
        assert ready(node.status(pod))
        await trio.sleep(60)
        assert node.status(pod).reason == "Evicted"
        (stop,) = node.runtime.calls_of("StopContainer")
        assert stop.time >= 70


async def test_dead_containers_go_before_anybody_is_evicted(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    machine.disk = 50 * MI
    done = from_api(make_pod("done", "exit-0", spec=["restartPolicy: Never"]))
    pod = hungry("web", 1)

    def observe(places: FileSystems) -> Mapping[str, Observation]:
        left = [c for c in node.runtime.containers.values() if not c.alive]
        return {"nodefs.available": Observation((50 if left else 900) * MI, 1000 * MI)}

    machine.observe = observe  # type: ignore[method-assign]
    policy = EvictionPolicy(parse_thresholds({"nodefs.available": "10%"}))
    async with node.running(done, pod, eviction=policy):
        await trio.sleep(100)
        assert node.runtime.instances("done-node") == []
        assert node.status(done).phase == "Succeeded"
        assert ready(node.status(pod))
        assert node.status(pod).reason is None


async def test_static_pods_stay_whatever_happens(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    machine.memory = 0
    pod = make_pod()
    async with node.running(pod, eviction=HARD) as agent:
        await trio.sleep(200)
        assert ready(node.status(pod))
        assert agent.pressure.value.memory


async def test_a_pod_that_writes_more_than_its_limit_goes(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    pod = from_api(
        make_pod(
            "writer",
            containers="- {name: web, image: run, volumeMounts: [{name: data, mountPath: /d}]}",
            spec=["volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]"],
        )
    )
    other = hungry("web", 1)
    policy = EvictionPolicy(local_storage=True)
    async with node.running(pod, other, eviction=policy) as agent:
        await trio.sleep(30)
        assert ready(node.status(pod))
        volumes = node.base / "root/pods" / pod_uid(pod) / "volumes"
        (data,) = volumes.glob("*/data")
        (data / "file").write_bytes(b"x" * 2 * MI)
        await trio.sleep(30)
        assert node.status(pod).reason == "Evicted"
        assert node.status(pod).message == (
            'Usage of EmptyDir volume "data" exceeds the limit "1Mi". '
        )
        # Its own doing: to a Job's podFailurePolicy it is no disruption (evictPod, KEP-3329).
        assert "DisruptionTarget" not in [c.type for c in node.status(pod).conditions or ()]
        # The metric has the signals of the node alone.
        meter = agent.parts.upkeep.eviction.meter
        assert not list(meter.histograms("kubelet_eviction_stats_age_seconds"))
        assert ready(node.status(other))
        asked = {call.target for call in node.runtime.calls_of("ListContainerStats")}
        assert asked == {pod_uid(pod)}


async def test_an_evicted_pod_stays_evicted_when_the_agent_starts_again(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    use(node)
    pod = hungry("web", 300)
    async with node.running(pod, eviction=HARD):
        await trio.sleep(15)
        machine.memory = 0
        await trio.sleep(30)
        assert node.status(pod).reason == "Evicted"
    machine.memory = 1000 * MI
    async with node.running(pod, eviction=HARD):
        await trio.sleep(60)
        assert node.status(pod).reason == "Evicted"
        assert not node.runtime.alive()


async def test_a_runtime_that_is_away_is_no_failure(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    use(node)
    pod = hungry("web", 300)
    place = v1.FilesystemIdentifier(mountpoint=str(node.base))
    node.runtime.image_fs = v1.ImageFsInfoResponse(
        image_filesystems=[v1.FilesystemUsage(fs_id=place)]
    )
    async with node.running(pod, eviction=HARD):
        await trio.sleep(15)
        node.runtime.go_down()
        machine.memory = 0
        await trio.sleep(60)
        assert node.status(pod).reason is None
        node.runtime.restart()
        await trio.sleep(60)
        assert node.status(pod).reason == "Evicted"


async def test_a_pod_that_comes_while_memory_is_short_is_rejected_unless_it_asked_for_some(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    asked = hungry("asked", 50)
    best_effort, static = from_api(make_pod("hopes", "use-50")), make_pod("static", "use-50")
    use(node)
    async with node.running(eviction=HARD):
        machine.memory = 90 * MI
        await trio.sleep(15)
        node.feed.put(best_effort, asked, static)
        await trio.sleep(5)
        status = node.status(best_effort)
        assert (status.phase, status.reason) == ("Failed", "Evicted")
        assert status.message == "Pod was rejected: The node had condition: [MemoryPressure]. "
        assert not node.runtime.instances("hopes-node")
        assert ready(node.status(static))
        assert len(node.runtime.instances("asked-node")) == 1


async def test_a_node_that_is_short_takes_nobody_but_static_pods(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    machine.disk = 10 * MI
    policy = EvictionPolicy(parse_thresholds({"nodefs.available": "10%"}))
    static, late = make_pod("static"), hungry("late", 1)
    async with node.running(eviction=policy):
        await trio.sleep(15)
        node.feed.put(static, late)
        await trio.sleep(30)
        assert ready(node.status(static))
        status = node.status(late)
        assert (status.phase, status.reason) == ("Failed", "Evicted")
        assert "The node had condition: [DiskPressure]. " in (status.message or "")


async def test_the_first_look_under_pressure_does_not_make_images_young(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    use(node)
    node.runtime.images.present.add("registry.example/unused:1")
    policy = EvictionPolicy(parse_thresholds({"nodefs.available": "10%"}))
    async with node.running(eviction=policy):
        await trio.sleep(300)
        machine.disk = 50 * MI
        await trio.sleep(15)
        assert "registry.example/unused:1" in node.runtime.images.removed


async def test_an_image_that_cannot_be_removed_keeps_nobody_from_being_evicted(
    node: Node, machine: Machine, autojump_clock: MockClock
) -> None:
    use(node)
    node.runtime.images.present.add("registry.example/unused:1")
    node.runtime.images.busy.add("registry.example/unused:1")
    writer = hungry("writer", 1)
    policy = EvictionPolicy(parse_thresholds({"nodefs.available": "10%"}))
    async with node.running(writer, eviction=policy) as agent:
        await trio.sleep(15)
        assert ready(node.status(writer))
        machine.disk = 50 * MI
        # Longer than it takes a crashing child to use up every budget above it.
        await trio.sleep(180)
        assert node.status(writer).reason == "Evicted"
        assert not node.runtime.alive(pod_uid(writer))
        assert not below(agent.tree(), "pressure", "eviction").restarts
    assert not node.runtime.violations


class SlowCount(Machine):
    """A node on which counting files never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = 0

    def of(self, purpose: Purpose) -> Offload:
        async def offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
            if purpose is Purpose.USAGE and args[-1] is not None:
                self.counts += 1
                await trio.sleep_forever()
            return await inline_offload(fn, *args, **kwargs)

        return offload

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await inline_offload(fn, *args, **kwargs)


async def test_counting_files_holds_up_no_eviction_for_memory(
    node: Node, autojump_clock: MockClock
) -> None:
    machine = SlowCount()
    node.signals, node.offload = machine, machine
    use(node)
    writer = from_api(
        make_pod(
            "writer",
            containers="- {name: web, image: use-300}",
            spec=["volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]"],
        )
    )
    policy = EvictionPolicy(parse_thresholds({"memory.available": "100Mi"}), local_storage=True)
    async with node.running(writer, eviction=policy):
        await trio.sleep(30)
        assert machine.counts == 1
        machine.memory = 50 * MI
        await trio.sleep(60)
        assert node.status(writer).reason == "Evicted"

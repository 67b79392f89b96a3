"""Resizes of an API server's pods: granted, pending, and in which order, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import (
    Container,
    Event,
    Pod,
    PodCondition,
    PodSpec,
    ResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.scheduling_v1 import PriorityClass
from trio.testing import MockClock

from kubelet_trio.model import NANO, pod_uid
from kubelet_trio.testing import FakeKube
from tests.agent.test_cluster import NAME, World

PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
# As much later all pods run, and what is asked of them is decided and done.
SETTLED = 20.0


class Cluster(World):
    """A node with 1 CPU for pods, of which the API server believes that it has 2."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.host.allocatable = {"cpu": NANO, "memory": NANO << 30, "pods": 110 * NANO}

    def add(
        self, name: str, cpu: str, *, priority: str = "", limited: bool = False, **of_meta: Any
    ) -> None:
        """Add a pod that is bound to the node, of a priority class; a limited one is Guaranteed."""
        amounts = {"cpu": cpu, "memory": "10Mi"}
        container = Container(
            name="web",
            image="web",
            imagePullPolicy="IfNotPresent",
            resources=ResourceRequirements(requests=amounts, limits=amounts if limited else None),
        )
        body = PodSpec(containers=[container], nodeName=NAME, priorityClassName=priority or None)
        meta = ObjectMeta(name=name, namespace="default", **of_meta)
        self.kube.add(Pod(metadata=meta, spec=body))

    def resize(self, name: str, cpu: str, *, limited: bool = False) -> None:
        amounts = {"requests": {"cpu": cpu}} | ({"limits": {"cpu": cpu}} if limited else {})
        patch = {"spec": {"containers": [{"name": "web", "resources": amounts}]}}
        self.kube.change(Pod, name, patch, subresource="resize")

    def condition(self, name: str, type_: str) -> PodCondition | None:
        conditions = self.status(name).conditions or ()
        return next((c for c in conditions if c.type == type_), None)

    def pending(self, name: str) -> str:
        """Return why a resize is pending; "" if none is."""
        found = self.condition(name, PENDING)
        return "" if found is None else found.reason or ""

    def cpu(self, name: str) -> str:
        """Return what is allocated to a pod; the runtime has the same, or it is in progress."""
        [status] = list(self.status(name).containerStatuses or [])
        allocated = str((status.allocatedResources or {})["cpu"])
        if self.condition(name, IN_PROGRESS) is None:
            assert status.resources is not None
            assert (status.resources.requests or {})["cpu"] == allocated
        return allocated

    def reasons(self, name: str) -> list[str]:
        """Return the reasons of a pod's events about resizes."""
        events = [e for e in self.kube.all(Event) if e.involvedObject.name == name]
        return [e.reason or "" for e in events if (e.reason or "").startswith("Resize")]


@pytest.fixture
def world(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_a_resize_is_allocated_and_carried_out(
    world: Cluster, autojump_clock: MockClock
) -> None:
    world.add("web", "400m")
    async with world.running():
        await trio.sleep(SETTLED)
        world.resize("web", "600m")
        await trio.sleep(SETTLED)
        assert world.cpu("web") == "600m"
        assert world.pending("web") == ""
        assert world.condition("web", IN_PROGRESS) is None
        assert world.status("web").observedGeneration == 2
        assert world.reasons("web") == ["ResizeStarted", "ResizeCompleted"]
        [container] = world.host.runtime.alive()
        assert container.resources.cpu_shares == 614
        assert container.metadata.attempt == 0


async def test_a_pod_keeps_its_class_while_the_first_resources_of_its_own_are_pending(
    world: Cluster, autojump_clock: MockClock
) -> None:
    world.add("web", "400m")
    async with world.running():
        await trio.sleep(SETTLED)
        [first] = world.host.runtime.alive()
        own = {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2"}}
        world.kube.change(Pod, "web", {"spec": {"resources": own}}, subresource="resize")
        await trio.sleep(SETTLED)
        assert world.pending("web") != ""
        world.host.runtime.kill(first.id, 1)
        await trio.sleep(SETTLED)
        [second] = world.host.runtime.alive()
        assert second.id != first.id
        assert second.resources.oom_score_adj == first.resources.oom_score_adj
        assert second.resources == first.resources


@pytest.mark.parametrize(
    ("room", "trigger"),
    [
        ("a pod is deleted", "pod_terminated"),
        ("a pod is gone", "pods_removed"),
        ("a pod shrinks", "pod_resized"),
        ("a pod ends", "pod_terminated"),
    ],
)
async def test_a_deferred_resize_is_allocated_once_there_is_room(
    world: Cluster, room: str, trigger: str, autojump_clock: MockClock
) -> None:
    world.add("other", "400m")
    world.add("web", "400m")
    async with world.running() as agent:
        await trio.sleep(SETTLED)
        world.resize("web", "800m")
        await trio.sleep(SETTLED)
        found = world.condition("web", PENDING)
        assert found is not None
        assert found.reason == "Deferred"
        assert found.observedGeneration == 2
        assert found.message == (
            "Node didn't have enough resource: cpu, requested: 800, used: 400, capacity: 1000"
        )
        assert world.status("web").observedGeneration == 2
        assert world.cpu("web") == "400m"
        await trio.sleep(600)  # it is looked at again and again, and says it once
        assert world.reasons("web") == ["ResizeDeferred"]
        if room == "a pod is deleted":
            world.kube.remove(Pod, "other")
        elif room == "a pod is gone":
            # Unmarked, as a list finds it: of a deletion at once both are seen, or only the last.
            store = world.kube.server.store
            pod = store.get("Pod", "default", "other")
            assert pod is not None
            store.remove("Pod", pod)
        elif room == "a pod shrinks":
            world.resize("other", "100m")
        else:
            world.kube.change(Pod, "other", {"status": {"phase": "Failed"}}, subresource="status")
        await trio.sleep(2 * SETTLED)
        assert world.cpu("web") == "800m"
        assert world.pending("web") == ""
        assert world.reasons("web") == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]
        accepted = agent.seams.meter.counters("kubelet_pod_deferred_accepted_resizes_total")
        assert list(accepted) == [((trigger,), 1)]


async def test_pending_resizes_are_allocated_by_priority_then_qos_then_age(
    world: Cluster, autojump_clock: MockClock
) -> None:
    names = ["old", "young", "guaranteed", "important"]
    world.kube.add(PriorityClass(metadata=ObjectMeta(name="important"), value=100))
    world.add("other", "500m")
    for name in names:
        priority = "important" if name == "important" else ""
        world.add(name, "100m", priority=priority, limited=name == "guaranteed")
    async with world.running():
        await trio.sleep(SETTLED)
        for name in names:
            world.resize(name, "400m", limited=name == "guaranteed")
            await trio.sleep(SETTLED)
        assert [world.pending(name) for name in names] == ["Deferred"] * 4
        granted = []
        for room in ("200m", "", "important"):
            if room.endswith("m"):
                world.resize("other", room)
            else:
                world.kube.remove(Pod, room or "other", grace_period=0)
            names = [name for name in names if name != room]
            await trio.sleep(2 * SETTLED)
            now = [name for name in names if not world.pending(name)]
            granted += [name for name in now if name not in granted]
        assert granted == ["important", "guaranteed", "old"]
        assert world.pending("young") == "Deferred"


async def test_an_infeasible_resize_is_pending_until_it_is_taken_back(
    world: Cluster, autojump_clock: MockClock
) -> None:
    world.add("web", "400m")
    async with world.running():
        await trio.sleep(SETTLED)
        world.resize("web", "1500m")
        await trio.sleep(SETTLED)
        assert world.pending("web") == "Infeasible"
        assert world.cpu("web") == "400m"
        world.resize("web", "400m")
        await trio.sleep(SETTLED)
        assert world.pending("web") == ""
        assert world.status("web").observedGeneration == 3
        assert world.reasons("web") == ["ResizeInfeasible"]
        assert world.host.runtime.calls_of("UpdateContainerResources") == []


async def test_the_resize_of_a_critical_pod_preempts_another(
    world: Cluster, autojump_clock: MockClock
) -> None:
    world.add("other", "500m")
    world.add("critical", "400m", priority="system-node-critical")
    async with world.running():
        await trio.sleep(SETTLED)
        world.resize("critical", "800m")
        await trio.sleep(3 * SETTLED)
        assert world.status("other").reason == "Preempting"
        assert world.cpu("critical") == "800m"
        assert world.pending("critical") == ""


async def test_a_resize_goes_on_without_the_api_server_and_is_reported_later(
    world: Cluster, autojump_clock: MockClock
) -> None:
    world.add("web", "400m")
    async with world.running():
        await trio.sleep(SETTLED)
        world.host.runtime.latency = {"UpdateContainerResources": 5.0}
        world.resize("web", "600m")
        await trio.sleep(1)
        world.kube.go_down()
        await trio.sleep(60)
        [container] = world.host.runtime.alive()
        assert container.resources.cpu_shares == 614
        world.kube.come_back()
        await trio.sleep(300)
        assert world.cpu("web") == "600m"
        assert world.condition("web", IN_PROGRESS) is None
        assert len(world.host.runtime.calls_of("UpdateContainerResources")) == 1


async def test_a_pending_resize_stays_pending_over_a_restart_of_the_agent(
    world: Cluster, autojump_clock: MockClock
) -> None:
    world.add("other", "400m")
    world.add("web", "400m")
    async with world.running():
        await trio.sleep(SETTLED)
        world.resize("web", "800m")
        await trio.sleep(SETTLED)
        before = world.condition("web", PENDING)
    async with world.running():
        await trio.sleep(SETTLED)
        after = world.condition("web", PENDING)
        assert before is not None
        assert after is not None
        assert (after.reason, after.message) == ("Deferred", before.message)
        assert after.observedGeneration == 2
        assert world.cpu("web") == "400m"
        assert world.reasons("web") == ["ResizeDeferred"]
        world.kube.remove(Pod, "other", grace_period=0)
        await trio.sleep(2 * SETTLED)
        assert world.cpu("web") == "800m"
        found = world.kube.find(Pod, "web")
        assert found is not None
        assert world.host.runtime.starts[pod_uid(found), "web"] == 1


async def test_no_status_has_the_generation_of_a_resize_that_is_not_decided(
    world: Cluster, autojump_clock: MockClock
) -> None:
    # More pods than are applied at once: others run before the resize is decided on.
    world.add("early", "200m")
    for number in range(40):
        world.add(f"small-{number}", "1m")
    seen: list[tuple[int | None, bool, str]] = []

    def look(_kube: FakeKube) -> bool:
        now = world.status("early")
        has_condition = any(world.condition("early", t) for t in (PENDING, IN_PROGRESS))
        [status] = now.containerStatuses or []
        seen.append(
            (now.observedGeneration, has_condition, str((status.allocatedResources or {})["cpu"]))
        )
        return False

    async with world.running():
        await trio.sleep(SETTLED)
        with trio.move_on_after(2 * SETTLED):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.kube.wait_until, look)
                await trio.sleep(1)
                world.resize("early", "400m")
    complete = [
        cpu for generation, has_condition, cpu in seen if generation == 2 and not has_condition
    ]
    assert set(complete) == {"400m"}
    assert {now[:2] for now in seen} == {(1, False), (2, True), (2, False)}

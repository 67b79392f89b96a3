"""Pods with CPUs of their own, from admission to the end, over restarts and failing disks."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.managers import ManagerSettings, load_managers
from kubelet_trio.model import NANO, pod_uid
from tests.agent.hanging import HangingDisk
from tests.agent.node import Node, from_api, guaranteed, make_pod, make_pods, ready
from tests.managers.node.machines import GI, static, two_nodes
from tests.managers.node.slots import FILE, load_slots
from tests.simulation.hard_world import Disk

STATIC = ManagerSettings(cpu_policy="static", reconcile_period=10.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.managers = partial(load_slots, tmp_path / "root")
    return node


def cpus(node: Node, pod: Pod, name: str = "web") -> str:
    """Return the CPU set of a pod's running container."""
    (container,) = [c for c in node.runtime.alive(pod_uid(pod)) if c.name == name]
    return container.resources.cpuset_cpus


def updates(node: Node) -> int:
    return len(node.calls("UpdateContainerResources"))


async def test_exclusive_cpus_leave_the_shared_pool_and_come_back(
    node: Node, autojump_clock: MockClock
) -> None:
    shared, own = make_pod("shared"), guaranteed("own", "2")
    async with node.running(shared, managers=STATIC):
        await trio.sleep(5)
        assert cpus(node, shared) == "0-7"
        node.feed.put(shared, own)
        await trio.sleep(5)
        assert (cpus(node, own), cpus(node, shared)) == ("0-1", "2-7")
        node.feed.put(shared)
        await trio.sleep(5)
        assert cpus(node, shared) == "0-7"
        assert updates(node) == 2
        await trio.sleep(60)
        assert updates(node) == 2  # nothing changes, nothing is called
    assert node.runtime.violations == []


async def test_a_container_with_cpus_of_its_own_has_no_quota(
    node: Node, autojump_clock: MockClock
) -> None:
    own = guaranteed("own", "2")
    limited = make_pod(
        "limited", containers="- {name: web, image: web, resources: {limits: {cpu: '2'}}}"
    )
    async with node.running(own, limited, managers=STATIC):
        await trio.sleep(5)
        quotas = {
            pod.metadata.name: c.resources.cpu_quota
            for pod in (own, limited)
            if pod.metadata is not None
            for c in node.runtime.alive(pod_uid(pod))
        }
        assert quotas == {"own-node": 0, "limited-node": 200_000}
        assert all(
            sandbox.config.linux.resources.cpu_quota == quotas[sandbox.config.metadata.name]
            for sandbox in node.runtime.sandboxes.values()
            if sandbox.config.linux is not None
            and sandbox.config.linux.resources is not None
            and sandbox.config.metadata is not None
        )


async def test_a_pod_that_gets_no_cpus_is_rejected_and_leaves_the_others_alone(
    node: Node, autojump_clock: MockClock
) -> None:
    first, second, third = guaranteed("a", "4"), guaranteed("b", "4"), guaranteed("c", "3")
    async with node.running(first, managers=STATIC) as agent:
        await trio.sleep(5)
        node.feed.put(first, second)
        await trio.sleep(5)
        status = node.status(second)
        assert (status.phase, status.reason) == ("Failed", "UnexpectedAdmissionError")
        assert status.message == "Pod was rejected: 4 slots asked, 4 free"
        node.feed.put(first, second, third)
        await trio.sleep(5)
        assert cpus(node, third) == "4-6"
        assert dict(agent.meter.gauges("slots_free")) == {(): 1}
        rejections = dict(agent.meter.counters("kubelet_admission_rejections_total"))
        assert rejections == {("UnexpectedAdmissionError",): 1}


async def test_what_neither_managers_nor_node_have_is_refused_by_the_managers(
    node: Node, autojump_clock: MockClock
) -> None:
    node.allocatable = {"cpu": 4 * NANO, "memory": 64 * GI * NANO}
    too_much, short = (from_api(guaranteed(name, cpu)) for name, cpu in (("a", "9"), ("b", "5")))
    async with node.running(too_much, short, managers=STATIC) as agent:
        await trio.sleep(5)
        # As upstream, which asks the managers first.
        assert node.status(too_much).reason == "UnexpectedAdmissionError"
        assert node.status(short).reason == "OutOfcpu"
        assert dict(agent.meter.gauges("slots_free")) == {(): 8}
        # Both pods count as asked for, as an e2e test of the memory manager's metrics expects.
        requests = agent.meter.counters("kubelet_topology_manager_admission_requests_total")
        assert dict(requests) == {(): 2}
        assert dict(agent.meter.counters("slots_refused")) == {(): 1}


async def test_a_restarted_agent_finds_the_same_shares_and_restarts_nothing(
    node: Node, autojump_clock: MockClock
) -> None:
    shared, first, second = make_pod("shared"), guaranteed("a", "2"), guaranteed("b", "3")
    async with node.running(shared, first, second, managers=STATIC):
        await trio.sleep(5)
        before = [cpus(node, pod) for pod in (shared, first, second)]
        assert before == ["5-7", "0-1", "2-4"]
    created = len(node.calls("CreateContainer"))
    async with node.running(shared, second, managers=STATIC):
        await trio.sleep(15)
        # The shares of the pod that is gone are free, and those of the others are as they were.
        assert [cpus(node, pod) for pod in (shared, second)] == ["0-1,5-7", "2-4"]
        assert len(node.calls("CreateContainer")) == created
    assert node.runtime.violations == []


async def test_a_container_that_restarts_keeps_its_cpus(
    node: Node, autojump_clock: MockClock
) -> None:
    first, second = guaranteed("a", "2"), guaranteed("b", "2")
    async with node.running(first, second, managers=STATIC):
        await trio.sleep(5)
        (container,) = node.runtime.alive(pod_uid(second))
        node.runtime.kill(container.id)
        await trio.sleep(20)
        assert cpus(node, second) == "2-3"
        assert ready(node.status(second))


async def test_what_no_source_has_delivered_yet_keeps_its_cpus(
    node: Node, autojump_clock: MockClock
) -> None:
    first, second = guaranteed("a", "4"), guaranteed("b", "4")
    async with node.running(first, managers=STATIC):
        await trio.sleep(5)
    async with node.running(silent=True, managers=STATIC):
        await trio.sleep(15)
        assert cpus(node, first) == "0-3"
        node.feed.put(second)
        await trio.sleep(60)
        # Its sources do not want the first one: it ends, and the second one was refused before.
        assert node.status(second).reason == "UnexpectedAdmissionError"
        assert not node.runtime.alive(pod_uid(first))


async def test_an_edited_static_pod_gets_the_cpus_of_its_predecessor(
    node: Node, autojump_clock: MockClock
) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: web\n"
        "    image: {image}\n    resources: {{limits: {{cpu: '5', memory: 1Gi}}}}"
    )
    (old,), (new,) = (make_pods(text.format(image=image)) for image in ("web", "web2"))
    assert pod_uid(old) != pod_uid(new)
    async with node.running(old, managers=STATIC):
        await trio.sleep(5)
        node.feed.put(new)
        await trio.sleep(60)
        assert ready(node.status(new))
        assert cpus(node, new) == "0-4"
    assert node.runtime.violations == []


async def test_a_disk_that_refuses_holds_up_only_pods_with_a_share(
    node: Node, autojump_clock: MockClock
) -> None:
    disk = Disk()
    node.offload = disk.offload
    own, shared = guaranteed("own", "2"), make_pod("shared")
    async with node.running(managers=STATIC):
        await trio.sleep(5)
        disk.error = errno.ENOSPC
        with capture_logs() as logs:
            node.feed.put(own, shared)
            await trio.sleep(60)
        assert not node.runtime.alive(pod_uid(own))
        assert "FailedSync" in node.reasons(own)
        assert "FailedSync" not in node.reasons(shared)
        told = [entry for entry in logs if entry["event"] == "managers.checkpoint_failed"]
        assert len(told) == 1
        disk.error = 0
        await trio.sleep(20)
        assert cpus(node, own) == "0-1"
        assert ready(node.status(shared))


async def test_a_disk_that_hangs_holds_up_no_end_of_a_pod(
    node: Node, autojump_clock: MockClock
) -> None:
    node.offload = disk = HangingDisk()
    own = guaranteed("own", "2")
    async with node.running(managers=STATIC) as agent:
        await trio.sleep(5)
        with disk.hanging():
            node.feed.put(own)
            await trio.sleep(30)
            assert not node.runtime.alive(pod_uid(own))
            node.feed.put()
            await trio.sleep(30)
        await trio.sleep(10)
        assert pod_uid(own) not in agent.pods.value
        assert (node.base / "root" / FILE).read_text() == "{}"


async def test_a_container_that_cannot_be_updated_is_tried_again_and_logged_once(
    node: Node, autojump_clock: MockClock
) -> None:
    shared, own = make_pod("shared"), guaranteed("own", "2")
    async with node.running(shared, managers=STATIC):
        await trio.sleep(5)

        def refuse(_container: object, _resources: object) -> None:
            raise RuntimeCallError("UpdateContainerResources", "the cgroup is busy")

        on_resize, node.runtime.on_resize = node.runtime.on_resize, refuse
        with capture_logs() as logs:
            node.feed.put(shared, own)
            await trio.sleep(60)
        assert updates(node) > 3
        told = [entry for entry in logs if entry["event"] == "container.cpus_not_set"]
        assert len(told) == 1
        node.runtime.on_resize = on_resize
        await trio.sleep(10)
        assert cpus(node, shared) == "2-7"


async def test_the_topology_page_shows_who_has_what(node: Node, autojump_clock: MockClock) -> None:
    policies = static(memory=True)
    node.managers = partial(load_managers, policies, node.base / "root", two_nodes)
    own = guaranteed("own", "2")
    async with node.running(own, make_pod("shared"), managers=policies) as agent:
        await trio.sleep(5)
        page = json.loads(await agent.topology_page.page())
    holdings = page["holdings"]
    assert (holdings["reserved"], holdings["shared"]) == ("0", "0,2-8,10-15")
    (row,) = holdings["containers"]
    assert (row["pod"], row["container"], row["cpus"]) == ("own-node", "web", "1,9")
    assert row["memory"] == [{"resource": "memory", "nodes": [0], "bytes": 1 << 30}]
    assert holdings["policies"] == {"cpu": "static", "memory": "Static", "topology": "none"}


async def test_a_guaranteed_pod_is_not_resized_beside_a_static_policy(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(guaranteed("own", "2"), managers=STATIC):
        await trio.sleep(5)
        wanted = guaranteed("own", "3")
        node.feed.put(wanted)
        await trio.sleep(5)
        (pending,) = [
            c for c in node.status(wanted).conditions or () if c.type == "PodResizePending"
        ]
        assert pending.reason == "Infeasible"
        assert pending.message == (
            'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
        )
        assert cpus(node, wanted) == "0-1"


async def test_pods_that_run_without_shares_get_them_and_are_not_restarted(
    node: Node, autojump_clock: MockClock
) -> None:
    own, large = guaranteed("own", "2"), guaranteed("too-large", "7")
    shares, node.managers = node.managers, lambda: None
    async with node.running(own, large):
        await trio.sleep(5)
        assert cpus(node, own) == ""
    created = len(node.calls("CreateContainer"))
    node.managers = shares
    async with node.running(own, large, managers=STATIC):
        await trio.sleep(15)
        assert cpus(node, own) == "0-1"
        assert cpus(node, large) == "2-7"  # the shared pool: it goes on
        assert len(node.calls("CreateContainer")) == created


async def test_a_critical_pod_takes_cpus_only_once_its_victim_has_ended(
    node: Node, autojump_clock: MockClock
) -> None:
    node.allocatable = {"cpu": 7 * NANO, "memory": 64 * GI * NANO, "pods": 10 * NANO}
    victim = make_pods(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: victim}\nspec:\n  containers:\n"
        "  - name: web\n    image: web\n    lifecycle: {preStop: {sleep: {seconds: 5}}}\n"
        "    resources: {limits: {cpu: '5', memory: 1Gi}}"
    )[0]
    victim = from_api(victim)
    critical = guaranteed("critical", "4")
    async with node.running(victim, managers=STATIC):
        await trio.sleep(5)
        assert cpus(node, victim) == "0-4"
        node.feed.put(victim, critical)
        await trio.sleep(3)
        assert cpus(node, victim) == "0-4"
        assert not node.runtime.alive(pod_uid(critical))
        await trio.sleep(90)
        assert node.status(victim).reason == "Preempting"
        assert cpus(node, critical) == "0-3"
    assert node.runtime.violations == []


async def test_a_critical_pod_that_displaces_nobody_is_counted_once(
    node: Node, autojump_clock: MockClock
) -> None:
    node.allocatable = {"cpu": 9 * NANO, "memory": 64 * GI * NANO, "pods": 10 * NANO}
    other, critical = from_api(guaranteed("other", "3")), guaranteed("critical", "8")
    async with node.running(other, managers=STATIC) as agent:
        await trio.sleep(5)
        node.feed.put(other, critical)
        await trio.sleep(5)
        assert node.status(critical).reason == "UnexpectedAdmissionError"
        assert cpus(node, other) == "0-2"
        assert dict(agent.meter.counters("slots_refused")) == {(): 1}

"""The sockets for programs of the node, of a whole agent."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.agent import Agent, NodeSocketSettings
from kubelet_trio.agent.node_sockets import is_active
from kubelet_trio.grpc import GRPCError, open_channel
from kubelet_trio.managers import load_managers
from kubelet_trio.managers.podresources.generated import v1, v1alpha1
from kubelet_trio.managers.podresources.generated.v1.client import PodResourcesListerStub
from kubelet_trio.managers.podresources.generated.v1alpha1.client import (
    PodResourcesListerStub as AlphaStub,
)
from kubelet_trio.model import metadata, parse_cpus, pod_uid
from kubelet_trio.pods import PodStage
from kubelet_trio.server.pods_api.generated.v1alpha1 import (
    EventType,
    ListPodsRequest,
    WatchPodsRequest,
)
from kubelet_trio.server.pods_api.generated.v1alpha1.client import PodsStub
from tests.agent.node import Node, below, make_pod, ready
from tests.harness.node_stubs import stubs
from tests.managers.node.machines import static, two_nodes

BOTH = NodeSocketSettings(pod_resources=True, pods_api=True)


@pytest.fixture
def node(short_path: Path) -> Node:
    return Node(short_path)


def resources_socket(node: Node) -> Path:
    return node.base / "root/pod-resources/kubelet.sock"


def pods_socket(node: Node) -> Path:
    return node.base / "root/pods-api/pods-api.sock"


async def eventually(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await trio.sleep(0.1)
    raise AssertionError("not within 100 s")


async def listed(node: Node) -> set[str]:
    """Return the names of the pods that v1 lists."""
    async with open_channel(str(resources_socket(node))) as channel:
        reply = await PodResourcesListerStub(channel).list(v1.ListPodResourcesRequest())
    return {pod.name for pod in reply.pod_resources}


async def test_active_pods_and_what_they_hold_are_listed(
    node: Node, autojump_clock: MockClock
) -> None:
    web = make_pod()
    job = make_pod("job", "exit-0-after-5", spec=["restartPolicy: Never"])
    async with node.running(web, job, sockets=BOTH) as agent:
        await eventually(lambda: ready(node.status(web)))
        assert await listed(node) == {"web-node", "job-node"}
        await eventually(lambda: node.status(job).phase == "Succeeded")
        await trio.sleep(5)
        assert await listed(node) == {"web-node"}
        async with open_channel(str(resources_socket(node))) as channel:
            alpha = await AlphaStub(channel).list(v1alpha1.ListPodResourcesRequest())
            assert {pod.name for pod in alpha.pod_resources} == {"web-node", "job-node"}
            stub = PodResourcesListerStub(channel)
            allocatable = await stub.get_allocatable_resources(v1.AllocatableResourcesRequest())
            # Without managers nothing is handed out.
            assert allocatable == v1.AllocatableResourcesResponse()
            namespace = metadata(web).namespace or ""
            asked = v1.GetPodResourcesRequest(pod_name="web-node", pod_namespace=namespace)
            reply = await stub.get(asked)
            assert reply.pod_resources is not None
            assert reply.pod_resources.containers == [v1.ContainerResources(name="web")]
            asked.pod_name = "job-node"
            with pytest.raises(GRPCError, match="pod job-node in namespace default not found"):
                await stub.get(asked)
        page = await agent.metrics.page()
    for name, version, count in (
        ("kubelet_pod_resources_endpoint_requests_total", "v1", 5),
        ("kubelet_pod_resources_endpoint_requests_total", "v1alpha1", 1),
        ("kubelet_pod_resources_endpoint_requests_list", "v1", 2),
        ("kubelet_pod_resources_endpoint_requests_get_allocatable", "v1", 1),
        ("kubelet_pod_resources_endpoint_requests_get", "v1", 2),
        ("kubelet_pod_resources_endpoint_errors_get", "v1", 1),
    ):
        assert f'{name}{{server_api_version="{version}"}} {count}' in page


async def test_what_the_managers_give_a_container_is_listed_while_it_has_it(
    node: Node, autojump_clock: MockClock
) -> None:
    settings = static(memory=True)
    node.managers = partial(load_managers, settings, node.base / "root", two_nodes)
    own = make_pod(
        "own",
        containers="- {name: web, image: web, resources: {limits: {cpu: '2', memory: 1Gi}}}",
    )
    async with node.running(own, sockets=BOTH, managers=settings):
        await eventually(lambda: ready(node.status(own)))
        (running,) = node.runtime.alive(pod_uid(own))
        async with open_channel(str(resources_socket(node))) as channel:
            stub = PodResourcesListerStub(channel)
            (pod,) = (await stub.list(v1.ListPodResourcesRequest())).pod_resources
            (held,) = pod.containers
            assert set(held.cpu_ids) == parse_cpus(running.resources.cpuset_cpus)
            assert len(held.cpu_ids) == 2
            assert [(m.memory_type, m.size) for m in held.memory] == [("memory", 1 << 30)]
            allocatable = await stub.get_allocatable_resources(v1.AllocatableResourcesRequest())
            assert allocatable.cpu_ids == list(range(1, 16))


async def test_a_watch_sees_the_life_of_a_pod(node: Node, autojump_clock: MockClock) -> None:
    pods = stubs("pod")[0]
    web = make_pod()
    seen: list[tuple[EventType, str]] = []

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        async with open_channel(str(pods_socket(node))) as channel:
            async with PodsStub(channel).watch_pods.open() as call:
                await call.send_message(WatchPodsRequest(), end=True)
                async for event in call:
                    if event.type is EventType.INITIAL_SYNC_COMPLETE:
                        task_status.started()
                        continue
                    pod = pods.Pod.FromString(event.pod)
                    assert pod.metadata.uid == pod_uid(web)
                    seen.append((event.type, pod.status.phase))

    async with node.running(sockets=BOTH), trio.open_nursery() as nursery:
        await nursery.start(watch)
        node.feed.put(web)
        await eventually(lambda: (EventType.MODIFIED, "Running") in seen)
        async with open_channel(str(pods_socket(node))) as channel:
            (data,) = (await PodsStub(channel).list_pods(ListPodsRequest())).pods
            assert pods.Pod.FromString(data).spec.containers[0].name == "web"
        node.feed.put()
        await eventually(lambda: bool(seen) and seen[-1] == (EventType.DELETED, ""))
        nursery.cancel_scope.cancel()
    kinds = [kind for kind, _ in seen]
    assert kinds == [EventType.ADDED, *[EventType.MODIFIED] * (len(seen) - 2), EventType.DELETED]


def served(agent: Agent) -> set[str]:
    names = {child.name for child in agent.tree().children}
    return {c.name for c in below(agent.tree(), "server").children} if "server" in names else set()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (NodeSocketSettings(), set()),
        (NodeSocketSettings(pod_resources=True), {"podresources"}),
        (BOTH, {"podresources", "pods-api"}),
    ],
)
async def test_only_what_is_wanted_is_served(
    settings: NodeSocketSettings, expected: set[str], node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(sockets=settings) as agent:
        assert served(agent) == expected
        for name, path in (
            ("podresources", resources_socket(node)),
            ("pods-api", pods_socket(node)),
        ):
            assert path.exists() == (name in expected)


async def test_the_sockets_open_to_their_owner_alone_and_go_with_the_agent(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(sockets=BOTH):
        for path in (resources_socket(node), pods_socket(node)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert not resources_socket(node).exists()
    # A killed agent leaves its own behind, and the next one takes its place.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(resources_socket(node)))
    async with node.running(sockets=BOTH):
        assert await listed(node) == set()


async def test_clients_that_say_nothing_keep_nobody_out(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod(), sockets=BOTH), trio.open_nursery() as nursery:
        for _ in range(200):
            stream = await trio.open_unix_socket(str(resources_socket(node)))
            nursery.start_soon(_hold, stream)
        await trio.sleep(10)
        assert await listed(node) == {"web-node"}
        nursery.cancel_scope.cancel()


async def _hold(stream: trio.SocketStream) -> None:
    async with stream:
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("stage", "phases", "expected"),
    [
        (None, set(), True),
        (None, {"Running"}, True),
        (None, {"Failed"}, False),
        (PodStage.SYNC, {"Pending", "Running"}, True),
        (PodStage.SYNC, {"Running", "Succeeded"}, False),
        (PodStage.TERMINATING, {"Running"}, True),
        (PodStage.TERMINATING, {"Failed"}, True),
        (PodStage.TERMINATED, {"Running"}, False),
        (PodStage.TERMINATED, {"Failed"}, False),
    ],
)
def test_a_pod_is_active_until_it_has_ended(
    stage: PodStage | None, phases: set[str], expected: bool
) -> None:
    assert is_active(stage, phases) == expected

"""What an agent traces of its pods, in virtual time: trees of spans, and who begins one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import pod_uid, spec
from tests.agent.node import Node, make_pod, make_pods, ready
from tests.agent.test_probes import Answers, probe, probed
from tests.tracing.test_sender import DROPPED
from tests.tracing.traces import Traced, Tree, drawn, traced, trees


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def told(node: Node) -> Traced:
    found = traced()
    node.tracing = found.tracing
    return found


def of(told: Traced, name: str) -> list[Tree]:
    return [tree for tree in trees(told.receiver.spans) if tree.name == name]


async def settle() -> None:
    """Let the agent work, and the spans leave."""
    await trio.sleep(10)


POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: web
    image: web
    lifecycle:
      postStart: {exec: {command: [started]}}
      preStop: {exec: {command: [stopping]}}
  - {name: sidecar, image: sidecar}
"""


def make() -> Pod:
    (pod,) = make_pods(POD)
    return pod


def with_image(pod: Pod, image: str) -> Pod:
    """Return the same pod, by its UID, with another image in its container."""
    (container,) = spec(pod).containers
    edited = msgspec.structs.replace(container, image=image)
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(spec(pod), containers=[edited])
    )


async def test_a_pods_start_is_one_trace(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = Answers()
    node.runtime.latency = {
        "RunPodSandbox": 0.05
    }  # as any runtime: the image is looked for beside it
    pod = make()
    async with node.running(pod):
        await settle()
        assert ready(node.status(pod))
    first = of(told, "syncPod")[0]
    # Sorted: the image is looked for beside the sandbox's start.
    assert sorted(drawn(first).splitlines()) == sorted(STARTED.splitlines())
    assert first.is_root
    assert first.attributes == {
        "k8s.pod.uid": pod_uid(pod),
        "k8s.pod": "default/web-node",
        "k8s.pod.name": "web-node",
        "k8s.namespace.name": "default",
        "k8s.pod.update_type": "create",
    }
    started = [tree for tree in first.every() if tree.name == "startContainer"]
    assert [tree.attributes["k8s.container.name"] for tree in started] == ["web", "sidecar"]
    assert first.find("mountVolumes").attributes == {"kubelet_trio.volumes": "data"}
    assert not any(tree.has_failed for tree in first.every())


STARTED = """\
syncPod
  createPodSandbox
    mountVolumes
    ImageService/ImageStatus
    RuntimeService/RunPodSandbox
    RuntimeService/PodSandboxStatus
  startContainer
    ImageService/ImageStatus
    pullImage
      ImageService/PullImage
      ImageService/ImageStatus
    RuntimeService/CreateContainer
    RuntimeService/StartContainer
    RuntimeService/ContainerStatus
    postStartHook
      RuntimeService/ExecSync
  startContainer
    ImageService/ImageStatus
    pullImage
      ImageService/PullImage
      ImageService/ImageStatus
    RuntimeService/CreateContainer
    RuntimeService/StartContainer
    RuntimeService/ContainerStatus"""


async def test_each_sync_is_a_trace_and_says_why_it_was_made(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        await settle()
        node.feed.put(with_image(pod, "new"))
        await trio.sleep(90)
    kinds = [tree.attributes["k8s.pod.update_type"] for tree in of(told, "syncPod")]
    assert kinds[:2] == ["create", "sync"]
    assert set(kinds[2:]) == {"update", "sync"}
    update = next(
        tree for tree in of(told, "syncPod") if tree.attributes["k8s.pod.update_type"] == "update"
    )
    assert update.find("stopContainer").attributes == {"k8s.container.name": "web"}
    assert all(tree.is_root for tree in of(told, "syncPod"))


async def test_a_removal_is_a_trace_for_what_runs_and_one_for_the_rest(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = Answers()
    pod = make()
    async with node.running(pod):
        await settle()
        node.feed.put()
        await trio.sleep(60)
    (terminating,), (terminated,) = of(told, "syncTerminatingPod"), of(told, "syncTerminatedPod")
    assert sorted(drawn(terminating).splitlines()) == sorted(TERMINATING.splitlines())
    assert drawn(terminated) == "syncTerminatedPod\n  unmountVolumes"
    hook = terminating.find("preStopHook")
    assert hook.attributes == {"k8s.container.name": "web"}
    stops = [tree for tree in terminating.every() if tree.name == "stopContainer"]
    assert {tree.attributes["k8s.container.name"]: len(tree.below) for tree in stops} == {
        "web": 2,
        "sidecar": 1,
    }
    assert terminating.attributes["k8s.pod.uid"] == pod_uid(pod)


TERMINATING = """\
syncTerminatingPod
  stopContainer
    preStopHook
      RuntimeService/ExecSync
    RuntimeService/StopContainer
  stopContainer
    RuntimeService/StopContainer
  RuntimeService/ContainerStatus
  RuntimeService/ContainerStatus
  RuntimeService/StopPodSandbox
  RuntimeService/RemovePodSandbox"""


async def test_only_failed_probes_are_traced_each_with_its_call(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = answers = Answers()
    answers.failing.add("fails")
    pod = probed(probe("readiness", "fails"), probe("liveness", "works"))
    async with node.running(pod):
        await trio.sleep(35)
    assert len(answers.times("works")) >= 3
    assert of(told, "livenessProbe") == []
    failed = of(told, "readinessProbe")
    assert len(failed) >= 3
    for tree in failed:
        assert drawn(tree) == "readinessProbe\n  RuntimeService/ExecSync"
        assert tree.is_root  # no sync's child, although a sync started its task
        assert tree.has_failed
        assert tree.span.status.description == "Readiness probe failed: said"
        assert tree.attributes["k8s.pod.uid"] == pod_uid(pod)
        assert tree.attributes["k8s.container.name"] == "web"
    # No call of a probe that succeeded is left without its parent.
    assert [tree.name for tree in trees(told.receiver.spans) if not tree.is_root] == []


async def test_a_failed_start_says_where_it_failed(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod(image="no-create")):
        await settle()
    first = of(told, "syncPod")[0]
    failed = [tree.name for tree in first.every() if tree.has_failed]
    assert failed == ["syncPod", "startContainer", "runtime.v1.RuntimeService/CreateContainer"]
    assert "web" in (first.span.status.description or "")


async def test_a_sync_that_is_interrupted_is_not_one_that_failed(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    node.runtime.latency = {"PullImage": 100}
    async with node.running(make_pod()):
        await settle()
        node.feed.put()
        await trio.sleep(60)
    first = of(told, "syncPod")[0]
    for tree in (first, first.find("startContainer"), first.find("pullImage")):
        assert tree.attributes["kubelet_trio.cancelled"] is True
        assert not tree.has_failed


async def test_long_lived_tasks_begin_traces_of_their_own(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()):
        await trio.sleep(120)
        for container_id in list(node.runtime.containers):
            node.runtime.kill(container_id)
        await trio.sleep(30)
    roots = {tree.name for tree in trees(told.receiver.spans) if not tree.below}
    assert {
        "runtime.v1.RuntimeService/Status",
        "runtime.v1.RuntimeService/ListContainers",
        "Containers/GarbageCollect",
    } <= roots
    for tree in trees(told.receiver.spans):
        assert tree.is_root
        if tree.name == "syncPod":
            # A round ends: nothing that a sync woke or started hangs below it for ever.
            assert (tree.span.end_time or 0) - (tree.span.start_time or 0) < 60e9


async def test_the_agents_end_sends_the_last_spans(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()) as agent:
        await trio.sleep(1)
        assert told.receiver.spans == []
        agent.stop()
        await trio.sleep(30)
        assert of(told, "syncPod")
    assert told.counted(DROPPED) == {}


async def test_a_receiver_that_is_away_harms_no_pod(
    node: Node, told: Traced, autojump_clock: MockClock
) -> None:
    told.receiver.away = "UNAVAILABLE"
    pods = [make_pod(f"p{i}") for i in range(30)]
    async with node.running(*pods) as agent:
        await trio.sleep(600)
        assert all(ready(node.status(pod)) for pod in pods)
        node.feed.put()
        await trio.sleep(100)
        assert agent.pods.value == {}
        (child,) = [c for c in agent.tree().children if c.name == "tracing"]
        assert child.restarts == 0
    assert told.counted(DROPPED)[("failed",)] > 0


async def test_a_rate_of_zero_traces_only_what_a_caller_samples(
    node: Node, autojump_clock: MockClock
) -> None:
    told = traced(rate=0)
    node.tracing = told.tracing
    async with node.running(make_pod()):
        await trio.sleep(100)
    assert told.receiver.requests == 0


async def test_without_tracing_the_tree_has_no_such_child(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()) as agent:
        assert "tracing" not in {child.name for child in agent.tree().children}

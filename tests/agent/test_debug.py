"""An ephemeral container that is added to a static pod on this node, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel
from lightkube.models.core_v1 import ContainerStatus, Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cri import v1
from kubelet_trio.model import metadata, pod_uid
from kubelet_trio.pods import DebugRefusedError
from kubelet_trio.sources import ManifestError
from tests.agent.node import Node, make_pod, ready


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def debugger(name: str = "debugger", **fields: Any) -> bytes:
    return json.dumps({"name": name, "image": "tools", **fields}).encode()


def ephemeral(node: Node, pod: Pod, name: str = "debugger") -> ContainerStatus:
    """Return what the agent says of an ephemeral container now."""
    (found,) = (c for c in node.status(pod).ephemeralContainerStatuses or () if c.name == name)
    return found


def is_running(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None


def said(agent: Agent, reason: str) -> list[str]:
    return [event.message or "" for event in agent.events.events() if event.reason == reason]


async def test_it_runs_beside_the_others_and_nothing_restarts(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(10)
        before = {c.id for c in node.runtime.alive()}
        given = debugger(targetContainerName="web", command=["sh"], stdin=True, tty=True)
        assert agent.debug(pod_uid(pod), given) == "debugger"
        await trio.sleep(5)
        assert is_running(ephemeral(node, pod))
        assert ready(node.status(pod))
        alive = {c.id for c in node.runtime.alive()}
        assert before < alive
        assert len(alive) == 2
        assert len(node.runtime.calls_of("RunPodSandbox")) == 1
        assert said(agent, "Debugging") == ["Ephemeral container debugger was added on this node"]
        shown = agent.pods.value[pod_uid(pod)].spec
        assert shown is not None
        (container,) = shown.ephemeralContainers or [None]
        assert container is not None
        assert (container.name, container.imagePullPolicy) == ("debugger", "Always")
        (made,) = (c for c in node.runtime.alive() if c.name == "debugger")
        linux = made.config.linux
        assert linux is not None
        assert linux.security_context is not None
        options = linux.security_context.namespace_options
        assert options is not None
        assert options.pid == v1.NamespaceMode.TARGET
        assert options.target_id in before


async def test_it_never_restarts_and_holds_up_no_end(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(
        spec=("restartPolicy: OnFailure",), containers="- {name: web, image: exit-0-after-60}"
    )
    async with node.running(pod) as agent:
        await trio.sleep(10)
        agent.debug(pod_uid(pod), debugger(image="exit-3-after-2"))
        agent.debug(pod_uid(pod), debugger("second"))
        await trio.sleep(20)
        ended = ephemeral(node, pod)
        assert ended.state is not None
        assert ended.state.terminated is not None
        assert (ended.state.terminated.exitCode, ended.restartCount) == (3, 0)
        assert is_running(ephemeral(node, pod, "second"))
        await trio.sleep(120)
        assert node.status(pod).phase == "Succeeded"
        assert not list(node.runtime.alive())


async def test_a_restarted_agent_adopts_it(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(10)
        agent.debug(pod_uid(pod), debugger())
        agent.debug(pod_uid(pod), debugger("ends", image="exit-0-after-1"))
        await trio.sleep(10)
        alive = {c.id for c in node.runtime.alive()}
    async with node.running(pod) as agent:
        await trio.sleep(90)
        assert {c.id for c in node.runtime.alive()} == alive
        assert is_running(ephemeral(node, pod))
        assert ephemeral(node, pod, "ends").restartCount == 0
        assert not is_running(ephemeral(node, pod, "ends"))
        # The same manifest is delivered again, and again.
        node.feed.put(msgspec.structs.replace(pod))
        await trio.sleep(90)
        assert {c.id for c in node.runtime.alive()} == alive


async def test_it_is_lost_with_its_pod(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(10)
        agent.debug(pod_uid(pod), debugger())
        await trio.sleep(5)
        node.feed.put()
        await trio.sleep(60)
        assert not list(node.runtime.alive())
        node.feed.put(pod)  # of the same UID: its manifest is back
        await trio.sleep(20)
        assert [c.name for c in node.runtime.alive()] == ["web"]
        assert node.status(pod).ephemeralContainerStatuses is None


async def test_a_resize_in_place_keeps_it(node: Node, autojump_clock: MockClock) -> None:
    def sized(cpu: str) -> Pod:
        resources = f"resources: {{requests: {{cpu: {cpu}}}}}"
        return make_pod(containers=f"- {{name: web, image: web, {resources}}}")

    pod, larger = sized("1"), sized("2")
    larger = msgspec.structs.replace(larger, metadata=metadata(pod))
    async with node.running(pod) as agent:
        await trio.sleep(10)
        agent.debug(pod_uid(pod), debugger())
        await trio.sleep(5)
        alive = {c.id for c in node.runtime.alive()}
        node.feed.put(larger)
        await trio.sleep(20)
        assert {c.id for c in node.runtime.alive()} == alive
        allocated = node.container(pod).allocatedResources
        assert allocated is not None
        assert allocated["cpu"] == "2"
        assert is_running(ephemeral(node, pod))


async def test_an_image_that_cannot_be_pulled_holds_up_nothing_else(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(10)
        agent.debug(pod_uid(pod), debugger(image="missing"))
        await trio.sleep(5)
        state = ephemeral(node, pod).state
        assert state is not None
        assert state.waiting is not None
        assert state.waiting.reason in ("ErrImagePull", "ImagePullBackOff")
        assert ready(node.status(pod))


async def test_a_pull_under_way_is_told(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(10)
        node.runtime.images.pull_takes = 100
        agent.debug(pod_uid(pod), debugger())
        await trio.sleep(45)
        (pull,) = agent.status().pulls
        assert (pull.uid, pull.container, pull.image) == (pod_uid(pod), "debugger", "tools")
        assert agent.clock.time() - pull.since == pytest.approx(45, abs=1)
        await trio.sleep(100)
        assert agent.status().pulls == ()
        assert is_running(ephemeral(node, pod))


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        (debugger("web"), ManifestError, r'ephemeralContainers\[0\].name: Duplicate value: "web"'),
        (debugger(targetContainerName="x"), ManifestError, r'targetContainerName: Not found: "x"'),
        (b"{", ManifestError, "not JSON"),
    ],
)
async def test_a_wrong_one_is_refused_and_the_pod_runs_on(
    node: Node, autojump_clock: MockClock, given: bytes, error: type[Exception], why: str
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(10)
        with pytest.raises(error, match=why):
            agent.debug(pod_uid(pod), given)
        await trio.sleep(10)
        assert len(list(node.runtime.alive())) == 1
        assert node.status(pod).ephemeralContainerStatuses is None


async def test_a_pod_that_ends_is_given_none(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(image="slow-stop-25")
    async with node.running(pod) as agent:
        await trio.sleep(10)
        node.feed.put()
        await trio.sleep(10)
        with pytest.raises(DebugRefusedError, match="ending"):
            agent.debug(pod_uid(pod), debugger())
        await trio.sleep(60)
        with pytest.raises(DebugRefusedError, match="not on this node"):
            agent.debug(pod_uid(pod), debugger())

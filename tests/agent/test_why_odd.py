"""`why` in odd situations: what ended a container, who has a port, what comes after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult
from kubelet_trio.model import NANO, pod_uid
from kubelet_trio.testing import FakeExec
from tests.agent.node import Node, make_pod
from tests.agent.test_resizing import Cluster
from tests.agent.test_restart_all import asking, end
from tests.agent.test_why import of_kind, why

RULE = "{action: Restart, exitCodes: {operator: In, values: [42]}}"
FAILS = FakeExec(result=ExecResult(b"not yet", b"", 1))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("fields", "image", "text"),
    [
        (
            f"restartPolicy: Never, restartPolicyRules: [{RULE}]",
            "exit-41-after-1",
            "it exited with code 41 (Error), and does not start again: its restartPolicy is Never, "
            "and no restartPolicyRule matches",
        ),
        (
            "restartPolicy: OnFailure",
            "exit-0-after-1",
            "it exited with code 0 (Completed), and does not start again: its restartPolicy is "
            "OnFailure",
        ),
    ],
)
async def test_a_container_that_does_not_start_again_keeps_the_pod_from_being_ready(
    node: Node, fields: str, image: str, text: str, autojump_clock: MockClock
) -> None:
    web = f"- {{name: web, image: {image}, {fields}}}"
    pod = make_pod(containers=f"{web}\n- {{name: other, image: other}}")
    async with node.running(pod) as agent:
        await trio.sleep(15)
        found = why(agent, pod)
        reason = of_kind(found, "ended")
        assert (reason.container, reason.text) == ("web", text)
        assert reason.since is not None
        assert found.summary == f"web: {text}"


async def test_a_rule_that_matches_starts_it_again(node: Node, autojump_clock: MockClock) -> None:
    web = f"- {{name: web, image: exit-42-after-1, restartPolicy: Never, {RULE_OF}}}"
    pod = make_pod(containers=web)
    async with node.running(pod) as agent:
        await trio.sleep(15)
        found = why(agent, pod)
        assert of_kind(found, "back-off").text == "CrashLoopBackOff: it exited with code 42 (Error)"
        assert found.next[0].text == "container web starts again"


RULE_OF = f"restartPolicyRules: [{RULE}]"


async def test_a_pod_that_has_failed_names_the_container(
    node: Node, autojump_clock: MockClock
) -> None:
    spec = ["restartPolicy: Never", "initContainers:", "- {name: set-up, image: exit-3-after-1}"]
    pod = make_pod(spec=spec)
    async with node.running(pod) as agent:
        await trio.sleep(15)
        assert why(agent, pod).summary == (
            "it has ended: its containers have ended, and none starts again: "
            "set-up exited with code 3 (Error)"
        )


async def test_a_liveness_probe_is_why_a_container_ended(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _container, _command: FAILS
    probe = "{exec: {command: [check]}, periodSeconds: 2, failureThreshold: 2}"
    pod = make_pod(containers=f"- {{name: web, image: web, livenessProbe: {probe}}}")
    async with node.running(pod) as agent:
        await trio.sleep(52)
        assert of_kind(why(agent, pod), "back-off").text == (
            "CrashLoopBackOff: Container web failed liveness probe, will be restarted; "
            "it exited with code 143 (Error)"
        )


async def test_a_hook_that_fails_is_why_a_container_ended(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _container, _command: FAILS
    hook = "lifecycle: {postStart: {exec: {command: [warm-up]}}}"
    pod = make_pod(containers=f"- {{name: web, image: web, {hook}}}")
    async with node.running(pod) as agent:
        await trio.sleep(40)
        text = of_kind(why(agent, pod), "back-off").text
        assert text.startswith("CrashLoopBackOff: its postStart hook failed: ")
        assert text.endswith("; it exited with code 143 (Error)")


async def test_a_hook_that_hangs_is_what_the_agent_does(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _container, _command: FakeExec(takes=10_000)
    hook = "lifecycle: {postStart: {exec: {command: [warm-up]}}}"
    pod = make_pod(containers=f"- {{name: web, image: web, {hook}}}\n- {{name: b, image: b}}")
    async with node.running(pod) as agent:
        await trio.sleep(40)
        found = why(agent, pod)
        reason = of_kind(found, "step")
        assert reason.text == "it waits for this: running the postStart hook of container web"
        assert reason.since is not None
        assert found.now - reason.since == pytest.approx(40, abs=1)
        assert found.summary == reason.text


@pytest.mark.parametrize("kind", ["startup", "liveness"])
async def test_what_a_probe_leads_to_is_next(
    node: Node, kind: str, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _container, _command: FAILS
    probe = "{exec: {command: [check]}, periodSeconds: 5, failureThreshold: 10}"
    pod = make_pod(containers=f"- {{name: web, image: web, {kind}Probe: {probe}}}")
    async with node.running(pod) as agent:
        await trio.sleep(22)
        found = why(agent, pod)
        coming = next(each for each in found.next if "probe" in each.text)
        assert coming.text == f"container web is restarted, unless its {kind} probe passes before"
        assert coming.at is not None
        stops = len(node.calls("StopContainer"))
        await trio.sleep(coming.at - found.now - 1)
        assert len(node.calls("StopContainer")) == stops
        await trio.sleep(3)
        assert len(node.calls("StopContainer")) == stops + 1


async def test_a_start_that_failed_is_tried_again(node: Node, autojump_clock: MockClock) -> None:
    env = "env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a}}}]"
    pod = make_pod(containers=f"- {{name: web, image: web, {env}}}")
    async with node.running(pod) as agent:
        await trio.sleep(20)
        found = why(agent, pod)
        text = 'CreateContainerConfigError: configmap "settings" not found'
        assert of_kind(found, "start").text == text
        assert found.next[0].text == "the start of container web is tried again"


async def test_a_host_port_names_the_pod_that_has_it(node: Node, autojump_clock: MockClock) -> None:
    body = "- {name: web, image: web, ports: [{containerPort: 80, hostPort: 8080}]}"
    pod, other = make_pod("a", containers=body), make_pod("b", containers=body)
    async with node.running(pod) as agent:
        await trio.sleep(5)
        node.feed.put(pod, other)
        await trio.sleep(5)
        found = why(agent, other)
        assert "free ports" in found.summary
        reason = of_kind(found, "admission")
        assert reason.text == "host port 8080/TCP is that of pod default/a-node"
        assert not reason.blocks


async def test_a_selector_names_the_labels_that_differ(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(spec=["nodeSelector: {disk: ssd}"])
    async with node.running(pod) as agent:
        await trio.sleep(5)
        texts = [r.text for r in why(agent, pod).reasons if r.kind == "admission"]
        assert texts == ["the node has no label disk; its nodeSelector wants disk=ssd"]


async def test_what_is_short_is_told_in_figures(node: Node, autojump_clock: MockClock) -> None:
    node.allocatable = {"cpu": 2 * NANO, "memory": 4 * 2**30 * NANO, "pods": NANO}
    pod, other = make_pod("a"), make_pod("b")
    async with node.running(pod) as agent:
        await trio.sleep(5)
        node.feed.put(pod, other)
        await trio.sleep(5)
        assert of_kind(why(agent, other), "admission").text == (
            "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"
        )


async def test_a_restart_of_all_containers_names_its_cause(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = asking()
    async with node.running(pod) as agent:
        await trio.sleep(20)
        node.runtime.latency = {"StopContainer": 30.0}
        end(node, "web", 42)
        await trio.sleep(8)
        found = why(agent, pod)
        assert found.summary == (
            "all its containers restart by a RestartAllContainers rule, "
            "because web exited with code 42 (Error)"
        )
        assert found.next[0].text == "the agent goes on with the pod once that has ended"


async def test_a_deferred_resize_tells_when_it_is_decided_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.running() as agent:
        await cluster.wait(cluster.is_node_ready)
        cluster.add("a", "600m")
        cluster.add("b", "300m")
        await trio.sleep(20)
        for cpu, is_told in (("900m", True), ("1900m", False)):
            cluster.resize("a", cpu)
            await trio.sleep(20)
            pod = next(p for p in agent.pods.value.values() if named(p) == "a")
            texts = [each.text for each in why(agent, pod).next]
            told = "the resize is decided on again when another pod ends or shrinks"
            assert (told in texts) is is_told


async def test_a_finalizer_is_what_an_ended_pod_waits_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.running() as agent:
        await cluster.wait(cluster.is_node_ready)
        cluster.add("a", "100m", finalizers=["example.com/keep"])
        await trio.sleep(20)
        pod = next(iter(agent.pods.value.values()))
        assert why(agent, pod).summary == "it runs and is ready"
        await cluster.kube.delete(Pod, "a", namespace="default")
        await trio.sleep(60)
        found = agent.why(pod_uid(pod))
        assert found is not None
        assert found.wanted.state == "removed"
        assert found.next[0].text == (
            "nothing: its API object stays until its finalizers are removed: example.com/keep"
        )


def named(pod: Pod) -> str:
    assert pod.metadata is not None
    return pod.metadata.name or ""

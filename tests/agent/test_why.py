"""The agent explains its pods from what their workers know, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent, NodeApiSettings
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.agent.pages import loopback_page
from kubelet_trio.cli.why import why_lines
from kubelet_trio.cri import ExecResult, RuntimeCallError
from kubelet_trio.model import inline_offload, metadata, pod_uid
from kubelet_trio.pods import PodWhy, Reason
from kubelet_trio.server import Request
from kubelet_trio.testing import Behaviour, FakeExec, FakeRuntime, FaultKind
from tests.agent.node import Node, make_pod

P = ParamSpec("P")
T = TypeVar("T")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def why(agent: Agent, pod: Pod) -> PodWhy:
    """Return the answer, which goes through JSON and back."""
    found = agent.why(pod_uid(pod))
    assert found is not None
    encoded = msgspec.json.encode(found)
    assert msgspec.json.decode(encoded, type=PodWhy) == found
    lines = why_lines(msgspec.json.decode(encoded), 100)
    assert len(lines) <= 24  # one screen
    assert max(map(len, lines)) <= 100
    return found


def of_kind(found: PodWhy, kind: str) -> Reason:
    return next(reason for reason in found.reasons if reason.kind == kind)


async def test_a_pod_that_runs_has_no_reason(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(5)
        asked = len(node.runtime.calls)
        found = why(agent, pod)
        assert len(node.runtime.calls) == asked
    assert (found.summary, found.reasons) == ("it runs and is ready", ())
    assert found.wanted.state == "running"
    assert [c.name for c in found.wanted.containers] == ["web"]
    (web,) = found.actual.containers
    assert (web.state, web.ready, found.actual.activity) == ("running", True, "syncing")
    assert found.actual.sandbox_ready
    (coming,) = found.next
    assert coming.at is not None
    assert 0 < coming.at - found.now <= 90


async def test_a_crash_loop_by_oom(node: Node, autojump_clock: MockClock) -> None:
    node.runtime = FakeRuntime(
        behave=lambda _config: Behaviour(exits_after=1.0, exit_code=137, reason="OOMKilled")
    )
    hog = "- {name: web, image: web, resources: {limits: {memory: 16Mi}}}"
    pod = make_pod(containers=hog)
    async with node.running(pod) as agent:
        await trio.sleep(45)  # starts at 0, 11 and 32: the third back-off
        found = why(agent, pod)
        reason = of_kind(found, "back-off")
        assert reason.container == "web"
        assert "code 137 (OOMKilled, its memory limit is 16Mi)" in reason.text
        assert found.summary == f"web: {reason.text}"
        (web,) = found.actual.containers
        assert (web.exit_code, web.exit_reason) == (137, "OOMKilled")
        assert reason.since == web.ended_at
        assert found.next[0].text == "container web starts again"
        due = found.next[0].at
        assert due == reason.until
        assert due is not None
        # And so it comes.
        starts = len(node.calls("StartContainer"))
        await trio.sleep(due - found.now - 0.5)
        assert len(node.calls("StartContainer")) == starts
        await trio.sleep(1)
        assert len(node.calls("StartContainer")) == starts + 1


async def test_an_image_that_cannot_be_pulled(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(image="missing-x")
    async with node.running(pod) as agent:
        await trio.sleep(8)
        found = why(agent, pod)
        reason = of_kind(found, "image")
        assert reason.text.startswith("ImagePullBackOff: ")
        assert reason.until is not None
        assert reason.since is not None
        assert found.next[0].text == "the image of web is tried again"
        pulls = len(node.calls("PullImage"))
        await trio.sleep(reason.until - found.now + 1)
        assert len(node.calls("PullImage")) == pulls + 1


async def test_a_pull_that_takes_long(node: Node, autojump_clock: MockClock) -> None:
    node.runtime.faults.add(FaultKind.HANG, "PullImage", times=None)
    pod = make_pod(image="example.org/large:1")
    async with node.running(pod) as agent:
        await trio.sleep(30)
        found = why(agent, pod)
        reason = of_kind(found, "image")
        assert "its pull is under way: image example.org/large:1" in reason.text
        assert reason.since is not None
        assert found.now - reason.since == pytest.approx(30, abs=2)
        assert found.actual.doing == ("getting the image of container web",)


class HangingSetUp:
    """An offload whose set-ups of volumes hang until `well` is set."""

    def __init__(self) -> None:
        self.well = trio.Event()

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(fn, "__name__", "") == "_set_up_all":
            await self.well.wait()
        return await inline_offload(fn, *args, **kwargs)


async def test_a_volume_that_hangs(node: Node, autojump_clock: MockClock) -> None:
    node.offload = hanging = HangingSetUp()
    pod = make_pod(
        spec=["volumes: [{name: data, hostPath: {path: /}}]"],
        containers="- {name: web, image: web, volumeMounts: [{name: data, mountPath: /data}]}",
    )
    async with node.running(pod) as agent:
        await trio.sleep(120)
        found = why(agent, pod)
        reason = of_kind(found, "volume")
        assert reason.text == "volume data: not set up yet"
        assert reason.since is not None
        assert found.now - reason.since == pytest.approx(120, abs=1)
        assert found.actual.doing == ("setting up volumes",)
        assert found.summary == reason.text
        hanging.well.set()
        await trio.sleep(2)
        assert why(agent, pod).reasons == ()


async def test_a_volume_that_is_refused(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(
        spec=["volumes: [{name: data, hostPath: {path: /nowhere, type: Directory}}]"],
        containers="- {name: web, image: web, volumeMounts: [{name: data, mountPath: /data}]}",
    )
    async with node.running(pod) as agent:
        await trio.sleep(20)
        found = why(agent, pod)
        reason = of_kind(found, "step")
        assert "data" in reason.text
        assert "/nowhere" in reason.text
        assert reason.until is not None
        assert reason.until > found.now
        assert found.next[0].text == "the failed step is tried again"


async def test_a_name_held_by_what_is_left_of_another_pod(
    node: Node, autojump_clock: MockClock
) -> None:
    old, new = make_pod(image="web:1"), make_pod(image="web:2")
    async with node.running(old) as agent:
        await trio.sleep(5)
        error = RuntimeCallError("StopPodSandbox", "failed to stop sandbox: task must be stopped")
        fault = node.runtime.faults.add(FaultKind.ERROR, "StopPodSandbox", times=None, error=error)
        node.feed.put(new)
        await trio.sleep(60)
        found = why(agent, new)
        reason = of_kind(found, "name")
        assert pod_uid(old) in reason.text
        assert "failed to stop sandbox: task must be stopped" in reason.text
        assert "deleting" in reason.text
        assert found.summary == reason.text
        assert found.next[0].text == "it starts once the name is free"
        ending = why(agent, old)
        assert ending.wanted.state == "removed"
        assert "cannot be ended" in ending.summary
        assert ending.next[0].text == "the next attempt to end it"
        node.runtime.faults.lift(fault)
        await trio.sleep(30)
        assert why(agent, new).reasons == ()


async def test_a_pod_that_ends_tells_its_grace_and_what_it_waits_for(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="slow-stop-20", spec=["terminationGracePeriodSeconds: 30"])
    async with node.running(pod) as agent:
        await trio.sleep(5)
        node.feed.put()
        await trio.sleep(10)
        found = why(agent, pod)
        assert found.summary == "it ends, because its manifest was removed"
        assert found.actual.doing == ("stopping container web",)
        (kill,) = found.next
        assert kill.at is not None
        assert kill.at - found.now == pytest.approx(20, abs=1)
        assert "killed" in kill.text


async def test_a_readiness_probe_that_fails(node: Node, autojump_clock: MockClock) -> None:
    failed = ExecResult(b"not yet", b"", 1)
    node.runtime.on_exec = lambda _container, _command: FakeExec(result=failed)
    probed = (
        "- {name: web, image: web, readinessProbe: {exec: {command: [check]}, periodSeconds: 5}}"
    )
    pod = make_pod(containers=probed)
    async with node.running(pod) as agent:
        await trio.sleep(30)
        found = why(agent, pod)
        reason = of_kind(found, "probe")
        assert reason.container == "web"
        assert reason.blocks
        assert reason.text.startswith("its readiness probe has not passed: ")
        assert reason.text.endswith(" failures in a row: not yet")
        assert found.summary == f"web: {reason.text}"


async def test_a_runtime_that_is_away(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    node.runtime.go_down()
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert of_kind(why(agent, pod), "admission").text.startswith("the runtime has not listed")


async def test_a_resize_that_waits_is_a_note(node: Node, autojump_clock: MockClock) -> None:
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    body = "- {{name: web, image: web, resources: {{requests: {{cpu: '{cpu}'}}}}}}"
    pod, other = (make_pod(name, containers=body.format(cpu=1)) for name in ("web", "b"))
    async with node.running(pod, other) as agent:
        await trio.sleep(5)
        larger = msgspec.structs.replace(
            make_pod(containers=body.format(cpu=2)), metadata=pod.metadata
        )
        node.feed.put(larger, other)
        await trio.sleep(5)
        found = why(agent, larger)
        reason = of_kind(found, "resize")
        assert reason.text.startswith("its resize is Deferred: ")
        assert not reason.blocks
        assert found.summary == "it runs and is ready"


async def test_a_pod_that_the_node_has_not(node: Node, autojump_clock: MockClock) -> None:
    async with node.running() as agent:
        await trio.sleep(1)
        assert agent.why(pod_uid(make_pod())) is None


async def test_an_admission_waits_for_pods_by_name(node: Node, autojump_clock: MockClock) -> None:
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    body = "- {{name: web, image: {image}, resources: {{requests: {{cpu: '1.5'}}}}}}"
    slow = make_pod("slow", containers=body.format(image="slow-stop-20"))
    # Static pods are critical: one that gives way comes from an API server.
    annotations = {"kubernetes.io/config.source": "api"}
    meta = msgspec.structs.replace(metadata(slow), annotations=annotations)
    slow = msgspec.structs.replace(slow, metadata=meta)
    critical = make_pod("critical", containers=body.format(image="web"))
    async with node.running(slow) as agent:
        await trio.sleep(5)
        node.feed.put(slow, critical)
        await trio.sleep(5)
        found = why(agent, critical)
        reason = of_kind(found, "admission")
        assert reason.text.endswith("it waits until other pods have ended: default/slow-node")
        victim = why(agent, slow)
        assert "a critical pod needs its room" in victim.summary
        await trio.sleep(30)
        assert why(agent, critical).reasons == ()


async def test_the_servers_answer_with_it(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(image="missing-x")
    async with node.running(pod) as agent:
        await trio.sleep(8)
        open_to_all = NodeApiSettings("127.0.0.1", always_allow=True, anonymous=True)
        api = NodeApi(agent, open_to_all, None, inline_offload)._guard()
        # A static pod is found without the node's name, too.
        answer = await api(Request("GET", "/why/default/web"))
        assert msgspec.json.decode(answer.body, type=PodWhy) == why(agent, pod)
        page = await loopback_page(agent)(Request("GET", "/ui/pods/default/web"))
        (told,) = msgspec.json.decode(page.body)["why"]
        assert told.startswith("web: ImagePullBackOff: ")
        assert ", again in " in told


async def test_a_worker_that_crashes_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("kubelet_trio.pods.worker.sync.plan_pod", broken)
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(60)
        reason = of_kind(why(agent, pod), "worker")
        assert "a bug: ZeroDivisionError" in reason.text

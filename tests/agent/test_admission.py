"""Admission on a whole agent: who runs, who never does, and who makes room."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import CephFSVolumeSource, ContainerPort, Pod, Volume
from trio.testing import MockClock

from kubelet_trio.agent import AdmissionSettings
from kubelet_trio.agent.admission import no_resources_of_its_own
from kubelet_trio.model import CONFIG_SOURCE, NANO, metadata, pod_uid
from kubelet_trio.model import spec as spec_of
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod, ready


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.allocatable = {"cpu": 4 * NANO, "pods": 3 * NANO}
    return made


def sized(name: str, cpu: str, *, spec: tuple[str, ...] = (), source: str = "file") -> Pod:
    web = (
        "- {name: web, image: web, imagePullPolicy: IfNotPresent, "
        f"resources: {{requests: {{cpu: '{cpu}'}}}}}}"
    )
    made = make_pod(name, containers=web, spec=spec)
    annotations = {**(metadata(made).annotations or {}), CONFIG_SOURCE: source}
    meta = msgspec.structs.replace(metadata(made), annotations=annotations)
    return msgspec.structs.replace(made, metadata=meta)


def on_port(pod: Pod, image: str) -> Pod:
    """Return the pod with an image, and a port of the host."""
    body = spec_of(pod)
    port = ContainerPort(containerPort=80, hostPort=80)
    container = msgspec.structs.replace(body.containers[0], image=image, ports=[port])
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(body, containers=[container]))


async def test_a_rejected_pod_never_runs_and_stays_rejected(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = sized("big", "5", source="api")
    async with node.running(pod):
        await trio.sleep(5)
        status = node.status(pod)
        assert (status.phase, status.reason) == ("Failed", "OutOfcpu")
        assert status.message == (
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 5000, used: 0, "
            "capacity: 4000"
        )
        assert status.containerStatuses is None
        assert node.reasons(pod) == ["OutOfcpu"]
    node.allocatable = {}
    async with node.running(pod):
        await trio.sleep(60)
        assert (node.status(pod).phase, node.status(pod).reason) == ("Failed", "OutOfcpu")
        assert node.reasons(pod) == []
        node.feed.put()
        await trio.sleep(5)
        assert node.leftovers() == []
    assert node.calls("RunPodSandbox", "CreateContainer", "PullImage") == []


async def test_a_pod_of_a_cluster_that_asks_for_what_is_not_done_is_rejected_by_name(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = sized("disk", "1", source="api")
    volume = Volume(name="v", cephfs=CephFSVolumeSource(["mon:6789"]))
    pod.spec = msgspec.structs.replace(spec_of(pod), volumes=[volume])
    async with node.running(pod):
        await trio.sleep(5)
        status = node.status(pod)
        assert (status.phase, status.reason) == ("Failed", "PodFeatureUnsupported")
        assert status.message == (
            "Pod was rejected: spec.volumes[0].cephfs: no kubelet mounts volumes of this type "
            "since Kubernetes 1.31: use the CSI driver of the storage"
        )
        assert node.reasons(pod) == ["PodFeatureUnsupported"]
    assert node.calls("RunPodSandbox", "PullImage") == []


async def test_pods_are_admitted_in_their_order_until_the_node_is_full(
    node: Node, autojump_clock: MockClock
) -> None:
    pods = [sized(name, "1500m", source="api") for name in ("a", "b", "c")]
    async with node.running(*pods):
        await trio.sleep(5)
        assert [ready(node.status(p)) for p in pods] == [True, True, False]
        assert node.status(pods[2]).reason == "OutOfcpu"


async def test_a_restart_rejects_nothing_that_runs(node: Node, autojump_clock: MockClock) -> None:
    pods = [sized(name, "2") for name in ("a", "b")]
    async with node.running(*pods):
        await trio.sleep(5)
        assert all(ready(node.status(p)) for p in pods)
    node.allocatable = {"cpu": 1 * NANO}
    async with node.running(*pods, sized("c", "500m", source="api")):
        await trio.sleep(30)
        assert all(ready(node.status(p)) for p in pods)
        assert "OutOfcpu" in node.reasons()
    assert node.runtime.violations == []


async def test_what_another_agent_runs_is_taken_over_unasked(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = sized("a", "2")
    async with node.running(pod):
        await trio.sleep(5)
    for record in (node.base / "root/pods").rglob("kubelet-trio.json"):
        record.unlink()
    node.allocatable = {"cpu": 1 * NANO}
    async with node.running(pod):
        await trio.sleep(5)
        assert ready(node.status(pod))
    assert len(node.runtime.instances("a-node")) == 1


async def test_the_next_version_of_a_pod_need_not_fit_beside_the_one_that_ends(
    node: Node, autojump_clock: MockClock
) -> None:
    first, second = sized("a", "3"), sized("a", "3500m")
    async with node.running(first):
        await trio.sleep(5)
        node.feed.put(second)
        await trio.sleep(60)
        assert ready(node.status(second))


async def test_a_critical_pod_displaces_another_and_runs_once_that_has_ended(
    node: Node, autojump_clock: MockClock
) -> None:
    victim, spared = sized("victim", "2", source="api"), sized("spared", "1", source="api")
    async with node.running(victim, spared):
        await trio.sleep(5)
        static = sized("critical", "3")
        node.feed.put(victim, spared, static)
        await trio.sleep(90)
        status = node.status(victim)
        assert (status.phase, status.reason) == ("Failed", "Preempting")
        assert status.message == "Preempted in order to admit critical pod"
        (disruption,) = [c for c in status.conditions or () if c.type == "DisruptionTarget"]
        assert disruption.reason == "TerminationByKubelet"
        assert disruption.message == ("Pod was preempted by Kubelet to accommodate a critical pod.")
        assert "Preempting" in node.reasons(victim)
        assert ready(node.status(static))
        assert ready(node.status(spared))
        (ended,) = node.runtime.instances("victim-node")
        (started,) = node.runtime.instances("critical-node")
        assert ended.finished_at <= started.created_at
    async with node.running(victim, spared, static):
        await trio.sleep(30)
        assert node.status(victim).reason == "Preempting"
        assert ready(node.status(static))


@pytest.mark.parametrize("cpu", ["3", "100m"])
async def test_a_pod_waits_for_what_one_holds_that_the_server_has_forgotten(
    node: Node, autojump_clock: MockClock, cpu: str
) -> None:
    """The scheduler counts a pod no longer whose deletion was forced, but it still runs."""
    gone = on_port(sized("gone", cpu, source="api"), "stubborn")
    new = on_port(sized("new", cpu, source="api"), "web")
    async with node.running(gone):
        await trio.sleep(5)
        node.feed.put(new)
        await trio.sleep(10)
        assert node.runtime.alive(pod_uid(gone))
        assert not node.runtime.alive(pod_uid(new))
        assert node.status(new).phase == "Pending"
        await trio.sleep(60)
        assert not node.runtime.alive(pod_uid(gone))
        assert ready(node.status(new))
    assert node.runtime.violations == []


async def test_a_pod_waits_also_if_the_agent_was_away_when_the_other_was_forgotten(
    node: Node, autojump_clock: MockClock
) -> None:
    gone = on_port(sized("gone", "3", source="api"), "stubborn")
    new = on_port(sized("new", "3", source="api"), "web")
    async with node.running(gone):
        await trio.sleep(5)
    async with node.running(new):
        await trio.sleep(10)
        assert node.runtime.alive(pod_uid(gone))
        assert node.status(new).phase == "Pending"
        await trio.sleep(60)
        assert not node.runtime.alive(pod_uid(gone))
        assert ready(node.status(new))


@pytest.mark.parametrize("call", ["StopContainer", "RemovePodSandbox"])
async def test_nobody_waits_for_a_forgotten_pod_that_cannot_be_ended(
    node: Node, autojump_clock: MockClock, call: str
) -> None:
    gone, new = (sized(name, "3", source="api") for name in ("gone", "new"))
    async with node.running(gone):
        await trio.sleep(5)
        fault = node.runtime.faults.add(FaultKind.ERROR, call, times=None)
        node.feed.put(new)
        await trio.sleep(60)
        assert ready(node.status(new))
        assert bool(node.runtime.alive(pod_uid(gone))) == (call == "StopContainer")
        node.runtime.faults.lift(fault)
        await trio.sleep(120)
        assert not node.runtime.alive(pod_uid(gone))
        assert len(node.runtime.sandboxes) == 1
        assert ready(node.status(new))


async def test_a_static_pod_that_nobody_makes_room_for_is_rejected(
    node: Node, autojump_clock: MockClock
) -> None:
    first, second = sized("a", "3"), sized("b", "3")
    async with node.running(first, second):
        await trio.sleep(5)
        assert ready(node.status(first))
        assert node.status(second).reason == "UnexpectedAdmissionError"


async def test_nothing_is_decided_before_the_runtime_is_read(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = sized("big", "5", source="api")
    node.runtime.go_down()
    async with node.running(pod):
        await trio.sleep(30)
        assert node.status(pod).phase == "Pending"
        node.runtime.restart()
        await trio.sleep(30)
        assert node.status(pod).reason == "OutOfcpu"


async def test_a_pod_that_needs_what_the_node_does_not_declare_is_rejected(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = sized("web", "1", spec=("hostNetwork: true",), source="api")
    apart = msgspec.structs.replace(spec_of(pod), hostUsers=False)
    pod = msgspec.structs.replace(pod, spec=apart)
    async with node.running(pod):
        await trio.sleep(5)
        status = node.status(pod)
        assert (status.phase, status.reason) == ("Failed", "PodFeatureUnsupported")


async def test_without_its_gate_a_pod_with_resources_of_its_own_is_rejected(
    node: Node, autojump_clock: MockClock
) -> None:
    whole = sized("whole", "1", spec=("resources: {limits: {cpu: '1'}}",), source="api")
    admission = AdmissionSettings(checks=(no_resources_of_its_own,))
    async with node.running(whole, sized("web", "1"), admission=admission):
        await trio.sleep(5)
        status = node.status(whole)
        assert (status.phase, status.reason) == ("Failed", "PodLevelResourcesNotSupported")
        message = "Pod was rejected: PodLevelResources feature gate is disabled"
        assert status.message == message
        assert node.status(sized("web", "1")).phase == "Running"

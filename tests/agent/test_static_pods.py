"""Static pods: they stay the same when amounts of their manifests change, and start times."""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import PodUid, inline_offload, pod_uid, spec
from kubelet_trio.pods import load_records, wanted_pods
from kubelet_trio.sources import FileSource, load_manifest
from kubelet_trio.testing import TrioClock
from tests.agent.node import Node, from_api, make_pod, ready
from tests.agent.test_cluster import World
from tests.sources.make import FakeWatcher

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: web
    image: web
    imagePullPolicy: IfNotPresent
    resources: {requests: {cpu: CPU}}
"""


class Machine:
    """A node with a manifest directory."""

    def __init__(self, base: Path) -> None:
        self.node = Node(base)
        self.path = base / "manifests" / "web.yaml"
        self.path.parent.mkdir()
        self._watcher = FakeWatcher()

    def remove(self) -> None:
        self.path.unlink()
        self._watcher.tell(self.path, finished=False, removed=True)

    def write_again(self, cpu: str) -> None:
        """Unlink the manifest, and create it again right after that."""
        self.remove()
        self._watcher.tell(self.path, finished=False)
        self.write(cpu)

    def write(self, cpu: str) -> bytes:
        data = MANIFEST.replace("CPU", cpu).encode()
        self.path.write_bytes(data)
        self._watcher.tell(self.path)
        return data

    def read_manifests(self) -> None:
        """Let the next agent read the directory, as the daemon does."""
        self._watcher = FakeWatcher()
        watcher = self._watcher
        self.node.source = FileSource(
            self.path.parent,
            "node",
            open_watcher=lambda: watcher,
            offload=inline_offload,
            clock=TrioClock(),
            last_good=wanted_pods(load_records(self.node.base / "root" / "pods")),
        )

    async def wait_pod(self, cpu: str) -> Pod:
        """Wait until the node has one pod, which is ready and has this request."""
        assert self.node.agent is not None
        with trio.fail_after(600):
            pods = await self.node.agent.pods.wait_value(
                lambda pods: [(cpu_of(p), is_ready(p)) for p in pods.values()] == [(cpu, True)]
            )
        (pod,) = pods.values()
        return pod  # type: ignore[no-any-return]

    def containers(self) -> list[str]:
        return [c.id for c in self.node.runtime.alive()]


def cpu_of(pod: Pod) -> object:
    resources = spec(pod).containers[0].resources
    return ((resources.requests if resources is not None else None) or {}).get("cpu")


def is_ready(pod: Pod) -> bool:
    return pod.status is not None and ready(pod.status)


async def test_an_edit_of_amounts_resizes_the_pod_that_runs(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    machine.read_manifests()
    machine.write("100m")
    async with machine.node.running():
        first = await machine.wait_pod("100m")
        containers = machine.containers()
        machine.write("200m")
        assert pod_uid(await machine.wait_pod("200m")) == pod_uid(first)
        await trio.sleep(10)
        assert machine.containers() == containers
        (container,) = machine.node.runtime.alive()
        assert container.resources.cpu_shares == 204


async def test_a_manifest_that_is_removed_and_created_again_restarts_its_pod(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    # test/e2e_node/mirror_pod_test.go, "should successfully recreate when file is removed and
    # recreated": `checkMirrorPodRunningWithRestartCount(..., 1)`.
    machine = Machine(tmp_path)
    machine.read_manifests()
    machine.write("100m")
    async with machine.node.running():
        first = await machine.wait_pod("100m")
        for count in (1, 2):
            containers = machine.containers()
            machine.write_again("100m")
            await trio.sleep(30)
            again = await machine.wait_pod("100m")
            assert pod_uid(again) == pod_uid(first)
            assert machine.containers() != containers
            assert again.status is not None
            assert [c.restartCount for c in again.status.containerStatuses or ()] == [count]


async def test_a_pod_that_returns_after_its_removal_starts_anew(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    machine.read_manifests()
    machine.write("100m")
    async with machine.node.running():
        await machine.wait_pod("100m")
        machine.remove()
        await trio.sleep(60)
        assert machine.containers() == []
        machine.write("100m")
        again = await machine.wait_pod("100m")
        assert again.status is not None
        assert [c.restartCount for c in again.status.containerStatuses or ()] == [0]


async def test_an_edit_of_amounts_runs_a_pod_again_that_has_ended(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    def job(cpu: str) -> Pod:
        requests = f"resources: {{requests: {{cpu: {cpu}}}}}"
        return make_pod(
            containers=f"- {{name: web, image: exit-0-after-5, {requests}}}",
            spec=["restartPolicy: Never"],
        )

    node = Node(tmp_path)
    async with node.running(job("100m")):
        await trio.sleep(30)
        assert node.status(job("100m")).phase == "Succeeded"
        node.feed.put(job("100m"))
        await trio.sleep(30)
        node.feed.put(job("200m"))
        await trio.sleep(30)
        assert node.status(job("200m")).phase == "Succeeded"
    assert len(node.calls("CreateContainer")) == 2


async def test_an_upgrade_restarts_no_pod_and_the_next_edit_replaces_it_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    data, path = machine.write("100m"), str(machine.path)
    # The rule of earlier agents, which had the amounts in the UID.
    found = load_manifest(data, path, node_name="node", is_known=lambda _: True)
    earlier: PodUid = pod_uid(found.pods[0])
    async with machine.node.running(*found.pods):
        await machine.wait_pod("100m")
        containers = machine.containers()
    machine.read_manifests()
    for _ in range(2):  # and a later restart changes nothing either
        async with machine.node.running():
            assert pod_uid(await machine.wait_pod("100m")) == earlier
            await trio.sleep(120)
            assert machine.containers() == containers
        machine.read_manifests()
    async with machine.node.running():
        await machine.wait_pod("100m")
        uids = []
        for cpu in ("200m", "100m"):
            machine.write(cpu)
            uids.append(pod_uid(await machine.wait_pod(cpu)))
        assert uids[0] == uids[1] != earlier
        assert machine.containers() != containers
    assert machine.node.runtime.violations == []


async def test_a_start_time_is_of_the_agent_that_runs_and_a_deadline_goes_on(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    world = World(tmp_path)
    etcd = make_pod("etcd", spec=["activeDeadlineSeconds: 600"])
    starts = []
    for _ in range(2):
        async with world.running(etcd):
            await world.wait(lambda: world.is_ready("etcd-node"))
            await trio.sleep(240)  # the mirror shows what the earlier agent wrote at first
            starts.append(started(world, "etcd-node"))
    assert starts[1] - starts[0] >= 240
    async with world.running(etcd):
        await trio.sleep(200)
        assert world.status("etcd-node").reason == "DeadlineExceeded"


def started(world: World, name: str) -> float:
    at = world.status(name).startTime
    return at.timestamp() if at is not None else 0.0


async def test_an_init_container_that_the_runtime_has_forgotten_is_told_by_the_next_agent(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    # test/e2e_node/static_pod_test.go, "should be ready after init container is removed and kubelet
    # restarts", asks for the words.
    node = Node(tmp_path)
    init = "{name: init, image: exit-0, imagePullPolicy: IfNotPresent}"
    pods = (
        make_pod(spec=[f"initContainers: [{init}]"]),
        from_api(make_pod("api", spec=[f"initContainers: [{init}]"])),
    )
    async with node.running(*pods):
        await trio.sleep(10)
        before = [node.container(pod, "init") for pod in pods]
        for container in [c for c in node.runtime.containers.values() if c.name == "init"]:
            node.runtime.forget(container.id)
        await trio.sleep(100)
        assert [node.container(pod, "init") for pod in pods] == before
    async with node.running(*pods):
        await trio.sleep(100)
        static, api = (node.container(pod, "init") for pod in pods)
        assert ready(node.status(pods[0]))
    async with node.running(*pods):
        await trio.sleep(10)
        assert [node.container(pod, "init") for pod in pods] == [static, api]
    assert api == before[1]
    assert static.state is not None
    end = static.state.terminated
    assert end is not None
    assert (end.exitCode, end.reason) == (0, "Completed")
    assert (end.message or "").startswith("Unable to get init container status")
    without = msgspec.structs.replace(end, message=None)
    state = msgspec.structs.replace(static.state, terminated=without)
    assert msgspec.structs.replace(static, state=state) == before[0]

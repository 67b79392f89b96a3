"""A node taken over with its pods running: what leaves of them is what the runtime says.

There are no records of this agent, or not of every pod, as after a Go kubelet or a lost disk.
Every status that leaves is looked at, not only the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from lightkube.models.core_v1 import ContainerStatus, Pod, PodStatus
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.kube import PatchKind
from kubelet_trio.model import WallClock, metadata
from kubelet_trio.testing import FakeKube, FakeRuntime, FaultKind
from kubelet_trio.testing.kube.client import FakeKubeClient
from tests.agent.test_cluster import World

T = TypeVar("T")
NAMES = ("db", "web", "worker")


class _Client(FakeKubeClient):
    """A client that keeps every status it was let write."""

    told: list[tuple[str, PodStatus]]

    async def patch(
        self,
        model: type[T],
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        *,
        namespace: str = "",
        subresource: str = "",
        kind: PatchKind = PatchKind.STRATEGIC,
    ) -> T:
        done = await super().patch(
            model, name, body, namespace=namespace, subresource=subresource, kind=kind
        )
        if isinstance(done, Pod) and done.status is not None:
            self.told.append((name, done.status))
        return done


class WatchedKube(FakeKube):
    """A server that keeps every status that it was let write, in `told`."""

    def __init__(self, *, clock: WallClock | None = None) -> None:
        super().__init__(clock=clock)
        self.told: list[tuple[str, PodStatus]] = []

    def node(self, name: str) -> FakeKubeClient:
        plain = super().node(name)
        client = _Client(plain.server, plain.desk, plain.user)
        client.told = self.told
        return client


class TakenOver(World):
    """A node on which an agent ran three pods, one of them restarted once, and then ended."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.watched = WatchedKube()
        self.kube = self.watched
        self.before: dict[str, PodStatus] = {}

    async def arrange(self) -> None:
        async with self.running():
            for name in NAMES:
                self.bind(name)
            await self.wait(lambda: all(map(self.is_ready, NAMES)))
            (web,) = [c for c in self.host.runtime.alive() if _pod_of(c) == "web"]
            self.host.runtime.kill(web.id, 3)
            await self.wait(lambda: _main(self.status("web")).restartCount == 1)
            await self.wait(lambda: self.is_ready("web"))
            await trio.sleep(90)
        self.before = {name: self.status(name) for name in NAMES}
        self.watched.told.clear()

    def lose_records(self, *names: str) -> None:
        uids = {metadata(pod).uid for pod in self.kube.all(Pod) if metadata(pod).name in names}
        records = list((self.host.base / "root" / "pods").glob("*/kubelet-trio.json"))
        assert len(records) == len(NAMES)
        for record in records:
            if record.parent.name in uids:
                record.unlink()

    def wrong(self) -> Iterator[str]:
        """Yield what was told of a pod since the takeover and is not so: all of them run on."""
        for name, status in self.watched.told:
            was, now = _main(self.before[name]), _main(status)
            same = (now.state, now.lastState, now.restartCount, now.containerID, now.ready) == (
                was.state,
                was.lastState,
                was.restartCount,
                was.containerID,
                was.ready,
            )
            if not same:
                yield f"{name}: {now}"
            for condition in status.conditions or ():
                if condition.status != "True":
                    yield f"{name}: {condition.type} is {condition.status}"


def _pod_of(container: Any) -> str:
    return str(container.sandbox.metadata.name)


def _main(status: PodStatus) -> ContainerStatus:
    [main] = status.containerStatuses or []
    return main


async def leave_remains(runtime: FakeRuntime, name: str, uid: str) -> None:
    """Leave a dead sandbox of an earlier pod of a name in the runtime, whatever runs there."""
    violations = list(runtime.violations)
    labels = {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": uid,
    }
    meta = v1.PodSandboxMetadata(name=name, uid=uid, namespace="default", attempt=0)
    sandbox = await runtime.run_pod_sandbox(
        v1.PodSandboxConfig(metadata=meta, labels=labels, linux=v1.LinuxPodSandboxConfig()), ""
    )
    runtime.kill_sandbox(sandbox)
    runtime.violations[:] = violations


@pytest.fixture
def world(tmp_path: Path) -> TakenOver:
    return TakenOver(tmp_path)


@pytest.mark.parametrize("lost", [NAMES, ("web",), ()], ids=["all", "some", "none"])
async def test_running_pods_are_told_of_as_they_run_whatever_records_there_are(
    world: TakenOver, autojump_clock: MockClock, lost: tuple[str, ...]
) -> None:
    await world.arrange()
    world.lose_records(*lost)
    async with world.running():
        await trio.sleep(120)
        assert list(world.wrong()) == []
        assert {name: world.status(name) for name in NAMES} == world.before
    assert len(world.host.calls("StartContainer")) == len(NAMES) + 1


async def test_nothing_is_told_while_the_runtime_cannot_be_asked(
    world: TakenOver, autojump_clock: MockClock
) -> None:
    await world.arrange()
    world.lose_records(*NAMES)
    world.host.runtime.go_down()
    async with world.running() as agent:
        await trio.sleep(300)
        assert world.watched.told == []
        # Here they are listed all the same, as the API server has them.
        shown = {metadata(pod).name: pod.status for pod in agent.pods.value.values()}
        assert {name: s and _main(s).restartCount for name, s in shown.items()} == {
            name: _main(status).restartCount for name, status in world.before.items()
        }
        world.host.runtime.restart()
        await trio.sleep(60)
        assert list(world.wrong()) == []


async def test_remains_of_earlier_pods_of_their_names_change_nothing_for_those_that_run(
    world: TakenOver, autojump_clock: MockClock
) -> None:
    await world.arrange()
    world.lose_records(*NAMES)
    for name in NAMES:
        await leave_remains(world.host.runtime, name, f"{name}-before")
    # The runtime takes its time to remove them, if it ever does.
    world.host.runtime.faults.add(FaultKind.HANG, "RemovePodSandbox", times=None)
    async with world.running():
        await trio.sleep(300)
        assert list(world.wrong()) == []
        assert {name: world.status(name) for name in NAMES} == world.before


async def test_a_container_that_went_with_its_records_is_told_of_as_lost_once_it_was_looked_for(
    world: TakenOver, autojump_clock: MockClock
) -> None:
    await world.arrange()
    world.lose_records("db")
    (gone,) = [c for c in world.host.runtime.alive() if _pod_of(c) == "db"]
    world.host.runtime.forget(gone.id)
    async with world.running():
        before = _main(world.before["db"]).containerID
        await world.wait(
            lambda: world.is_ready("db") and _main(world.status("db")).containerID != before
        )
        main = _main(world.status("db"))
        assert main.restartCount == 1
        assert main.lastState is not None
        assert main.lastState.terminated is not None
        assert main.lastState.terminated.reason == "ContainerStatusUnknown"


async def test_a_job_whose_containers_were_collected_does_not_run_again(
    world: TakenOver, autojump_clock: MockClock
) -> None:
    """What it is told to have ended with is all that is left of the container."""
    async with world.running():
        world.bind("job", "exit-0-after-5", restartPolicy="Never")
        await world.wait(lambda: world.status("job").phase == "Succeeded")
    world.kube.change(Pod, "job", {"status": {"phase": "Running"}}, subresource="status")
    for record in (world.host.base / "root" / "pods").glob("*/kubelet-trio.json"):
        record.unlink()
    for container in list(world.host.runtime.containers.values()):
        world.host.runtime.forget(container.id)
    async with world.running():
        await trio.sleep(60)
    assert len(world.host.calls("StartContainer")) == 1


async def test_a_deadline_counts_from_the_start_that_was_told_of(
    world: TakenOver, autojump_clock: MockClock
) -> None:
    async with world.running():
        world.bind("job", activeDeadlineSeconds=600)
        await world.wait(lambda: world.is_ready("job"))
        await trio.sleep(300)
    for record in (world.host.base / "root" / "pods").glob("*/kubelet-trio.json"):
        record.unlink()
    async with world.running():
        await trio.sleep(200)
        assert world.is_ready("job")
        await trio.sleep(200)
        assert world.status("job").reason == "DeadlineExceeded"

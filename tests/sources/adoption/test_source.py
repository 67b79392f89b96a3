"""A source whose pods another kubelet runs: they are delivered under the UIDs that they have."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import yaml
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_util import AsyncValue

from kubelet_trio.cri import v1
from kubelet_trio.model import (
    CONFIG_HASH,
    EventType,
    Latest,
    ObjectRef,
    PodUid,
    inline_offload,
    pod_annotations,
    pod_uid,
    rfc3339,
)
from kubelet_trio.sources import (
    Adopter,
    AdoptingSource,
    SourceProblem,
    SourceSnapshot,
    Takeover,
    as_derived,
    load_adopted,
    load_manifest,
)
from kubelet_trio.testing import FakeRuntime, FaultKind
from tests.sources.adoption.test_compare import MANIFEST, THEIRS

HOUR = 3600


class Events:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told.append((reason, message))


class Delivers:
    """A source that delivers what a test puts."""

    name, origin = "file", "/m"

    def __init__(self) -> None:
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    def put(self, *pods: Pod) -> None:
        self.delivered = SourceSnapshot("file", pods)
        self.snapshots.put(self.delivered)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


class Node:
    """A node on which another kubelet has run the pod of one manifest."""

    def __init__(self, base: Path) -> None:
        self.root, self.file = base / "root", base / "web.yaml"
        self.root.mkdir()
        self.file.write_text(yaml.safe_dump(MANIFEST))
        self.runtime, self.events, self.inner = FakeRuntime(), Events(), Delivers()

    async def run_theirs(self, age: float = -HOUR) -> None:
        """Run the pod; `age` is how much older than the file it was first seen, in seconds."""
        annotations = {
            "kubernetes.io/config.hash": THEIRS,
            "kubernetes.io/config.seen": rfc3339(os.stat(self.file).st_ctime - age),
            "kubernetes.io/config.source": "file",
            "by": "hand",
        }
        labels = {
            "io.kubernetes.pod.name": "web-n",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": THEIRS,
            "app": "web",
        }
        meta = v1.PodSandboxMetadata(name="web-n", uid=THEIRS, namespace="default", attempt=0)
        config = v1.PodSandboxConfig(
            metadata=meta,
            labels=labels,
            annotations=annotations,
            linux=v1.LinuxPodSandboxConfig(),
        )
        await self.runtime.run_pod_sandbox(config, "")

    def pod(self, image: str = "web:1") -> Pod:
        main = {**MANIFEST["spec"]["containers"][0], "image": image}
        manifest = {**MANIFEST, "spec": {**MANIFEST["spec"], "containers": [main]}}
        data = yaml.safe_dump(manifest).encode()
        return load_manifest(data, str(self.file), node_name="n").pods[0]

    @asynccontextmanager
    async def source(self, *foreign: PodUid) -> AsyncIterator[AdoptingSource]:
        takeover = Takeover(self.root, load_adopted(self.root), frozenset(foreign))
        adopter = Adopter(takeover, self.runtime, None, self.events, inline_offload)
        source = AdoptingSource(self.inner, adopter)
        async with trio.open_nursery() as nursery:
            await nursery.start(source.run)
            yield source
            nursery.cancel_scope.cancel()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path.resolve())


async def delivered(source: AdoptingSource) -> Pod:
    (pod,) = (await source.snapshots.wait_value()).pods
    return pod


async def test_a_pod_is_adopted_and_the_next_agent_keeps_its_uid(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs()
    for foreign in ([THEIRS], []):  # the next agent has a record of it
        async with node.source(*foreign) as source:
            node.inner.put(node.pod())
            pod = await delivered(source)
            assert (pod_uid(pod), pod_annotations(pod)[CONFIG_HASH]) == (THEIRS, THEIRS)
    assert [reason for reason, _ in node.events.told] == ["Adopted"]
    assert as_derived(pod, load_adopted(node.root)) == node.pod()


async def test_a_changed_manifest_is_another_pod_and_the_earlier_one_the_same_again(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs()
    async with node.source(THEIRS) as source:
        uids = []
        for image in ("web:1", "web:2", "web:1"):
            node.inner.put(node.pod(image))
            uids.append(pod_uid(await delivered(source)))
    assert uids == [THEIRS, pod_uid(node.pod("web:2")), THEIRS]


async def test_a_pod_whose_file_changed_later_is_replaced_and_its_event_says_why(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs(age=HOUR)
    async with node.source(THEIRS) as source:
        node.inner.put(node.pod())
        assert pod_uid(await delivered(source)) == pod_uid(node.pod())
    [(reason, message)] = node.events.told
    assert reason == "NotAdopted"
    assert message.startswith(f"Replaces pod {THEIRS} of another kubelet: no mirror pod is known")
    assert "its file has changed" in message
    assert load_adopted(node.root) == {}


async def test_nothing_is_delivered_before_the_runtime_has_told_what_it_holds(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs()
    node.runtime.faults.add(FaultKind.ERROR, "ListPodSandbox", times=4)
    async with node.source(THEIRS) as source:
        node.inner.put(node.pod())
        await trio.sleep(1)
        assert source.delivered is None
        assert pod_uid(await delivered(source)) == THEIRS


async def test_without_pods_of_another_kubelet_nobody_waits_for_the_runtime(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.faults.add(FaultKind.ERROR, "ListPodSandbox", times=1000)
    async with node.source() as source:
        node.inner.put(node.pod())
        await wait_all_tasks_blocked()
        assert source.delivered is not None


def broken(node: Node) -> SourceProblem:
    return SourceProblem("file", str(node.file), "is no YAML", line=3)


async def test_a_pod_whose_manifest_is_invalid_at_the_takeover_is_kept_and_adopted_once_mended(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs()
    async with node.source(THEIRS) as source:
        node.inner.problems.value = (broken(node),)
        node.inner.put()
        assert (await source.snapshots.wait_value()).kept == {THEIRS}
        node.inner.put(node.pod())
        node.inner.problems.value = ()
        snapshot = await source.snapshots.wait_value()
        assert [pod_uid(pod) for pod in snapshot.pods] == [THEIRS]
        assert snapshot.kept == frozenset()
    assert [reason for reason, _ in node.events.told] == ["NotAdopted", "Adopted"]
    assert f"{node.file}:3:0: is no YAML" in node.events.told[0][1]


async def test_a_pod_whose_invalid_manifest_is_removed_is_kept_no_longer(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs()
    async with node.source(THEIRS) as source:
        node.inner.problems.value = (broken(node),)
        node.inner.put()
        assert (await source.snapshots.wait_value()).kept == {THEIRS}
        node.inner.problems.value = ()
        assert (await source.snapshots.wait_value()).kept == frozenset()
        # Decided: a problem that comes later keeps it no more.
        node.inner.problems.value = (broken(node),)
        await wait_all_tasks_blocked()
        assert source.delivered is not None
        assert source.delivered.kept == frozenset()


async def test_a_problem_of_another_file_keeps_no_pod_that_a_manifest_replaces(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.run_theirs(age=HOUR)
    async with node.source(THEIRS) as source:
        node.inner.problems.value = (broken(node),)
        node.inner.put(node.pod())
        snapshot = await source.snapshots.wait_value()
    assert [pod_uid(pod) for pod in snapshot.pods] == [pod_uid(node.pod())]
    assert snapshot.kept == frozenset()


async def test_each_snapshot_is_passed_on_whose_source_waits_until_it_is_taken(
    node: Node, autojump_clock: MockClock
) -> None:
    async def restart() -> None:  # as FileSource does
        node.inner.put()
        await node.inner.snapshots.wait_taken()
        node.inner.put(node.pod())

    await node.run_theirs()
    async with node.source(THEIRS) as source, trio.open_nursery() as nursery:
        node.inner.put(node.pod())
        assert pod_uid(await delivered(source)) == THEIRS
        nursery.start_soon(restart)
        await trio.sleep(1)
        with trio.fail_after(10):
            assert (await source.snapshots.wait_value()).pods == ()
            assert pod_uid(await delivered(source)) == THEIRS

"""Mirror pods: made, made anew, taken away, and never more than a mirror."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
import structlog
import trio
from lightkube.models.core_v1 import Namespace, Node, Pod, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_util import AsyncValue

from kubelet_trio.kube import KubeError
from kubelet_trio.model import CONFIG_MIRROR, PodKey, PodUid, metadata, pod_key, pod_uid, spec
from kubelet_trio.status.mirrors import (
    MirrorPlan,
    MirrorPods,
    is_mirror_of,
    mirror_of,
    plan_mirrors,
)
from kubelet_trio.testing import FakeKube, KubeFaultKind
from tests.status.make import NODE, add_node, observed, static_pod

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
POD = static_pod()
KEY = pod_key(POD)
MIRROR = mirror_of(POD, NODE, "node-uid")


def dying(pod: Pod) -> Pod:
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(metadata(pod), deletionTimestamp=NOW)
    )


def test_a_mirror_is_the_static_pod_with_upstreams_marks() -> None:
    meta = metadata(MIRROR)
    assert meta.annotations == {
        "kubernetes.io/config.hash": "hash-1",
        "kubernetes.io/config.source": "file",
        "kubernetes.io/config.mirror": "hash-1",
    }
    assert meta.ownerReferences is not None
    owner = msgspec.to_builtins(meta.ownerReferences[0])
    assert owner == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": NODE,
        "uid": "node-uid",
        "controller": True,
    }
    assert meta.uid is None
    assert MIRROR.spec == POD.spec


EDITED = static_pod(config="hash-2")


def sized(cpu: str, memory: str = "64Mi") -> Pod:
    requests = {"cpu": cpu, "memory": memory}
    return static_pod(resources=ResourceRequirements(requests=requests))


def replaced(mirror: Pod, pod: Pod, *, marked: bool) -> Pod:
    """Return a mirror with the spec of another pod, with its digest or without any."""
    meta = metadata(mirror)
    kept = meta.annotations or {} if marked else {CONFIG_MIRROR: "hash-1"}
    meta = msgspec.structs.replace(meta, annotations=kept)
    return msgspec.structs.replace(mirror, spec=pod.spec, metadata=meta)


SIZED, RESIZED = sized("1"), sized("2")
OF_SIZED = mirror_of(SIZED, NODE, "node-uid")


@pytest.mark.parametrize(
    ("static", "mirrors", "present", "is_complete", "expected"),
    [
        ([POD], [], [], True, [MirrorPlan(KEY, create=POD)]),
        ([POD], [], [], False, [MirrorPlan(KEY, create=POD)]),
        ([POD], [MIRROR], [], True, []),
        ([POD], [dying(MIRROR)], [], True, [MirrorPlan(KEY, dying(MIRROR), POD)]),
        ([EDITED], [MIRROR], [], True, [MirrorPlan(KEY, MIRROR, EDITED)]),
        ([], [MIRROR], [], True, [MirrorPlan(KEY, MIRROR)]),
        ([], [MIRROR], [], False, []),
        ([], [MIRROR], [POD], True, []),
        # The pod of the manifest before the edit ends first, and its mirror shows that.
        ([EDITED], [MIRROR], [POD], True, []),
        ([EDITED], [MIRROR], [POD, EDITED], True, []),
        ([EDITED], [dying(MIRROR)], [POD, EDITED], True, []),
        ([EDITED], [], [POD, EDITED], True, []),
        ([EDITED], [MIRROR], [EDITED], True, [MirrorPlan(KEY, MIRROR, EDITED)]),
        ([POD], [dying(MIRROR)], [POD], True, [MirrorPlan(KEY, dying(MIRROR), POD)]),
        # Resized: the mirror's resources cannot be changed.
        ([SIZED], [OF_SIZED], [], True, []),
        ([sized("1000m", "65536Ki")], [OF_SIZED], [], True, []),
        ([RESIZED], [OF_SIZED], [], True, [MirrorPlan(KEY, OF_SIZED, RESIZED)]),
        # What a webhook made of the mirror is left alone: it would do so again.
        ([SIZED], [replaced(OF_SIZED, RESIZED, marked=True)], [], True, []),
        ([POD], [replaced(MIRROR, SIZED, marked=True)], [], True, []),
        # Created by the Go kubelet or an earlier agent.
        ([SIZED], [replaced(OF_SIZED, SIZED, marked=False)], [], True, []),
        (
            [RESIZED],
            [replaced(OF_SIZED, SIZED, marked=False)],
            [],
            True,
            [MirrorPlan(KEY, replaced(OF_SIZED, SIZED, marked=False), RESIZED)],
        ),
    ],
)
def test_what_is_done_about_mirrors(
    static: list[Pod],
    mirrors: list[Pod],
    present: list[Pod],
    is_complete: bool,
    expected: list[MirrorPlan],
) -> None:
    found = plan_mirrors(
        {pod_key(p): p for p in static},
        {pod_key(p): p for p in mirrors},
        present={KEY: [pod_uid(p) for p in present]} if present else {},
        is_complete=is_complete,
    )
    assert found == expected


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.node: AsyncValue[Node | None] = AsyncValue(add_node(self.kube))
        self.present: dict[PodKey, list[PodUid]] = {}
        self.mirrors = MirrorPods(self.kube.node(NODE), self.node, lambda: self.present)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mirrors.run)
            nursery.start_soon(self._watch)
            yield
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            self.mirrors.observe(observed(self.kube)[1])
            await self.kube.server.store.wait_change()

    def want(self, *pods: Pod, is_complete: bool = True) -> None:
        self.mirrors.want({pod_key(pod): pod for pod in pods}, is_complete=is_complete)

    def found(self, pod: Pod = POD) -> Pod | None:
        key = pod_key(pod)
        found = self.kube.find(Pod, key.name, key.namespace)
        return found if found is not None and is_mirror_of(found, pod) else None

    async def wait(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(120):
            await self.kube.wait_until(lambda _kube: condition())
        await wait_all_tasks_blocked()


async def test_a_static_pod_gets_its_mirror_and_loses_it(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.want(POD)
        await world.wait(lambda: world.found() is not None)
        world.present = {KEY: [pod_uid(POD)]}
        world.want()
        await trio.sleep(60)
        assert world.found() is not None
        world.present = {}
        await world.wait(lambda: world.found() is None)


async def test_a_mirror_that_is_refused_for_long_is_one_line(autojump_clock: MockClock) -> None:
    world = World()
    refusal = KubeError(403, "Forbidden", "exceeded quota")
    world.kube.faults.add(KubeFaultKind.ERROR, "create", "pods", times=None, error=refusal)
    with structlog.testing.capture_logs() as logs:
        async with world.running():
            world.want(POD)
            await trio.sleep(300)
            world.kube.faults.clear()
            await world.wait(lambda: world.found() is not None)
    told = [line["error"] for line in logs if line["event"] == "mirror.failed"]
    assert told == ["exceeded quota"]


async def test_a_mirror_that_a_user_deletes_comes_back(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.want(POD)
        await world.wait(lambda: world.found() is not None)
        first = world.found()
        for grace in (30, 0):
            world.kube.remove(Pod, KEY.name, grace_period=grace)
            await world.wait(
                lambda: (
                    (found := world.found()) is not None
                    and metadata(found).deletionTimestamp is None
                )
            )
            again = world.found()
            assert first is not None
            assert again is not None
            assert metadata(again).uid != metadata(first).uid
            first = again
        assert trio.current_time() < 1


async def test_a_pod_that_comes_back_while_its_mirror_goes_gets_another_at_once(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        world.want(POD)
        await world.wait(lambda: world.found() is not None)
        first = world.found()
        world.kube.latency = 1.0
        world.want()
        await trio.sleep(0.5)  # the deletion is on its way
        world.want(POD)
        await world.wait(lambda: world.found() is None)
        await world.wait(lambda: world.found() is not None)
        assert metadata(world.found() or POD).uid != metadata(first or POD).uid
        assert trio.current_time() < 4


async def test_an_edited_pod_gets_a_new_mirror(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.want(POD)
        await world.wait(lambda: world.found() is not None)
        first = world.found()
        world.present = {KEY: [pod_uid(POD), pod_uid(EDITED)]}
        world.want(EDITED)
        await trio.sleep(60)
        assert world.found() == first  # it is still the first one's, which ends
        world.present = {KEY: [pod_uid(EDITED)]}
        await world.wait(lambda: world.found(EDITED) is not None)
        assert trio.current_time() < 63


async def test_a_resized_pod_gets_one_new_mirror_with_its_resources(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        world.want(SIZED)
        await world.wait(lambda: world.found(SIZED) is not None)
        first = world.found(SIZED)
        world.want(RESIZED)
        await world.wait(lambda: (found := world.found()) is not None and cpu_of(found) == "2")
        second = world.found()
        assert first is not None
        assert second is not None
        assert metadata(second).uid != metadata(first).uid
        assert trio.current_time() < 1
        world.want(sized("2000m"))
        await trio.sleep(60)
        assert world.found() == second


def cpu_of(pod: Pod) -> object:
    resources = spec(pod).containers[0].resources
    return ((resources.requests if resources else None) or {}).get("cpu")


async def test_a_namespace_that_comes_later_is_waited_for(autojump_clock: MockClock) -> None:
    world = World()
    late = static_pod(namespace="late")
    async with world.running():
        world.want(late, POD)
        await world.wait(lambda: world.found() is not None)  # the other waits for nothing
        await trio.sleep(60)
        world.kube.add(Namespace(metadata=ObjectMeta(name="late")))
        await world.wait(lambda: world.found(late) is not None)
        assert trio.current_time() < 60 + 11


async def test_nothing_is_made_before_the_node_is_registered(autojump_clock: MockClock) -> None:
    world = World()
    node, world.node.value = world.node.value, None
    async with world.running():
        world.want(POD)
        await trio.sleep(60)
        assert world.found() is None
        world.node.value = node
        await world.wait(lambda: world.found() is not None)


async def test_none_is_made_while_the_node_is_being_deleted(autojump_clock: MockClock) -> None:
    # Its finalizers, such as those of an autoscaler, wait until it is drained.
    world = World()
    node = world.node.value
    assert node is not None
    assert node.metadata is not None
    async with world.running():
        world.want(POD)
        await world.wait(lambda: world.found() is not None)
        meta = msgspec.structs.replace(node.metadata, deletionTimestamp=NOW)
        world.node.value = msgspec.structs.replace(node, metadata=meta)
        world.kube.remove(Pod, KEY.name, grace_period=0)
        await trio.sleep(60)
        assert world.found() is None
        world.node.value = node
        await world.wait(lambda: world.found() is not None)

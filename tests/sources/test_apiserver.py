"""Pods as the API server has them become what their workers want."""

from __future__ import annotations

import msgspec
import trio
from lightkube.models.core_v1 import Container, Pod, PodSpec, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.model import PodKey, PodUid, metadata, pod_annotations, pod_key
from kubelet_trio.sources.apiserver import ApiSource
from kubelet_trio.testing import FakeKube, KubeFaultKind, TrioClock

NODE = "node-1"


def pod(name: str = "web", node: str = NODE, **annotations: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", annotations=annotations),
        spec=PodSpec(containers=[Container(name="web", image="web")], nodeName=node),
    )


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.seen: list[tuple[dict[PodUid, Pod], dict[PodKey, Pod]]] = []
        self.source = ApiSource(
            self.kube.node(NODE),
            NODE,
            TrioClock(),
            lambda pods, mirrors: self.seen.append((dict(pods), dict(mirrors))),
        )

    def names(self) -> list[str] | None:
        delivered = self.source.delivered
        return None if delivered is None else sorted(pod_key(p).name for p in delivered.pods)

    def one(self) -> Pod:
        assert self.source.delivered is not None
        (found,) = self.source.delivered.pods
        return found


async def test_the_source_has_delivered_once_the_first_list_is_in(
    autojump_clock: MockClock,
) -> None:
    world = World()
    world.kube.go_down()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.source.run)
        await trio.sleep(200)
        assert world.names() is None
        world.kube.come_back()
        await trio.sleep(200)
        assert world.names() == []
        nursery.cancel_scope.cancel()


async def test_pods_of_this_node_come_and_go(autojump_clock: MockClock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        world.kube.add(pod("a"))
        world.kube.add(pod("other", node="node-2"))
        await nursery.start(world.source.run)
        await trio.sleep(1)
        assert world.names() == ["a"]
        world.kube.add(pod("b"))
        await trio.sleep(1)
        assert world.names() == ["a", "b"]
        world.kube.remove(Pod, "a", grace_period=0)
        await trio.sleep(1)
        assert world.names() == ["b"]
        nursery.cancel_scope.cancel()


async def test_what_changed_while_the_watch_was_broken_is_not_missed(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.source.run)
        await trio.sleep(1)
        world.kube.go_down()
        world.kube.add(pod("a"))
        await trio.sleep(200)
        assert world.names() == []
        world.kube.come_back()
        await trio.sleep(200)
        assert world.names() == ["a"]
        world.kube.cut()
        world.kube.remove(Pod, "a", grace_period=0)
        world.kube.compact()  # the watch's version is gone: everything is listed again
        await trio.sleep(200)
        assert world.names() == []
        nursery.cancel_scope.cancel()


async def test_a_connection_that_says_nothing_is_not_trusted(autojump_clock: MockClock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.source.run)
        await trio.sleep(1)
        world.kube.hang()
        world.kube.add(pod("a"))
        await trio.sleep(600)
        world.kube.come_back()
        await trio.sleep(120)
        assert world.names() == ["a"]
        nursery.cancel_scope.cancel()


async def test_a_refused_list_is_tried_again(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.faults.add(KubeFaultKind.ERROR, "list", "pods", times=3)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.source.run)
        await trio.sleep(200)
        assert world.names() == []
        nursery.cancel_scope.cancel()


async def test_a_watch_that_the_server_ends_goes_on(autojump_clock: MockClock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.source.run)
        await trio.sleep(3600)
        assert len([r for r in world.kube.requests if r.verb == "list"]) <= 1
        world.kube.add(pod("a"))
        await trio.sleep(1)
        assert world.names() == ["a"]
        nursery.cancel_scope.cancel()


def taken(world: World, *pods: Pod) -> None:
    world.source.take({metadata(p).uid or "": p for p in pods})


async def test_a_pod_is_marked_with_its_source_whatever_it_says_itself() -> None:
    world = World()
    spoofed = world.kube.add(
        pod(
            **{"kubernetes.io/config.source": "file", "kubelet-trio/manifest": "/etc/x", "own": "1"}
        )
    )
    taken(world, spoofed)
    found = pod_annotations(world.one())
    assert found["kubernetes.io/config.source"] == "api"
    assert found["own"] == "1"
    assert "kubelet-trio/manifest" not in found
    assert found["kubernetes.io/config.seen"]
    assert metadata(world.one()).resourceVersion is None


async def test_mirrors_are_told_of_and_not_wanted() -> None:
    world = World()
    mirror = world.kube.add(pod("etcd", **{"kubernetes.io/config.mirror": "hash"}))
    taken(world, mirror)
    assert world.names() == []
    assert world.seen[-1] == ({}, {PodKey("default", "etcd"): mirror})


async def test_a_new_version_of_the_same_is_nothing_new() -> None:
    world = World()
    made = world.kube.add(pod())
    taken(world, made)
    first = world.source.delivered
    meta = msgspec.structs.replace(metadata(made), resourceVersion="999")
    taken(world, msgspec.structs.replace(made, metadata=meta))
    assert world.source.delivered is first
    told = msgspec.structs.replace(made, status=PodStatus(phase="Running"))
    taken(world, told)
    assert world.source.delivered is not first
    assert pod_annotations(world.one()) == pod_annotations(first.pods[0]) if first else False

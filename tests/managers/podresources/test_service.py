"""The pod resources API over its socket, with this project's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.grpc import Channel, GRPCError, RawMessage, Status, UnaryUnaryMethod, open_channel
from kubelet_trio.managers.podresources import NOTHING, DeviceUse, ResourceUse
from kubelet_trio.managers.podresources.generated import v1, v1alpha1
from kubelet_trio.managers.podresources.generated.v1.client import PodResourcesListerStub
from kubelet_trio.managers.podresources.generated.v1alpha1.client import (
    PodResourcesListerStub as AlphaStub,
)
from kubelet_trio.managers.podresources.messages import container_use
from kubelet_trio.managers.podresources.service import LIMITS
from kubelet_trio.model import pod_uid
from tests.managers.podresources.view import FULL, FakeNode, pod_named


@asynccontextmanager
async def asking(
    node: FakeNode, path: Path, *, use_active_pods: bool = True
) -> AsyncIterator[Channel]:
    async with (
        node.served(path, use_active_pods=use_active_pods) as socket,
        open_channel(str(socket)) as channel,
    ):
        yield channel


async def listed(channel: Channel) -> dict[str, list[v1.ContainerResources]]:
    reply = await PodResourcesListerStub(channel).list(v1.ListPodResourcesRequest())
    return {pod.name: pod.containers for pod in reply.pod_resources}


async def test_the_list_follows_what_containers_hold(short_path: Path) -> None:
    web, db = pod_named("web"), pod_named("db")
    node = FakeNode(web, db)
    async with asking(node, short_path) as channel:
        empty = [container_use(name, NOTHING) for name in ("sidecar", "main", "other")]
        assert await listed(channel) == {"web": empty, "db": empty}
        node.held[pod_uid(web), "main"] = FULL
        full = [empty[0], container_use("main", FULL), empty[2]]
        assert await listed(channel) == {"web": full, "db": empty}
        del node.desired[pod_uid(db)]
        node.held.clear()
        assert await listed(channel) == {"web": empty}
    assert node.counted("requests_total") == node.counted("requests_list") == 3


@pytest.mark.parametrize("use_active_pods", [True, False])
async def test_ended_pods_are_listed_only_if_the_gate_says_so(
    short_path: Path, use_active_pods: bool
) -> None:
    web, job = pod_named("web"), pod_named("job")
    node = FakeNode(web, job)
    node.ended.add(pod_uid(job))
    async with asking(node, short_path, use_active_pods=use_active_pods) as channel:
        expected = {"web"} if use_active_pods else {"web", "job"}
        assert (await listed(channel)).keys() == expected
        # v1alpha1 has always listed all.
        alpha = await AlphaStub(channel).list(v1alpha1.ListPodResourcesRequest())
        assert {pod.name for pod in alpha.pod_resources} == {"web", "job"}
    assert node.counted("requests_total", "v1alpha1") == 1


async def test_v1alpha1_lists_devices(short_path: Path) -> None:
    web = pod_named("web")
    node = FakeNode(web)
    async with asking(node, short_path) as channel:
        stub = AlphaStub(channel)
        for ids in ([], ["d1"], ["d1", "d2"]):
            node.held[pod_uid(web), "main"] = ResourceUse(
                devices=tuple(DeviceUse("example.com/disk", name, (0,)) for name in ids)
            )
            (pod,) = (await stub.list(v1alpha1.ListPodResourcesRequest())).pod_resources
            assert [c.name for c in pod.containers] == ["main", "other"]
            assert [d.device_ids for d in pod.containers[0].devices] == [[name] for name in ids]


async def test_one_pod_is_got_by_its_name(short_path: Path) -> None:
    web, job = pod_named("web"), pod_named("job")
    node = FakeNode(web, job)
    node.held[pod_uid(web), "other"] = FULL
    node.ended.add(pod_uid(job))
    async with asking(node, short_path) as channel:
        get = PodResourcesListerStub(channel).get
        reply = await get(v1.GetPodResourcesRequest(pod_name="web", pod_namespace="ns"))
        assert reply.pod_resources is not None
        assert reply.pod_resources.containers[2] == container_use("other", FULL)
        for name, namespace in (("web", "default"), ("none", "ns"), ("job", "ns")):
            with pytest.raises(GRPCError) as refused:
                await get(v1.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace))
            # Go's fmt.Errorf has no status: gRPC sends UNKNOWN.
            assert refused.value.status is Status.UNKNOWN
            assert refused.value.message == f"pod {name} in namespace {namespace} not found"
    assert node.counted("requests_get") == node.counted("requests_total") == 4
    assert node.counted("errors_get") == 3


async def test_the_allocatable_resources_are_those_of_the_managers(short_path: Path) -> None:
    node = FakeNode()
    async with asking(node, short_path) as channel:
        ask = PodResourcesListerStub(channel).get_allocatable_resources
        assert await ask(v1.AllocatableResourcesRequest()) == v1.AllocatableResourcesResponse()
        node.free = FULL
        reply = await ask(v1.AllocatableResourcesRequest())
        assert reply.cpu_ids == [2, 3, 10]
        assert (len(reply.devices), len(reply.memory)) == (4, 2)
    assert node.counted("requests_get_allocatable") == node.counted("requests_total") == 2


async def test_both_versions_share_one_rate(short_path: Path, autojump_clock: MockClock) -> None:
    node = FakeNode(pod_named("web"))
    async with asking(node, short_path) as channel:
        lists = PodResourcesListerStub(channel).list
        alpha = AlphaStub(channel).list

        async def burst(calls: int) -> list[str]:
            """Make calls at one moment of virtual time; return the refusals."""
            refusals = []
            for call in range(calls):
                try:
                    if call % 2:
                        await lists(v1.ListPodResourcesRequest())
                    else:
                        await alpha(v1alpha1.ListPodResourcesRequest())
                except GRPCError as exc:
                    refusals.append(str(exc))
            return refusals

        # DefaultBurstTokens is 10, DefaultQPS 100.
        assert await burst(14) == ["RESOURCE_EXHAUSTED: rejected by rate limit"] * 4
        await trio.sleep(0.05)
        assert len(await burst(8)) == 3
        await trio.sleep(60)
        assert len(await burst(11)) == 1
    # What is refused is not counted as a request.
    counted = node.counted("requests_total") + node.counted("requests_total", "v1alpha1")
    assert counted == 10 + 5 + 10


async def test_a_request_that_is_too_large_is_refused(short_path: Path) -> None:
    node = FakeNode()
    async with asking(node, short_path) as channel:
        ask = UnaryUnaryMethod(channel, "/v1.PodResourcesLister/Get", RawMessage, RawMessage)
        assert LIMITS.request_bytes is not None
        with pytest.raises(GRPCError) as refused:
            await ask(RawMessage(bytes(LIMITS.request_bytes + 1)))
        assert refused.value.status is Status.RESOURCE_EXHAUSTED
        with pytest.raises(GRPCError) as refused:
            await ask(RawMessage(b"\xff\xff"))
        assert refused.value.status is Status.INTERNAL


async def test_pods_that_change_during_a_list_are_of_one_moment(short_path: Path) -> None:
    pods = [pod_named(f"pod-{n}") for n in range(20)]
    node = FakeNode(*pods)

    def move(to: int) -> None:
        """Let exactly one pod hold CPU 7."""
        node.held = {(pod_uid(pods[to]), "main"): ResourceUse(cpus=(7,))}

    move(0)
    async with asking(node, short_path) as channel, trio.open_nursery() as nursery:

        async def keep_moving() -> None:
            at = 0
            while True:
                await trio.lowlevel.checkpoint()
                at = (at + 1) % len(pods)
                move(at)

        nursery.start_soon(keep_moving)
        for _ in range(8):
            holders = [c.cpu_ids for pod in (await listed(channel)).values() for c in pod]
            assert [ids for ids in holders if ids] == [[7]]
        nursery.cancel_scope.cancel()

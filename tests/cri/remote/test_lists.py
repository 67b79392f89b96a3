"""Lists that a runtime streams (KEP-5825)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.cri import (
    RemoteRuntime,
    RuntimeCallError,
    RuntimeTimeoutError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.cri.generated.runtime.v1.server import ImageServiceBase, RuntimeServiceBase
from kubelet_trio.grpc import GRPCError, Message, Server, ServerStream, Status
from kubelet_trio.grpc._codec import MAX_MESSAGE_BYTES
from kubelet_trio.model import PodUid

LISTS = {
    "StreamPodSandboxes": "ListPodSandbox",
    "StreamContainers": "ListContainers",
    "StreamContainerStats": "ListContainerStats",
    "StreamPodSandboxMetrics": "ListPodSandboxMetrics",
    "StreamImages": "ListImages",
}

Stream = ServerStream[Any, Any]


class Runtime(RuntimeServiceBase):
    """Lists three of everything, one in a message; `fails` says how streams of a name end."""

    def __init__(self, filler: int = 0) -> None:
        self.calls: list[str] = []
        self.filters: list[object] = []
        self.fails: dict[str, GRPCError] = {}
        self.stalls = False
        self.version_told = "1"
        self._note = {"note": "x" * filler}

    async def version(self, request: v1.VersionRequest) -> v1.VersionResponse:
        return v1.VersionResponse("0.1.0", "fake", self.version_told, "v1")

    async def send(self, name: str, stream: Stream, parts: Iterable[Message]) -> None:
        self.calls.append(name)
        for number, part in enumerate(parts):
            if number and name in self.fails:
                break
            if number and self.stalls:
                await trio.sleep_forever()
            await stream.send_message(part)
        if name in self.fails:
            raise self.fails[name]

    def _containers(self) -> list[v1.Container]:
        return [v1.Container(id=f"c{n}", annotations=self._note) for n in range(3)]

    async def stream_containers(self, request: v1.StreamContainersRequest, stream: Stream) -> None:
        self.filters.append(request.filter)
        parts = (v1.StreamContainersResponse(containers=[c]) for c in self._containers())
        await self.send("StreamContainers", stream, parts)

    async def list_containers(self, request: v1.ListContainersRequest) -> v1.ListContainersResponse:
        self.calls.append("ListContainers")
        return v1.ListContainersResponse(containers=self._containers())

    async def stream_pod_sandboxes(
        self, request: v1.StreamPodSandboxesRequest, stream: Stream
    ) -> None:
        self.filters.append(request.filter)
        found = (v1.PodSandbox(id=f"s{n}") for n in range(3))
        parts = (v1.StreamPodSandboxesResponse(pod_sandboxes=[each]) for each in found)
        await self.send("StreamPodSandboxes", stream, parts)

    async def list_pod_sandbox(
        self, request: v1.ListPodSandboxRequest
    ) -> v1.ListPodSandboxResponse:
        self.calls.append("ListPodSandbox")
        return v1.ListPodSandboxResponse(items=[v1.PodSandbox(id=f"s{n}") for n in range(3)])

    async def stream_container_stats(
        self, request: v1.StreamContainerStatsRequest, stream: Stream
    ) -> None:
        self.filters.append(request.filter)
        parts = (v1.StreamContainerStatsResponse(container_stats=[each]) for each in _stats())
        await self.send("StreamContainerStats", stream, parts)

    async def list_container_stats(
        self, request: v1.ListContainerStatsRequest
    ) -> v1.ListContainerStatsResponse:
        self.calls.append("ListContainerStats")
        return v1.ListContainerStatsResponse(stats=_stats())

    async def stream_pod_sandbox_metrics(
        self, request: v1.StreamPodSandboxMetricsRequest, stream: Stream
    ) -> None:
        parts = (v1.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=[m]) for m in _metrics())
        await self.send("StreamPodSandboxMetrics", stream, parts)

    async def list_pod_sandbox_metrics(
        self, request: v1.ListPodSandboxMetricsRequest
    ) -> v1.ListPodSandboxMetricsResponse:
        self.calls.append("ListPodSandboxMetrics")
        return v1.ListPodSandboxMetricsResponse(pod_metrics=_metrics())


class Images(ImageServiceBase):
    """Lists three images, as its runtime does."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def stream_images(self, request: v1.StreamImagesRequest, stream: Stream) -> None:
        found = (v1.Image(id=f"i{n}", size=n) for n in range(3))
        parts = (v1.StreamImagesResponse(images=[each]) for each in found)
        await self._runtime.send("StreamImages", stream, parts)

    async def list_images(self, request: v1.ListImagesRequest) -> v1.ListImagesResponse:
        self._runtime.calls.append("ListImages")
        return v1.ListImagesResponse(images=[v1.Image(id=f"i{n}", size=n) for n in range(3)])


def _stats() -> list[v1.ContainerStats]:
    ids = [f"c{n}" for n in range(3)]
    return [v1.ContainerStats(attributes=v1.ContainerAttributes(id=each)) for each in ids]


def _metrics() -> list[v1.PodSandboxMetrics]:
    return [v1.PodSandboxMetrics(pod_sandbox_id=f"s{n}") for n in range(3)]


@asynccontextmanager
async def client(service: Runtime, *, stream_lists: bool = True) -> AsyncIterator[RemoteRuntime]:
    async with trio.open_nursery() as nursery:

        async def dial() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            near, far = memory_stream_pair()
            nursery.start_soon(server.serve_stream, far)
            return near

        server = Server([service, Images(service)])
        runtime = RemoteRuntime(dial, stream_lists=stream_lists)
        await nursery.start(runtime.run)
        yield runtime
        nursery.cancel_scope.cancel()


async def everything(runtime: RemoteRuntime) -> list[list[str]]:
    """Return the ids of all that is listed, list by list."""
    stats = await runtime.list_container_stats()
    return [
        sorted((await runtime.list_pod_sandboxes()).entries),
        sorted((await runtime.list_containers()).entries),
        [each.attributes.id for each in stats if each.attributes],
        [each.pod_sandbox_id for each in await runtime.list_pod_sandbox_metrics()],
        [each.id for each in await runtime.list_images()],
    ]


S, C, IMAGES = (["s0", "s1", "s2"], ["c0", "c1", "c2"], ["i0", "i1", "i2"])
ALL = [S, C, C, S, IMAGES]
STREAMS = ["StreamContainerStats", "StreamPodSandboxes", "StreamContainers"]
STREAMS += ["StreamPodSandboxMetrics", "StreamImages"]


@pytest.mark.parametrize("stream_lists", [True, False])
async def test_lists_are_streamed_if_asked_for(stream_lists: bool) -> None:
    service = Runtime()
    async with client(service, stream_lists=stream_lists) as runtime:
        assert await everything(runtime) == ALL
    assert service.calls == (STREAMS if stream_lists else [LISTS[name] for name in STREAMS])


async def test_of_one_pod_only_what_is_its_own_is_streamed() -> None:
    service, uid = Runtime(), PodUid("u")
    labels = {"io.kubernetes.pod.uid": "u"}
    async with client(service) as runtime:
        await runtime.list_pod_sandboxes(uid=uid)
        await runtime.list_containers(uid=uid)
        await runtime.list_container_stats(uid)
    assert service.filters == [
        v1.PodSandboxFilter(label_selector=labels),
        v1.ContainerFilter(label_selector=labels),
        v1.ContainerStatsFilter(label_selector=labels),
    ]


async def test_a_list_of_more_than_a_message_holds_is_streamed() -> None:
    service = Runtime(MAX_MESSAGE_BYTES // 2)
    async with client(service) as runtime:
        assert len((await runtime.list_containers()).entries) == 3
    async with client(service, stream_lists=False) as runtime:
        with pytest.raises(RuntimeCallError):
            await runtime.list_containers()


@pytest.mark.parametrize("name", STREAMS)
async def test_a_list_that_the_runtime_cannot_stream_is_asked_for_whole(name: str) -> None:
    service = Runtime()
    service.fails[name] = GRPCError(Status.UNIMPLEMENTED, f"unknown method {name}")
    async with client(service) as runtime:
        await runtime.version()
        assert await everything(runtime) == ALL
        at = STREAMS.index(name)
        assert service.calls == [*STREAMS[: at + 1], LISTS[name], *STREAMS[at + 1 :]]
        service.calls.clear()
        # It is not tried again, and other lists are streamed.
        assert await everything(runtime) == ALL
        assert service.calls == [LISTS[name] if each == name else each for each in STREAMS]
        # A runtime of another version may know it.
        service.calls.clear()
        service.fails.clear()
        service.version_told = "2"
        await runtime.version()
        assert await everything(runtime) == ALL
        assert service.calls == STREAMS


async def test_a_stream_that_fails_is_no_shorter_list() -> None:
    service = Runtime()
    service.fails["StreamContainers"] = GRPCError(Status.INTERNAL, "out of order")
    async with client(service) as runtime:
        with pytest.raises(RuntimeCallError, match=r"^StreamContainers: out of order") as caught:
            await runtime.list_containers()
        assert not isinstance(caught.value, UnsupportedCallError)
        assert caught.value.code == "Internal"
        assert service.calls == ["StreamContainers"]
        service.fails.clear()
        assert sorted((await runtime.list_containers()).entries) == C


async def test_a_stream_that_stalls_is_given_up_at_the_deadline_of_lists(
    autojump_clock: MockClock,
) -> None:
    service = Runtime()
    service.stalls = True
    async with client(service) as runtime:
        began = trio.current_time()
        with pytest.raises(RuntimeTimeoutError):
            await runtime.list_containers()
        assert trio.current_time() - began == 120
    assert service.calls == ["StreamContainers"]

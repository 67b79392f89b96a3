"""What a runtime in a replay does not have: statistics, streams, events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from kubelet_trio.cri import LocalStreams, UnsupportedCallError, v1
from kubelet_trio.model import PodUid, SandboxId

_NOT_HERE = "a replay does not have it"


class AbsentCalls:
    """The calls of a `cri.Runtime` whose answers are no input of what a replay decides."""

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        # Of disks that the replay does not have: what they were full of is no input of it.
        await trio.lowlevel.checkpoint()
        return v1.ImageFsInfoResponse()

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        await trio.lowlevel.checkpoint()
        return []

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        raise UnsupportedCallError("ListMetricDescriptors", _NOT_HERE)

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        raise UnsupportedCallError("ListPodSandboxMetrics", _NOT_HERE)

    # Streams: nobody is connected to a replay

    @property
    def local_streams(self) -> LocalStreams | None:
        return None

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[v1.ContainerEventResponse]]:
        raise UnsupportedCallError("GetContainerEvents", _NOT_HERE)
        yield

    async def exec_url(self, request: v1.ExecRequest) -> str:
        raise UnsupportedCallError("Exec", _NOT_HERE)

    async def attach_url(self, request: v1.AttachRequest) -> str:
        raise UnsupportedCallError("Attach", _NOT_HERE)

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        raise UnsupportedCallError("PortForward", _NOT_HERE)

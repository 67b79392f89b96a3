"""Streams of a runtime behind a socket: gRPC asks for their URLs."""

from __future__ import annotations

from collections.abc import Sequence

from kubelet_trio.cri._streaming import LocalStreams
from kubelet_trio.cri._translate import runtime_errors
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.generated.runtime.v1.client import RuntimeServiceStub
from kubelet_trio.model import ContainerId, SandboxId


class RemoteStreaming:
    """`StreamingService` of a runtime behind a socket."""

    _runtime: RuntimeServiceStub
    _timeout: float

    @property
    def local_streams(self) -> LocalStreams | None:
        return None

    async def exec_url(self, request: v1.ExecRequest) -> str:
        with runtime_errors("Exec"):
            return (await self._runtime.exec(request, timeout=self._timeout)).url

    async def attach_url(self, request: v1.AttachRequest) -> str:
        with runtime_errors("Attach"):
            return (await self._runtime.attach(request, timeout=self._timeout)).url

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        request = v1.PortForwardRequest(pod_sandbox_id=sandbox_id, port=list(ports))
        with runtime_errors("PortForward"):
            return (await self._runtime.port_forward(request, timeout=self._timeout)).url

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        request = v1.CheckpointContainerRequest(
            container_id=container_id, location=location, timeout=timeout_seconds
        )
        limit = max(self._timeout, timeout_seconds)
        with runtime_errors("CheckpointContainer"):
            await self._runtime.checkpoint_container(request, timeout=limit)

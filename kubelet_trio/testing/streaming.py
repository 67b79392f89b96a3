"""Streams of a fake runtime: a URL that a test serves, or none."""

from __future__ import annotations

from collections.abc import Sequence

from kubelet_trio.cri import LocalStreams, UnsupportedCallError, v1
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.testing.calls import CallDesk


class FakeStreaming:
    """The part of `FakeRuntime` that answers with URLs.

    Attributes:
        stream_url: where streams are served; empty: this runtime serves none.
        stream_requests: what it was asked for, in order.
        local_streams: what the agent serves itself, instead of a URL.
        checkpoints: archives it was told to write, by container ID.
    """

    def __init__(self, desk: CallDesk) -> None:
        self._stream_desk = desk
        self.stream_url = ""
        self.local_streams: LocalStreams | None = None
        self.stream_requests: list[v1.ExecRequest | v1.AttachRequest | v1.PortForwardRequest] = []
        self.checkpoints: dict[ContainerId, str] = {}

    async def exec_url(self, request: v1.ExecRequest) -> str:
        return await self._url("Exec", request.container_id, request)

    async def attach_url(self, request: v1.AttachRequest) -> str:
        return await self._url("Attach", request.container_id, request)

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        request = v1.PortForwardRequest(pod_sandbox_id=sandbox_id, port=list(ports))
        return await self._url("PortForward", sandbox_id, request)

    async def _url(
        self,
        call: str,
        target: str,
        request: v1.ExecRequest | v1.AttachRequest | v1.PortForwardRequest,
    ) -> str:
        async def effect() -> str:
            if not self.stream_url:
                raise UnsupportedCallError(call, "no streams here", code="Unimplemented")
            self.stream_requests.append(request)
            return self.stream_url

        return await self._stream_desk.serve(call, target, effect)

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        async def effect() -> None:
            self.checkpoints[container_id] = location

        await self._stream_desk.serve("CheckpointContainer", container_id, effect)

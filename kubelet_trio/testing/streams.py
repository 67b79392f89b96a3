"""The streams of a fake runtime: container events, and the URLs of exec, attach, port-forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from kubelet_trio.cri import LocalStreams, RuntimeUnavailableError, UnsupportedCallError, v1
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.testing.calls import CallDesk, before_effect
from kubelet_trio.testing.node import FakeNode

EVENT_BACKLOG = 1000
CALL = "GetContainerEvents"


class FakeEventStream:
    """Iterates over the events of one subscriber."""

    def __init__(self, node: FakeNode, desk: CallDesk, *, supported: bool) -> None:
        self.inbox: deque[v1.ContainerEventResponse] = deque(maxlen=EVENT_BACKLOG)
        self._node = node
        self._desk = desk
        self._supported = supported
        self.is_over = False

    def end(self) -> None:
        """End it cleanly, like a runtime that shuts down in an orderly way."""
        self.is_over = True
        self._node.wake()

    def __aiter__(self) -> FakeEventStream:
        return self

    async def __anext__(self) -> v1.ContainerEventResponse:
        # gRPC reports an unknown method at the first read, not when the stream is opened.
        await trio.lowlevel.checkpoint()
        if not self._supported:
            raise UnsupportedCallError(CALL, "method GetContainerEvents not implemented")
        await before_effect(CALL, self._desk.faults.take(CALL, frozenset()))
        while True:
            if self._desk.is_down:
                raise RuntimeUnavailableError(CALL, "error reading from server: EOF")
            if self.is_over:
                raise StopAsyncIteration
            # Perhaps no call does it meanwhile: exits that are due become events here.
            self._node.settle()
            if self.inbox:
                return self.inbox.popleft()
            with trio.move_on_at(self._node.next_change()):
                await self._node.activity.wait()


class FakeStreaming:
    """The part of `FakeRuntime` that returns URLs of streams.

    Attributes:
        stream_url: the URL for every stream; empty: streams are unsupported.
        stream_requests: the requests, in order.
        local_streams: streams that the agent serves itself, instead of a URL.
        checkpoints: requested checkpoint archives, by container ID.
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

"""The calls that are answered with a URL: where a runtime serves a stream of its own.

The URL is on this host (containerd and CRI-O serve on loopback), is good for one connection
and for a minute, and speaks SPDY and WebSocket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from kubelet_trio.cri._errors import UnsupportedCallError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import ContainerId, SandboxId


class StreamingService(Protocol):
    """What of a runtime is done at length, or to a whole container at once."""

    async def exec_url(self, request: v1.ExecRequest) -> str:
        """Prepare a command in a running container; it starts when the URL is connected to."""
        ...

    async def attach_url(self, request: v1.AttachRequest) -> str:
        """Prepare an attachment to a running container's streams."""
        ...

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        """Prepare connections into a sandbox; WebSocket clients name their ports here."""
        ...

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        """Write a running container's state to an archive; 0 is the default deadline."""
        ...


class NoStreaming:
    """`StreamingService` of a runtime that has none."""

    async def exec_url(self, request: v1.ExecRequest) -> str:
        return await _refuse("Exec")

    async def attach_url(self, request: v1.AttachRequest) -> str:
        return await _refuse("Attach")

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        return await _refuse("PortForward")

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        await _refuse("CheckpointContainer")


async def _refuse(call: str) -> str:
    await trio.lowlevel.checkpoint()
    raise UnsupportedCallError(call, "the process runtime serves no streams", code="Unimplemented")

"""Streams of a runtime: commands with input and output, and connections into a sandbox.

A runtime behind a socket serves them itself and answers with a URL: it is on this host (containerd
and CRI-O serve on loopback), is good for one connection and for a minute, and speaks SPDY and
WebSocket. A runtime of this process hands out the streams themselves, and the agent serves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import trio
from trio.abc import HalfCloseableStream

from kubelet_trio.cri._errors import UnsupportedCallError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import ContainerId, SandboxId


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Which streams a client wants of a command."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class CommandStreams(Protocol):
    """A process' input and output: of a command, or of a container that was joined."""

    @property
    def exit_code(self) -> int | None:
        """How it ended, 128 + n by signal n; known once `receive` has returned None."""
        ...

    async def receive(self) -> tuple[str, bytes] | None:
        """Return `stdout` or `stderr` and what it wrote next; None once it has ended."""
        ...

    async def send_stdin(self, content: bytes) -> None: ...

    async def end_stdin(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal, if it has one, that it has another size now."""
        ...


class LocalStreams(Protocol):
    """The streams of a runtime that has no server for them."""

    def open_exec(
        self,
        container_id: ContainerId,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
    ) -> AbstractAsyncContextManager[CommandStreams]:
        """Run a command in a running container; leaving the context kills it."""
        ...

    def open_attach(self, container_id: ContainerId) -> AbstractAsyncContextManager[CommandStreams]:
        """Join a running container's own input and output, from now on."""
        ...

    async def open_port(self, sandbox_id: SandboxId, port: int) -> HalfCloseableStream:
        """Connect to a port as the processes of a sandbox reach it. Raises OSError."""
        ...


class StreamingService(Protocol):
    """What of a runtime is done at length, or to a whole container at once."""

    @property
    def local_streams(self) -> LocalStreams | None:
        """The streams, where the runtime has no URLs for them."""
        ...

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
    """`StreamingService` of a runtime that serves nothing itself."""

    @property
    def local_streams(self) -> LocalStreams | None:
        return None

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

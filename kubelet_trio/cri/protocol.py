"""The container runtime as the agent sees it: the calls of CRI v1 that the agent makes.

`RemoteRuntime` (gRPC), `ProcessRuntime` and `testing.FakeRuntime` implement it. Messages are
CRI's own. Each implementation sets the deadlines: 2 min (`runtimeRequestTimeout`) unless a method
says otherwise. All methods raise `RuntimeCallError` or a subclass.

A cancelled call may still take effect, in full or in part. Therefore the agent makes all calls
through `GuardedRuntime`, which does not cancel calls that change something.

Streams: a remote runtime serves exec, attach and port-forward itself and returns a URL. It is on
this host (containerd and CRI-O serve on loopback), valid for one connection within a minute, and
speaks SPDY and WebSocket. A runtime in this process returns the streams, and the agent's server
serves them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from trio.abc import HalfCloseableStream

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId

REQUEST_TIMEOUT = 120.0  # s, the default of runtimeRequestTimeout

Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")


@dataclass(frozen=True, slots=True)
class Listing(Generic[Entry]):
    """The answer to a list call, keyed by id.

    Pass it to the next list call as `previous`: entries that did not change are then the same
    objects, which a reader compares with `is`.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


@dataclass(frozen=True, slots=True)
class ExecResult:
    """Output and exit code of a command run by ExecSync."""

    stdout: bytes
    stderr: bytes
    exit_code: int


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Which streams of a command a client asks for."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class CommandStreams(Protocol):
    """Input and output of a command, or of a container that was attached to."""

    @property
    def exit_code(self) -> int | None:
        """The exit code (128 + n after signal n), known once `receive` has returned None."""
        ...

    async def receive(self) -> tuple[str, bytes] | None:
        """Return `stdout` or `stderr` and the next output; None once the process has ended."""
        ...

    async def send_stdin(self, content: bytes) -> None: ...

    async def end_stdin(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal, if it has one."""
        ...


class LocalStreams(Protocol):
    """The streams of a runtime without a streaming server."""

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
        """Attach to the input and output of a running container, from now on."""
        ...

    async def open_port(self, sandbox_id: SandboxId, port: int) -> HalfCloseableStream:
        """Connect to a port in a sandbox. Raises OSError and `RuntimeCallError`."""
        ...


class StreamingService(Protocol):
    """Exec, attach, port-forward and checkpoints of a runtime."""

    @property
    def local_streams(self) -> LocalStreams | None:
        """The streams of a runtime that has no URLs for them; None if it has URLs."""
        ...

    async def exec_url(self, request: v1.ExecRequest) -> str:
        """Return the URL of a command in a running container; connecting to it starts it."""
        ...

    async def attach_url(self, request: v1.AttachRequest) -> str:
        """Return the URL of a running container's streams."""
        ...

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        """Return the URL of connections into a sandbox; `ports` are for WebSocket clients."""
        ...

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        """Write a running container's state to an archive; timeout 0 is the default deadline."""
        ...


class Runtime(StreamingService, Protocol):
    """A CRI v1 runtime and image service."""

    async def version(self) -> v1.VersionResponse: ...

    async def status(self) -> v1.StatusResponse:
        """Return the runtime's conditions, handlers and features; `status` is never None."""
        ...

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        """Return RuntimeConfig's answer, its `linux` perhaps None; None if the call is missing."""
        ...

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Set the range of pod addresses: one CIDR, or two separated by a comma."""
        ...

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        """Create and start a sandbox; the deadline is twice the default."""
        ...

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Stop a sandbox and its running containers; one that does not exist is no error."""
        ...

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox and its containers; one that does not exist is no error."""
        ...

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus: ...

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        """List sandboxes in all states, of one pod if `uid` is given."""
        ...

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        """Set what a pod was sized by; return False if the runtime does not implement the call.

        `overhead` and `resources` are those of `v1.LinuxPodSandboxConfig`. Most runtimes only pass
        them on, to a VM or to plugins: the pod's cgroup is the agent's.
        """
        ...

    # Containers

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId: ...

    async def start_container(self, container_id: ContainerId) -> None: ...

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        """Stop a container, killing it after `grace_period` s (deadline: that + the default).

        A container that does not exist is no error.
        """
        ...

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it if it runs; one that does not exist is no error."""
        ...

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        """Return a container's status and, if `verbose`, its PID (0 if unknown)."""
        ...

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        """List containers in all states, of one pod if `uid` is given."""
        ...

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command to its end. Timeout 0 is none; raises `RuntimeTimeoutError` at it."""
        ...

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        """Continue a running container's log in a new file, after the old one was renamed."""
        ...

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        """Change a container's resources: of its cgroup if it runs, else of its later start.

        A field that is 0 or empty leaves the setting as it is; -1 removes a limit. The score
        `oom_score_adj` never changes. Cgroup v1 refuses a memory limit below the usage. After an
        error the status has the settings of before, and so has the cgroup if the runtime could
        restore it. Raises `UnsupportedCallError` if the runtime does not implement the call.
        """
        ...

    def container_events(
        self,
    ) -> AbstractAsyncContextManager[AsyncIterator[v1.ContainerEventResponse]]:
        """Open GetContainerEvents; iterating raises `UnsupportedCallError` if it is missing."""
        ...

    # Images

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return the image, or None if it is not on the node."""
        ...

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        """Pull an image and return its ref. No deadline. Raises `ImagePullError`."""
        ...

    async def list_images(self) -> list[v1.Image]:
        """Return every image on the node."""
        ...

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Remove an image by id, with all its names; one that does not exist is no error."""
        ...

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        """Return names, helps and labels of the metrics that the runtime has of pods.

        Raises `UnsupportedCallError` if it has none.
        """
        ...

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        """Return the runtime's metrics of all pods and containers; likewise."""
        ...

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return the file systems of images and writable layers, and their usage."""
        ...

    async def sandbox_image(self) -> str:
        """Return the name of the image of sandboxes; "" if the runtime does not report it."""
        ...

    # Usage

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        """Return the usage of running containers, of one pod if `uid` is given.

        With `layers_only` whatever is not their ids and writable layers may be left out.
        """
        ...

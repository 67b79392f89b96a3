"""The seam to container runtimes: what the agent asks of one, and nothing more.

Implemented by `cri.remote` (gRPC), `cri.process` and `testing.FakeRuntime`. Messages are CRI's own.
Deadlines belong to the implementation: 2 min (`runtimeRequestTimeout`) unless a method
says otherwise. All methods raise `RuntimeCallError` or a subclass.

A cancelled call may still have taken effect, or half of it. So the agent makes all calls
through `GuardedRuntime`, which never cancels one that changes something.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from kubelet_trio.cri._streaming import StreamingService
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId

Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")


@dataclass(frozen=True, slots=True)
class Listing(Generic[Entry]):
    """One answer to a list call, keyed by id.

    Handed to the next call as `previous`, entries that did not change come back as the
    very same objects, so a reader compares with `is` and pays for changes only.
    `raw` is the implementation's own (the remote keeps encoded entries there).
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    raw: Mapping[bytes, Entry] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command run by ExecSync left behind."""

    stdout: bytes
    stderr: bytes
    exit_code: int


class Runtime(StreamingService, Protocol):
    """A CRI v1 runtime and image service."""

    async def version(self) -> v1.VersionResponse: ...

    async def status(self) -> v1.StatusResponse:
        """Return the runtime's state, its handlers and its features; `status` is set."""
        ...

    async def cgroup_driver(self) -> v1.CgroupDriver | None:
        """Return the driver RuntimeConfig names; None where the runtime lacks the call."""
        ...

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Tell the range of pods' addresses: one CIDR, or two separated by a comma."""
        ...

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        """Create and start a sandbox; the deadline is twice the default."""
        ...

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Stop a sandbox and what still runs in it; one that is gone is no error."""
        ...

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox and its containers; one that is gone is no error."""
        ...

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus: ...

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        """List sandboxes in all states, of one pod if `uid` is given."""
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
        """Stop a container, killed after `grace_period` s (deadline: that + the default).

        One that is gone is no error.
        """
        ...

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it if it runs; one that is gone is no error."""
        ...

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        """Return a container's status and, if `verbose`, its PID (0 where not told)."""
        ...

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        """List containers in all states, of one pod if `uid` is given."""
        ...

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command to its end; 0 is no limit. Raises `RuntimeTimeoutError` at the limit."""
        ...

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        """Have a running container's log go on in a new file: the old one was renamed."""
        ...

    def container_events(
        self,
    ) -> AbstractAsyncContextManager[AsyncIterator[v1.ContainerEventResponse]]:
        """Open GetContainerEvents; iterating raises `UnsupportedCallError` where there is none."""
        ...

    # Images

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return the image, or None where it is not on the node."""
        ...

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        """Pull and return the image's ref. No deadline. Raises `ImagePullError`."""
        ...

    async def list_images(self) -> list[v1.Image]:
        """Return every image on the node."""
        ...

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Remove an image by id, with all its names; one that is gone is no error."""
        ...

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return where images, and containers' writable layers, are kept, and what they take."""
        ...

    async def sandbox_image(self) -> str:
        """Return the name of the image that sandboxes are made from; "" where it is not told."""
        ...

    # What is used

    async def list_container_stats(self, uid: PodUid | None = None) -> list[v1.ContainerStats]:
        """Return what running containers use, those of one pod if `uid` is given."""
        ...

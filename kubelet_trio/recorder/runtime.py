"""`RecordedRuntime`: a `Runtime` below `GuardedRuntime` that notes calls and answers.

Not noted: usage and metrics, which decide nothing, and streams of clients.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kubelet_trio.cri import ExecResult, Listing, LocalStreams, Runtime, RuntimeCallError, v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.recorder.bodies import Failure, Listed
from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.recorder import Recorder

T = TypeVar("T")
Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")

_UID_LABEL = "io.kubernetes.pod.uid"
_CANCELLED = Failure("Cancelled", "the caller was cancelled")
_Fields = Mapping[str, Any]


class RecordedRuntime:
    """A `Runtime` on top of another; `pids` has the containers by process, for `RecordedExits`."""

    def __init__(self, runtime: Runtime, recorder: Recorder) -> None:
        self._runtime = runtime
        self._note = recorder.note
        self._number = 0
        self._sandboxes: dict[str, v1.PodSandbox] = {}  # as last listed
        self._containers: dict[str, v1.Container] = {}
        self._told: dict[str, object] = {}  # as last noted, by key
        self._failed: set[str] = set()  # lists whose last call has failed, by key
        self._listed: set[str] = set()  # lists that have been noted, by method
        self._known_pids: dict[str, int] = {}  # by container
        self.pids: dict[int, ContainerId] = {}

    async def _read(self, key: str, call: Awaitable[T]) -> T:
        """Make a reading call, and note its answer."""
        try:
            answer = await call
        except RuntimeCallError as exc:
            self._note(Kind.READ, key, (Failure.of(exc),))
            raise
        self._note(Kind.READ, key, (answer,))
        return answer

    async def _repeat(self, key: str, call: Awaitable[T]) -> T:
        """Make a reading call that is repeated for ever, and note its answer if it is news."""
        try:
            answer = await call
        except RuntimeCallError as exc:
            self._tell(key, Failure.of(exc))
            raise
        self._tell(key, answer)
        return answer

    def _tell(self, key: str, told: object) -> None:
        # The writer would drop the same again, but each note wakes it.
        is_news = key not in self._told or self._told[key] != told
        if is_news and self._note(Kind.READ, key, (told,)):
            self._told[key] = told

    async def _change(self, method: str, request: _Fields, call: Awaitable[T]) -> T:
        """Make a call that changes something; note it before, and its answer."""
        self._number += 1
        key = str(self._number)
        self._note(Kind.CALL, method, (self._number, request))
        answered: Any = _CANCELLED
        try:
            answered = answer = await call
        except RuntimeCallError as exc:
            answered = Failure.of(exc)
            raise
        finally:
            self._note(Kind.ANSWER, key, (answered,))
        return answer

    # The service

    async def version(self) -> v1.VersionResponse:
        return await self._repeat("version:", self._runtime.version())

    async def status(self) -> v1.StatusResponse:
        """Return the runtime's conditions, handlers and features; `status` is never None."""
        return await self._repeat("status:", self._runtime.status())

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        """Return RuntimeConfig's answer, its `linux` perhaps None; None if the call is missing."""
        return await self._repeat("runtime_config:", self._runtime.runtime_config())

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Set the range of pod addresses: one CIDR, or two separated by a comma."""
        call = self._runtime.update_runtime_config(pod_cidr)
        await self._change("update_runtime_config", {"pod_cidr": pod_cidr}, call)

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        """Create and start a sandbox; the deadline is twice the default."""
        request = {"config": config, "runtime_handler": runtime_handler}
        call = self._runtime.run_pod_sandbox(config, runtime_handler)
        return await self._change("run_pod_sandbox", request, call)

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Stop a sandbox and its running containers; one that does not exist is no error."""
        call = self._runtime.stop_pod_sandbox(sandbox_id)
        await self._change("stop_pod_sandbox", {"pod_sandbox_id": sandbox_id}, call)

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox and its containers; one that does not exist is no error."""
        call = self._runtime.remove_pod_sandbox(sandbox_id)
        await self._change("remove_pod_sandbox", {"pod_sandbox_id": sandbox_id}, call)

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        key = f"pod_sandbox_status:{sandbox_id}"
        return await self._read(key, self._runtime.pod_sandbox_status(sandbox_id))

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        """List sandboxes in all states, of one pod if `uid` is given."""
        call = self._runtime.list_pod_sandboxes(previous, uid=uid)
        return await self._list("list_pod_sandboxes", uid, self._sandboxes, call)

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        """Set what a pod was sized by; return False if the runtime does not implement the call."""
        request = {"pod_sandbox_id": sandbox_id, "overhead": overhead, "resources": resources}
        call = self._runtime.update_pod_sandbox_resources(sandbox_id, overhead, resources)
        return await self._change("update_pod_sandbox_resources", request, call)

    # Containers

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        request = {"pod_sandbox_id": sandbox_id, "config": config}
        call = self._runtime.create_container(sandbox_id, config, sandbox_config)
        return await self._change("create_container", request, call)

    async def start_container(self, container_id: ContainerId) -> None:
        call = self._runtime.start_container(container_id)
        await self._change("start_container", {"container_id": container_id}, call)

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        """Stop a container, killing it after `grace_period` s (deadline: that + the default)."""
        request = {"container_id": container_id, "timeout": grace_period}
        call = self._runtime.stop_container(container_id, grace_period)
        await self._change("stop_container", request, call)

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it if it runs; one that does not exist is no error."""
        call = self._runtime.remove_container(container_id)
        await self._change("remove_container", {"container_id": container_id}, call)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        """Return a container's status and, if `verbose`, its PID (0 if unknown)."""
        key = f"container_status:{container_id}"
        try:
            status, pid = await self._runtime.container_status(container_id, verbose=verbose)
        except RuntimeCallError as exc:
            self._note(Kind.READ, key, (Failure.of(exc),))
            raise
        if pid:
            self.pids[pid] = container_id
            self._known_pids[container_id] = pid
        # Only verbose answers have it, and it does not change.
        told = pid or self._known_pids.get(container_id, 0)
        self._note(Kind.READ, key, ({"status": status, "pid": told},))
        return status, pid

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        """List containers in all states, of one pod if `uid` is given."""
        call = self._runtime.list_containers(previous, uid=uid)
        return await self._list("list_containers", uid, self._containers, call)

    async def _list(
        self,
        method: str,
        uid: PodUid | None,
        known: dict[str, Entry],
        call: Awaitable[Listing[Entry]],
    ) -> Listing[Entry]:
        key = f"{method}:{uid or ''}"
        try:
            listing = await call
        except RuntimeCallError as exc:
            self._failed.add(key)
            self._note(Kind.READ, key, (Failure.of(exc),))
            raise
        entries = listing.entries
        changed = [entry for id_, entry in entries.items() if known.get(id_) is not entry]
        gone = [
            id_
            for id_, entry in known.items()
            if id_ not in entries and (uid is None or entry.labels.get(_UID_LABEL) == uid)
        ]
        is_mended, is_first = key in self._failed, uid is None and method not in self._listed
        self._failed.discard(key)
        if changed or gone or is_mended or is_first:
            self._listed.add(method)
            for id_ in gone:
                del known[id_]
                self._known_pids.pop(id_, None)
            if uid is None:  # of one pod the objects are new each time
                known.update(entries)
            else:
                known.update({entry.id: entry for entry in changed if entry.id not in known})
            self._note(Kind.READ, key, Listed(changed, gone, is_first))
        return listing

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command to its end. Timeout 0 is none; raises `RuntimeTimeoutError` at it."""
        call = self._runtime.exec_sync(container_id, command, timeout_seconds)
        # Of the command a checksum, which tells the probes of a container apart.
        checksum = crc32(chr(0).join(command).encode(errors="replace"))
        key = f"exec_sync:{container_id}/{checksum:08x}"
        try:
            answer = await call
        except RuntimeCallError as exc:
            self._note(Kind.READ, key, (Failure.of(exc),))
            raise
        self._note(Kind.READ, key, ({"exit_code": answer.exit_code},))
        return answer

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        """Continue a running container's log in a new file, after the old one was renamed."""
        call = self._runtime.reopen_container_log(container_id)
        await self._change("reopen_container_log", {"container_id": container_id}, call)

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        """Change a container's resources: of its cgroup if it runs, else of its later start."""
        request = {"container_id": container_id, "linux": resources}
        call = self._runtime.update_container_resources(container_id, resources)
        await self._change("update_container_resources", request, call)

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[v1.ContainerEventResponse]]:
        """Open GetContainerEvents; iterating raises `UnsupportedCallError` if it is missing."""
        async with self._runtime.container_events() as events:
            yield self._noted(events)

    async def _noted(
        self, events: AsyncIterator[v1.ContainerEventResponse]
    ) -> AsyncIterator[v1.ContainerEventResponse]:
        async for event in events:
            # What it says of the container comes again as the answer of a call.
            told = {"type": event.container_event_type, "created_at": event.created_at}
            self._note(Kind.READ, f"container_events:{event.container_id}", (told,))
            yield event

    # Images

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return the image, or None if it is not on the node."""
        return await self._read(f"image_status:{image.image}", self._runtime.image_status(image))

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        """Pull an image and return its ref. No deadline. Raises `ImagePullError`."""
        # Whether there are credentials, and nothing of them.
        request: _Fields = {
            "image": image,
            "auth": None if auth is None else {},
            "sandbox": {"metadata": sandbox.metadata},  # whose it is
        }
        call = self._runtime.pull_image(image, auth, sandbox)
        return await self._change("pull_image", request, call)

    async def list_images(self) -> list[v1.Image]:
        """Return every image on the node."""
        return await self._read("list_images:", self._runtime.list_images())

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Remove an image by id, with all its names; one that does not exist is no error."""
        await self._change("remove_image", {"image": image}, self._runtime.remove_image(image))

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        """Return names, helps and labels of the metrics that the runtime has of pods."""
        return await self._runtime.list_metric_descriptors()

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        """Return the runtime's metrics of all pods and containers; likewise."""
        return await self._runtime.list_pod_sandbox_metrics()

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return the file systems of images and writable layers, and their usage."""
        return await self._read("image_fs_info:", self._runtime.image_fs_info())

    async def sandbox_image(self) -> str:
        """Return the name of the image of sandboxes; "" if the runtime does not report it."""
        return await self._read("sandbox_image:", self._runtime.sandbox_image())

    # Usage, streams and checkpoints: passed on

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        """Return the usage of running containers, of one pod if `uid` is given.

        With `layers_only` whatever is not their ids and writable layers may be left out.
        """
        return await self._runtime.list_container_stats(uid, layers_only=layers_only)

    @property
    def local_streams(self) -> LocalStreams | None:
        """The streams of a runtime that has no URLs for them; None if it has URLs."""
        return self._runtime.local_streams

    async def exec_url(self, request: v1.ExecRequest) -> str:
        """Return the URL of a command in a running container; connecting to it starts it."""
        return await self._runtime.exec_url(request)

    async def attach_url(self, request: v1.AttachRequest) -> str:
        """Return the URL of a running container's streams."""
        return await self._runtime.attach_url(request)

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        """Return the URL of connections into a sandbox; `ports` are for WebSocket clients."""
        return await self._runtime.port_forward_url(sandbox_id, ports)

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        """Write a running container's state to an archive; timeout 0 is the default deadline."""
        await self._runtime.checkpoint_container(container_id, location, timeout_seconds)

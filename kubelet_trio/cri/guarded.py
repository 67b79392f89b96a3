"""The runtime that the agent uses: it measures every call, and runs changes to their answer.

This module decides which calls of CRI change something. Those go through `CallsInFlight` and are
not cancelled halfway; all others are cancelled with their caller. Calls are counted and timed
under the Go kubelet's names for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

import trio

from kubelet_trio.cri.calls import CallsInFlight
from kubelet_trio.cri.errors import RuntimeCallError
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.protocol import ExecResult, Listing, LocalStreams, Runtime
from kubelet_trio.model import (
    CALLS,
    ContainerId,
    Meter,
    PodUid,
    SandboxId,
    Turnstile,
    get_logger,
)
from kubelet_trio.tracing import Attributes, SpanKind, span

_ID_SHOWN = 13  # characters of an id, as crictl shows

log = get_logger()

T = TypeVar("T")

# Operations by their calls, as the Go kubelet's spans name these (otelgrpc).
_RUNTIME_CALLS = {
    "version": "Version",
    "status": "Status",
    "runtime_config": "RuntimeConfig",
    "update_runtime_config": "UpdateRuntimeConfig",
    "run_podsandbox": "RunPodSandbox",
    "stop_podsandbox": "StopPodSandbox",
    "remove_podsandbox": "RemovePodSandbox",
    "podsandbox_status": "PodSandboxStatus",
    "list_podsandbox": "ListPodSandbox",
    "update_podsandbox_resources": "UpdatePodSandboxResources",
    "create_container": "CreateContainer",
    "start_container": "StartContainer",
    "stop_container": "StopContainer",
    "remove_container": "RemoveContainer",
    "container_status": "ContainerStatus",
    "list_containers": "ListContainers",
    "exec_sync": "ExecSync",
    "reopen_container_log": "ReopenContainerLog",
    "update_container": "UpdateContainerResources",
    "list_container_stats": "ListContainerStats",
    "list_metric_descriptors": "ListMetricDescriptors",
    "list_pod_sandbox_metrics": "ListPodSandboxMetrics",
    "exec": "Exec",
    "attach": "Attach",
    "port_forward": "PortForward",
    "checkpoint_container": "CheckpointContainer",
}
_IMAGE_CALLS = {
    "get_image": "ImageStatus",
    "pull_image": "PullImage",
    "list_images": "ListImages",
    "remove_image": "RemoveImage",
    "image_fs_info": "ImageFsInfo",
}
_SPANS = {key: f"runtime.v1.RuntimeService/{call}" for key, call in _RUNTIME_CALLS.items()} | {
    key: f"runtime.v1.ImageService/{call}" for key, call in _IMAGE_CALLS.items()
}


class GuardedRuntime:
    """A `Runtime` on top of another. Operations have the names of kubelet_runtime_operations_*."""

    def __init__(self, runtime: Runtime, calls: CallsInFlight, meter: Meter) -> None:
        """Use `runtime`; calls that change something need `calls` to run."""
        self._runtime = runtime
        self._calls = calls
        self._meter = meter
        self._stopping: Counter[ContainerId] = Counter()
        self._turnstile = Turnstile()  # a call takes the loop half a millisecond to a whole one

    def is_stopping(self, container_id: ContainerId) -> bool:
        """Whether a call is under way that stops a container, and whose caller is to look then."""
        return container_id in self._stopping

    async def _read(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make and measure a call that is cancelled with its caller."""
        await self._turnstile.enter()
        meter, labels, began = self._meter, (operation,), trio.current_time()
        meter.count("kubelet_runtime_operations_total", labels)
        try:
            with span(_SPANS[operation], operation, _about_call, SpanKind.CLIENT):
                return await call()
        except RuntimeCallError:
            meter.count("kubelet_runtime_operations_errors_total", labels)
            raise
        finally:
            took = trio.current_time() - began
            meter.observe("kubelet_runtime_operations_duration_seconds", took, labels, CALLS)
            log.debug("runtime.call", operation=operation, seconds=round(took, 6))

    async def _change(
        self,
        operation: str,
        target: str,
        call: Callable[[], Awaitable[T]],
        *,
        may_leave: bool = False,
    ) -> T:
        """Make and measure a call that runs to its answer even if its caller is cancelled."""
        name = f"{operation}@{target[:_ID_SHOWN]}"
        measured = partial(self._read, operation, call)
        return await self._calls.finish(name, measured, may_leave=may_leave)

    # The service

    async def version(self) -> v1.VersionResponse:
        return await self._read("version", self._runtime.version)

    async def status(self) -> v1.StatusResponse:
        """Return the runtime's conditions, handlers and features; `status` is never None."""
        return await self._read("status", self._runtime.status)

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        """Return RuntimeConfig's answer, its `linux` perhaps None; None if the call is missing."""
        return await self._read("runtime_config", self._runtime.runtime_config)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Set the range of pod addresses: one CIDR, or two separated by a comma."""
        call = partial(self._runtime.update_runtime_config, pod_cidr)
        await self._change("update_runtime_config", pod_cidr, call)

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        """Create and start a sandbox; the deadline is twice the default."""
        call = partial(self._runtime.run_pod_sandbox, config, runtime_handler)
        uid = config.metadata.uid if config.metadata is not None else ""
        began, labels = trio.current_time(), (runtime_handler,)
        try:
            return await self._change("run_podsandbox", uid, call)
        except RuntimeCallError:
            self._meter.count("kubelet_run_podsandbox_errors_total", labels)
            raise
        finally:
            took = trio.current_time() - began
            self._meter.observe("kubelet_run_podsandbox_duration_seconds", took, labels)

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Stop a sandbox and its running containers; one that does not exist is no error."""
        call = partial(self._runtime.stop_pod_sandbox, sandbox_id)
        await self._change("stop_podsandbox", sandbox_id, call)

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox and its containers; one that does not exist is no error."""
        call = partial(self._runtime.remove_pod_sandbox, sandbox_id)
        await self._change("remove_podsandbox", sandbox_id, call)

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        call = partial(self._runtime.pod_sandbox_status, sandbox_id)
        return await self._read("podsandbox_status", call)

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        """List sandboxes in all states, of one pod if `uid` is given."""
        call = partial(self._runtime.list_pod_sandboxes, previous, uid=uid)
        return await self._read("list_podsandbox", call)

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        """Set what a pod was sized by; return False if the runtime does not implement the call."""
        update = self._runtime.update_pod_sandbox_resources
        call = partial(update, sandbox_id, overhead, resources)
        return await self._change("update_podsandbox_resources", sandbox_id, call)

    # Containers

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        call = partial(self._runtime.create_container, sandbox_id, config, sandbox_config)
        return await self._change("create_container", sandbox_id, call)

    async def start_container(self, container_id: ContainerId) -> None:
        call = partial(self._runtime.start_container, container_id)
        await self._change("start_container", container_id, call)

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        """Stop a container, killing it after `grace_period` s (deadline: that + the default).

        If cancelled, the call goes on without its caller, which may then make a second one with a
        shorter grace period.
        """
        # May be left: a stop lasts as long as its grace period, which a later one can shorten.
        call = partial(self._runtime.stop_container, container_id, grace_period)
        self._stopping[container_id] += 1
        try:
            await self._change("stop_container", container_id, call, may_leave=True)
        finally:
            self._stopping[container_id] -= 1
            if not self._stopping[container_id]:
                del self._stopping[container_id]

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it if it runs; one that does not exist is no error."""
        call = partial(self._runtime.remove_container, container_id)
        await self._change("remove_container", container_id, call)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        """Return a container's status and, if `verbose`, its PID (0 if unknown)."""
        call = partial(self._runtime.container_status, container_id, verbose=verbose)
        return await self._read("container_status", call)

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        """List containers in all states, of one pod if `uid` is given."""
        call = partial(self._runtime.list_containers, previous, uid=uid)
        return await self._read("list_containers", call)

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command to its end. Timeout 0 is none; raises `RuntimeTimeoutError` at it.

        If cancelled, the call goes on without its caller.
        """
        call = partial(self._runtime.exec_sync, container_id, command, timeout_seconds)
        return await self._change("exec_sync", container_id, call, may_leave=True)

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        """Continue a running container's log in a new file, after the old one was renamed."""
        call = partial(self._runtime.reopen_container_log, container_id)
        await self._change("reopen_container_log", container_id, call)

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        """Change a container's resources: of its cgroup if it runs, else of its later start."""
        call = partial(self._runtime.update_container_resources, container_id, resources)
        await self._change("update_container", container_id, call)

    def container_events(
        self,
    ) -> AbstractAsyncContextManager[AsyncIterator[v1.ContainerEventResponse]]:
        """Open GetContainerEvents; iterating raises `UnsupportedCallError` if it is missing."""
        return self._runtime.container_events()

    # Images

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return the image, or None if it is not on the node."""
        return await self._read("get_image", partial(self._runtime.image_status, image))

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        """Pull an image and return its ref. No deadline. Raises `ImagePullError`."""
        # Cancelled with its caller although it changes something: a pull that is cut off leaves
        # nothing that runs.
        call = partial(self._runtime.pull_image, image, auth, sandbox)
        return await self._read("pull_image", call)

    async def list_images(self) -> list[v1.Image]:
        """Return every image on the node."""
        return await self._read("list_images", self._runtime.list_images)

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Remove an image by id, with all its names; one that does not exist is no error."""
        call = partial(self._runtime.remove_image, image)
        await self._change("remove_image", image.image, call)

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return the file systems of images and writable layers, and their usage."""
        return await self._read("image_fs_info", self._runtime.image_fs_info)

    async def sandbox_image(self) -> str:
        """Return the name of the image of sandboxes; "" if the runtime does not report it."""
        return await self._read("status", self._runtime.sandbox_image)

    # Usage

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        """Return the usage of running containers, of one pod if `uid` is given.

        With `layers_only` whatever is not their ids and writable layers may be left out.
        """
        call = partial(self._runtime.list_container_stats, uid, layers_only=layers_only)
        return await self._read("list_container_stats", call)

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        """Return names, helps and labels of the runtime's metrics of pods."""
        return await self._read("list_metric_descriptors", self._runtime.list_metric_descriptors)

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        """Return the runtime's metrics of all pods and containers."""
        return await self._read("list_pod_sandbox_metrics", self._runtime.list_pod_sandbox_metrics)

    # Streams

    @property
    def local_streams(self) -> LocalStreams | None:
        """The streams of a runtime that has no URLs for them; None if it has URLs."""
        return self._runtime.local_streams

    async def exec_url(self, request: v1.ExecRequest) -> str:
        """Return the URL of a command in a running container; connecting to it starts it."""
        return await self._read("exec", partial(self._runtime.exec_url, request))

    async def attach_url(self, request: v1.AttachRequest) -> str:
        """Return the URL of a running container's streams."""
        return await self._read("attach", partial(self._runtime.attach_url, request))

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        """Return the URL of connections into a sandbox; `ports` are for WebSocket clients."""
        call = partial(self._runtime.port_forward_url, sandbox_id, ports)
        return await self._read("port_forward", call)

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        """Write a running container's state to an archive; timeout 0 is the default deadline."""
        call = partial(self._runtime.checkpoint_container, container_id, location, timeout_seconds)
        await self._change("checkpoint_container", container_id, call)


def _about_call(operation: str) -> Attributes:
    service, _, method = _SPANS[operation].partition("/")
    return {"rpc.service": service, "rpc.method": method}

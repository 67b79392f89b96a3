"""A runtime behind a socket: containerd, CRI-O, or any other that speaks CRI v1.

`run` is the supervised child that owns the connections. It is ready at once, even if the runtime
is down, and reconnects with a back-off; `connected` shows the state. A call without a connection
dials once and fails with `RuntimeUnavailableError` if that fails. Calls share a connection and
do not wait for each other.

Deadlines are the Go kubelet's: `request_timeout` (2 min) unless a method says otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import trio
from trio_util import AsyncValue

from kubelet_trio.cri.errors import (
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    UnsupportedCallError,
)
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.generated.runtime.v1.client import ImageServiceStub, RuntimeServiceStub
from kubelet_trio.cri.protocol import REQUEST_TIMEOUT, ExecResult, Listing, LocalStreams
from kubelet_trio.cri.remote import translate
from kubelet_trio.cri.remote.lists import ListCalls
from kubelet_trio.cri.remote.traced import traced_call
from kubelet_trio.cri.remote.translate import runtime_errors
from kubelet_trio.cri.remote.wire import ListDecoder, entries_of
from kubelet_trio.grpc import (
    Channel,
    Dial,
    GRPCError,
    Message,
    UnaryUnaryMethod,
)
from kubelet_trio.model import ContainerId, PodUid, SandboxId, get_logger, parse_message

log = get_logger()

_UID_LABEL = "io.kubernetes.pod.uid"
_IMAGES = 20  # decoded between two checkpoints: some 2 ms

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)
Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")


@dataclass(frozen=True, slots=True)
class EncodedListing(Listing[Entry]):
    """A listing that keeps its entries by their encoding, for `ListDecoder`."""

    by_encoding: Mapping[bytes, Entry] = field(default_factory=dict, repr=False)


async def _list(
    data: bytes,
    parse: Callable[[bytes], Entry],
    previous: Listing[Entry],
    is_final: Callable[[Entry], bool] = lambda _entry: False,
) -> Listing[Entry]:
    """Decode a list answer, taking over the entries of `previous` that did not change.

    Other tasks run meanwhile. Raises ValueError and EOFError if it is malformed.
    """
    known = previous.by_encoding if isinstance(previous, EncodedListing) else {}
    decoder = ListDecoder(data, parse, known, previous.entries, is_final)
    for _ in decoder.steps():
        await trio.lowlevel.checkpoint()
    return EncodedListing(decoder.entries, decoder.by_encoding)


def _has_exited(container: v1.Container) -> bool:
    # Ids are never reused, nor exited containers started again (CRI): nothing of it changes.
    return container.state == v1.ContainerState.CONTAINER_EXITED


def _parse_sandbox(data: bytes) -> v1.PodSandbox:
    return parse_message(v1.PodSandbox, data)


def _parse_container(data: bytes) -> v1.Container:
    return parse_message(v1.Container, data)


class RemoteRuntime:
    """`Runtime` over gRPC. Endpoints are `unix:///path`, or another target of `Channel`."""

    def __init__(
        self,
        runtime_endpoint: str | Dial,
        image_endpoint: str | Dial = "",
        *,
        request_timeout: float = REQUEST_TIMEOUT,
        stream_lists: bool = False,
    ) -> None:
        """Make a runtime; nothing is connected yet.

        Args:
            runtime_endpoint: of the runtime service.
            image_endpoint: of the image service; empty: the same.
            request_timeout: seconds for a call.
            stream_lists: whether to stream lists from a runtime that can; see `ListCalls`.
        """
        runtime = Channel(runtime_endpoint, keep_connected=True)
        images = runtime
        if image_endpoint not in ("", runtime_endpoint):
            images = Channel(image_endpoint, keep_connected=True)
        self._channels = {runtime, images}
        self._runtime = RuntimeServiceStub(runtime)
        self._images = ImageServiceStub(images)
        self._timeout = request_timeout
        self._product = ""  # name and version of the runtime, "" until Version was answered
        self._lacks: set[str] = set()  # calls that this version does not implement
        # Lists arrive encoded, so that unchanged entries need no decoding (`ListDecoder`).
        self._lists = ListCalls(
            runtime, images, request_timeout, streamed=stream_lists, lacks=self._lacks
        )
        # The last whole listings, for callers without a previous one: they share its entries.
        self._sandboxes_before: Listing[v1.PodSandbox] = Listing()
        self._containers_before: Listing[v1.Container] = Listing()
        self.connected: AsyncValue[bool] = runtime.connected

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections until cancelled; ready at once, connected or not."""
        async with trio.open_nursery() as nursery:
            for channel in self._channels:
                await nursery.start(channel.run)
            task_status.started()

    async def version(self) -> v1.VersionResponse:
        request = v1.VersionRequest(version="v1")
        answer = await self._call("Version", self._runtime.version, request)
        version = translate.checked_version(answer)
        product = f"{version.runtime_name} {version.runtime_version}"
        if product != self._product:
            self._product = product
            self._lacks.clear()
        return version

    async def status(self) -> v1.StatusResponse:
        """Return the runtime's conditions, handlers and features; `status` is never None."""
        answer = await self._call("Status", self._runtime.status, v1.StatusRequest())
        return translate.checked_status(answer)

    async def runtime_config(self) -> v1.RuntimeConfigResponse | None:
        """Return RuntimeConfig's answer, its `linux` perhaps None; None if the call is missing."""
        try:
            request = v1.RuntimeConfigRequest()
            return await self._call("RuntimeConfig", self._runtime.runtime_config, request)
        except UnsupportedCallError:
            return None

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Set the range of pod addresses: one CIDR, or two separated by a comma."""
        network = v1.NetworkConfig(pod_cidr=pod_cidr)
        request = v1.UpdateRuntimeConfigRequest(
            runtime_config=v1.RuntimeConfig(network_config=network)
        )
        await self._call("UpdateRuntimeConfig", self._runtime.update_runtime_config, request)

    # Sandboxes

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        """Create and start a sandbox; the deadline is twice the default."""
        answer = await self._call(
            "RunPodSandbox",
            self._runtime.run_pod_sandbox,
            v1.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler),
            extra_time=self._timeout,
        )
        sandbox_id = translate.required("RunPodSandbox", "pod_sandbox_id", answer.pod_sandbox_id)
        return SandboxId(sandbox_id)

    async def stop_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Stop a sandbox and its running containers; one that does not exist is no error."""
        request = v1.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        with suppress(RuntimeObjectNotFoundError):
            await self._call("StopPodSandbox", self._runtime.stop_pod_sandbox, request)

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox and its containers; one that does not exist is no error."""
        request = v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        with suppress(RuntimeObjectNotFoundError):
            await self._call("RemovePodSandbox", self._runtime.remove_pod_sandbox, request)

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        request = v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        answer = await self._call("PodSandboxStatus", self._runtime.pod_sandbox_status, request)
        return translate.checked_sandbox_status(answer.status)

    async def list_pod_sandboxes(
        self, previous: Listing[v1.PodSandbox] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.PodSandbox]:
        """List sandboxes in all states, of one pod if `uid` is given."""
        request = v1.ListPodSandboxRequest()
        if uid is not None:
            request.filter = v1.PodSandboxFilter(label_selector={_UID_LABEL: uid})
        answer = await self._lists.get("ListPodSandbox", request)
        with translate.malformed_answer("ListPodSandbox"):
            found = await _list(answer, _parse_sandbox, previous or self._sandboxes_before)
        if uid is None:
            self._sandboxes_before = found
        return found

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: SandboxId,
        overhead: v1.LinuxContainerResources,
        resources: v1.LinuxContainerResources,
    ) -> bool:
        """Set what a pod was sized by; return False if the runtime does not implement the call.

        A runtime that lacks it is not asked again until Version shows another one.
        """
        name = "UpdatePodSandboxResources"
        if name in self._lacks:
            await trio.lowlevel.checkpoint()
            return False
        request = v1.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources
        )
        try:
            await self._call(name, self._runtime.update_pod_sandbox_resources, request)
        except RuntimeCallError as exc:
            if not translate.is_unsupported(exc):
                raise
            self._lacks.add(name)
            log.info(
                "runtime.call_unsupported",
                call=name,
                runtime=self._product,
                effect="VMs and plugins do not see that pods are resized; containers are resized",
            )
            return False
        return True

    # Containers

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        answer = await self._call(
            "CreateContainer",
            self._runtime.create_container,
            v1.CreateContainerRequest(
                pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
            ),
        )
        container_id = translate.required("CreateContainer", "container_id", answer.container_id)
        return ContainerId(container_id)

    async def start_container(self, container_id: ContainerId) -> None:
        request = v1.StartContainerRequest(container_id=container_id)
        await self._call("StartContainer", self._runtime.start_container, request)

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        """Stop a container, killing it after `grace_period` s (deadline: that + the default).

        A container that does not exist is no error.
        """
        request = v1.StopContainerRequest(container_id=container_id, timeout=grace_period)
        with suppress(RuntimeObjectNotFoundError):
            await self._call(
                "StopContainer",
                self._runtime.stop_container,
                request,
                extra_time=grace_period,
            )

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it if it runs; one that does not exist is no error."""
        request = v1.RemoveContainerRequest(container_id=container_id)
        with suppress(RuntimeObjectNotFoundError):
            await self._call("RemoveContainer", self._runtime.remove_container, request)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        """Return a container's status and, if `verbose`, its PID (0 if unknown)."""
        request = v1.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        answer = await self._call("ContainerStatus", self._runtime.container_status, request)
        status = translate.checked_container_status(answer.status)
        return status, translate.container_pid(answer.info)

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        """List containers in all states, of one pod if `uid` is given."""
        request = v1.ListContainersRequest()
        if uid is not None:
            request.filter = v1.ContainerFilter(label_selector={_UID_LABEL: uid})
        answer = await self._lists.get("ListContainers", request)
        with translate.malformed_answer("ListContainers"):
            before = previous or self._containers_before
            found = await _list(answer, _parse_container, before, _has_exited)
        if uid is None:
            self._containers_before = found
        return found

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command to its end. Timeout 0 is none; raises `RuntimeTimeoutError` at it."""
        request = v1.ExecSyncRequest(
            container_id=container_id, cmd=command, timeout=timeout_seconds
        )
        # The runtime enforces the command's own timeout, then answers; our deadline is later.
        extra_time = timeout_seconds or None
        try:
            answer = await self._call(
                "ExecSync", self._runtime.exec_sync, request, extra_time=extra_time
            )
        except RuntimeTimeoutError as exc:
            quoted = " ".join(command)
            message = f'command timed out: "{quoted}" timed out after {timeout_seconds}s'
            raise RuntimeTimeoutError("ExecSync", message) from exc
        return ExecResult(answer.stdout, answer.stderr, answer.exit_code)

    async def reopen_container_log(self, container_id: ContainerId) -> None:
        """Continue a running container's log in a new file, after the old one was renamed."""
        request = v1.ReopenContainerLogRequest(container_id=container_id)
        await self._call("ReopenContainerLog", self._runtime.reopen_container_log, request)

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        """Change a container's resources: of its cgroup if it runs, else of its later start."""
        name = "UpdateContainerResources"
        request = v1.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        try:
            await self._call(name, self._runtime.update_container_resources, request)
        except UnsupportedCallError as exc:
            runtime = self._product or "the runtime"
            message = f"{runtime} does not implement it, so no container can be resized in place"
            raise UnsupportedCallError(name, f"{message}: {exc.message}", code=exc.code) from exc

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[v1.ContainerEventResponse]]:
        """Open GetContainerEvents; iterating raises `UnsupportedCallError` if it is missing."""
        with runtime_errors("GetContainerEvents"):
            async with self._runtime.get_container_events.open() as call:
                await call.send_message(v1.GetEventsRequest(), end=True)
                yield aiter(call)

    # Images

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return the image, or None if it is not on the node."""
        request = v1.ImageStatusRequest(image=image)
        answer = await self._call("ImageStatus", self._images.image_status, request)
        return translate.checked_image(answer.image)

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        """Pull an image and return its ref. No deadline. Raises `ImagePullError`."""
        request = v1.PullImageRequest(image=image, auth=auth, sandbox_config=sandbox)
        # No deadline, as in the Go kubelet: a large image may take long, and a cancelled caller
        # ends the pull.
        with translate.pull_errors():
            answer = await traced_call(self._images.pull_image, request, None)
        return translate.pulled_ref(image, answer.image_ref)

    async def list_images(self) -> list[v1.Image]:
        """Return every image on the node."""
        answer = await self._lists.get("ListImages", v1.ListImagesRequest())
        images = []
        with translate.malformed_answer("ListImages"):
            for number, encoded in enumerate(entries_of(answer), 1):
                images.append(parse_message(v1.Image, encoded))
                if number % _IMAGES == 0:
                    await trio.lowlevel.checkpoint()
        return images

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Remove an image by id, with all its names; one that does not exist is no error."""
        request = v1.RemoveImageRequest(image=image)
        with suppress(RuntimeObjectNotFoundError):
            await self._call("RemoveImage", self._images.remove_image, request)

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return the file systems of images and writable layers, and their usage."""
        return await self._call("ImageFsInfo", self._images.image_fs_info, v1.ImageFsInfoRequest())

    async def sandbox_image(self) -> str:
        """Return the name of the image of sandboxes; "" if the runtime does not report it."""
        request = v1.StatusRequest(verbose=True)
        answer = await self._call("Status", self._runtime.status, request)
        return translate.sandbox_image(answer.info)

    # Usage

    async def list_container_stats(
        self, uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        """Return the usage of running containers, of one pod if `uid` is given.

        With `layers_only` whatever is not their ids and writable layers is left out.
        """
        request = v1.ListContainerStatsRequest()
        if uid is not None:
            request.filter = v1.ContainerStatsFilter(label_selector={_UID_LABEL: uid})
        answer = await self._lists.get("ListContainerStats", request)
        with translate.malformed_answer("ListContainerStats"):
            return translate.parse_stats(answer, layers_only=layers_only)

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        """Return names, helps and labels of the runtime's metrics of pods."""
        request = v1.ListMetricDescriptorsRequest()
        call = self._runtime.list_metric_descriptors
        return (await self._call("ListMetricDescriptors", call, request)).descriptors

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        """Return the runtime's metrics of all pods and containers."""
        request = v1.ListPodSandboxMetricsRequest()
        answer = await self._lists.get("ListPodSandboxMetrics", request)
        with translate.malformed_answer("ListPodSandboxMetrics"):
            return parse_message(v1.ListPodSandboxMetricsResponse, answer).pod_metrics

    # Streams

    @property
    def local_streams(self) -> LocalStreams | None:
        return None

    async def exec_url(self, request: v1.ExecRequest) -> str:
        with runtime_errors("Exec"):
            return (await traced_call(self._runtime.exec, request, self._timeout)).url

    async def attach_url(self, request: v1.AttachRequest) -> str:
        with runtime_errors("Attach"):
            return (await traced_call(self._runtime.attach, request, self._timeout)).url

    async def port_forward_url(self, sandbox_id: SandboxId, ports: Sequence[int]) -> str:
        request = v1.PortForwardRequest(pod_sandbox_id=sandbox_id, port=list(ports))
        with runtime_errors("PortForward"):
            return (await traced_call(self._runtime.port_forward, request, self._timeout)).url

    async def checkpoint_container(
        self, container_id: ContainerId, location: str, timeout_seconds: int
    ) -> None:
        request = v1.CheckpointContainerRequest(
            container_id=container_id, location=location, timeout=timeout_seconds
        )
        limit = max(self._timeout, timeout_seconds)
        with runtime_errors("CheckpointContainer"):
            await traced_call(self._runtime.checkpoint_container, request, limit)

    async def _call(
        self,
        name: str,
        method: UnaryUnaryMethod[RequestT, ReplyT],
        request: RequestT,
        *,
        extra_time: float | None = 0.0,
    ) -> ReplyT:
        """Make a call with the default deadline plus `extra_time` s; None means no deadline."""
        timeout = None if extra_time is None else self._timeout + extra_time
        try:
            return await traced_call(method, request, timeout)
        except GRPCError as exc:
            raise translate.runtime_error(name, exc) from exc

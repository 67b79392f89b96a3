"""A runtime behind a socket: containerd, CRI-O, or any other that speaks CRI v1.

`run` is the supervised child that owns the connections. It is ready at once, runtime or
no runtime, and keeps trying with a back-off; `connected` says how it stands. A call made
meanwhile tries by itself and fails at once with `RuntimeUnavailableError` if nobody
answers. Calls share a connection and never wait for each other.

Deadlines are the Go kubelet's: `request_timeout` (2 min) unless the method says otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import trio
from trio_util import AsyncValue

from kubelet_trio.cri import _translate as translate
from kubelet_trio.cri._errors import NotFoundError, RuntimeTimeoutError, UnsupportedCallError
from kubelet_trio.cri._remote_streaming import RemoteStreaming
from kubelet_trio.cri._runtime import ExecResult, Listing
from kubelet_trio.cri._translate import runtime_errors
from kubelet_trio.cri._wire import decode_changed
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.generated.runtime.v1.client import ImageServiceStub, RuntimeServiceStub
from kubelet_trio.grpc import Channel, Dial, Message, RawMessage, UnaryUnaryMethod
from kubelet_trio.model import ContainerId, PodUid, SandboxId, parse_message

REQUEST_TIMEOUT = 120.0  # s, runtimeRequestTimeout's default
_UID_LABEL = "io.kubernetes.pod.uid"

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


def _parse_sandbox(data: bytes) -> v1.PodSandbox:
    return parse_message(v1.PodSandbox, data)


def _parse_container(data: bytes) -> v1.Container:
    return parse_message(v1.Container, data)


class RemoteRuntime(RemoteStreaming):
    """`Runtime` over gRPC; endpoints are `unix:///path`, or what else `Channel` dials."""

    def __init__(
        self,
        runtime_endpoint: str | Dial,
        image_endpoint: str | Dial = "",
        *,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        """Make a runtime; `image_endpoint` is the runtime's own where it is empty."""
        runtime = Channel(runtime_endpoint, keep_connected=True)
        images = runtime
        if image_endpoint not in ("", runtime_endpoint):
            images = Channel(image_endpoint, keep_connected=True)
        self._channels = {runtime, images}
        self._runtime = RuntimeServiceStub(runtime)
        self._images = ImageServiceStub(images)
        self._timeout = request_timeout
        self._list_sandboxes = UnaryUnaryMethod(
            runtime,
            "/runtime.v1.RuntimeService/ListPodSandbox",
            v1.ListPodSandboxRequest,
            RawMessage,
        )
        self._list_containers = UnaryUnaryMethod(
            runtime,
            "/runtime.v1.RuntimeService/ListContainers",
            v1.ListContainersRequest,
            RawMessage,
        )
        self.connected: AsyncValue[bool] = runtime.connected

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections until cancelled; ready at once, connected or not."""
        async with trio.open_nursery() as nursery:
            for channel in self._channels:
                await nursery.start(channel.run)
            task_status.started()

    async def version(self) -> v1.VersionResponse:
        request = v1.VersionRequest(version="v1")
        return translate.checked_version(
            await self._call("Version", self._runtime.version, request)
        )

    async def status(self) -> v1.StatusResponse:
        """Return the runtime's state, its handlers and its features; `status` is set."""
        answer = await self._call("Status", self._runtime.status, v1.StatusRequest())
        return translate.checked_status(answer)

    async def cgroup_driver(self) -> v1.CgroupDriver | None:
        """Return the driver RuntimeConfig names; None where the runtime lacks the call."""
        try:
            request = v1.RuntimeConfigRequest()
            answer = await self._call("RuntimeConfig", self._runtime.runtime_config, request)
        except UnsupportedCallError:
            return None
        return answer.linux.cgroup_driver if answer.linux else None

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Tell the range of pods' addresses: one CIDR, or two separated by a comma."""
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
        """Stop a sandbox and what still runs in it; one that is gone is no error."""
        request = v1.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        with suppress(NotFoundError):
            await self._call("StopPodSandbox", self._runtime.stop_pod_sandbox, request)

    async def remove_pod_sandbox(self, sandbox_id: SandboxId) -> None:
        """Remove a sandbox and its containers; one that is gone is no error."""
        request = v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        with suppress(NotFoundError):
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
        last = previous or Listing()
        answer = await self._call("ListPodSandbox", self._list_sandboxes, request)
        with translate.malformed_answer("ListPodSandbox"):
            return Listing(*decode_changed(answer, _parse_sandbox, last.raw, last.entries))

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
        """Stop a container, killed after `grace_period` s (deadline: that + the default).

        One that is gone is no error.
        """
        request = v1.StopContainerRequest(container_id=container_id, timeout=grace_period)
        with suppress(NotFoundError):
            await self._call(
                "StopContainer",
                self._runtime.stop_container,
                request,
                extra_time=grace_period,
            )

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it if it runs; one that is gone is no error."""
        request = v1.RemoveContainerRequest(container_id=container_id)
        with suppress(NotFoundError):
            await self._call("RemoveContainer", self._runtime.remove_container, request)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        """Return a container's status and, if `verbose`, its PID (0 where not told)."""
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
        last = previous or Listing()
        answer = await self._call("ListContainers", self._list_containers, request)
        with translate.malformed_answer("ListContainers"):
            return Listing(*decode_changed(answer, _parse_container, last.raw, last.entries))

    async def exec_sync(
        self, container_id: ContainerId, command: list[str], timeout_seconds: int
    ) -> ExecResult:
        """Run a command to its end; 0 is no limit. Raises `RuntimeTimeoutError` at the limit."""
        request = v1.ExecSyncRequest(
            container_id=container_id, cmd=command, timeout=timeout_seconds
        )
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
        """Have a running container's log go on in a new file: the old one was renamed."""
        request = v1.ReopenContainerLogRequest(container_id=container_id)
        await self._call("ReopenContainerLog", self._runtime.reopen_container_log, request)

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[v1.ContainerEventResponse]]:
        """Open GetContainerEvents; iterating raises `UnsupportedCallError` where there is none."""
        with runtime_errors("GetContainerEvents"):
            async with self._runtime.get_container_events.open() as call:
                await call.send_message(v1.GetEventsRequest(), end=True)
                yield aiter(call)

    # Images

    async def image_status(self, image: v1.ImageSpec) -> v1.Image | None:
        """Return the image, or None where it is not on the node."""
        request = v1.ImageStatusRequest(image=image)
        answer = await self._call("ImageStatus", self._images.image_status, request)
        return translate.checked_image(answer.image)

    async def pull_image(
        self, image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
    ) -> str:
        """Pull and return the image's ref. No deadline. Raises `ImagePullError`."""
        request = v1.PullImageRequest(image=image, auth=auth, sandbox_config=sandbox)
        with translate.pull_errors():
            answer = await self._images.pull_image(request)
        return translate.pulled_ref(image, answer.image_ref)

    async def list_images(self) -> list[v1.Image]:
        """Return every image on the node."""
        request = v1.ListImagesRequest()
        return (await self._call("ListImages", self._images.list_images, request)).images

    async def remove_image(self, image: v1.ImageSpec) -> None:
        """Remove an image by id, with all its names; one that is gone is no error."""
        request = v1.RemoveImageRequest(image=image)
        with suppress(NotFoundError):
            await self._call("RemoveImage", self._images.remove_image, request)

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Return where images, and containers' writable layers, are kept, and what they take."""
        return await self._call("ImageFsInfo", self._images.image_fs_info, v1.ImageFsInfoRequest())

    async def sandbox_image(self) -> str:
        """Return the name of the image that sandboxes are made from; "" where it is not told."""
        request = v1.StatusRequest(verbose=True)
        answer = await self._call("Status", self._runtime.status, request)
        return translate.sandbox_image(answer.info)

    # What is used

    async def list_container_stats(self, uid: PodUid | None = None) -> list[v1.ContainerStats]:
        """Return what running containers use, those of one pod if `uid` is given."""
        request = v1.ListContainerStatsRequest()
        if uid is not None:
            request.filter = v1.ContainerStatsFilter(label_selector={_UID_LABEL: uid})
        call = self._runtime.list_container_stats
        return (await self._call("ListContainerStats", call, request)).stats

    async def _call(
        self,
        name: str,
        method: UnaryUnaryMethod[RequestT, ReplyT],
        request: RequestT,
        *,
        extra_time: float | None = 0.0,
    ) -> ReplyT:
        """Make a call; its deadline is `extra_time` s later than the default, None for none."""
        timeout = None if extra_time is None else self._timeout + extra_time
        with runtime_errors(name):
            return await method(request, timeout=timeout)

"""A `FakeRuntime` served over CRI's gRPC, as a process of its own.

`python -m tests.faults.served SOCKET DEAD` has so many containers that ended before anybody looked.
A file beside the socket, `storm`, holds how many events are to be sent as fast as they go; it
is removed once they are sent.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import trio

from kubelet_trio.cri import RuntimeCallError, RuntimeObjectNotFoundError, v1
from kubelet_trio.cri.generated.runtime.v1.server import ImageServiceBase, RuntimeServiceBase
from kubelet_trio.grpc import GRPCError, Server, ServerStream, Status
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.testing import FakeRuntime

T = TypeVar("T")

_UID = "io.kubernetes.pod.uid"
STORM = "storm"
EACH = 100  # dead containers of a pod


async def _told(answer: Awaitable[T]) -> T:
    """Turn the fake's errors into those of gRPC."""
    try:
        return await answer
    except RuntimeObjectNotFoundError as exc:
        raise GRPCError(Status.NOT_FOUND, str(exc)) from exc
    except RuntimeCallError as exc:
        raise GRPCError(Status.UNKNOWN, str(exc)) from exc


class RuntimeService(RuntimeServiceBase):
    """CRI's calls on a `FakeRuntime`."""

    def __init__(self, fake: FakeRuntime, storm: Path) -> None:
        self.fake, self.storm = fake, storm

    async def version(self, request: v1.VersionRequest) -> v1.VersionResponse:
        return await _told(self.fake.version())

    async def status(self, request: v1.StatusRequest) -> v1.StatusResponse:
        return await _told(self.fake.status())

    async def runtime_config(self, request: v1.RuntimeConfigRequest) -> v1.RuntimeConfigResponse:
        linux = v1.LinuxRuntimeConfiguration(cgroup_driver=v1.CgroupDriver.CGROUPFS)
        return v1.RuntimeConfigResponse(linux=linux)

    async def run_pod_sandbox(self, request: v1.RunPodSandboxRequest) -> v1.RunPodSandboxResponse:
        assert request.config is not None
        made = await _told(self.fake.run_pod_sandbox(request.config, request.runtime_handler))
        return v1.RunPodSandboxResponse(pod_sandbox_id=made)

    async def stop_pod_sandbox(
        self, request: v1.StopPodSandboxRequest
    ) -> v1.StopPodSandboxResponse:
        await _told(self.fake.stop_pod_sandbox(SandboxId(request.pod_sandbox_id)))
        return v1.StopPodSandboxResponse()

    async def remove_pod_sandbox(
        self, request: v1.RemovePodSandboxRequest
    ) -> v1.RemovePodSandboxResponse:
        await _told(self.fake.remove_pod_sandbox(SandboxId(request.pod_sandbox_id)))
        return v1.RemovePodSandboxResponse()

    async def pod_sandbox_status(
        self, request: v1.PodSandboxStatusRequest
    ) -> v1.PodSandboxStatusResponse:
        status = await _told(self.fake.pod_sandbox_status(SandboxId(request.pod_sandbox_id)))
        return v1.PodSandboxStatusResponse(status=status)

    async def list_pod_sandbox(
        self, request: v1.ListPodSandboxRequest
    ) -> v1.ListPodSandboxResponse:
        labels = request.filter.label_selector if request.filter else {}
        uid = PodUid(labels[_UID]) if _UID in labels else None
        listing = await _told(self.fake.list_pod_sandboxes(uid=uid))
        return v1.ListPodSandboxResponse(items=list(listing.entries.values()))

    async def list_containers(self, request: v1.ListContainersRequest) -> v1.ListContainersResponse:
        labels = request.filter.label_selector if request.filter else {}
        uid = PodUid(labels[_UID]) if _UID in labels else None
        listing = await _told(self.fake.list_containers(uid=uid))
        return v1.ListContainersResponse(containers=list(listing.entries.values()))

    async def create_container(
        self, request: v1.CreateContainerRequest
    ) -> v1.CreateContainerResponse:
        assert request.config is not None
        assert request.sandbox_config is not None
        made = await _told(
            self.fake.create_container(
                SandboxId(request.pod_sandbox_id), request.config, request.sandbox_config
            )
        )
        return v1.CreateContainerResponse(container_id=made)

    async def start_container(self, request: v1.StartContainerRequest) -> v1.StartContainerResponse:
        await _told(self.fake.start_container(ContainerId(request.container_id)))
        return v1.StartContainerResponse()

    async def stop_container(self, request: v1.StopContainerRequest) -> v1.StopContainerResponse:
        await _told(self.fake.stop_container(ContainerId(request.container_id), request.timeout))
        return v1.StopContainerResponse()

    async def remove_container(
        self, request: v1.RemoveContainerRequest
    ) -> v1.RemoveContainerResponse:
        await _told(self.fake.remove_container(ContainerId(request.container_id)))
        return v1.RemoveContainerResponse()

    async def container_status(
        self, request: v1.ContainerStatusRequest
    ) -> v1.ContainerStatusResponse:
        status, _ = await _told(self.fake.container_status(ContainerId(request.container_id)))
        return v1.ContainerStatusResponse(status=status)

    async def get_container_events(
        self,
        request: v1.GetEventsRequest,
        stream: ServerStream[v1.GetEventsRequest, v1.ContainerEventResponse],
    ) -> None:
        """Tell again and again that a container has stopped, when a storm is asked for."""
        while True:
            while not self.storm.exists():  # noqa: ASYNC110  # a file tells nobody
                await trio.sleep(0.05)
            for _ in range(int(self.storm.read_text())):
                await stream.send_message(self._news())
            self.storm.unlink()

    def _news(self) -> v1.ContainerEventResponse:
        container = list(self.fake.containers.values())[-1]
        return v1.ContainerEventResponse(
            container_id=container.id,
            container_event_type=v1.ContainerEventType.CONTAINER_STOPPED_EVENT,
            pod_sandbox_status=container.sandbox.status(),
            containers_statuses=[container.status()],
        )


class ImageService(ImageServiceBase):
    """The image calls."""

    def __init__(self, fake: FakeRuntime) -> None:
        self.fake = fake

    async def image_status(self, request: v1.ImageStatusRequest) -> v1.ImageStatusResponse:
        image = await self.fake.image_status(request.image or v1.ImageSpec())
        return v1.ImageStatusResponse(image=image)

    async def list_images(self, request: v1.ListImagesRequest) -> v1.ListImagesResponse:
        return v1.ListImagesResponse(images=await self.fake.list_images())

    async def pull_image(self, request: v1.PullImageRequest) -> v1.PullImageResponse:
        image, sandbox = request.image or v1.ImageSpec(), v1.PodSandboxConfig()
        return v1.PullImageResponse(
            image_ref=await _told(self.fake.pull_image(image, None, sandbox))
        )

    async def image_fs_info(self, request: v1.ImageFsInfoRequest) -> v1.ImageFsInfoResponse:
        return v1.ImageFsInfoResponse()


def _end_before(fake: FakeRuntime, dead: int) -> None:
    """Have so many containers that ran to their end, a hundred in each pod."""
    fake.images.present.add("busybox")
    for number in range(-(-dead // EACH)):
        names = {
            "io.kubernetes.pod.name": f"old{number}",
            "io.kubernetes.pod.namespace": "default",
            _UID: f"old-{number}",
        }
        sandbox = fake.node.run_sandbox(
            v1.PodSandboxConfig(
                metadata=v1.PodSandboxMetadata(
                    name=f"old{number}", namespace="default", uid=f"old-{number}"
                ),
                labels=names,
            ),
            "",
        )
        for attempt in range(min(EACH, dead)):
            container = fake.node.create_container(
                sandbox,
                v1.ContainerConfig(
                    metadata=v1.ContainerMetadata(name="main", attempt=attempt),
                    image=v1.ImageSpec(image="busybox"),
                    command=["exit-0"],
                    labels={**names, "io.kubernetes.container.name": "main"},
                    annotations={"told": "x" * 300},
                ),
                "busybox",
            )
            fake.node.start_container(container)


async def _serve(path: Path, dead: int) -> None:
    fake = FakeRuntime(events=True)
    _end_before(fake, dead)
    server = Server([RuntimeService(fake, path.with_name(STORM)), ImageService(fake)])
    aside = path.with_suffix(".new")
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(aside))
    listening.listen()
    aside.rename(path)  # there once it answers
    await trio.serve_listeners(server.serve_stream, [trio.SocketListener(listening)])


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]))

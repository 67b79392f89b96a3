"""`FakeRuntime` over gRPC on a socket, for agents that are processes of their own.

    python -m tests.harness.cri_server /run/cri.sock --dead 10000 --images 5000

There are no processes, so no PIDs either: exits are told by GetContainerEvents. What has ended is
encoded once, else a listing of thousands would be this process' work more than the agent's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click
import trio

from kubelet_trio.cri import (
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.cri.generated.runtime.v1.server import ImageServiceBase, RuntimeServiceBase
from kubelet_trio.grpc import (
    GRPCError,
    Handler,
    RawMessage,
    Server,
    ServerStream,
    Status,
    unary_unary,
)
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.testing import FakeRuntime

T = TypeVar("T")
_UID_LABEL = "io.kubernetes.pod.uid"
_EXITED = v1.ContainerState.CONTAINER_EXITED


@contextmanager
def _grpc_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeObjectNotFoundError as exc:
        raise GRPCError(Status.NOT_FOUND, exc.message) from exc
    except UnsupportedCallError as exc:
        raise GRPCError(Status.UNIMPLEMENTED, exc.message) from exc
    except RuntimeCallError as exc:
        raise GRPCError(Status.UNKNOWN, exc.message) from exc


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes, as protobuf encodes it."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + content


class RuntimeService(RuntimeServiceBase):
    """The runtime's half."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._ended: dict[ContainerId, bytes] = {}  # entries of lists

    def __mapping__(self) -> Mapping[str, Handler]:
        listing = unary_unary(self._list_containers, v1.ListContainersRequest, RawMessage)
        return {**super().__mapping__(), "/runtime.v1.RuntimeService/ListContainers": listing}

    async def version(self, request: v1.VersionRequest) -> v1.VersionResponse:
        return await _served(self._runtime.version())

    async def status(self, request: v1.StatusRequest) -> v1.StatusResponse:
        return await _served(self._runtime.status())

    async def runtime_config(self, request: v1.RuntimeConfigRequest) -> v1.RuntimeConfigResponse:
        config = await _served(self._runtime.runtime_config())
        if config is None:
            raise GRPCError(Status.UNIMPLEMENTED, "unknown method RuntimeConfig")
        return config

    async def run_pod_sandbox(self, request: v1.RunPodSandboxRequest) -> v1.RunPodSandboxResponse:
        config = request.config or v1.PodSandboxConfig()
        made = await _served(self._runtime.run_pod_sandbox(config, request.runtime_handler))
        return v1.RunPodSandboxResponse(pod_sandbox_id=made)

    async def stop_pod_sandbox(
        self, request: v1.StopPodSandboxRequest
    ) -> v1.StopPodSandboxResponse:
        await _served(self._runtime.stop_pod_sandbox(SandboxId(request.pod_sandbox_id)))
        return v1.StopPodSandboxResponse()

    async def remove_pod_sandbox(
        self, request: v1.RemovePodSandboxRequest
    ) -> v1.RemovePodSandboxResponse:
        await _served(self._runtime.remove_pod_sandbox(SandboxId(request.pod_sandbox_id)))
        return v1.RemovePodSandboxResponse()

    async def pod_sandbox_status(
        self, request: v1.PodSandboxStatusRequest
    ) -> v1.PodSandboxStatusResponse:
        asked = SandboxId(request.pod_sandbox_id)
        status = await _served(self._runtime.pod_sandbox_status(asked))
        return v1.PodSandboxStatusResponse(status=status)

    async def list_pod_sandbox(
        self, request: v1.ListPodSandboxRequest
    ) -> v1.ListPodSandboxResponse:
        uid = request.filter.label_selector.get(_UID_LABEL) if request.filter else None
        uid = None if uid is None else PodUid(uid)
        found = await _served(self._runtime.list_pod_sandboxes(uid=uid))
        return v1.ListPodSandboxResponse(items=list(found))

    async def create_container(
        self, request: v1.CreateContainerRequest
    ) -> v1.CreateContainerResponse:
        config = request.config or v1.ContainerConfig()
        sandbox = request.sandbox_config or v1.PodSandboxConfig()
        asked = SandboxId(request.pod_sandbox_id)
        made = await _served(self._runtime.create_container(asked, config, sandbox))
        return v1.CreateContainerResponse(container_id=made)

    async def start_container(self, request: v1.StartContainerRequest) -> v1.StartContainerResponse:
        await _served(self._runtime.start_container(ContainerId(request.container_id)))
        return v1.StartContainerResponse()

    async def stop_container(self, request: v1.StopContainerRequest) -> v1.StopContainerResponse:
        asked = ContainerId(request.container_id)
        await _served(self._runtime.stop_container(asked, request.timeout))
        return v1.StopContainerResponse()

    async def remove_container(
        self, request: v1.RemoveContainerRequest
    ) -> v1.RemoveContainerResponse:
        await _served(self._runtime.remove_container(ContainerId(request.container_id)))
        self._ended.pop(ContainerId(request.container_id), None)
        return v1.RemoveContainerResponse()

    async def container_status(
        self, request: v1.ContainerStatusRequest
    ) -> v1.ContainerStatusResponse:
        asked = ContainerId(request.container_id)
        status, _pid = await _served(self._runtime.container_status(asked))
        return v1.ContainerStatusResponse(status=status)

    async def _list_containers(self, request: v1.ListContainersRequest) -> RawMessage:
        uid = request.filter.label_selector.get(_UID_LABEL) if request.filter else None
        wanted = request.filter.state if request.filter else None
        node = self._runtime.node
        node.settle()
        entries = []
        for number, container in enumerate(
            node.containers_of(None if uid is None else PodUid(uid))
        ):
            if (entry := self._ended.get(container.id)) is None:
                listed = container.listed()
                if wanted is not None and listed.state != wanted.state:
                    continue
                entry = field(1, bytes(listed))
                if listed.state == _EXITED:
                    self._ended[container.id] = entry
            elif wanted is not None and wanted.state != _EXITED:
                continue
            entries.append(entry)
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        return RawMessage(b"".join(entries))

    async def exec_sync(self, request: v1.ExecSyncRequest) -> v1.ExecSyncResponse:
        asked = ContainerId(request.container_id)
        done = await _served(self._runtime.exec_sync(asked, request.cmd, request.timeout))
        return v1.ExecSyncResponse(stdout=done.stdout, stderr=done.stderr, exit_code=done.exit_code)

    async def reopen_container_log(
        self, request: v1.ReopenContainerLogRequest
    ) -> v1.ReopenContainerLogResponse:
        await _served(self._runtime.reopen_container_log(ContainerId(request.container_id)))
        return v1.ReopenContainerLogResponse()

    async def get_container_events(
        self,
        request: v1.GetEventsRequest,
        stream: ServerStream[v1.GetEventsRequest, v1.ContainerEventResponse],
    ) -> None:
        async with self._runtime.container_events() as events:
            with _grpc_errors():
                async for event in events:
                    await stream.send_message(event)


class ImageService(ImageServiceBase):
    """The images' half."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._listed = b""
        self._listed_of: frozenset[str] = frozenset()

    def __mapping__(self) -> Mapping[str, Handler]:
        listing = unary_unary(self._list_images, v1.ListImagesRequest, RawMessage)
        return {**super().__mapping__(), "/runtime.v1.ImageService/ListImages": listing}

    async def _list_images(self, request: v1.ListImagesRequest) -> RawMessage:
        present = frozenset(self._runtime.images.present)
        if present != self._listed_of:
            images = await _served(self._runtime.list_images())
            self._listed = b"".join(field(1, bytes(image)) for image in images)
            self._listed_of = present
        await trio.lowlevel.checkpoint()
        return RawMessage(self._listed)

    async def image_status(self, request: v1.ImageStatusRequest) -> v1.ImageStatusResponse:
        asked = request.image or v1.ImageSpec()
        return v1.ImageStatusResponse(image=await _served(self._runtime.image_status(asked)))

    async def pull_image(self, request: v1.PullImageRequest) -> v1.PullImageResponse:
        asked, sandbox = request.image or v1.ImageSpec(), v1.PodSandboxConfig()
        pulled = await _served(self._runtime.pull_image(asked, request.auth, sandbox))
        return v1.PullImageResponse(image_ref=pulled)

    async def remove_image(self, request: v1.RemoveImageRequest) -> v1.RemoveImageResponse:
        await _served(self._runtime.remove_image(request.image or v1.ImageSpec()))
        return v1.RemoveImageResponse()

    async def image_fs_info(self, request: v1.ImageFsInfoRequest) -> v1.ImageFsInfoResponse:
        return await _served(self._runtime.image_fs_info())


async def _served(call: Awaitable[T]) -> T:
    with _grpc_errors():
        return await call


async def add_dead(runtime: FakeRuntime, count: int, each: int = 50) -> None:
    """Add containers that have exited, in sandboxes that have ended: the remains of pods."""
    for pod in range((count + each - 1) // each):
        labels = {
            _UID_LABEL: f"dead-{pod:05}",
            "io.kubernetes.pod.name": f"dead-{pod}",
            "io.kubernetes.pod.namespace": "default",
        }
        meta = v1.PodSandboxMetadata(f"dead-{pod}", f"dead-{pod:05}", "default", 0)
        config = v1.PodSandboxConfig(metadata=meta, labels=labels)
        sandbox = runtime.node.run_sandbox(config, "")
        for attempt in range(min(each, count - pod * each)):
            made = runtime.node.create_container(
                sandbox,
                v1.ContainerConfig(
                    metadata=v1.ContainerMetadata("main", attempt),
                    image=v1.ImageSpec(image="web"),
                    labels={**labels, "io.kubernetes.container.name": "main"},
                    annotations={"io.kubernetes.container.restartCount": str(attempt)},
                ),
                "web",
            )
            runtime.node.start_container(made)
            runtime.node.kill(made, 1)
        runtime.node.stop_sandbox(sandbox)
        await trio.lowlevel.checkpoint()


async def serve(
    socket: Path,
    *,
    dead: int = 0,
    images: int = 0,
    events: bool = True,
    prepare: Callable[[FakeRuntime], None] = lambda _runtime: None,
) -> None:
    """Serve a runtime on a socket until cancelled."""
    runtime = FakeRuntime(events=events, reports_pids=False)
    runtime.images.present |= {f"registry.example.com/image-{n}:1" for n in range(images)}
    prepare(runtime)
    await add_dead(runtime, dead)
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    being_made = socket.with_suffix(".new")
    await listener.bind(str(being_made))
    listener.listen(16)
    await trio.Path(being_made).rename(socket)  # whoever sees it can connect
    server = Server([RuntimeService(runtime), ImageService(runtime)])
    await server.serve([trio.SocketListener(listener)])


@click.command()
@click.argument("socket", type=click.Path(path_type=Path))
@click.option("--dead", default=0, help="Containers that have exited.")
@click.option("--images", default=0, help="Images beside those that are pulled.")
@click.option("--events/--no-events", default=True, help="Offer GetContainerEvents.")
def main(socket: Path, dead: int, images: int, events: bool) -> None:
    """Serve a runtime without containers on SOCKET until it is ended."""

    async def run() -> None:
        await serve(socket, dead=dead, images=images, events=events)

    trio.run(run)


if __name__ == "__main__":
    main()

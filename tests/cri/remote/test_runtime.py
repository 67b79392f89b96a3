"""RemoteRuntime against a server of ours: deadlines, statuses, and what answers must have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.cri import (
    ImagePullError,
    RemoteRuntime,
    Runtime,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.cri.generated.runtime.v1.server import ImageServiceBase, RuntimeServiceBase
from kubelet_trio.grpc import GRPCError, Server, ServerStream, Status
from kubelet_trio.model import ContainerId, PodUid, SandboxId

C, S = ContainerId("c"), SandboxId("s")
CONFIG = v1.PodSandboxConfig(metadata=v1.PodSandboxMetadata(name="p", namespace="n", uid="u"))
METADATA = v1.ContainerMetadata(name="web", attempt=2)
RESOURCES = v1.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=1 << 26)
OVERHEAD = v1.LinuxContainerResources(cpu_shares=2)
IMAGE = v1.ImageSpec(image="busybox")
RUNTIME_CONFIG = v1.RuntimeConfigResponse(
    linux=v1.LinuxRuntimeConfiguration(cgroup_driver=v1.CgroupDriver.CGROUPFS)
)
STATUS = v1.ContainerStatus(
    id="c", metadata=METADATA, created_at=5, image=IMAGE, image_ref="sha256:1"
)
UID_LABEL = "io.kubernetes.pod.uid"


class FakeRuntimeService(RuntimeServiceBase):
    """Answers as told: `error` for every call, or nothing at all while `hang` is set."""

    def __init__(self) -> None:
        self.error: GRPCError | None = None
        self.hang = False
        self.containers: list[v1.Container] = []
        self.info: dict[str, str] = {}
        self.config = ""
        self.runtime_version = "1"
        self.status_answer: v1.ContainerStatus | None = STATUS
        self.requests: list[object] = []

    async def _obey(self, request: object) -> None:
        self.requests.append(request)
        if self.hang:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error

    async def version(self, request: v1.VersionRequest) -> v1.VersionResponse:
        await self._obey(request)
        return v1.VersionResponse(
            version="0.1.0",
            runtime_name="fake",
            runtime_version=self.runtime_version,
            runtime_api_version="v1",
        )

    async def status(self, request: v1.StatusRequest) -> v1.StatusResponse:
        await self._obey(request)
        conditions = [v1.RuntimeCondition(type="RuntimeReady", status=True)] * 2
        info = {"config": self.config} if request.verbose else {}
        return v1.StatusResponse(status=v1.RuntimeStatus(conditions=conditions), info=info)

    async def run_pod_sandbox(self, request: v1.RunPodSandboxRequest) -> v1.RunPodSandboxResponse:
        await self._obey(request)
        return v1.RunPodSandboxResponse(pod_sandbox_id="s")

    async def stop_pod_sandbox(
        self, request: v1.StopPodSandboxRequest
    ) -> v1.StopPodSandboxResponse:
        await self._obey(request)
        return v1.StopPodSandboxResponse()

    async def remove_pod_sandbox(
        self, request: v1.RemovePodSandboxRequest
    ) -> v1.RemovePodSandboxResponse:
        await self._obey(request)
        return v1.RemovePodSandboxResponse()

    async def pod_sandbox_status(
        self, request: v1.PodSandboxStatusRequest
    ) -> v1.PodSandboxStatusResponse:
        await self._obey(request)
        status = v1.PodSandboxStatus(id="s", metadata=CONFIG.metadata, created_at=7)
        return v1.PodSandboxStatusResponse(status=status)

    async def list_pod_sandbox(
        self, request: v1.ListPodSandboxRequest
    ) -> v1.ListPodSandboxResponse:
        await self._obey(request)
        return v1.ListPodSandboxResponse(items=[v1.PodSandbox(id="s", labels={"a": "b"})])

    async def create_container(
        self, request: v1.CreateContainerRequest
    ) -> v1.CreateContainerResponse:
        await self._obey(request)
        return v1.CreateContainerResponse(container_id="c")

    async def start_container(self, request: v1.StartContainerRequest) -> v1.StartContainerResponse:
        await self._obey(request)
        return v1.StartContainerResponse()

    async def stop_container(self, request: v1.StopContainerRequest) -> v1.StopContainerResponse:
        await self._obey(request)
        return v1.StopContainerResponse()

    async def remove_container(
        self, request: v1.RemoveContainerRequest
    ) -> v1.RemoveContainerResponse:
        await self._obey(request)
        return v1.RemoveContainerResponse()

    async def container_status(
        self, request: v1.ContainerStatusRequest
    ) -> v1.ContainerStatusResponse:
        await self._obey(request)
        return v1.ContainerStatusResponse(status=self.status_answer, info=self.info)

    async def list_containers(self, request: v1.ListContainersRequest) -> v1.ListContainersResponse:
        await self._obey(request)
        wanted = request.filter.label_selector if request.filter else {}
        found = [c for c in self.containers if wanted.items() <= c.labels.items()]
        return v1.ListContainersResponse(containers=found)

    async def exec_sync(self, request: v1.ExecSyncRequest) -> v1.ExecSyncResponse:
        await self._obey(request)
        return v1.ExecSyncResponse(stdout=b"out", stderr=b"err", exit_code=3)

    async def update_container_resources(
        self, request: v1.UpdateContainerResourcesRequest
    ) -> v1.UpdateContainerResourcesResponse:
        await self._obey(request)
        return v1.UpdateContainerResourcesResponse()

    async def update_pod_sandbox_resources(
        self, request: v1.UpdatePodSandboxResourcesRequest
    ) -> v1.UpdatePodSandboxResourcesResponse:
        await self._obey(request)
        return v1.UpdatePodSandboxResourcesResponse()

    async def update_runtime_config(
        self, request: v1.UpdateRuntimeConfigRequest
    ) -> v1.UpdateRuntimeConfigResponse:
        await self._obey(request)
        return v1.UpdateRuntimeConfigResponse()

    async def runtime_config(self, request: v1.RuntimeConfigRequest) -> v1.RuntimeConfigResponse:
        await self._obey(request)
        return RUNTIME_CONFIG

    async def get_container_events(
        self,
        request: v1.GetEventsRequest,
        stream: ServerStream[v1.GetEventsRequest, v1.ContainerEventResponse],
    ) -> None:
        await self._obey(request)
        for number in range(3):
            await stream.send_message(v1.ContainerEventResponse(container_id=f"c{number}"))
        await trio.sleep_forever()


class FakeImageService(ImageServiceBase):
    def __init__(self) -> None:
        self.error: GRPCError | None = None
        self.hang = False
        self.ref = "sha256:1"
        self.image: v1.Image | None = v1.Image(id="sha256:1", size=10)

    async def image_status(self, request: v1.ImageStatusRequest) -> v1.ImageStatusResponse:
        return v1.ImageStatusResponse(image=self.image)

    async def list_images(self, request: v1.ListImagesRequest) -> v1.ListImagesResponse:
        return v1.ListImagesResponse(images=[self.image] if self.image is not None else [])

    async def remove_image(self, request: v1.RemoveImageRequest) -> v1.RemoveImageResponse:
        if self.image is None:
            raise GRPCError(Status.NOT_FOUND, "no such image")
        self.image = None
        return v1.RemoveImageResponse()

    async def image_fs_info(self, request: v1.ImageFsInfoRequest) -> v1.ImageFsInfoResponse:
        place = v1.FilesystemIdentifier(mountpoint="/images")
        return v1.ImageFsInfoResponse(image_filesystems=[v1.FilesystemUsage(fs_id=place)])

    async def pull_image(self, request: v1.PullImageRequest) -> v1.PullImageResponse:
        if self.hang:
            await trio.sleep(80_000)
        if self.error is not None:
            raise self.error
        return v1.PullImageResponse(image_ref=self.ref)


class Node:
    """A runtime that can be down, and the `RemoteRuntime` that talks to it."""

    def __init__(self, nursery: trio.Nursery, *, apart: bool) -> None:
        self.runtime = FakeRuntimeService()
        self.images = FakeImageService()
        self.up = True
        self.connections: list[trio.abc.Stream] = []
        self._nursery = nursery
        if apart:
            self.remote = RemoteRuntime(
                self._dialer(Server([self.runtime])), self._dialer(Server([self.images]))
            )
        else:
            self.remote = RemoteRuntime(self._dialer(Server([self.runtime, self.images])))

    def _dialer(self, server: Server) -> Callable[[], Awaitable[trio.abc.Stream]]:
        async def dial() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            if not self.up:
                raise ConnectionRefusedError("nobody is there")
            near, far = memory_stream_pair()
            self.connections.append(far)
            self._nursery.start_soon(server.serve_stream, far)
            return near

        return dial


@asynccontextmanager
async def running(*, apart: bool = False) -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        node = Node(nursery, apart=apart)
        await nursery.start(node.remote.run)
        yield node
        nursery.cancel_scope.cancel()


CALLS: dict[str, Callable[[Runtime], Awaitable[object]]] = {
    "Version": lambda r: r.version(),
    "Status": lambda r: r.status(),
    "RunPodSandbox": lambda r: r.run_pod_sandbox(CONFIG),
    "StopPodSandbox": lambda r: r.stop_pod_sandbox(S),
    "RemovePodSandbox": lambda r: r.remove_pod_sandbox(S),
    "PodSandboxStatus": lambda r: r.pod_sandbox_status(S),
    "ListPodSandbox": lambda r: r.list_pod_sandboxes(),
    "CreateContainer": lambda r: r.create_container(S, v1.ContainerConfig(), CONFIG),
    "StartContainer": lambda r: r.start_container(C),
    "StopContainer": lambda r: r.stop_container(C, 30),
    "RemoveContainer": lambda r: r.remove_container(C),
    "ContainerStatus": lambda r: r.container_status(C),
    "ListContainers": lambda r: r.list_containers(),
    "ExecSync": lambda r: r.exec_sync(C, ["sleep", "9"], 5),
    "UpdateContainerResources": lambda r: r.update_container_resources(C, RESOURCES),
    "UpdatePodSandboxResources": lambda r: r.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES),
    "RuntimeConfig": lambda r: r.runtime_config(),
    "UpdateRuntimeConfig": lambda r: r.update_runtime_config("10.1.0.0/24"),
}
DEADLINES = dict.fromkeys(CALLS, 120.0) | {
    "RunPodSandbox": 240.0,
    "StopContainer": 150.0,
    "ExecSync": 125.0,
}
OPTIONAL = {"RuntimeConfig", "UpdatePodSandboxResources"}
GONE_IS_FINE = {"StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer"}


@pytest.mark.parametrize("apart", [False, True])
async def test_every_call_gets_through(apart: bool) -> None:
    async with running(apart=apart) as node:
        for call in CALLS.values():
            await call(node.remote)
        runtime: Runtime = node.remote
        assert (await runtime.version()).runtime_name == "fake"
        assert await runtime.run_pod_sandbox(CONFIG, "kata") == "s"
        assert node.runtime.requests[-1] == v1.RunPodSandboxRequest(
            config=CONFIG, runtime_handler="kata"
        )
        assert await runtime.create_container(S, v1.ContainerConfig(), CONFIG) == "c"
        assert await runtime.runtime_config() == RUNTIME_CONFIG
        assert (await runtime.pod_sandbox_status(S)).created_at == 7
        result = await runtime.exec_sync(C, ["true"], 0)
        assert (result.stdout, result.stderr, result.exit_code) == (b"out", b"err", 3)
        image = await runtime.image_status(IMAGE)
        assert image is not None
        assert image.size == 10
        assert await runtime.pull_image(IMAGE, None, CONFIG) == "sha256:1"
        assert len(node.connections) == 1 + apart


@pytest.mark.parametrize("name", CALLS)
async def test_deadlines_are_the_go_kubelets(name: str, autojump_clock: MockClock) -> None:
    async with running() as node:
        node.runtime.hang = True
        start = trio.current_time()
        with pytest.raises(RuntimeTimeoutError) as caught:
            await CALLS[name](node.remote)
        assert trio.current_time() - start == pytest.approx(DEADLINES[name])
        assert caught.value.call == name


async def test_exec_without_a_limit_and_pulls_have_no_deadline(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.runtime.hang = node.images.hang = True
        with trio.move_on_after(50_000) as scope:
            await node.remote.exec_sync(C, ["sleep"], 0)
        assert scope.cancelled_caught
        assert await node.remote.pull_image(IMAGE, None, CONFIG) == "sha256:1"


async def test_one_hanging_call_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with running() as node, trio.open_nursery() as nursery:
        node.runtime.hang = True
        nursery.start_soon(node.remote.run_pod_sandbox, CONFIG)
        await trio.sleep(1)
        node.runtime.hang = False
        start = trio.current_time()
        for call in CALLS.values():
            await call(node.remote)
        assert trio.current_time() == start
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (Status.UNAVAILABLE, RuntimeUnavailableError, "Unavailable"),
        (Status.DEADLINE_EXCEEDED, RuntimeTimeoutError, "DeadlineExceeded"),
        (Status.NOT_FOUND, RuntimeObjectNotFoundError, "NotFound"),
        (Status.UNIMPLEMENTED, UnsupportedCallError, "Unimplemented"),
        (Status.UNKNOWN, RuntimeCallError, "Unknown"),
        (Status.CANCELLED, RuntimeCallError, "Canceled"),
    ],
)
async def test_statuses_are_translated(
    name: str, status: Status, error: type[RuntimeCallError], code: str
) -> None:
    async with running() as node:
        node.runtime.error = GRPCError(status, "no such thing")
        if (status is Status.NOT_FOUND and name in GONE_IS_FINE) or (
            status is Status.UNIMPLEMENTED and name in OPTIONAL
        ):
            assert not await CALLS[name](node.remote)
            return
        with pytest.raises(RuntimeCallError) as caught:
            await CALLS[name](node.remote)
    assert type(caught.value) is error
    assert caught.value.call == name
    if name != "ExecSync" and (status, name) != (Status.UNIMPLEMENTED, "UpdateContainerResources"):
        assert caught.value.message == "no such thing"
        assert caught.value.go_text == f"rpc error: code = {code} desc = no such thing"


async def test_changes_of_resources_are_sent_as_they_are() -> None:
    async with running() as node:
        await node.remote.update_container_resources(C, RESOURCES)
        assert await node.remote.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES)
        assert node.runtime.requests == [
            v1.UpdateContainerResourcesRequest(container_id="c", linux=RESOURCES),
            v1.UpdatePodSandboxResourcesRequest(
                pod_sandbox_id="s", overhead=OVERHEAD, resources=RESOURCES
            ),
        ]


@pytest.mark.parametrize(
    "error",
    [
        GRPCError(Status.UNIMPLEMENTED, "unknown method"),
        GRPCError(Status.UNKNOWN, "not implemented yet"),  # containerd 2.2
    ],
)
async def test_a_call_that_a_runtime_lacks_is_made_once_for_each_version(
    error: GRPCError,
) -> None:
    async with running() as node:
        await node.remote.version()
        node.runtime.error = error
        with capture_logs() as logs:
            for _ in range(3):
                assert not await node.remote.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES)
        assert len(node.runtime.requests) == 2
        assert [line["event"] for line in logs] == ["runtime.call_unsupported"]
        assert logs[0]["runtime"] == "fake 1"
        node.runtime.error = None
        await node.remote.version()
        assert not await node.remote.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES)
        node.runtime.runtime_version = "2"
        await node.remote.version()
        assert await node.remote.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES)


async def test_another_error_does_not_show_that_a_call_is_lacking() -> None:
    async with running() as node:
        node.runtime.error = GRPCError(Status.UNKNOWN, "NRI sandbox update failed")
        with pytest.raises(RuntimeCallError, match="NRI"):
            await node.remote.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES)
        node.runtime.error = None
        assert await node.remote.update_pod_sandbox_resources(S, OVERHEAD, RESOURCES)


async def test_a_runtime_that_cannot_resize_is_named() -> None:
    async with running() as node:
        await node.remote.version()
        node.runtime.error = GRPCError(Status.UNIMPLEMENTED, "unknown method")
        with pytest.raises(UnsupportedCallError, match=r"^UpdateContainerResources: fake 1 does"):
            await node.remote.update_container_resources(C, RESOURCES)


@pytest.mark.parametrize(
    ("status", "message", "reason", "text"),
    [
        (Status.NOT_FOUND, "gone", "ErrImagePull", "rpc error: code = NotFound desc = gone"),
        (Status.UNKNOWN, "odd", "ErrImagePull", "odd"),
        (Status.UNKNOWN, "RegistryUnavailable: x", "RegistryUnavailable", "RegistryUnavailable: x"),
        (Status.UNKNOWN, "SignatureValidationFailed", "SignatureValidationFailed", None),
        (Status.UNKNOWN, "a RegistryUnavailable", "ErrImagePull", None),
        (Status.UNAVAILABLE, "RegistryUnavailable", "ErrImagePull", None),
    ],
)
async def test_a_failed_pull_has_a_reason(
    status: Status, message: str, reason: str, text: str | None
) -> None:
    async with running() as node:
        node.images.error = GRPCError(status, message)
        with pytest.raises(ImagePullError) as caught:
            await node.remote.pull_image(IMAGE, None, CONFIG)
    assert caught.value.reason == reason
    assert caught.value.message == message
    if text is not None:
        assert caught.value.go_text == text


async def test_answers_that_are_half_filled_are_refused() -> None:
    async with running() as node:
        node.images.ref = ""
        with pytest.raises(ImagePullError, match='imageRef of image "busybox" is not set'):
            await node.remote.pull_image(IMAGE, None, CONFIG)
        node.images.image = v1.Image(id="x")
        with pytest.raises(RuntimeCallError, match="size"):
            await node.remote.image_status(IMAGE)
        node.images.image = None
        assert await node.remote.image_status(IMAGE) is None
        node.runtime.status_answer = v1.ContainerStatus(id="c", image=IMAGE)
        with pytest.raises(RuntimeCallError, match=r"metadata\.name, created_at, image_ref"):
            await node.remote.container_status(C)
        node.runtime.status_answer = None
        with pytest.raises(RuntimeCallError, match="no status"):
            await node.remote.container_status(C)


@pytest.mark.parametrize(
    ("info", "pid"),
    [
        ({"info": '{"sandboxID":"s","pid":4711,"config":{"pid":1},"x":[1,2]}'}, 4711),
        ({"info": '{"sandboxID":"s"}'}, 0),
        ({"info": "not json"}, 0),
        ({"info": '{"pid":"text"}'}, 0),
        ({"other": "{}"}, 0),
        ({}, 0),
    ],
)
async def test_the_pid_is_read_where_it_is_told(info: dict[str, str], pid: int) -> None:
    async with running() as node:
        node.runtime.info = info
        status, found = await node.remote.container_status(C, verbose=True)
    assert status == STATUS
    assert found == pid
    assert node.runtime.requests[-1] == v1.ContainerStatusRequest(container_id="c", verbose=True)


async def test_lists_hand_back_what_did_not_change() -> None:
    async with running() as node:
        node.runtime.containers = [
            v1.Container(id=f"c{n}", created_at=n + 1, labels={UID_LABEL: f"u{n % 2}", "x": "y"})
            for n in range(4)
        ]
        first = await node.remote.list_containers()
        assert [entry.id for entry in first] == ["c0", "c1", "c2", "c3"]
        changed = v1.Container(id="c1", state=v1.ContainerState.CONTAINER_EXITED)
        node.runtime.containers[1] = changed
        del node.runtime.containers[2]
        second = await node.remote.list_containers(first)
        assert second.entries["c0"] is first.entries["c0"]
        assert second.entries["c3"] is first.entries["c3"]
        assert second.entries["c1"] == changed
        assert list(second.entries) == ["c0", "c1", "c3"]
        of_one = await node.remote.list_containers(uid=PodUid("u0"))
        assert list(of_one.entries) == ["c0"]
        sandboxes = await node.remote.list_pod_sandboxes()
        again = await node.remote.list_pod_sandboxes(sandboxes, uid=PodUid("u"))
        assert again.entries["s"] is sandboxes.entries["s"]
        assert node.runtime.requests[-1] == v1.ListPodSandboxRequest(
            filter=v1.PodSandboxFilter(label_selector={UID_LABEL: "u"})
        )


async def test_events_come_one_by_one_and_leaving_ends_them() -> None:
    async with running() as node:
        async with node.remote.container_events() as events:
            assert [(await anext(events)).container_id for _ in range(3)] == ["c0", "c1", "c2"]
        assert (await node.remote.version()).runtime_name == "fake"


async def test_events_of_a_runtime_without_them_are_unsupported() -> None:
    async with running() as node:
        node.runtime.error = GRPCError(Status.UNIMPLEMENTED, "no")
        with pytest.raises(UnsupportedCallError):
            async with node.remote.container_events() as events:
                await anext(events)


async def test_events_end_with_the_connection() -> None:
    async def watch(node: Node) -> None:
        async with node.remote.container_events() as events:
            await anext(events)
            await node.connections[0].aclose()
            while True:
                await anext(events)

    async with running() as node:
        with pytest.raises(RuntimeUnavailableError):
            await watch(node)


async def test_ready_while_the_runtime_is_down_and_connected_when_it_comes(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        node = Node(nursery, apart=True)
        node.up = False
        with trio.fail_after(0.001):
            await nursery.start(node.remote.run)
        assert not node.remote.connected.value
        start = trio.current_time()
        for call in CALLS.values():
            with pytest.raises(RuntimeUnavailableError):
                await call(node.remote)
        with pytest.raises(ImagePullError):
            await node.remote.pull_image(IMAGE, None, CONFIG)
        assert trio.current_time() == start
        await trio.sleep(20)
        node.up = True
        assert (await node.remote.version()).runtime_name == "fake"  # no waiting
        assert node.remote.connected.value
        node.up = False
        for connection in node.connections:
            await connection.aclose()
        await node.remote.connected.wait_value(False)
        await trio.sleep(20)
        node.up = True
        with trio.fail_after(4):
            await node.remote.connected.wait_value(True)
        nursery.cancel_scope.cancel()


async def test_images_are_listed_removed_and_placed(autojump_clock: MockClock) -> None:
    async with running() as node:
        images = await node.remote.list_images()
        assert [(image.id, image.size) for image in images] == [("sha256:1", 10)]
        for _ in range(2):  # one that is gone is no error
            await node.remote.remove_image(v1.ImageSpec(image="sha256:1"))
        assert await node.remote.list_images() == []
        (place,) = (await node.remote.image_fs_info()).image_filesystems
        assert place.fs_id == v1.FilesystemIdentifier(mountpoint="/images")


@pytest.mark.parametrize(
    ("config", "image"),
    [
        ('{"sandboxImage": "registry.k8s.io/pause:3.8", "other": 1}', "registry.k8s.io/pause:3.8"),
        ("{}", ""),
        ("not JSON", ""),
        ("", ""),
    ],
)
async def test_the_sandbox_image_is_told_by_a_verbose_status(
    config: str, image: str, autojump_clock: MockClock
) -> None:
    async with running() as node:
        node.runtime.config = config
        assert await node.remote.sandbox_image() == image

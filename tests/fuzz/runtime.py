"""Targets: what a container runtime answers, through the client that asks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import betterproto2
import trio
from trio.testing import memory_stream_pair

from kubelet_trio.containers import pod_identity
from kubelet_trio.containers.labels import container_info
from kubelet_trio.containers.records import container_record, sandbox_record
from kubelet_trio.cri import ImagePullError, RemoteRuntime, RuntimeCallError, v1
from kubelet_trio.cri.generated.runtime.v1.server import ImageServiceBase, RuntimeServiceBase
from kubelet_trio.cri.remote.runtime import EncodedListing
from kubelet_trio.grpc import Handler, RawMessage, Server, unary_stream
from kubelet_trio.grpc import ServerStream as Call
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.stats.cri_usage import runtime_usage, writable_layer
from tests.fuzz.mutate import messages
from tests.fuzz.target import Target, in_trio

_Ask = Callable[[RemoteRuntime], Awaitable[object]]


class _Runtime:
    """Answers every call with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = RawMessage(answer)

    def __mapping__(self) -> Mapping[str, Handler]:
        paths = {**RuntimeServiceBase().__mapping__(), **ImageServiceBase().__mapping__()}
        handler = unary_stream(self._serve, RawMessage, RawMessage)
        return dict.fromkeys(paths, handler)

    async def _serve(self, _: RawMessage, call: Call[RawMessage, RawMessage]) -> None:
        await call.send_message(self._answer)


def _asked(ask: _Ask, data: bytes) -> object:
    async def main() -> object:
        async with trio.open_nursery() as nursery:

            async def dial() -> trio.abc.Stream:
                await trio.lowlevel.checkpoint()
                ours, theirs = memory_stream_pair()
                nursery.start_soon(Server([_Runtime(data)]).serve_stream, theirs)
                return ours

            runtime = RemoteRuntime(dial)
            await nursery.start(runtime.run)
            failure = None
            try:
                answer = await ask(runtime)
            except RuntimeCallError as exc:  # not through the nursery: it would be a group
                failure = exc
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    return in_trio(main)


_META = v1.ContainerMetadata(name="main", attempt=1)
_POD_META = v1.PodSandboxMetadata(name="web", namespace="default", uid="u", attempt=1)
_LABELS = {
    "io.kubernetes.pod.uid": "u",
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.container.name": "main",
}
_NOTES = {
    "io.kubernetes.container.restartCount": "1",
    "io.kubernetes.container.preStopHandler": '{"exec":{"command":["a"]}}',
    "io.kubernetes.container.ports": '[{"containerPort":80}]',
    "io.kubernetes.pod.terminationGracePeriod": "5",
}
_STATUS = v1.ContainerStatus(
    id="c",
    metadata=_META,
    state=v1.ContainerState.CONTAINER_EXITED,
    created_at=1,
    started_at=2,
    finished_at=3,
    exit_code=1,
    image=v1.ImageSpec(image="busybox"),
    image_ref="sha256:1",
    reason="Error",
    labels=_LABELS,
    annotations=_NOTES,
    mounts=[v1.Mount(container_path="/a", host_path="/b")],
    user=v1.ContainerUser(linux=v1.LinuxContainerUser(uid=1, gid=1, supplemental_groups=[2])),
    resources=v1.ContainerResources(
        linux=v1.LinuxContainerResources(
            cpu_period=100_000, cpu_quota=-1, cpu_shares=2, memory_limit_in_bytes=1 << 26
        )
    ),
)
_SANDBOX = v1.PodSandboxStatus(
    id="s",
    metadata=_POD_META,
    created_at=1,
    network=v1.PodSandboxNetworkStatus(ip="10.0.0.1", additional_ips=[v1.PodIp(ip="fd00::1")]),
    linux=v1.LinuxPodSandboxStatus(
        namespaces=v1.Namespace(options=v1.NamespaceOption(network=v1.NamespaceMode.POD))
    ),
    labels=_LABELS,
)
_SIZE = v1.UInt64Value(value=5)
_STATS = v1.ContainerStats(
    attributes=v1.ContainerAttributes(id="c", metadata=_META, labels=_LABELS),
    cpu=v1.CpuUsage(timestamp=1, usage_core_nano_seconds=_SIZE),
    memory=v1.MemoryUsage(timestamp=1, working_set_bytes=_SIZE, available_bytes=_SIZE),
    writable_layer=v1.FilesystemUsage(timestamp=1, used_bytes=_SIZE),
    swap=v1.SwapUsage(swap_usage_bytes=_SIZE),
)
_CONDITIONS = [
    v1.RuntimeCondition(type="RuntimeReady", status=True),
    v1.RuntimeCondition(type="NetworkReady", status=False, reason="r", message="m"),
]


async def _container_status(runtime: RemoteRuntime) -> object:
    status, pid = await runtime.container_status(ContainerId("c"), verbose=True)
    record = container_record(status, SandboxId("s"), pid=pid)
    return record, container_info(status.annotations), pod_identity(status.labels)


async def _sandbox_status(runtime: RemoteRuntime) -> object:
    return sandbox_record(await runtime.pod_sandbox_status(SandboxId("s")))


def _by_encoding(listing: object) -> object:
    assert isinstance(listing, EncodedListing)
    return listing.by_encoding


async def _containers(runtime: RemoteRuntime) -> object:
    first = await runtime.list_containers()
    again = await runtime.list_containers(first)
    assert again.entries == first.entries
    assert all(again.entries[key] is first.entries[key] for key in first.entries)
    return [pod_identity(entry.labels) for entry in again], _by_encoding(again)


async def _sandboxes(runtime: RemoteRuntime) -> object:
    first = await runtime.list_pod_sandboxes(uid=PodUid("u"))
    return [pod_identity(entry.labels) for entry in first], _by_encoding(first)


async def _stats(runtime: RemoteRuntime) -> object:
    found = await runtime.list_container_stats()
    return [(runtime_usage(stats, 1.0), writable_layer(stats, 1.0)) for stats in found]


async def _events(runtime: RemoteRuntime) -> object:
    async with runtime.container_events() as events:
        return [(e.container_id, e.container_event_type, e.created_at) async for e in events]


async def _pull(runtime: RemoteRuntime) -> object:
    return await runtime.pull_image(v1.ImageSpec(image="a"), None, v1.PodSandboxConfig())


def _answer(call: str, ask: _Ask, *examples: betterproto2.Message) -> Target:
    written = [bytes(example) for example in examples]
    return Target(
        f"CRI answer to {call}",
        partial(_asked, ask),
        written,
        messages(written),
        (ImagePullError,) if call == "PullImage" else (RuntimeCallError,),
        per_byte=64,
    )


def _call(name: str, *arguments: Any) -> _Ask:
    return lambda runtime: getattr(runtime, name)(*arguments)


TARGETS = [
    _answer(
        "ContainerStatus",
        _container_status,
        v1.ContainerStatusResponse(status=_STATUS, info={"info": '{"pid": 12}'}),
    ),
    _answer("PodSandboxStatus", _sandbox_status, v1.PodSandboxStatusResponse(status=_SANDBOX)),
    _answer(
        "ListContainers",
        _containers,
        v1.ListContainersResponse(
            containers=[
                v1.Container(id="c", metadata=_META, labels=_LABELS, annotations=_NOTES),
                v1.Container(id="d", pod_sandbox_id="s", created_at=5),
            ]
        ),
    ),
    _answer(
        "ListPodSandbox",
        _sandboxes,
        v1.ListPodSandboxResponse(
            items=[v1.PodSandbox(id="s", metadata=_POD_META, labels=_LABELS)]
        ),
    ),
    _answer("ListContainerStats", _stats, v1.ListContainerStatsResponse(stats=[_STATS, _STATS])),
    _answer(
        "GetContainerEvents",
        _events,
        v1.ContainerEventResponse(
            container_id="c",
            container_event_type=v1.ContainerEventType.CONTAINER_STOPPED_EVENT,
            created_at=1,
            pod_sandbox_status=_SANDBOX,
            containers_statuses=[_STATUS],
        ),
    ),
    _answer(
        "Status",
        _call("status"),
        v1.StatusResponse(
            status=v1.RuntimeStatus(conditions=_CONDITIONS),
            info={"config": '{"sandboxImage": "pause"}'},
            runtime_handlers=[v1.RuntimeHandler(name="runc")],
        ),
    ),
    _answer(
        "Status for its image",
        _call("sandbox_image"),
        v1.StatusResponse(info={"config": '{"sandboxImage": "pause"}'}),
    ),
    _answer(
        "Version",
        _call("version"),
        v1.VersionResponse(
            version="0.1.0", runtime_name="f", runtime_version="1", runtime_api_version="v1"
        ),
    ),
    _answer(
        "RuntimeConfig",
        _call("runtime_config"),
        v1.RuntimeConfigResponse(
            linux=v1.LinuxRuntimeConfiguration(cgroup_driver=v1.CgroupDriver.CGROUPFS)
        ),
    ),
    _answer(
        "ExecSync",
        _call("exec_sync", ContainerId("c"), ["true"], 1),
        v1.ExecSyncResponse(stdout=b"out", stderr=b"err", exit_code=3),
    ),
    _answer("PullImage", _pull, v1.PullImageResponse(image_ref="sha256:1")),
    _answer(
        "ImageStatus",
        _call("image_status", v1.ImageSpec(image="a")),
        v1.ImageStatusResponse(
            image=v1.Image(id="i", size=1, repo_tags=["a:1"], uid=v1.Int64Value(value=0))
        ),
    ),
    _answer(
        "ListImages",
        _call("list_images"),
        v1.ListImagesResponse(images=[v1.Image(id="i", size=1, repo_digests=["a@sha256:1"])]),
    ),
    _answer(
        "ImageFsInfo",
        _call("image_fs_info"),
        v1.ImageFsInfoResponse(
            image_filesystems=[
                v1.FilesystemUsage(
                    fs_id=v1.FilesystemIdentifier(mountpoint="/var"), used_bytes=_SIZE
                )
            ]
        ),
    ),
]

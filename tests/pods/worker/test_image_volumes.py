"""Digests of mounted images: told, asked for once, remembered."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from lightkube.models.core_v1 import (
    ContainerStatus,
    ImageVolumeStatus,
    PodStatus,
    VolumeMountStatus,
    VolumeStatus,
)
from trio.testing import MockClock

from kubelet_trio.model import ContainerId, ContainerRecord, ImageMount, RuntimePod
from kubelet_trio.pods.worker.image_volumes import ImageVolumes
from kubelet_trio.testing import FakeRuntime, FaultKind
from kubelet_trio.testing.images import image_id
from tests.pods.make import record, runtime

DIGEST = f"app@{image_id('app:1')}"


def mounting(*mounts: ImageMount, attempt: int = 0) -> ContainerRecord:
    return record("web", attempt=attempt, image_mounts=mounts)


def before(container_id: ContainerId, path: str, ref: str) -> PodStatus:
    volume = VolumeStatus(image=ImageVolumeStatus(imageRef=ref))
    mount = VolumeMountStatus(name="v", mountPath=path, volumeStatus=volume)
    web: dict[str, Any] = {"ready": True, "restartCount": 0, "image": "web", "imageID": ""}
    return PodStatus(
        containerStatuses=[
            ContainerStatus(
                name="web", containerID=f"fake://{container_id}", volumeMounts=[mount], **web
            )
        ]
    )


class Node:
    def __init__(self, *images: str) -> None:
        self.runtime = FakeRuntime()
        self.runtime.images.present.update(images)
        self.volumes = ImageVolumes(self.runtime)

    async def refs(self, observed: RuntimePod, last: PodStatus | None = None) -> Any:
        await self.volumes.find(observed, "fake", last)
        return self.volumes.refs

    @property
    def asked(self) -> int:
        return len(self.runtime.calls_of("ImageStatus"))


async def test_what_the_runtime_tells_is_not_asked_for(autojump_clock: MockClock) -> None:
    node, of = Node("app:1"), mounting(ImageMount("/v", "app:1", "other@sha256:1"))
    assert await node.refs(runtime(of, record("plain"))) == {of.id: {"/v": "other@sha256:1"}}
    assert node.asked == 0


async def test_what_it_does_not_tell_is_asked_for_once(autojump_clock: MockClock) -> None:
    node, of = Node("app:1"), mounting(ImageMount("/v", "app:1"))
    for _ in range(3):
        assert await node.refs(runtime(of)) == {of.id: {"/v": DIGEST}}
        node.runtime.images.present.clear()  # the container may outlive its image's name
    assert node.asked == 1
    # A new instance mounts whatever the name means by then.
    again = mounting(ImageMount("/v", "app:1"), attempt=1)
    node.runtime.images.present.add("app:1")
    assert await node.refs(runtime(again)) == {again.id: {"/v": DIGEST}}
    assert node.asked == 2


async def test_what_an_earlier_agent_has_shown_of_the_container_stays(
    autojump_clock: MockClock,
) -> None:
    node, of = Node("app:1"), mounting(ImageMount("/v", "app:1"))
    last = before(of.id, "v", "app@sha256:0")
    assert await node.refs(runtime(of), last) == {of.id: {"/v": "app@sha256:0"}}
    assert node.asked == 0
    other = before(ContainerId("another"), "v", "app@sha256:0")
    assert await Node("app:1").refs(runtime(of), other) == {of.id: {"/v": DIGEST}}


@pytest.mark.parametrize("fault", [None, FaultKind.ERROR, FaultKind.HANG])
async def test_an_unknown_image_is_logged_once_and_asked_for_again(
    fault: FaultKind | None, autojump_clock: MockClock
) -> None:
    node, of = Node(), mounting(ImageMount("/v", "app:1"))
    if fault is not None:
        node.runtime.images.present.add("app:1")
        node.runtime.faults.add(fault, "ImageStatus", times=2)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert await node.refs(runtime(of)) == {of.id: {}}
    (line,) = [entry for entry in logs if entry["event"] == "status.image_volume_unknown"]
    expected = {None: "image was not found", FaultKind.HANG: "no answer within 5s"}
    assert line["error"] == expected.get(fault, line["error"])
    node.runtime.images.present.add("app:1")
    assert await node.refs(runtime(of)) == {of.id: {"/v": DIGEST}}


async def test_a_digest_that_the_api_server_would_refuse_is_left_out(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    of = mounting(ImageMount("/a", "app", "a" * 256), ImageMount("/b", "app", "b" * 257))
    assert await node.refs(runtime(of)) == {of.id: {"/a": "a" * 256}}
